"""The client session, without I/O: nsqd's bytes in, the client's bytes out."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import command_writer as write
from nsq_compat.protocol.compression import Codec, Deflate, Snappy
from nsq_compat.protocol.errors import E_FIN_FAILED, NsqError
from nsq_compat.protocol.frames import CLOSE_WAIT, HEARTBEAT, OK, error_frame, parse_message, response_frame
from nsq_compat.protocol.identify import IdentifyRequest
from nsq_compat.protocol.message import make_frames
from nsq_compat.session.client_session import (
    Answered,
    ClientSession,
    Event,
    Failed,
    Heartbeat,
    Opened,
    ProtocolError,
    Received,
    ReceivedFrames,
    Rejected,
)
from tests.cuts import cut

REQUEST = IdentifyRequest(client_id="c", feature_negotiation=True)
IDENTIFY = b"  V2" + write.identify(REQUEST)


def agreed(**features: object) -> bytes:
    text = ",".join(f'"{name}":{str(value).lower()}' for name, value in features.items())
    return response_frame(b"{%s}" % text.encode())


def message_frames(bodies: Sequence[bytes]) -> list[bytes]:
    return list(make_frames([b"%016x" % number for number in range(len(bodies))], 1_000, bodies))


def opened(session: ClientSession | None = None) -> ClientSession:
    session = session or ClientSession(REQUEST)
    session.data_to_send()
    session.receive_data(agreed(max_rdy_count=100))
    assert session.is_open
    return session


def test_a_session_sends_magic_and_identify_and_waits():
    session = ClientSession(REQUEST)
    session.ask(write.subscribe("t", "c"), "sub")
    assert session.data_to_send() == IDENTIFY
    assert session.data_to_send() == b""
    assert not session.is_open


def test_early_commands_are_sent_when_the_connection_is_open():
    session = ClientSession(REQUEST)
    session.ask(write.subscribe("t", "c"), "sub")
    session.data_to_send()
    (event,) = session.receive_data(agreed(max_rdy_count=100))
    assert isinstance(event, Opened)
    assert session.max_rdy_count == 100
    assert session.data_to_send() == b"SUB t c\n"
    assert session.receive_data(OK) == [Answered("sub", b"OK")]


def test_an_nsqd_that_names_no_ready_count_allows_2500():
    session = ClientSession(REQUEST)
    session.receive_data(OK)
    assert session.is_open
    assert session.max_rdy_count == 2500


def test_a_heartbeat_is_answered():
    session = opened()
    assert session.receive_data(HEARTBEAT) == [Heartbeat()]
    assert session.data_to_send() == b"NOP\n"


def test_heartbeats_that_come_together_are_one_and_have_one_answer():
    session = opened()
    assert session.receive_data(HEARTBEAT * 1000) == [Heartbeat()]
    for _ in range(1000):
        session.receive_data(HEARTBEAT)
    assert session.data_to_send() == write.NOP
    session.receive_data(HEARTBEAT)
    session.send(write.ready(1))
    session.receive_data(HEARTBEAT)
    assert session.data_to_send() == write.NOP + write.ready(1) + write.NOP


def test_a_heartbeat_is_not_taken_for_the_response_to_identify():
    session = ClientSession(REQUEST)
    session.data_to_send()
    assert session.receive_data(HEARTBEAT) == [Heartbeat()]
    assert session.data_to_send() == b"NOP\n"
    session.receive_data(agreed())
    assert session.is_open


def test_answers_belong_to_commands_in_order():
    session = opened()
    session.ask(write.publish("t", b"1"), 1)
    session.ask(write.publish("t", b"2"), 2)
    session.ask(write.CLS, 3)
    session.data_to_send()
    assert session.receive_data(OK + OK + CLOSE_WAIT) == [
        Answered(1, b"OK"),
        Answered(2, b"OK"),
        Answered(3, b"CLOSE_WAIT"),
    ]


def test_messages_that_come_together_are_one_event_and_stay_in_order():
    session = opened()
    frames = message_frames([b"one", b"two"])
    first, beat, second = session.receive_data(b"".join([*frames, HEARTBEAT, frames[0]]))
    assert isinstance(first, Received)
    assert isinstance(second, Received)
    assert [message.body for message in first.messages] == [b"one", b"two"]
    assert beat == Heartbeat()
    assert [message.body for message in second.messages] == [b"one"]


def test_an_answer_for_a_message_no_longer_in_flight_is_rejected_without_ending_the_connection():
    session = opened()
    session.ask(write.publish("t", b"1"), 1)
    session.data_to_send()
    rejected, answered = session.receive_data(error_frame(b"E_FIN_FAILED FIN 0 failed ID not in flight") + OK)
    assert isinstance(rejected, Rejected)
    assert rejected.error.code == E_FIN_FAILED
    assert answered == Answered(1, b"OK")
    assert session.failure is None


def test_an_error_belongs_to_the_oldest_command_and_later_ones_were_not_executed():
    session = opened()
    session.ask(write.publish("t", b"1"), 1)
    session.ask(write.publish("t", b"2"), 2)
    session.ask(write.publish("t", b"3"), 3)
    session.data_to_send()
    done, failed = session.receive_data(OK + error_frame(b"E_BAD_MESSAGE PUB message too big 2 > 1"))
    assert done == Answered(1, b"OK")
    assert isinstance(failed, Failed)
    assert failed.ticket == 2
    assert (failed.error.code, failed.error.description) == ("E_BAD_MESSAGE", "PUB message too big 2 > 1")
    assert session.failure is failed.error
    assert list(session.unanswered) == [3]


def test_an_answer_to_a_command_that_was_not_sent_is_an_error():
    """It answers nothing, and would confirm a publish that nsqd does not have."""
    early = ClientSession(REQUEST)
    early.ask(write.publish("t", b"1"), 1)
    early.data_to_send()
    late = opened()
    late.ask(write.publish("t", b"1"), 1)
    for session, said in ((early, agreed() + OK), (late, OK)):
        with pytest.raises(ProtocolError, match="unexpected response: b'OK'"):
            session.receive_data(said)
        assert list(session.unanswered) == [1]


def test_an_error_does_not_belong_to_a_command_that_was_not_sent():
    session = opened()
    session.ask(write.publish("t", b"1"), 1)
    session.data_to_send()
    session.ask(write.publish("t", b"2"), 2)
    answered, failed = session.receive_data(OK + error_frame(b"E_INVALID x"))
    assert answered == Answered(1, b"OK")
    assert isinstance(failed, Failed)
    assert failed.ticket is None
    assert list(session.unanswered) == [2]


def test_of_an_error_a_thousand_bytes_are_kept():
    (failed,) = opened().receive_data(error_frame(b"E_INVALID " + b"x" * 1_000_000))
    assert isinstance(failed, Failed)
    assert (failed.error.code, len(failed.error.data)) == ("E_INVALID", 1024)


def test_what_follows_an_error_is_ignored():
    """An answer would take the ticket of a command that was not executed, and its caller would wait for ever."""
    session = opened()
    session.ask(b"PUB a\n", 1)
    session.ask(b"PUB b\n", 2)
    session.data_to_send()
    (failed,) = session.receive_data(error_frame(b"E_BAD_TOPIC x") + OK)
    assert isinstance(failed, Failed)
    assert failed.ticket == 1
    assert list(session.unanswered) == [2]


@pytest.mark.parametrize(
    ("before", "after"),
    [(OK, OK), (OK, b"\xff" * 8), (OK + error_frame(b"E_BAD_TOPIC x"), b"\xff" * 8)],
)
def test_answers_before_invalid_data_are_unanswered(before, after):
    """Otherwise, the callers of these commands would wait for ever."""
    session = opened()
    session.ask(b"PUB a\n", 1)
    if before != OK:
        session.ask(b"PUB b\n", 2)
    session.data_to_send()
    with pytest.raises(ProtocolError):
        session.receive_data(before + after)
    assert list(session.unanswered) == ([1] if before == OK else [1, 2])
    assert session.failure is None


def test_a_refused_identify_fails_without_a_ticket():
    session = ClientSession(REQUEST)
    session.ask(write.subscribe("t", "c"), "sub")
    (failed,) = session.receive_data(error_frame(b"E_BAD_BODY IDENTIFY sample rate (100) is invalid"))
    assert isinstance(failed, Failed)
    assert failed.ticket is None
    assert list(session.unanswered) == ["sub"]


def test_the_secret_is_sent_if_nsqd_requires_authorization():
    session = ClientSession(REQUEST, auth_secret=b"secret")
    session.ask(write.subscribe("t", "c"), "sub")
    session.data_to_send()
    assert session.receive_data(agreed(auth_required=True)) == []
    assert session.data_to_send() == write.auth(b"secret")
    (event,) = session.receive_data(response_frame(b'{"identity":"me"}'))
    assert isinstance(event, Opened)
    assert event.auth == b'{"identity":"me"}'
    assert session.data_to_send() == b"SUB t c\n"


def test_the_secret_is_not_sent_to_an_nsqd_without_authorization():
    session = ClientSession(REQUEST, auth_secret=b"secret")
    session.data_to_send()
    session.receive_data(agreed(auth_required=False))
    assert session.is_open
    assert session.data_to_send() == b""


# --- Upgrades ---------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_in_plain_text_after_tls_was_negotiated():
    session = ClientSession(IdentifyRequest(tls_v1=True), auth_secret=b"secret")
    session.data_to_send()
    assert session.receive_data(agreed(tls_v1=True, auth_required=True)) == []
    assert session.tls_wanted
    assert session.data_to_send() == b""
    session.tls_established()
    assert session.data_to_send() == b""
    assert session.receive_data(OK) == []
    assert session.data_to_send() == write.auth(b"secret")


def test_an_nsqd_without_tls_is_an_error_if_tls_is_required():
    session = ClientSession(IdentifyRequest(tls_v1=True))
    with pytest.raises(ProtocolError, match="TLS"):
        session.receive_data(agreed(tls_v1=False))


def test_data_before_the_tls_handshake_is_an_error():
    session = ClientSession(IdentifyRequest(tls_v1=True))
    with pytest.raises(ProtocolError, match="before the TLS"):
        session.receive_data(agreed(tls_v1=True) + OK)


@pytest.mark.parametrize("features", [{"tls_v1": True}, {}])
@pytest.mark.parametrize("keeps_frames", [False, True])
def test_a_message_before_the_connection_is_open_is_an_error(features, keeps_frames):
    (message,) = message_frames([b"not from nsqd"])
    session = ClientSession(IdentifyRequest(**features, feature_negotiation=True), keeps_frames=keeps_frames)
    with pytest.raises(ProtocolError, match="before the connection was open"):
        session.receive_data(message + agreed(**features))
    session = ClientSession(IdentifyRequest(**features, feature_negotiation=True), keeps_frames=keeps_frames)
    with pytest.raises(ProtocolError, match="before the connection was open"):
        session.receive_data(message)


def test_an_upgrade_that_does_not_begin_with_ok_is_an_error():
    session = ClientSession(IdentifyRequest(tls_v1=True))
    session.receive_data(agreed(tls_v1=True))
    session.tls_established()
    with pytest.raises(ProtocolError, match="expected OK after an upgrade"):
        session.receive_data(CLOSE_WAIT)


COMPRESSED = [
    (IdentifyRequest(snappy=True), agreed(snappy=True), Snappy),
    (IdentifyRequest(deflate=True), agreed(deflate=True, deflate_level=3), lambda: Deflate(3)),
]


@pytest.mark.parametrize(("request_", "agreement", "make_codec"), COMPRESSED)
def test_data_directly_after_the_negotiation_is_decompressed(request_, agreement, make_codec):
    session, nsqd = ClientSession(request_), make_codec()
    session.data_to_send()
    (event,) = session.receive_data(agreement + nsqd.encode(OK))
    assert isinstance(event, Opened)
    session.send(write.ready(1))
    assert b"".join(nsqd.decode(session.data_to_send())) == b"RDY 1\n"
    (received,) = session.receive_data(nsqd.encode(message_frames([b"body"])[0]))
    assert isinstance(received, Received)
    assert received.messages[0].body == b"body"


def test_nothing_is_compressed_unless_nsqd_offers_it():
    session = ClientSession(IdentifyRequest(snappy=True))
    session.receive_data(agreed(snappy=False))
    assert session.is_open
    session.data_to_send()
    session.send(write.ready(1))
    assert session.data_to_send() == b"RDY 1\n"


# --- Any bytes --------------------------------------------------------------------------------------------------------


def flat(events: Sequence[Event]) -> list[object]:
    """Split runs of messages, because the input may be split between them."""
    found: list[object] = []
    for event in events:
        if isinstance(event, ReceivedFrames):
            found += [parse_message(event.data[begin + 8 : stop]) for begin, stop in pairwise(event.starts)]
        else:
            found += event.messages if isinstance(event, Received) else [repr(event)]
    return found


def conversation(codec: Codec | None) -> bytes:
    frames = message_frames([b"one", b"", b"three" * 50])
    said = [OK, frames[0], HEARTBEAT, frames[1], frames[2], error_frame(b"E_FIN_FAILED no"), CLOSE_WAIT]
    return b"".join(said) if codec is None else codec.encode(b"".join(said))


@given(st.data(), st.sampled_from([None, "snappy", "deflate"]), st.booleans())
def test_events_do_not_depend_on_how_the_input_is_split(data, compression, keeps_frames):
    request = IdentifyRequest(snappy=compression == "snappy", deflate=compression == "deflate")
    codec = Snappy() if request.snappy else Deflate(6) if request.deflate else None
    opening = agreed(snappy=request.snappy, deflate=request.deflate) + (b"" if codec is None else codec.encode(OK))
    stream = conversation(codec)

    def events(first: Sequence[int], then: Sequence[int], keeps_frames: bool) -> list[object]:
        session = ClientSession(request, keeps_frames=keeps_frames)
        session.ask(write.subscribe("t", "c"), "sub")
        session.ask(write.CLS, "cls")
        found = [event for piece in cut(opening, first) for event in session.receive_data(piece)]
        session.data_to_send()
        return flat(found + [event for piece in cut(stream, then) for event in session.receive_data(piece)])

    first, then = (data.draw(st.lists(st.integers(0, len(each)), max_size=8)) for each in (opening, stream))
    assert events(first, then, keeps_frames) == events([], [], keeps_frames=False)


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([OK, HEARTBEAT, CLOSE_WAIT, agreed(), agreed(snappy=True)])),
    st.booleans(),
)
def test_any_bytes_lead_to_events_or_to_a_protocol_error(said, keeps_frames):
    session = ClientSession(IdentifyRequest(snappy=True), keeps_frames=keeps_frames)
    try:
        for data in said:
            session.receive_data(data)
    except ProtocolError:
        return
    assert isinstance(session.failure, NsqError | None)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x01\0\0\0\0",
        b"\x7f\xff\xff\xff\0\0\0\0",
        b"\0\0\0\x04\0\0\0\x09",
        b"\0\0\0\x06\0\0\0\x02no",
        OK,
    ],
    ids=["too small", "too large", "unknown type", "no message", "an answer to nothing"],
)
def test_invalid_frames_are_a_protocol_error(data):
    session = opened()
    with pytest.raises(ProtocolError):
        session.receive_data(data)


@pytest.mark.parametrize("keeps_frames", [False, True])
def test_frames_are_small_until_the_connection_is_open(keeps_frames):
    # To parse 16 MiB of JSON takes two seconds and half a gigabyte.
    session = ClientSession(REQUEST, keeps_frames=keeps_frames)
    with pytest.raises(ProtocolError, match="invalid frame size"):
        session.receive_data(b"\0\1\0\1\0\0\0\0")
    session = ClientSession(REQUEST, keeps_frames=keeps_frames)
    (large,) = message_frames([b"x" * 1_000_000])
    assert len(flat(session.receive_data(agreed() + large))) == 2


def test_frames_are_small_until_nsqd_has_authorized_the_client():
    session = ClientSession(REQUEST, auth_secret=b"secret")
    session.receive_data(agreed(auth_required=True))
    with pytest.raises(ProtocolError, match="invalid frame size"):
        session.receive_data(response_frame(b" " * 70_000))
