"""The alarm clock rings a schedule on the event loop."""

import time

import gevent
from gevent.event import Event

from nsq_compat.net.timers import AlarmClock
from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.schedule import Schedule


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


def test_what_was_scheduled_before_the_start_rings_too():
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
