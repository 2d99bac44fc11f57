"""What a session keeps of the bytes that it received: nothing when it is idle or closed.

What a command or a handler still does may keep the session for a while.
"""

import gc
import struct
import types
from collections.abc import Iterator

import pytest

from nsq_compat.protocol.compression import Deflate, Snappy
from nsq_compat.session.http_message import Admission, HttpLimits, Request, Response
from nsq_compat.session.http_session import HttpSession

LARGE = 20_000
MPUB = b"MPUB t\n" + struct.pack(">ii", 3 * LARGE, 3)


class AnyHandler:
    def admit(self, head: Request) -> Admission:
        return Admission(2 * LARGE, Response(413, b"too big", close=True))

    def respond(self, request: Request) -> Response:
        return Response(200, b"OK")


def kept(session: object) -> Iterator[object]:
    """All that can be reached from the session, without functions and classes."""
    seen, ahead = set(), [session]
    while ahead:
        each = ahead.pop()
        if id(each) not in seen and not isinstance(each, (type, types.ModuleType, types.FunctionType)):
            seen.add(id(each))
            ahead += gc.get_referents(each)
            yield each


def kept_bytes(session: object) -> int:
    """The size of the largest bytes."""
    return max(len(each) for each in kept(session) if isinstance(each, (bytes, bytearray)))


def kept_codecs(session: object) -> int:
    return sum(isinstance(each, (Deflate, Snappy)) for each in kept(session))


@pytest.fixture
def http() -> HttpSession:
    return HttpSession(AnyHandler(), HttpLimits(), remote_address="peer", wake=lambda: None, now=0.0, now_ns=0)


def request(size: int, sent: int) -> bytes:
    return b"POST /mpub HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * sent


def test_an_idle_http_session_does_not_keep_the_body_of_its_last_request(http):
    for number in range(3):
        http.receive_data(request(LARGE, LARGE - 1), number, 0)
        assert kept_bytes(http) >= LARGE - 1
        http.receive_data(b"x", number, 0)
        while http.has_unread:
            http.read_on(number, 0)
        http.data_to_send(number)
        assert kept_bytes(http) < 1000


@pytest.mark.parametrize(
    "data",
    [
        request(LARGE, LARGE),
        request(LARGE, LARGE // 2),
        request(LARGE, 5000) + b"x" * 5000,
        b"GET /ping HTTP/1.1\r\nHost: x\r\nA: " + b"x" * LARGE,
        b"GET /ping HTTP/1.1\r\nHost: x\r\nA: " + b"x" * LARGE + b"\r\n\r\n",
        b"GET /" + b"x" * LARGE + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_a_closed_http_session_keeps_nothing_that_it_received(http, data):
    http.receive_data(data[:-1000], 0, 0)
    http.receive_data(data[-1000:], 0, 0)
    http.closed()
    assert kept_bytes(http) < 1000


@pytest.mark.parametrize(
    "data",
    [
        b"PUB t\n" + struct.pack(">i", LARGE) + b"x" * (LARGE - 1),
        MPUB + (struct.pack(">i", LARGE // 2) + b"x" * (LARGE // 2)) * 2,
        MPUB + struct.pack(">i", LARGE) + b"x" * (LARGE - 1),
        b"IDENTIFY\n" + struct.pack(">i", LARGE) + b"x" * (LARGE - 1),
        b"NOP\n" * LARGE,
    ],
)
def test_a_closed_client_of_nsqd_leaves_nothing_that_it_sent(make_nsqd, data):
    session = make_nsqd(max_msg_size=2 * LARGE, max_body_size=4 * LARGE).connect().session
    session.receive_data(data, 0, 0)
    assert kept_bytes(session) >= LARGE // 2
    session.closed()
    assert kept_bytes(session) < 1000


@pytest.mark.parametrize("compression", ["deflate", "snappy"])
def test_a_closed_client_of_nsqd_leaves_no_codec(nsqd, compression):
    session = nsqd.connect().identifies(feature_negotiation=True, **{compression: True}).session
    assert session.upgrade is not None
    session.upgrade.done(None, nsqd.now)
    assert kept_codecs(session) == 1
    session.closed()
    assert kept_codecs(session) == 0
