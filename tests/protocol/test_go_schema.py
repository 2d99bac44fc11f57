"""Go's records: the declaration against bytes written by hand, and against the codec derived from it."""

import construct
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import go_schema
from nsq_compat.protocol.layout import derive

BY_HAND = bytes.fromhex("0000001f17979cfe362a00000002") + b"0123456789abcdef" + b"hello"


def test_a_record_is_size_timestamp_attempts_id_and_body():
    record = go_schema.RECORD.parse(BY_HAND)
    assert (record.size, record.timestamp_ns, record.attempts) == (31, 1_700_000_000_000_000_000, 2)
    assert (record.id, record.body) == (b"0123456789abcdef", b"hello")


def test_building_computes_the_size():
    fields = {"timestamp_ns": 1_700_000_000_000_000_000, "attempts": 2, "id": b"0123456789abcdef", "body": b"hello"}
    assert go_schema.RECORD.build(fields) == BY_HAND


@given(st.integers(26, (1 << 31) - 1), st.integers(), st.integers(0, 0xFFFF), st.binary(min_size=16, max_size=16))
def test_the_derived_header_packs_what_the_declaration_builds(size, timestamp, attempts, message_id):
    timestamp %= 1 << 63
    layout = derive(go_schema.RECORD_HEADER)
    packed = layout.pack(size, timestamp, attempts, message_id)
    fields = construct.Container(size=size, timestamp_ns=timestamp, attempts=attempts, id=message_id)
    assert packed == go_schema.RECORD_HEADER.build(fields)
    assert layout.unpack_from(packed) == (size, timestamp, attempts, message_id)
