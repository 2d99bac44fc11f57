import contextlib
import gc
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import schema
from nsq_compat.protocol.compression import MAX_PIECE, Codec, CompressionError, Deflate, Snappy, chunk_header
from tests.cuts import cut

IDENTIFIER = b"\xff\6\0\0sNaPpY"
CODECS: dict[str, Callable[[], Codec]] = {"deflate": lambda: Deflate(6), "snappy": Snappy}
every_codec = pytest.mark.parametrize("codec", CODECS)


def plain(codec, *pieces):
    return b"".join(part for piece in pieces for part in codec.decode(piece))


def chunk(kind, content):
    return schema.SNAPPY_CHUNK_HEADER.build({"type": kind, "length": len(content)}) + content


def noise(size):
    return random.Random(1).randbytes(size)


# --- Both -------------------------------------------------------------------------------------------------------------


@every_codec
@given(bodies=st.lists(st.binary(max_size=200)), points=st.lists(st.integers(0, 2000)))
def test_decompression_does_not_depend_on_how_the_input_is_split(codec, bodies, points):
    sender = CODECS[codec]()
    wire = b"".join([sender.encode(data) for data in bodies])
    assert plain(CODECS[codec](), *cut(wire, points)) == b"".join(bodies)


@every_codec
@given(bodies=st.lists(st.binary(min_size=1, max_size=200)))
def test_compressed_data_is_flushed(codec, bodies):
    sender, receiver = CODECS[codec](), CODECS[codec]()
    for data in bodies:
        assert plain(receiver, sender.encode(data)) == data


@every_codec
def test_empty_data_compresses_to_empty_data(codec):
    sender = CODECS[codec]()
    sender.encode(b"something")
    assert sender.encode(b"") == b""


@every_codec
@given(data=st.binary() | st.binary().map(lambda data: IDENTIFIER + data))
def test_any_bytes_are_decompressed_or_refused(codec, data):
    with contextlib.suppress(CompressionError):
        assert isinstance(plain(CODECS[codec](), data), bytes)


@every_codec
@given(data=st.binary(min_size=1, max_size=100), position=st.integers(0), bit=st.integers(0, 7))
def test_a_flipped_bit_gives_the_same_error_however_the_input_is_split(codec, data, position, bit):
    wire = bytearray(CODECS[codec]().encode(data))
    wire[position % len(wire)] ^= 1 << bit

    def ends_in_error(pieces):
        try:
            plain(CODECS[codec](), *pieces)
        except CompressionError:
            return True
        return False

    assert ends_in_error([bytes(wire)]) == ends_in_error([bytes([byte]) for byte in wire])


@every_codec
def test_large_and_incompressible_data_is_decompressed(codec):
    data = noise(300_000)
    assert plain(CODECS[codec](), CODECS[codec]().encode(data)) == data


@every_codec
def test_no_piece_is_larger_than_64_kib(codec):
    wire = CODECS[codec]().encode(bytes(1_000_000))
    sizes = [len(piece) for piece in CODECS[codec]().decode(wire)]
    assert sum(sizes) == 1_000_000
    assert 0 < min(sizes) <= max(sizes) <= MAX_PIECE


@every_codec
def test_a_decompression_bomb_is_returned_in_pieces(codec):
    wire = CODECS[codec]().encode(bytes(1 << 26))
    receiver = CODECS[codec]()
    tracemalloc.start()
    total = sum(len(piece) for piece in receiver.decode(wire))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 1 << 26
    assert peak < len(wire) * 2 + 8 * MAX_PIECE


# --- Deflate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", range(1, 10))
def test_deflate_has_no_header_and_ends_with_a_sync_flush(level):
    wire = Deflate(level).encode(b"a body, a body, a body")
    assert wire.endswith(b"\0\0\xff\xff")
    assert zlib.decompress(wire + b"\3\0", -zlib.MAX_WBITS) == b"a body, a body, a body"


def test_deflate_is_one_stream():
    sender = Deflate(9)
    assert len(sender.encode(noise(1000))) > 1000 > 100 > len(sender.encode(noise(1000)))


@pytest.mark.parametrize("level", [-1, 0, 10])
def test_invalid_deflate_levels_are_refused(level):
    with pytest.raises(ValueError, match=str(level)):
        Deflate(level)


def test_the_end_of_a_deflate_stream_is_reported_once():
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    wire = compressor.compress(b"last words") + compressor.flush()
    receiver = Deflate(6)
    assert list(receiver.decode(wire + b"and more")) == [b"last words", b""]
    assert list(receiver.decode(b"and more")) == []


def test_a_zlib_header_is_not_deflate():
    with pytest.raises(CompressionError):
        plain(Deflate(6), zlib.compress(b"data"))


# --- Snappy -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 255), st.integers(0, (1 << 24) - 1), st.binary(max_size=5))
def test_a_chunk_header_is_read_as_declared(kind, length, before):
    wire = before + schema.SNAPPY_CHUNK_HEADER.build({"type": kind, "length": length})
    assert chunk_header(wire, len(before)) == (kind, length)


def test_a_snappy_stream_begins_with_its_identifier_once():
    sender = Snappy()
    assert sender.encode(b"one").startswith(IDENTIFIER)
    assert IDENTIFIER not in sender.encode(b"two")


@pytest.mark.parametrize("data", [bytes(200_000), noise(200_000)])
def test_a_snappy_chunk_holds_at_most_64_kib(data):
    rest = Snappy().encode(data).removeprefix(IDENTIFIER)
    sizes = []
    while rest:
        parsed = schema.SNAPPY_DATA_CHUNK.parse(rest)
        sizes.append(len(parsed.data if parsed.type else snappy.uncompress(parsed.data)))
        rest = rest[8 + len(parsed.data) :]
    assert sizes == [65536, 65536, 65536, 3392]


def test_a_snappy_checksum_is_masked():
    # CRC-32C of "123456789" is 0xE3069283, the check value of that sum.
    masked = ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert schema.SNAPPY_DATA_CHUNK.parse(Snappy().encode(b"123456789")[10:]).masked_crc == masked


def test_padding_unknown_skippable_chunks_and_another_identifier_are_skipped():
    data_chunk = Snappy().encode(b"data").removeprefix(IDENTIFIER)
    wire = IDENTIFIER + chunk(0xFE, bytes(5)) + IDENTIFIER + chunk(0x80, b"") + data_chunk + chunk(0xFD, b"x")
    assert plain(Snappy(), wire) == b"data"


@pytest.mark.parametrize(
    "wire",
    [
        Snappy().encode(b"data").removeprefix(IDENTIFIER),
        chunk(0xFE, b""),
        b"PUB t\n",
        chunk(0xFF, b"sNaPpy"),
        chunk(0xFF, b"sNaPpYx"),
        IDENTIFIER + chunk(0x02, b""),
        IDENTIFIER + chunk(0x7F, b"x"),
        IDENTIFIER + chunk(0x00, b"abc"),
        IDENTIFIER + chunk(0x01, b"abc"),
        IDENTIFIER + chunk(0x00, b"abcd"),
        IDENTIFIER + chunk(0x00, b"abcd\x80"),
        IDENTIFIER + chunk(0x00, b"abcd\xff\xff\xff\xff\x0f"),
        IDENTIFIER + chunk(0x00, b"abcd\x81\x80\x04"),
        IDENTIFIER + chunk(0x00, b"abcd\x05\x00"),
        IDENTIFIER + chunk(0x00, b"abcd\x00junk"),
        IDENTIFIER + chunk(0x01, b"abcd" + bytes(65537)),
        IDENTIFIER + chunk(0x01, b"abcd"),
        IDENTIFIER + chunk(0x01, b"abcdwrong checksum"),
        IDENTIFIER + b"\x80\xff\xff\xff",
        IDENTIFIER + b"\x01\xff\xff\xff",
    ],
)
def test_invalid_snappy_streams_are_refused(wire):
    with pytest.raises(CompressionError):
        plain(Snappy(), wire)


@pytest.mark.parametrize("wrong", [chunk(0x02, b""), chunk(0x01, b"abcdwrong checksum")])
def test_data_before_an_invalid_chunk_is_returned(wrong):
    sender = Snappy()
    pieces = Snappy().decode(sender.encode(b"one") + sender.encode(b"two") + wrong + sender.encode(b"three"))
    given: list[bytes] = []
    with pytest.raises(CompressionError):
        given.extend(pieces)
    assert b"".join(given) == b"onetwo"


def test_a_refused_stream_does_not_wait_for_the_garbage_collector():
    codec = Snappy()
    before = sys.getrefcount(codec)
    gc.disable()
    try:
        with contextlib.suppress(CompressionError):
            plain(codec, IDENTIFIER + chunk(0x01, b"abcdwrong checksum"))
        assert sys.getrefcount(codec) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("idle", [IDENTIFIER, chunk(0xFE, b""), chunk(0x80, b"x"), Snappy().encode(b"")])
@pytest.mark.parametrize("size", [1 << 16, 100])
def test_chunks_without_data_cannot_go_on_and_on(idle, size):
    codec = Snappy()
    idle = idle or chunk(0x01, bytes.fromhex("d8ea82a2"))  # a block of no bytes, which no encoder writes
    assert plain(codec, Snappy().encode(b"data") + idle * 200 + Snappy().encode(b"data")) == b"datadata"
    wire = idle * 10_000
    with pytest.raises(CompressionError, match="without data"):
        plain(codec, *(wire[begin : begin + size] for begin in range(0, len(wire), size)))


def test_many_short_chunks_are_decompressed_in_pieces():
    sender = Snappy()
    wire = b"".join(sender.encode(b"N") for _ in range(3000))
    pieces = list(Snappy().decode(wire))
    assert b"".join(pieces) == b"N" * 3000
    assert max(map(len, pieces)) <= 256


def test_what_follows_the_end_of_a_large_deflate_stream_is_ignored():
    """It was decompressed again and again, for ever, and kept each time: one client could stop nsqd."""
    ending = zlib.compressobj(6, zlib.DEFLATED, -15)
    stream = ending.compress(bytes(3 * MAX_PIECE)) + ending.flush()
    decoded = Deflate(6).decode(stream + b"more")
    pieces = [next(decoded) for _ in range(4)]
    assert b"".join(pieces) == bytes(3 * MAX_PIECE)
    assert pieces[-1] == b"", "the end of the stream"
    assert list(decoded) == []
