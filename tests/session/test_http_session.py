"""How long an HTTP client may take for each part of a request, and streams."""

from collections.abc import Callable

import pytest

from nsq_compat.queue.schedule import NEVER
from nsq_compat.session.http_message import Admission, HttpLimits, Request, Response
from nsq_compat.session.http_session import HttpSession


class Pieces:
    """A stream of the pieces that a test adds."""

    def __init__(self) -> None:
        self.is_over = self.is_closed = self.is_stalled = False
        self.is_whole = True
        self.next_wakeup = 15.0
        self.pieces: list[bytes] = []
        self.wake: Callable[[], None] | None = None

    def start(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def data_to_send(self, now: float) -> bytes:
        assert not self.is_closed
        return self.pieces.pop(0) if self.pieces else b""

    def stalled(self) -> None:
        self.is_stalled = True

    def close(self) -> None:
        self.is_over = self.is_closed = True


class Echo:
    """Answers with the body, and at /stream with a stream. Counts the heads that are read."""

    def __init__(self) -> None:
        self.stream = Pieces()
        self.heads = 0

    def admit(self, head: Request) -> Admission:
        self.heads += 1
        return Admission(300, Response(413, b"too big", close=True))

    def respond(self, request: Request) -> Response:
        if request.path == "/stream":
            return Response(200, stream=self.stream)
        return Response(200, request.body)


PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD_OF_300 = b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n\r\n"


class TimedSession:
    """A session and its client. The client sends bytes at times that the test chooses."""

    def __init__(self) -> None:
        limits = HttpLimits(head_seconds=1.0, body_seconds=2.0, slowest_rate=100.0, idle_seconds=50.0)
        self.echo, self.wakes = Echo(), 0
        self.stream = self.echo.stream
        self.session = HttpSession(self.echo, limits, remote_address="peer", wake=self._wake, now=0.0, now_ns=0)

    def _wake(self) -> None:
        self.wakes += 1

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
    assert client.session.data_to_send(2000.0) == b""
    client.session.read_on(2000.0, 0)
    assert client.session.data_to_send(2000.0)
    assert client.is_closed_at(2050.0)


def test_requests_are_read_in_the_turn_of_the_connection():
    client = TimedSession()
    client.session.receive_data(HEAD_OF_300 + b"x" * 299, 0.5, 0)
    assert (client.echo.heads, client.session.has_unread) == (0, True)
    client.session.read_on(0.5, 0)
    assert (client.echo.heads, client.session.has_unread) == (1, False)
    assert client.says(b"x", now=1.0).endswith(b"x" * 300)


def test_the_time_until_bytes_are_read_does_not_count_for_the_client():
    client = TimedSession()
    client.session.receive_data(b"G", 0.75, 0)
    assert client.session.data_to_send(1000.0) == b""
    client.session.read_on(1000.0, 0)
    assert client.says(b"E", now=1000.1) == b""
    assert client.is_closed_at(1000.0 + 1.0), "it had used 0.75 s, and had 1 s again since the first byte"


# --- Streams ----------------------------------------------------------------------------------------------------------

STREAM = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"


def test_the_pieces_of_a_stream_are_chunks_until_it_is_over():
    client = TimedSession()
    client.stream.pieces = [b"one", b"0123456789abcdef"]
    head, _, body = client.says(STREAM, now=0.0).partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[1:3] == [b"Transfer-Encoding: chunked", b"Connection: close"]
    assert b"Content-Length" not in head
    assert body == b"3\r\none\r\n"
    assert client.session.data_to_send(0.0) == b"10\r\n0123456789abcdef\r\n"
    assert client.session.data_to_send(0.0) == b""
    client.stream.is_over = True
    assert not client.session.closing
    assert client.session.data_to_send(0.0) == b"0\r\n\r\n"
    assert (client.session.closing, client.stream.is_closed) == (True, True)


def test_a_stream_ends_with_the_connection_in_http_1_0():
    client = TimedSession()
    client.stream.pieces = [b"one", b"two"]
    head, _, body = client.says(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", now=0.0).partition(
        b"\r\n\r\n"
    )
    assert head.split(b"\r\n")[1][:5] == b"Date:"
    client.stream.is_over = True
    assert body + client.session.data_to_send(0.0) == b"onetwo"
    assert client.session.closing


def test_a_stream_has_no_deadline_but_times_of_its_own():
    client = TimedSession()
    client.says(STREAM, now=0.0)
    assert client.session.next_wakeup == 15.0
    client.stream.next_wakeup = 10_015.0
    assert client.session.data_to_send(10_000.0) == b""
    assert (client.session.next_wakeup, client.session.closing) == (10_015.0, False)
    assert client.stream.wake is not None
    client.stream.wake()
    assert client.wakes == 1


def test_a_stream_learns_that_its_client_does_not_read():
    client = TimedSession()
    client.says(STREAM, now=0.0)
    client.session.stalled()
    assert client.stream.is_stalled


def test_requests_after_that_for_a_stream_are_dropped():
    client = TimedSession()
    assert client.says(PING + STREAM + PING, now=0.0).count(b"HTTP/1.1 200 OK") == 2
    assert client.says(PING, now=0.0) == b""
    assert not client.session.closing


def test_a_client_that_sends_no_more_ends_its_stream():
    client = TimedSession()
    client.says(STREAM, now=0.0)
    client.session.end_of_input()
    assert (client.session.closing, client.stream.is_closed) == (True, True)


def test_a_stream_that_is_not_whole_goes_on_for_a_client_that_sends_no_more_and_while_the_server_stops():
    client = TimedSession()
    client.stream.is_whole = False
    client.says(STREAM, now=0.0)
    client.session.end_of_input()
    assert client.session.finish() is False
    client.stream.pieces = [b"rest"]
    assert client.session.data_to_send(0.0) == b"4\r\nrest\r\n"
    client.stream.is_over = client.stream.is_whole = True
    assert client.session.data_to_send(0.0) == b"0\r\n\r\n"
    assert (client.session.closing, client.stream.is_closed) == (True, True)


def test_a_stream_that_ends_before_it_is_whole_is_not_completed():
    client = TimedSession()
    client.stream.is_whole = False
    client.says(STREAM, now=0.0)
    client.stream.close()
    client.stream.is_closed = False
    assert client.session.data_to_send(0.0) == b""
    assert client.session.closing


def test_a_stream_that_is_not_whole_begins_during_a_stop():
    client = TimedSession()
    client.stream.is_whole = False
    client.session.receive_data(STREAM, 0.0, 0)
    client.session.finish()
    while client.session.has_unread:
        client.session.read_on(0.0, 0)
    assert client.stream.wake is not None
    assert not client.session.closing


def test_a_broken_connection_ends_its_stream():
    client = TimedSession()
    client.says(STREAM, now=0.0)
    client.session.closed()
    client.session.closed()
    assert client.stream.is_closed


def test_a_stop_of_the_server_completes_a_stream():
    client = TimedSession()
    client.says(STREAM, now=0.0)
    assert (client.session.finish(), client.wakes) == (False, 1)
    assert client.session.data_to_send(0.0) == b"0\r\n\r\n"
    assert (client.session.closing, client.stream.is_closed) == (True, True)


def test_a_stream_that_begins_during_a_stop_is_completed_at_once():
    client = TimedSession()
    client.session.receive_data(STREAM, 0.0, 0)
    client.session.finish()
    while client.session.has_unread:
        client.session.read_on(0.0, 0)
    assert client.session.data_to_send(0.0).endswith(b"\r\n\r\n0\r\n\r\n")
    assert (client.session.closing, client.stream.is_closed) == (True, True)


def test_head_does_not_begin_a_stream():
    client = TimedSession()
    reply = client.says(b"HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n", now=0.0)
    assert reply.endswith(b"GMT\r\n\r\n")
    assert (client.session.closing, client.stream.is_closed, client.stream.wake) == (True, True, None)


class NoPath:
    """Answers no request immediately."""

    paths = ()


@pytest.mark.parametrize("immediate", [NoPath(), None])
def test_thousands_of_requests_of_one_read_are_read_in_steps(immediate):
    handler = Echo()
    session = HttpSession(
        handler, HttpLimits(), remote_address="peer", wake=lambda: None, now=0.0, now_ns=0, immediate=immediate
    )
    requests = [b"POST /x HTTP/1.1\r\nHost:\r\nContent-Length: 4\r\n\r\n%04d" % number for number in range(1300)]
    session.receive_data(b"".join(requests), 0.0, 0)
    steps, replies = [handler.heads], []
    while session.has_unread:
        before = handler.heads
        session.read_on(0.0, 0)
        replies.append(session.data_to_send(0.0))
        steps.append(handler.heads - before)
    assert steps[0] <= 25, "other connections may read as much in the same iteration"
    assert max(steps) <= 200
    answers = b"".join(replies).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [each[-4:] for each in answers] == [b"%04d" % number for number in range(1300)]
    assert not session.closing


def test_a_body_of_many_lines_is_read_in_two_steps():
    handler, body = Echo(), b"\n" * 60_000
    handler.admit = lambda head: Admission(60_000, Response(413))  # type: ignore[method-assign]
    session = HttpSession(handler, HttpLimits(), remote_address="peer", wake=lambda: None, now=0.0, now_ns=0)
    session.receive_data(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + body, 0.0, 0)
    assert (session.has_unread, session.data_to_send(0.0)) == (True, b"")
    for _ in ("the head and the first lines", "the rest", "the answer"):
        session.read_on(0.0, 0)
    assert (session.has_unread, session.data_to_send(0.0)[-60_004:]) == (False, b"\r\n\r\n" + body)
