"""How long an HTTP client may take for each part of a request."""

from nsq_compat.queue.in_flight import NEVER
from nsq_compat.session.http_message import Admission, HttpLimits, Request, Response
from nsq_compat.session.http_session import HttpSession


class Echo:
    """Answers with the body."""

    def admit(self, head: Request) -> Admission:
        return Admission(300, Response(413, b"too big", close=True))

    def respond(self, request: Request) -> Response:
        return Response(200, request.body)


PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD_OF_300 = b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\n"


class TimedSession:
    """A session and its client. The client sends bytes at times that the test chooses."""

    def __init__(self) -> None:
        limits = HttpLimits(head_seconds=1.0, body_seconds=2.0, slowest_rate=100.0, idle_seconds=50.0)
        self.session = HttpSession(Echo(), limits, remote_address="peer", wake=lambda: None, now=0.0, now_ns=0)

    def says(self, data: bytes, now: float) -> bytes:
        """Receive and answer; the time limits are checked as after every read."""
        self.session.receive_data(data, now, 0)
        while self.session.has_unread:
            self.session.read_on(now, 0)
        return self.session.data_to_send(now)

    def is_closed_at(self, now: float) -> bool:
        assert not self.session.closing
        self.session.data_to_send(now - 0.001)
        assert not self.session.closing, "not before"
        self.session.data_to_send(now)
        return bool(self.session.closing)


def test_a_body_that_moves_fast_enough_is_given_time():
    client = TimedSession()
    client.says(HEAD_OF_300, now=0.5)
    for second in (1.0, 2.0):
        assert client.says(b"x" * 100, now=second) == b""
    assert client.says(b"x" * 100, now=3.0).endswith(b"x" * 300)


def test_a_body_that_moves_slowly_is_closed():
    client = TimedSession()
    client.says(HEAD_OF_300, now=0.0)
    for second in (1.0, 2.0, 3.0):
        assert client.says(b"x" * 50, now=second) == b""
    assert client.is_closed_at(2.0 + 150 / 100)


def test_a_byte_now_and_then_does_not_extend_the_deadline_of_a_head():
    client = TimedSession()
    for second, byte in ((0.75, b"G"), (1.0, b"E"), (1.25, b"T"), (1.5, b" ")):
        assert client.says(byte, now=second) == b""
    assert client.is_closed_at(1.75)


def test_an_idle_connection_is_closed_after_the_idle_time_only():
    client = TimedSession()
    assert client.says(PING, now=0.5)
    assert client.says(PING, now=50.0)
    assert client.is_closed_at(100.0)


def test_the_applications_time_does_not_count_for_the_client():
    client = TimedSession()
    client.session.receive_data(PING, 0.5, 0)
    assert client.session.data_to_send(1000.0) == b""
    assert (client.session.closing, client.session.next_wakeup) == (False, NEVER)
    client.session.read_on(1000.0, 0)
    assert client.session.data_to_send(1000.0)
    assert client.is_closed_at(1050.0)
