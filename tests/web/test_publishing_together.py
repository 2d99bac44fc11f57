"""HTTP publishers under one event loop: messages of one iteration share a log write, and are answered when it ends."""

from collections.abc import Callable

import pytest

from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.session.http_message import HttpLimits
from nsq_compat.session.http_session import MAX_IMMEDIATE_BODY, HttpSession
from nsq_compat.web.nsqd_api import NsqdApi


class EventLoop:
    """Calls back at the end of an iteration."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []
        self.now = 100.0

    def at_end(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def ends_iteration(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class Client:
    """An HTTP client of a session."""

    def __init__(self, api: NsqdApi, loop: EventLoop) -> None:
        self._loop = loop
        self.wakes = 0
        self.session = HttpSession(
            api,
            HttpLimits(),
            remote_address="host:5000",
            wake=self._wake,
            now=loop.now,
            now_ns=0,
            immediate=api.publishing,
        )

    def _wake(self) -> None:
        self.wakes += 1

    def says(self, *requests: bytes) -> "Client":
        self.session.receive_data(b"".join(requests), self._loop.now, 0)
        return self

    def is_served(self) -> "Client":
        """Serve in the greenlet, where handlers may wait."""
        while self.session.has_unread:
            self.session.read_on(self._loop.now, 0)
        return self

    def hears(self, *statuses: int) -> "Client":
        replies = self.session.data_to_send(self._loop.now).split(b"HTTP/1.1 ")[1:]
        assert [int(reply[:3]) for reply in replies] == list(statuses)
        return self


def post(path: str, body: bytes = b"hello") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


PUB = post("/pub?topic=t")


@pytest.fixture
def loop() -> EventLoop:
    return EventLoop()


@pytest.fixture
def connect(daemon, loop) -> Callable[[], Client]:
    api = NsqdApi(daemon, PublishBatch(loop.at_end))
    return lambda: Client(api, loop)


@pytest.fixture
def messages(daemon) -> Callable[[], int]:
    """The number of messages published to the topic."""
    return lambda: daemon.broker.topics["t"].message_count if "t" in daemon.broker.topics else 0


@pytest.fixture
def two(connect) -> tuple[Client, Client]:
    """Two clients, neither of which published last, so that the next message of the first is posted."""
    first, second = connect(), connect()
    return first, second


def test_publishers_of_one_iteration_are_answered_at_its_end(two, loop, messages):
    one, other = two
    one.says(PUB).hears()
    other.says(post("/mpub?topic=t", b"a\nb\n")).hears()
    assert messages() == 0
    loop.ends_iteration()
    assert messages() == 3
    assert (one.wakes, other.wakes) == (1, 1)
    one.hears(200)
    other.hears(200)


def test_a_lone_publisher_is_answered_at_once(two, loop, messages):
    one, _ = two
    one.says(PUB)
    loop.ends_iteration()
    one.hears(200).says(PUB).hears(200)
    assert messages() == 2


def test_a_request_after_a_posted_message_is_executed_after_it(two, messages):
    one, _ = two
    one.says(PUB).says(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert messages() == 1
    one.is_served().hears(200, 200)


def test_pipelined_requests_are_answered_in_order(two, loop, messages):
    one, _ = two
    one.says(PUB, post("/pub?topic=t", b""), PUB, post("/topic/create?topic="), PUB)
    assert messages() == 2
    one.is_served()
    loop.ends_iteration()
    one.hears(200, 400, 200, 400, 200)
    assert messages() == 3


def test_a_posted_message_can_be_refused(two, loop, daemon):
    one, other = two
    daemon.broker.topic("t")
    one.says(PUB)
    other.says(PUB)
    daemon.broker.refuse_publishing()
    loop.ends_iteration()
    one.hears(503)
    other.hears(503)


@pytest.mark.parametrize(("query", "status"), [("", 400), ("?topic=bad!", 400), ("?topic=t&defer=x", 400)])
def test_an_invalid_request_is_refused_at_once(two, query, status):
    one, _ = two
    one.says(post(f"/pub{query}")).hears(status)


def test_a_deferred_message_is_not_posted(two, messages):
    one, _ = two
    one.says(post("/pub?topic=t&defer=1000")).hears(200)
    assert messages() == 1


def test_a_large_body_is_handled_by_the_greenlet(two, daemon, connect):
    daemon.options.max_msg_size = daemon.options.max_body_size = 4 * MAX_IMMEDIATE_BODY
    client = Client(NsqdApi(daemon), EventLoop())
    client.says(post("/pub?topic=t", b"x" * (MAX_IMMEDIATE_BODY + 1)))
    assert client.session.has_unread
    client.is_served().hears(200)


def test_a_publisher_that_stops_sending_is_answered_before_the_connection_closes(two, messages):
    one, _ = two
    one.says(PUB)
    one.session.end_of_input()
    assert messages() == 1
    one.hears(200)
    assert one.session.closing


def test_a_disconnected_publisher_has_published(two, loop, messages):
    one, other = two
    one.says(PUB)
    one.session.closed()
    other.says(PUB)
    loop.ends_iteration()
    assert messages() == 2
    other.hears(200)


def test_a_stopping_server_answers_a_posted_request_last(two, loop):
    one, _ = two
    one.says(PUB)
    assert not one.session.finish()
    loop.ends_iteration()
    one.hears(200)
    assert one.session.closing


def test_a_stopping_server_does_not_read_from_idle_connections(two):
    one, _ = two
    assert one.session.finish()


def test_the_idle_timeout_starts_with_the_response(two, loop):
    one, _ = two
    one.says(PUB)
    loop.now += 5
    loop.ends_iteration()
    one.hears(200)
    assert one.session.next_wakeup == loop.now + HttpLimits().idle_seconds
    loop.now += HttpLimits().idle_seconds
    one.hears()
    assert one.session.closing
