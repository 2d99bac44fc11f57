from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq_compat.queue.schedule import NEVER, Schedule


class Sleeper:
    """Something with an alarm. `next` is what it wants when it rings."""

    def __init__(self, name: str = "", next: float = NEVER) -> None:
        self.name = name
        self.alarm = NEVER
        self.next = next
        self.rang: list[float] = []

    def on_alarm(self, now: float) -> float:
        self.rang.append(now)
        return self.next


def test_an_alarm_rings_once_when_its_time_has_come():
    schedule, sleeper = Schedule(), Sleeper()
    schedule.at(10.0, sleeper)
    assert schedule.run(9.9) == 10.0
    assert sleeper.rang == []
    assert schedule.run(10.0) == NEVER
    assert schedule.run(11.0) == NEVER
    assert sleeper.rang == [10.0]


def test_other_due_alarms_wait_for_the_next_run_when_it_is_enough():
    schedule, first, second = Schedule(), Sleeper(), Sleeper()
    schedule.at(5.0, first)
    schedule.at(6.0, second)
    assert schedule.run(10.0, lambda: True) == 6.0
    assert (first.rang, second.rang) == ([10.0], [])
    assert schedule.run(11.0, lambda: True) == NEVER
    assert second.rang == [11.0]


def test_an_alarm_that_is_due_again_at_once_comes_after_others():
    schedule, greedy, other = Schedule(), Sleeper(next=10.0), Sleeper()
    schedule.at(5.0, greedy)
    schedule.at(6.0, other)
    schedule.run(10.0, lambda: len(greedy.rang) > 2)
    assert other.rang == [10.0]
    assert len(greedy.rang) == 3


def test_only_the_next_alarm_is_reported():
    told: list[float] = []
    schedule = Schedule(told.append)
    schedule.at(10.0, Sleeper())
    schedule.at(20.0, Sleeper())
    schedule.at(10.0, Sleeper())
    schedule.at(5.0, Sleeper())
    assert told == [10.0, 5.0]


def test_alarms_ring_in_the_order_of_their_times():
    order: list[str] = []

    class Noisy(Sleeper):
        def on_alarm(self, now: float) -> float:
            order.append(self.name)
            return NEVER

    schedule = Schedule()
    for when, name in ((3.0, "third"), (1.0, "first"), (2.0, "second")):
        schedule.at(when, Noisy(name))
    schedule.run(5.0)
    assert order == ["first", "second", "third"]


def test_late_alarms_that_are_replaced_do_not_accumulate():
    schedule, busy = Schedule(), Sleeper(next=3600.0)
    for second in range(1, 3000):  # something is due each second, and something else in an hour
        schedule.at(float(second), busy)
        schedule.run(float(second))
    assert len(busy.rang) == 2999
    assert len(schedule._heap) < 100
    assert schedule.run(3000.0) == 3600.0


def test_cancelled_alarms_do_not_accumulate():
    schedule, here = Schedule(), Sleeper()
    schedule.at(1.0, here)
    for _ in range(3000):
        gone = Sleeper()
        schedule.at(3600.0, gone)
        schedule.cancel(gone)
    assert len(schedule._heap) < 100
    schedule.run(1.0)
    assert here.rang == [1.0]


class ScheduleIsASetOfAlarms(RuleBasedStateMachine):
    """Against a plain dict, driven the way an event loop does it: `run` only at the times that were told."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.timer = NEVER
        self.schedule = Schedule(self.set_timer)
        self.sleepers = [Sleeper(str(number)) for number in range(6)]
        self.model: dict[Sleeper, float] = {}

    def set_timer(self, when: float) -> None:
        self.timer = min(self.timer, when)

    @rule(which=st.integers(0, 5), ahead=st.integers(1, 50))
    def at(self, which: int, ahead: int) -> None:
        sleeper = self.sleepers[which]
        self.schedule.at(self.now + ahead, sleeper)
        self.model[sleeper] = min(self.now + ahead, self.model.get(sleeper, NEVER))

    @rule(which=st.integers(0, 5))
    def cancel(self, which: int) -> None:
        self.schedule.cancel(self.sleepers[which])
        self.model.pop(self.sleepers[which], None)

    @rule(which=st.integers(0, 5), ahead=st.integers(1, 9) | st.just(NEVER))
    def wants_next(self, which: int, ahead: float) -> None:
        self.sleepers[which].next = ahead

    @rule(which=st.integers(0, 5), times=st.integers(1, 100))
    def is_set_and_cancelled_often(self, which: int, times: int) -> None:
        for _ in range(times):
            self.at(which, 40)
            self.cancel(which)

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds: int) -> None:
        end = self.now + seconds
        while self.timer <= end:
            self.now = self.timer
            due = {sleeper for sleeper, when in self.model.items() if when <= self.now}
            for sleeper in self.sleepers:
                sleeper.rang.clear()
            wanted = {sleeper: sleeper.next for sleeper in due}
            for sleeper in due:  # what it wants is counted from now
                sleeper.next += self.now
            self.timer = self.schedule.run(self.now)
            assert {sleeper for sleeper in self.sleepers if sleeper.rang} == due
            assert all(sleeper.rang == [self.now] for sleeper in due)
            for sleeper in due:
                self.model[sleeper] = sleeper.next
                sleeper.next = wanted[sleeper]
        self.now = end

    @invariant()
    def nobody_is_late(self) -> None:
        assert all(when > self.now for when in self.model.values())
        assert self.timer <= min(self.model.values(), default=NEVER)
        assert {sleeper: sleeper.alarm for sleeper in self.model} == self.model

    @invariant()
    def the_heap_is_bounded(self) -> None:
        assert len(self.schedule._heap) <= 2 * len(self.sleepers) + 64


TestScheduleIsASetOfAlarms = ScheduleIsASetOfAlarms.TestCase
