"""Work at the end of an event-loop iteration, alarms, and the loop's lag."""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.event import Event
from gevent.queue import Queue

from nsq_compat.net.loop_tick import MAX_FLUSHES, AlarmClock, LoopLag, LoopTick
from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.schedule import Schedule

SO_TIMESTAMPNS = 35
"""Linux: what is received says when it came."""


class Sender:
    def __init__(self, sent, name, then=lambda: None):
        self._sent, self._name, self._then = sent, name, then

    def flush_when_due(self):
        self._sent.append(self._name)
        self._then()


class Loop:
    """Asked to call back, it does when told to; `pendingcnt` as the test says."""

    def __init__(self):
        self.pendingcnt = 0
        self.asked: list[Callable[[], None]] = []

    def run_callback(self, func):
        self.asked.append(func)

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


def test_an_alarm_rings_not_before_its_time():
    schedule = Schedule()
    clock = AlarmClock(schedule)
    clock.start()
    assert Sleeper().wants(schedule, 0.02).rung.wait(20)
    clock.stop()


def test_an_earlier_alarm_overtakes_a_later_one():
    schedule = Schedule()
    clock = AlarmClock(schedule)
    clock.start()
    late, early = Sleeper().wants(schedule, 600), Sleeper().wants(schedule, 0.01)
    assert early.rung.wait(20)
    assert not late.rung.is_set()
    clock.stop()


def test_an_alarm_that_always_has_more_to_do_leaves_the_event_loop_to_others():
    schedule = Schedule()
    clock = AlarmClock(schedule)

    class Greedy(Sleeper):
        rings = 0

        def on_alarm(self, now: float) -> float:
            self.rings += 1
            return now

    greedy = Greedy()
    schedule.at(0.0, greedy)
    clock.start()
    before = greedy.rings
    gevent.sleep(0.02)
    assert 0 < before < greedy.rings
    clock.stop()


def test_an_alarm_scheduled_before_the_start_rings():
    schedule = Schedule()
    sleeper = Sleeper().wants(schedule, 0.01)
    clock = AlarmClock(schedule)
    clock.start()
    assert sleeper.rung.wait(20)
    clock.stop()


def test_a_failing_alarm_is_logged_and_the_others_ring(caplog):
    schedule = Schedule()
    clock = AlarmClock(schedule)
    clock.start()

    class Broken(Sleeper):
        def on_alarm(self, now: float) -> float:
            raise RuntimeError("a bug")

    Broken().wants(schedule, 0.01)
    sleeper = Sleeper().wants(schedule, 0.02)
    assert sleeper.rung.wait(20)
    assert "a bug" in caplog.text
    clock.stop()


def test_a_stopped_clock_does_not_ring():
    schedule = Schedule()
    clock = AlarmClock(schedule)
    clock.start()
    sleeper = Sleeper().wants(schedule, 0.01)
    clock.stop()
    gevent.sleep(0.05)
    assert not sleeper.rung.is_set()


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
