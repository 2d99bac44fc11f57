"""Codecs one upon the other, put on while the stream runs."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.net.codec_stack import CodecStack
from nsq_compat.protocol.compression import Deflate, Snappy


def test_without_a_codec_bytes_pass_as_they_are():
    stack = CodecStack()
    assert stack.encode(b"data") == b"data"
    assert list(stack.decode(b"data")) == [b"data"]


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_the_last_codec_put_on_is_the_first_to_encode_and_the_last_to_decode(pieces):
    ours, theirs = CodecStack(), CodecStack()
    for make in (Snappy, lambda: Deflate(6)):
        ours.put_on(make())
        theirs.put_on(make())
    assert len(ours) == 2
    for piece in pieces:
        assert b"".join(theirs.decode(ours.encode(piece))) == piece


def test_what_is_meant_for_an_upper_codec_may_enter_there():
    ours, theirs = CodecStack(), Deflate(6)
    ours.put_on(Snappy())
    ours.put_on(Deflate(6))
    assert b"".join(ours.decode(theirs.encode(b"data"), level=1)) == b"data"


def test_a_codec_put_on_between_two_pieces_gets_the_second():
    stack, lower, upper = CodecStack(), Snappy(), Deflate(6)
    stack.put_on(Snappy())
    wire = lower.encode(bytes(65536)) + lower.encode(upper.encode(b"data"))
    pieces = stack.decode(wire)
    assert next(pieces) == bytes(65536)
    stack.put_on(Deflate(6))
    assert list(pieces) == [b"data"]


def test_the_end_of_a_lower_stream_is_the_end_of_all():
    stack, lower = CodecStack(), zlib.compressobj(wbits=-zlib.MAX_WBITS)
    stack.put_on(Deflate(6))
    stack.put_on(Snappy())
    wire = lower.compress(Snappy().encode(b"last words")) + lower.flush()
    assert list(stack.decode(wire)) == [b"last words", b""]
