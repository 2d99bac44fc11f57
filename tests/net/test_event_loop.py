"""Work at the end of an event-loop iteration, alarms, the loop's lag, and polling instead of sleeping."""

import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event
from gevent.queue import Queue

from nsq_compat.net import event_loop
from nsq_compat.net.event_loop import (
    MAX_FLUSHES,
    MAX_GAP,
    MAX_POLL,
    MAX_SECONDS,
    MIN_RUN,
    AlarmClock,
    BusyPoll,
    CallbackQueue,
    ClientLocks,
    LoopLag,
    LoopTick,
    yield_to_loop,
)
from nsq_compat.queue.schedule import NEVER, Schedule
from tests.net.conftest import Client, Server

SO_TIMESTAMPNS = 35
"""Linux: what is received says when it came."""


class Sender:
    def __init__(self, sent, name, then=lambda: None, client=""):
        self._sent, self._name, self._then = sent, name, then
        self.client = client

    def flush_when_due(self):
        self._sent.append(self._name)
        self._then()


class Loop:
    """Asked to call back, it does when told to; `pendingcnt` as the test says. It is its only timer."""

    def __init__(self):
        self.pendingcnt = 0
        self.iteration = 0
        self.late: Callable[[], None] | None = None
        self.asked: list[Callable[[], None]] = []

    def run_callback(self, func):
        self.asked.append(func)

    def timer(self, after):
        return self

    def start(self, callback, update):
        self.late = callback

    def stop(self):
        self.late = None

    def iterates(self):
        """As an iteration in which the timer is due."""
        self.iteration += 1
        callback, self.late = self.late, None
        assert callback is not None, "the timer was started"
        callback()

    def calls_back(self):
        [callback] = self.asked
        self.asked.clear()
        callback()


def adds(tick, connection):
    """As a connection does."""
    tick.due.append(connection)
    if not tick.is_reading:
        tick.schedule()


def ends_reading(tick):
    """As a connection does."""
    tick.is_reading = False
    if tick.due or tick.calls:
        tick.run()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def tick(loop):
    return LoopTick(loop)


def test_connections_are_flushed_in_order_with_one_callback_of_the_loop(loop, tick):
    sent: list[str] = []
    for name in "abc":
        adds(tick, Sender(sent, name))
    assert sent == []
    loop.calls_back()
    assert sent == ["a", "b", "c"]
    assert not tick.due


def test_many_connections_are_flushed_in_order_over_several_callbacks(loop, tick):
    sent: list[int] = []
    many = 3 * MAX_FLUSHES - 1
    for number in range(many):
        adds(tick, Sender(sent, number, then=lambda: adds(tick, Sender(sent, many)) if len(sent) == 1 else None))
    for expected in (MAX_FLUSHES, 2 * MAX_FLUSHES, many + 1):
        loop.calls_back()
        assert sent == list(range(expected))
    assert not loop.asked


def test_flushes_that_take_long_are_put_off_and_clients_take_turns(loop, tick):
    sent: list[object] = []
    for number in range(3):
        adds(tick, Sender(sent, number, lambda: time.sleep(0.005), "greedy"))
    loop.calls_back()
    adds(tick, Sender(sent, "other", client="other"))
    loop.calls_back()
    assert sent == [0]
    loop.iterates()
    assert sent == [0, 1]
    loop.iterates()
    assert sent == [0, 1, "other", 2]
    assert loop.late is None


class Reader:
    """As a connection of which reads take 12 ms."""

    def __init__(self, tick, read, name, client):
        self._tick, self._read, self._name, self._client = tick, read, name, client

    def is_readable(self):
        if self._tick.reads.has_time(time.monotonic()):
            self.reads()
        else:
            self._tick.reads.add(self._client, self.reads)

    def reads(self):
        self._read.append(self._name)
        time.sleep(0.012)


def test_reads_that_take_long_are_put_off_and_clients_take_turns(loop, tick):
    read: list[object] = []
    for name, client in ((0, "greedy"), (1, "greedy"), (2, "greedy"), ("other", "other")):
        Reader(tick, read, name, client).is_readable()
    assert read == [0]
    for expected in (1, "other", 2):
        assert not tick.reads.has_time(time.monotonic()), "what was put off comes first"
        loop.iterates()
        assert read[-1] == expected
    assert loop.late is None
    loop.iteration += 1
    assert tick.reads.has_time(time.monotonic())


def test_a_connection_added_during_a_flush_is_flushed_at_the_next_one(loop, tick):
    sent: list[str] = []
    adds(tick, Sender(sent, "a", then=lambda: adds(tick, Sender(sent, "again"))))
    adds(tick, Sender(sent, "b"))
    loop.calls_back()
    assert sent == ["a", "b"]
    loop.calls_back()
    assert sent == ["a", "b", "again"]


def test_the_last_connection_that_reads_flushes_all_without_a_callback_of_the_loop(loop, tick):
    sent: list[str] = []
    for name, loop.pendingcnt in (("a", 1), ("b", 0)):
        tick.is_reading = True
        adds(tick, Sender(sent, name))
        assert sent == []
        ends_reading(tick)
    assert sent == ["a", "b"]
    loop.calls_back()  # it was asked when the first connection had read
    assert sent == ["a", "b"]
    tick.is_reading = True
    adds(tick, Sender(sent, "c"))
    ends_reading(tick)
    assert sent == ["a", "b", "c"]
    assert not loop.asked


def test_if_other_sockets_wait_the_loop_is_asked_for_a_callback(loop, tick):
    sent: list[str] = []
    loop.pendingcnt = 1
    tick.is_reading = True
    adds(tick, Sender(sent, "a"))
    ends_reading(tick)
    assert sent == []
    loop.calls_back()
    assert sent == ["a"]


def test_calls_run_before_the_flush_and_their_connections_are_flushed_with_the_others(loop, tick):
    done: list[str] = []

    def call():
        done.append("called")
        adds(tick, Sender(done, "b"))

    adds(tick, Sender(done, "a"))
    tick.call(call)
    loop.calls_back()
    assert done == ["called", "a", "b"]
    tick.is_reading = True
    tick.call(call)
    ends_reading(tick)
    assert done[3:] == ["called", "b"]
    assert not loop.asked


def test_a_call_that_fails_does_not_prevent_the_flush(loop, tick):
    def fail():
        raise ValueError("it fails")

    sent: list[str] = []
    adds(tick, Sender(sent, "a"))
    tick.call(fail)
    with pytest.raises(ValueError, match="it fails"):
        loop.calls_back()
    assert sent == ["a"]
    adds(tick, Sender(sent, "b"))
    loop.calls_back()
    assert sent == ["a", "b"]


@pytest.fixture
def timed(connect):
    """A client that can tell when the server sent it something, in nanoseconds."""

    def make():
        client = connect()
        client.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        stamps: list[object] = []
        while not stamps:  # the system begins some time after it was asked
            client.says(b"PUB another\n\0\0\0\1x")
            _, stamps, *_ = client.socket.recvmsg(65536, 1024)
        return client

    return make


def came(client) -> int:
    _, [(_, _, stamp)], *_ = client.socket.recvmsg(65536, 1024)
    seconds, nanoseconds = struct.unpack("qq", stamp)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def test_a_message_leaves_before_the_ok_of_its_producer(timed):
    consumers = [timed().subscribes(b"t", channel, ready=100) for channel in (b"c", b"d")]
    alone, *together = [timed() for _ in range(4)]
    for producers in 5 * [[alone], together]:
        for each in producers:
            each.says(b"PUB t\n\0\0\0\1x")
        oks = [came(each) for each in producers]
        assert max(map(came, consumers)) < min(oks)


class Sleeper:
    def __init__(self, again: float = NEVER) -> None:
        self.alarm = NEVER
        self.rung = Event()
        self.again = again

    def on_alarm(self, now: float) -> float:
        assert now >= self.wanted
        self.rung.set()
        return self.again

    def wants(self, schedule: Schedule, seconds: float) -> "Sleeper":
        self.wanted = time.monotonic() + seconds
        schedule.at(self.wanted, self)
        return self


@pytest.fixture
def schedule() -> Iterator[Schedule]:
    """One that an alarm clock runs."""
    schedule = Schedule()
    clock = AlarmClock(schedule)
    clock.start()
    yield schedule
    clock.stop()


def test_an_alarm_rings_not_before_its_time(schedule):
    assert Sleeper().wants(schedule, 0.02).rung.wait(20)


def test_an_earlier_alarm_overtakes_a_later_one(schedule):
    late, early = Sleeper().wants(schedule, 600), Sleeper().wants(schedule, 0.01)
    assert early.rung.wait(20)
    assert not late.rung.is_set()


def test_an_alarm_that_always_has_more_to_do_leaves_the_event_loop_to_others(schedule):
    class Greedy(Sleeper):
        rings = 0

        def on_alarm(self, now: float) -> float:
            self.rings += 1
            return now

    greedy = Greedy()
    schedule.at(0.0, greedy)
    gevent.sleep(0.02)
    before = greedy.rings
    gevent.sleep(0.02)
    assert 0 < before < greedy.rings


def test_an_alarm_scheduled_before_the_start_rings_and_after_the_stop_none():
    schedule = Schedule()
    sleeper = Sleeper().wants(schedule, 0.01)
    clock = AlarmClock(schedule)
    clock.start()
    assert sleeper.rung.wait(20)
    sleeper = Sleeper().wants(schedule, 0.01)
    clock.stop()
    gevent.sleep(0.05)
    assert not sleeper.rung.is_set()


def test_a_failing_alarm_is_logged_and_the_others_ring(schedule, caplog):
    class Broken(Sleeper):
        def on_alarm(self, now: float) -> float:
            raise RuntimeError("a bug")

    Broken().wants(schedule, 0.01)
    assert Sleeper().wants(schedule, 0.02).rung.wait(20)
    assert "a bug" in caplog.text


def test_a_loop_that_was_busy_is_late_by_as_much():
    lags: Queue[float] = Queue()
    watch = LoopLag(lags.put, interval=0.01)
    watch.start()
    assert lags.get(timeout=20) >= 0
    time.sleep(0.2)  # all greenlets wait for this
    assert max(lags.get(timeout=20), lags.get(timeout=20)) >= 0.1
    watch.stop()
    gevent.sleep(0)
    while not lags.empty():
        lags.get()
    gevent.sleep(0.05)
    assert lags.empty()


def test_cpu_time_that_kept_the_loop_is_told_apart_from_time_spent_waiting():
    helds: Queue[float] = Queue()
    watch = LoopLag(lambda late: None, helds.put, interval=0.01)
    watch.start()
    assert 0 <= helds.get(timeout=20) < 0.1
    time.sleep(0.2)  # late, but no CPU is used
    assert max(helds.get(timeout=20), helds.get(timeout=20)) < 0.1
    began = time.thread_time()
    while time.thread_time() - began < 0.2:
        pass
    assert max(helds.get(timeout=20), helds.get(timeout=20)) >= 0.15
    watch.stop()


def test_sockets_are_served_between_two_steps_of_long_work():
    here, there = socket.socketpair()
    events: list[str] = []
    watcher = gevent.get_hub().loop.io(there.fileno(), 1)

    def serve() -> None:
        there.recv(1)
        events.append("request")
        here.send(b"?")

    with here, there:
        watcher.start(serve)
        here.send(b"?")
        for _ in range(10):
            events.append("step")
            time.sleep(MAX_SECONDS * 1.1)  # a second step in an iteration that others have made long has no time
            yield_to_loop()
        watcher.close()
    assert events[2:-1:2] == ["request"] * 8, "the first step began in the middle of an iteration"


@pytest.mark.interpreted
@pytest.mark.parametrize(("seconds", "expected"), [(60.0, 2), (-1.0, 1)])
def test_an_iteration_has_callbacks_up_to_a_number_and_for_a_limited_time(monkeypatch, seconds, expected):
    monkeypatch.setattr(event_loop, "MAX_SECONDS", seconds)
    hub = gevent.get_hub()
    queue, iterations = CallbackQueue(hub, 2), list[int]()

    def step() -> None:
        queue.wait()
        iterations.append(hub.loop.iteration)

    gevent.joinall([gevent.spawn(step) for _ in range(6)])
    assert sorted(map(iterations.count, set(iterations))) == [expected] * (6 // expected)


def test_callbacks_that_are_queued_together_and_take_long_are_called_in_several_iterations():
    hub = gevent.get_hub()
    queue, iterations, all_called = CallbackQueue(hub, 8), list[int](), Event()

    def callback() -> None:
        iterations.append(hub.loop.iteration)
        time.sleep(event_loop.MAX_SECONDS)
        if len(iterations) == 4:
            all_called.set()

    for _ in range(4):
        queue.call(callback)
    assert all_called.wait(10)
    assert len(set(iterations)) == 4


def test_clients_with_long_work_take_turns_whatever_number_of_requests_each_has():
    order: list[str] = []

    def work(client: str, steps: int) -> None:
        yield_to_loop(client)
        for _ in range(steps):
            order.append(client)
            yield_to_loop()  # the client is remembered

    busy = [gevent.spawn(work, "10.0.0.1", 2) for _ in range(50)]
    gevent.sleep(0)
    gevent.joinall([*busy, gevent.spawn(work, "10.0.0.2", 3)])
    assert [at for at, client in enumerate(order) if client == "10.0.0.2"] == pytest.approx([1, 3, 5], abs=1)
    assert len(order) == 103


def test_long_work_goes_on_where_others_make_each_iteration_long():
    def steps_in(seconds: float) -> float:
        """Steps of long work in an iteration in which other work takes this time."""
        loop, iterations = gevent.get_hub().loop, set[int]()
        check = loop.check()
        check.start(lambda: time.sleep(seconds))
        try:
            for _ in range(200):
                yield_to_loop()
                iterations.add(loop.iteration)
        finally:
            check.stop()
            check.close()
        return 200 / len(iterations)

    in_short_ones = steps_in(0.0)
    assert steps_in(0.02) > 3 * in_short_ones


def test_work_for_which_others_wait_has_turns_of_its_own():
    order: list[str] = []

    def work(turn: str, steps: int) -> None:
        yield_to_loop("10.0.0.1")
        for _ in range(steps):
            order.append(turn)
            yield_to_loop(turn=turn)

    busy = [gevent.spawn(work, "", 2) for _ in range(50)]
    gevent.joinall([gevent.spawn(work, "topic", 5), *busy])
    assert max(at for at, turn in enumerate(order) if turn == "topic") < 60
    assert len(order) == 105


def test_a_greenlet_that_is_killed_while_it_waits_for_its_step_is_forgotten():
    done: list[int] = []

    def work(number: int) -> None:
        yield_to_loop("10.0.0.1")
        done.append(number)

    waiting = [gevent.spawn(work, number) for number in range(3)]
    gevent.sleep(0)
    waiting[0].kill()
    waiting[1].kill()
    gevent.joinall(waiting)
    assert done == [2]


def test_work_that_takes_memory_is_done_once_at_a_time_for_a_client_and_others_do_not_wait_for_it():
    locks, working, most = ClientLocks(), Counter[str](), Counter[str]()

    def work(client: str) -> None:
        yield_to_loop(client)
        with locks.mine():
            working[client] += 1
            most[client] = max(most[client], working[client])
            most["all"] = max(most["all"], working.total())
            yield_to_loop()
            working[client] -= 1

    workers = [gevent.spawn(work, f"10.0.0.{number % 2}") for number in range(20)]
    gevent.sleep(0)
    workers[0].kill()
    gevent.joinall(workers)
    assert most == {"10.0.0.0": 1, "10.0.0.1": 1, "all": 2}
    assert locks._locks == {}


def test_a_client_is_served_before_the_observers_of_the_lag():
    order: list[str] = []
    here, there = socket.socketpair()
    readable: Any = gevent.get_hub().loop.io(here.fileno(), 1)

    def heard() -> None:
        order.append("client")
        readable.stop()

    looked = Event()

    def look(late: float) -> None:
        order.append("lag")
        looked.set()

    watch = LoopLag(look, interval=0.01)
    with here, there:
        readable.start(heard)
        watch.start()
        gevent.sleep(0)  # it has begun to wait
        there.send(b"x")
        time.sleep(0.05)  # both are due when the loop comes to them
        assert looked.wait(20)
        watch.stop()
        readable.close()
    assert order[:2] == ["client", "lag"]


# --- Busy polling -----------------------------------------------------------------------------------------------------

PRODUCER, OTHER = 1, 2
FIXED = 0.005


class IdleLoop:
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

    close = stop

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
def idle() -> IdleLoop:
    return IdleLoop()


@pytest.fixture
def busy_poll(idle) -> BusyPoll:
    return BusyPoll(idle=idle, now=idle.now)


@pytest.fixture
def fixed(idle) -> BusyPoll:
    return BusyPoll(FIXED, idle=idle, now=idle.now)


def test_a_client_that_sends_the_next_request_soon_finds_the_loop_awake_after_a_run(busy_poll, idle):
    assert idle.serves(busy_poll, 1000, 0.5 * MAX_POLL, PRODUCER) == 1000 - MIN_RUN - 1


def test_requests_further_apart_find_the_loop_asleep(busy_poll, idle):
    assert idle.serves(busy_poll, 1000, 1.01 * MAX_GAP, PRODUCER) == 0


def test_requests_of_several_clients_in_turn_find_the_loop_asleep(busy_poll, idle):
    assert idle.serves(busy_poll, 1000, 0.1 * MAX_POLL, PRODUCER, OTHER) == 0


def test_the_loop_polls_in_vain_once_in_a_run_if_requests_come_too_late_for_it(busy_poll, idle):
    polled = 0
    for _ in range(10 * (MIN_RUN + 1)):
        polled += busy_poll.is_polling
        assert idle.serves(busy_poll, 1, 0.9 * MAX_GAP, PRODUCER) == 0
    assert polled == 10


def test_after_one_late_request_the_client_needs_another_run(busy_poll, idle):
    idle.serves(busy_poll, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER)
    assert busy_poll.is_polling
    idle.idles(10 * MAX_POLL)
    assert idle.serves(busy_poll, MIN_RUN + 1, 0.5 * MAX_POLL, PRODUCER) == 0
    assert idle.serves(busy_poll, 10, 0.5 * MAX_POLL, PRODUCER) == 10


def test_polling_in_vain_ends_after_the_longest_time_between_two_requests(busy_poll, idle):
    idle.serves(busy_poll, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER)
    idle.idles(0.99 * MAX_POLL)
    assert busy_poll.is_polling
    idle.idles(0.05 * MAX_POLL)
    assert not busy_poll.is_polling


def test_a_request_of_another_client_ends_the_run_and_the_loop_sleeps_when_nothing_follows(busy_poll, idle):
    idle.serves(busy_poll, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER)
    busy_poll.served(OTHER)
    idle.idles(2 * MAX_POLL)
    assert idle.serves(busy_poll, MIN_RUN, 0.5 * MAX_POLL, OTHER) == 0


@pytest.mark.parametrize("gap", [0.3, 0.9, 0.99])
def test_with_a_fixed_time_the_loop_polls_that_long_after_each_request(fixed, idle, gap):
    assert idle.serves(fixed, 100, gap * FIXED, PRODUCER, OTHER) == 99
    idle.idles(1.1 * FIXED)
    assert not fixed.is_polling


def test_a_stopped_one_does_not_poll(busy_poll, fixed, idle):
    idle.serves(busy_poll, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER)
    for stopped in (busy_poll, fixed):
        stopped.stop()
        assert idle.serves(stopped, 2 * MIN_RUN, 0.5 * MAX_POLL, PRODUCER) == 0


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

    def __init__(self, idle: IdleLoop, fixed_time: float = 0.0) -> None:
        super().__init__(fixed_time, idle=idle, now=idle.now)
        self.clients: list[int] = []

    def served(self, client: int) -> None:
        self.clients.append(client)


@pytest.mark.interpreted
def test_each_reply_to_a_lone_producer_is_a_request_and_a_part_of_a_command_is_none(idle, eventually):
    told = Told(idle)
    server = Server(session_waits=False, busy_poll=told)
    client = Client(server.address).says(b"  V2").publishes(b"t", b"first").publishes(b"t", b"x")
    told.clients.clear()
    (session,) = server.tcp.sessions
    client.says(b"PUB t\n" + struct.pack(">i", 3))
    for available in (1, 2):
        client.says(b"x")
        eventually(lambda available=available: session._reader._available == available)
    assert told.clients == []
    client.says(b"x")
    assert client.frame().data == b"OK"
    client.publishes(b"t", b"next")
    eventually(lambda: len(told.clients) == 2)
    assert len(set(told.clients)) == 1
    client.socket.close()
    server.stop()


@pytest.mark.interpreted
@pytest.mark.parametrize("session_waits", [False, True])
def test_with_a_fixed_time_publishes_at_the_end_of_the_iteration_are_requests_too(idle, eventually, session_waits):
    told = Told(idle, FIXED)
    server = Server(session_waits=session_waits, busy_poll=told)
    clients = [Client(server.address).says(b"  V2").publishes(b"t", b"x") for _ in range(2)]
    for _ in range(3):
        clients.reverse()
        before = len(told.clients)
        clients[0].publishes(b"t", b"x")
        eventually(lambda before=before: len(told.clients) > before)
    for client in clients:
        client.socket.close()
    server.stop()
