import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import lookup_commands as lookup
from nsq_compat.protocol import schema
from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.protocol.go_json import encode
from nsq_compat.protocol.lookup_commands import LookupdInfo, LookupReplyError, PeerInfo, ReplyReader
from tests.cuts import cut

INFO = PeerInfo(broadcast_address="b", hostname="h", http_port=4151, tcp_port=4150, version="1.3.0")


def replies(*pieces, max_size=1000):
    """Everything nsqd's end makes of the pieces: the data of replies, then whether that was an error."""
    reader = ReplyReader(max_size)
    result: list[bytes] = []
    try:
        for piece in pieces:
            result.extend(reader.receive_data(piece))
    except LookupReplyError:
        return result, True
    return result, False


# --- nsqd's end -------------------------------------------------------------------------------------------------------


def test_identify_has_its_keys_in_alphabetical_order():
    body = (
        b'{"broadcast_address":"b","hostname":"h","http_port":4151,"tcp_port":4150,'
        b'"topology_region":"","topology_zone":"","version":"1.3.0"}'
    )
    assert lookup.identify(INFO) == b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (lookup.register("t"), b"REGISTER t\n"),
        (lookup.register("t", "c#ephemeral"), b"REGISTER t c#ephemeral\n"),
        (lookup.unregister("t"), b"UNREGISTER t\n"),
        (lookup.unregister("t", "c"), b"UNREGISTER t c\n"),
        (lookup.PING, b"PING\n"),
        (lookup.MAGIC, b"  V1"),
    ],
)
def test_commands_are_lines(command, line):
    assert command == line


@given(st.lists(st.binary(max_size=40), max_size=6), st.binary(max_size=3), st.lists(st.integers(0, 300)))
def test_replies_do_not_depend_on_how_the_bytes_are_cut(bodies, rest, points):
    wire = b"".join(map(lookup.reply, bodies)) + rest
    assert wire == b"".join(map(schema.SIZED_BODY.build, bodies)) + rest
    assert replies(*cut(wire, points)) == (bodies, False)


@pytest.mark.parametrize("size", [-(1 << 31), -1, 1001, (1 << 31) - 1])
def test_a_reply_with_an_invalid_size_is_refused_after_earlier_ones(size):
    wire = lookup.reply(b"OK") + schema.SIZE.build({"size": size})
    assert replies(wire + bytes(2000)) == ([b"OK"], True)
    assert replies(wire) == ([b"OK"], True)


@given(st.binary(max_size=60))
def test_any_bytes_lead_to_the_same_replies_or_error_in_any_cut(data):
    assert replies(data) == replies(*[data[index : index + 1] for index in range(len(data))])


def test_the_hostname_in_the_reply_to_identify_is_ignored():
    data = b'{"broadcast_address":"x","hostname":5,"http_port":4161,"tcp_port":4160,"version":"1.3.0"}'
    assert lookup.decode_lookupd_info(data) == LookupdInfo("x", "", 4161, 4160, "1.3.0")


def test_an_empty_object_is_a_reply_to_identify():
    assert lookup.decode_lookupd_info(b"{}") == LookupdInfo()


@pytest.mark.parametrize(
    "data", [b"", b"OK", b"E_INVALID", b"E_BAD_BODY IDENTIFY missing fields", b'{"tcp_port":""}', b"\xff"]
)
def test_other_data_is_no_reply_to_identify(data):
    with pytest.raises(LookupReplyError):
        lookup.decode_lookupd_info(data)


# --- nsqlookupd's end -------------------------------------------------------------------------------------------------


def test_the_reply_to_identify_has_its_keys_in_alphabetical_order():
    assert encode(LookupdInfo("x", "h", 4161, 4160, "1.3.0")) == (
        b'{"broadcast_address":"x","hostname":"h","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'
    )


def test_each_end_decodes_what_the_other_encodes():
    body = schema.LOOKUPD_IDENTIFY.parse(lookup.identify(INFO)).body
    assert lookup.decode_peer_info(body) == INFO


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        (b"PING", [b"PING"]),
        (b"PING\r\r", [b"PING"]),
        (b" \t\x0bPING\xc2\xa0\xe2\x80\x89", [b"PING"]),
        (b"PING  x", [b"PING", b"", b"x"]),
        (b"REGISTER t c extra", [b"REGISTER", b"t", b"c", b"extra"]),
        (b"REGISTER \xff", [b"REGISTER", b"\xff"]),
    ],
)
def test_a_line_is_stripped_and_split_at_single_spaces(line, tokens):
    split = line.split(b" ")
    assert lookup.check(split).name == tokens[0].decode()
    assert split == tokens


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"broadcast_address": ""}, "missing fields"),
        ({"tcp_port": 0}, "missing fields"),
        ({"http_port": 0}, "missing fields"),
        ({"version": None}, "missing fields"),
        ({"tcp_port": "4150"}, "failed to decode JSON body"),
        ({"hostname": 5}, "failed to decode JSON body"),
        ({"remote_address": 5}, "failed to decode JSON body"),
    ],
)
def test_an_identify_with_missing_fields_is_fatal(body, error):
    said = {"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "v"}
    assert lookup.decode_peer_info(json.dumps(said).encode()).version == "v"
    with pytest.raises(FatalClientError) as caught:
        lookup.decode_peer_info(json.dumps({**said, **body}).encode())
    assert caught.value.data == f"E_BAD_BODY IDENTIFY {error}".encode()


@given(st.binary())
def test_any_identify_body_is_decoded_or_fatal(body):
    with pytest.raises(FatalClientError):
        lookup.decode_peer_info(body)


@pytest.mark.parametrize(
    ("line", "topic", "channel"),
    [
        (b"REGISTER t", "t", ""),
        (b"REGISTER t c", "t", "c"),
        (b"REGISTER t ", "t", ""),
        (b"REGISTER t  x", "t", ""),
        (b"UNREGISTER t#ephemeral c extra", "t#ephemeral", "c"),
    ],
)
def test_a_registration_has_a_topic_and_optionally_a_channel(line, topic, channel):
    assert lookup.registration(line.split(b" ")) == (topic, channel)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"REGISTER", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER ", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (b"REGISTER a\xff'", b"E_BAD_TOPIC REGISTER topic name 'a\xff'' is not valid"),
        (b"UNREGISTER t a!", b"E_BAD_CHANNEL UNREGISTER channel name 'a!' is not valid"),
    ],
)
def test_a_registration_with_a_wrong_name_is_fatal(line, error):
    with pytest.raises(FatalClientError) as caught:
        lookup.registration(line.split(b" "))
    assert caught.value.data == error
