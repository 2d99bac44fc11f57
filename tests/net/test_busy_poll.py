"""When the event loop polls instead of sleeping."""

from collections.abc import Callable

import gevent
import pytest

from nsq_compat.net.busy_poll import MAX_GAP, MAX_POLL, MIN_RUN, BusyPoll
from tests.net.conftest import Client, Server

PRODUCER, OTHER = 1, 2
FIXED = 0.005


class Loop:
    """The idle watcher and the clock of an event loop."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.poll: Callable[[], None] | None = None

    def now(self) -> float:
        return self.time

    def start(self, callback) -> None:
        self.poll = callback

    def stop(self) -> None:
        self.poll = None

    def close(self) -> None:
        pass

    def idles(self, seconds: float) -> None:
        """Nothing happens for so long; the loop comes round every microsecond unless it sleeps."""
        end = self.time + seconds
        while self.time < end and self.poll is not None:
            self.poll()
            self.time += min(1e-6, end - self.time)
        self.time = max(self.time, end)

    def serves(self, busy_poll: BusyPoll, requests: int, gap: float, *clients: int) -> int:
        """Requests of these clients in turn; return how many found the loop awake."""
        awake = 0
        for number in range(requests):
            self.idles(gap)
            awake += self.poll is not None
            busy_poll.served(clients[number % len(clients)])
        return awake


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def busy_poll(loop) -> BusyPoll:
    return BusyPoll(idle=loop, now=loop.now)


@pytest.fixture
def fixed(loop) -> BusyPoll:
    return BusyPoll(FIXED, idle=loop, now=loop.now)


def test_a_client_that_sends_the_next_request_soon_finds_the_loop_awake_after_a_run(busy_poll, loop):
    assert loop.serves(busy_poll, 1000, 0.5 * MAX_POLL, PRODUCER) == 1000 - MIN_RUN - 1


def test_requests_further_apart_find_the_loop_asleep(busy_poll, loop):
    assert loop.serves(busy_poll, 1000, 1.01 * MAX_GAP, PRODUCER) == 0


def test_requests_of_several_clients_in_turn_find_the_loop_asleep(busy_poll, loop):
    assert loop.serves(busy_poll, 1000, 0.1 * MAX_POLL, PRODUCER, OTHER) == 0


def test_the_loop_polls_in_vain_once_in_a_run_if_requests_come_too_late_for_it(busy_poll, loop):
    polled = 0
    for _ in range(10 * (MIN_RUN + 1)):
        polled += busy_poll.is_polling
        assert loop.serves(busy_poll, 1, 0.9 * MAX_GAP, PRODUCER) == 0
    assert polled == 10


def test_after_one_late_request_the_client_needs_another_run(busy_poll, loop):
    loop.serves(busy_poll, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER)
    assert busy_poll.is_polling
    loop.idles(10 * MAX_POLL)
    assert loop.serves(busy_poll, MIN_RUN + 1, 0.5 * MAX_POLL, PRODUCER) == 0
    assert loop.serves(busy_poll, 10, 0.5 * MAX_POLL, PRODUCER) == 10


def test_polling_in_vain_ends_after_the_longest_time_between_two_requests(busy_poll, loop):
    loop.serves(busy_poll, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER)
    loop.idles(0.99 * MAX_POLL)
    assert busy_poll.is_polling
    loop.idles(0.05 * MAX_POLL)
    assert not busy_poll.is_polling


def test_a_request_of_another_client_ends_the_run_and_the_loop_sleeps_when_nothing_follows(busy_poll, loop):
    loop.serves(busy_poll, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER)
    busy_poll.served(OTHER)
    loop.idles(2 * MAX_POLL)
    assert loop.serves(busy_poll, MIN_RUN, 0.5 * MAX_POLL, OTHER) == 0


@pytest.mark.parametrize("gap", [0.3, 0.9, 0.99])
def test_with_a_fixed_time_the_loop_polls_that_long_after_each_request(fixed, loop, gap):
    assert loop.serves(fixed, 100, gap * FIXED, PRODUCER, OTHER) == 99
    loop.idles(1.1 * FIXED)
    assert not fixed.is_polling


def test_a_stopped_one_does_not_poll(busy_poll, fixed, loop):
    loop.serves(busy_poll, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER)
    for stopped in (busy_poll, fixed):
        stopped.stop()
        assert loop.serves(stopped, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER) == 0


def test_a_real_event_loop_goes_to_sleep_again():
    busy_poll = BusyPoll()
    for _ in range(MIN_RUN + 1):
        busy_poll.served(PRODUCER)
    with gevent.Timeout(20):
        while busy_poll.is_polling:
            gevent.sleep(0.001)
    busy_poll.stop()


class Told(BusyPoll):
    """Counts what it is told of."""

    def __init__(self, loop: Loop, fixed_time: float = 0.0) -> None:
        super().__init__(fixed_time, idle=loop, now=loop.now)
        self.clients: list[int] = []

    def served(self, client: int) -> None:
        self.clients.append(client)


@pytest.mark.interpreted
def test_each_reply_to_a_lone_producer_is_a_request_and_a_part_of_a_command_is_none(loop, eventually):
    told = Told(loop)
    server = Server(session_waits=False, busy_poll=told)
    client = Client(server.address).says(b"  V2").publishes(b"first").publishes(b"x")
    told.clients.clear()
    (session,) = server.tcp.sessions
    client.says(b"PUB t\n\0\0\0\3")
    for available in (1, 2):
        client.says(b"x")
        eventually(lambda available=available: session._reader._available == available)
    assert told.clients == []
    client.says(b"x")
    assert client.frame().data == b"OK"
    client.publishes(b"next")
    eventually(lambda: len(told.clients) == 2)
    assert len(set(told.clients)) == 1
    client.socket.close()
    server.stop()


@pytest.mark.interpreted
@pytest.mark.parametrize("session_waits", [False, True])
def test_with_a_fixed_time_publishes_at_the_end_of_the_iteration_are_requests_too(loop, eventually, session_waits):
    told = Told(loop, FIXED)
    server = Server(session_waits=session_waits, busy_poll=told)
    clients = [Client(server.address).says(b"  V2").publishes(b"x") for _ in range(2)]
    for _ in range(3):
        clients.reverse()
        before = len(told.clients)
        clients[0].publishes(b"x")
        eventually(lambda before=before: len(told.clients) > before)
    for client in clients:
        client.socket.close()
    server.stop()
