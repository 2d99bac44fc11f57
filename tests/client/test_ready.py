"""RDY counts with simulated time. A `Conn` is a fake connection."""

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq_compat.client.ready import Backoff, Pace, ReadyCounts


@dataclass(eq=False)
class Conn:
    name: str = ""
    in_flight: int = 0
    max_rdy_count: int = 2500
    round_trip: float = 0.0


def begun(permits: int, *conns: Conn, settle_time: float = 0.0) -> ReadyCounts[Conn]:
    """Counts for connections that have received their first message."""
    ready: ReadyCounts[Conn] = ReadyCounts(permits, 10, settle_time=settle_time)
    for conn in conns:
        ready.add(conn, 0)
        ready.received(conn, 1, 0)
    return ready


def said(ready: ReadyCounts[Conn]) -> list[tuple[Conn, int]]:
    changes = list(ready.changes)
    ready.changes.clear()
    return changes


def counts(ready: ReadyCounts[Conn]) -> list[int]:
    return [share.sent for share in ready.shares.values()]


@pytest.fixture
def a() -> Conn:
    return Conn("a")


@pytest.fixture
def b() -> Conn:
    return Conn("b")


def test_a_connection_begins_with_one_and_gets_its_share_with_its_first_message(a):
    ready: ReadyCounts[Conn] = ReadyCounts(100, 10)
    ready.add(a, 0)
    assert said(ready) == [(a, 1)]
    a.in_flight = 1
    ready.received(a, 1, 1)
    assert said(ready) == [(a, 100)]


def test_ready_is_sent_again_when_less_than_a_quarter_remains(a):
    ready = begun(100, a)
    said(ready)
    ready.received(a, 75, 1)
    assert said(ready) == []
    ready.received(a, 1, 1)
    assert said(ready) == [(a, 100)]


def test_no_rdy_is_above_nsqds_limit(a):
    a.max_rdy_count = 10
    ready = begun(100, a)
    assert counts(ready) == [10]


def test_permits_are_shared_evenly_and_a_new_connection_waits_for_free_ones(a, b):
    ready = begun(10, a)
    a.in_flight = 10
    said(ready)
    ready.add(b, 1)
    assert said(ready) == [(a, 5)]
    assert ready.is_short
    a.in_flight = 9
    ready.answered(2)
    assert said(ready) == [(b, 1)]
    a.in_flight = 5
    b.in_flight = 1
    ready.received(b, 1, 3)
    assert said(ready) == [(b, 5)]


def test_the_share_of_a_lost_connection_goes_to_the_others(a, b):
    ready = begun(10, a, b)
    assert counts(ready) == [5, 5]
    ready.remove(a, 1)
    assert counts(ready) == [10]


def test_at_least_one_each_when_permits_do_not_divide(a, b):
    ready = begun(3, a, b)
    assert counts(ready) == [1, 1]


def test_without_permits_every_rdy_is_zero_and_is_restored_afterwards(a, b):
    ready = begun(10, a, b)
    ready.set_permits(0, 1)
    assert counts(ready) == [0, 0]
    ready.set_permits(1, 2)
    assert sorted(counts(ready)) == [0, 1]
    ready.set_permits(10, 3)
    assert counts(ready) == [5, 5]


def test_too_few_permits_go_to_a_random_few():
    seen = set()
    for seed in range(40):
        ready: ReadyCounts[Conn] = ReadyCounts(2, 10, random.Random(seed))
        for number in range(5):
            ready.add(Conn(str(number)), 0)
        ready.set_permits(0, 1)
        ready.set_permits(2, 1)
        assert sorted(counts(ready)) == [0, 0, 0, 1, 1]
        seen.add(tuple(counts(ready)))
    assert len(seen) > 5


def test_an_idle_connection_gives_its_permit_to_another(a, b):
    ready: ReadyCounts[Conn] = ReadyCounts(1, 10)
    ready.add(a, 0)
    ready.add(b, 0)
    (before,) = [conn for conn, share in ready.shares.items() if share.sent]
    ready.redistribute(9)
    assert [conn for conn, share in ready.shares.items() if share.sent] == [before]
    ready.redistribute(10)
    (after,) = [conn for conn, share in ready.shares.items() if share.sent]
    assert after is not before


def test_a_busy_connection_does_not_keep_the_only_permit(a, b):
    ready: ReadyCounts[Conn] = ReadyCounts(1, 10)
    ready.add(a, 0)
    ready.add(b, 0)
    a.in_flight = 1
    for second in range(1, 11):
        ready.received(a, 1, second)
    ready.redistribute(10)
    assert counts(ready) == [0, 0]
    assert ready.is_short
    a.in_flight = 0
    ready.answered(11)
    assert sum(counts(ready)) == 1


def test_with_enough_permits_an_idle_connection_keeps_its_share(a, b):
    ready: ReadyCounts[Conn] = ReadyCounts(2, 10)
    ready.add(a, 0)
    ready.add(b, 0)
    ready.redistribute(1000)
    assert counts(ready) == [1, 1]


def test_starved_means_85_percent_of_rdy_in_flight(a):
    ready = begun(100, a)
    starved = []
    for a.in_flight in (0, 84, 85, 100):
        starved.append(ready.is_starved)
    assert starved == [False, False, True, True]


def test_a_lowered_share_is_given_to_another_once_it_has_settled(a, b):
    ready = begun(10, a, settle_time=0.25)
    a.round_trip = 0.5
    a.in_flight = 3
    said(ready)
    ready.add(b, 1)
    # Seven more messages may be arriving from a, so b gets no permit.
    assert said(ready) == [(a, 5)]
    assert ready.settles_at == 1 + 0.25 + 2 * 0.5
    ready.settle(2.2)
    assert said(ready) == []
    ready.settle(2.25)
    assert said(ready) == [(b, 1)]
    assert ready.settles_at == math.inf


def test_a_connection_has_settled_when_all_messages_have_arrived(a, b):
    ready = begun(10, a, settle_time=0.25)
    ready.add(b, 1)
    a.in_flight = 10
    ready.received(a, 9, 1)
    said(ready)
    a.in_flight = 9
    ready.answered(1)
    assert said(ready) == [(b, 1)]


def test_a_lost_connection_occupies_nothing(a, b):
    ready = begun(10, a, settle_time=0.25)
    ready.add(b, 1)
    said(ready)
    ready.remove(a, 1)
    assert said(ready) == [(b, 1)]


# --- Simulated nsqds --------------------------------------------------------------------------------------------------

MOST = 7
SETTLE_SECONDS = 1.0


class Peer(Conn):
    """A connection and its nsqd. Commands and messages are on their way for half of `SETTLE_SECONDS` at most."""

    def __init__(self, limit: int) -> None:
        super().__init__(max_rdy_count=limit)
        self.unread: list[int] = []
        """RDY counts that nsqd has not read yet, and -1 for each answered message."""
        self.rdy = 0
        self.held_by_nsqd = 0
        self.on_the_way = 0
        self.unread_since = self.sent_since = math.inf

    def read(self, count: int, now: float) -> None:
        for command in self.unread[:count]:
            if command < 0:
                self.held_by_nsqd -= 1
            else:
                self.rdy = command
        del self.unread[:count]
        self.unread_since = now if self.unread else math.inf


class World:
    """A consumer with back-off, connections that come and go, and nsqds that see each command late.

    `random` decides; tests may replace it before each step.
    """

    def __init__(self, generator: random.Random, settle_time: float = SETTLE_SECONDS) -> None:
        self.random = generator
        self.now = 0.0
        self.ready: ReadyCounts[Peer] = ReadyCounts(MOST, 10, random.Random(0), settle_time)
        self.backoff = Backoff(first=0.5, longest=4.0)
        self.most = MOST
        """max_in_flight."""
        self.allowed = MOST
        """The most messages that may be in flight: for max_in_flight, or its earlier value."""
        self.peers: list[Peer] = []
        self.redistribute_due = 5.0

    # Weighted, because an excess takes a dozen steps in order.
    STEPS = (
        *["connect", "lose", "change_max_in_flight"],
        *["nsqd_reads", "nsqd_sends", "messages_arrive", "answer"] * 4,
        *["pass_time", "pass_time", "everything_arrives"],
    )

    def step(self, name: str) -> None:
        getattr(self, name)()
        self.follow()

    def follow(self) -> None:
        for peer, count in self.ready.changes:
            self.tell(peer, count)
        self.ready.changes.clear()

    def tell(self, peer: Peer, command: int) -> None:
        if not peer.unread:
            peer.unread_since = self.now
        peer.unread.append(command)

    def one_of(self, peers: list[Peer]) -> list[Peer]:
        return [self.random.choice(peers)] if peers else []

    def connect(self) -> None:
        if len(self.peers) < 9:
            self.peers.append(Peer(self.random.choice([1, 3, 100])))
            self.ready.add(self.peers[-1], self.now)

    def lose(self) -> None:
        for peer in self.one_of(self.peers):
            self.peers.remove(peer)
            self.ready.remove(peer, self.now)

    def change_max_in_flight(self) -> None:
        self.most = self.random.choice([0, 1, 3, MOST])
        self.allowed = max(self.allowed, self.most)
        self.share_out()

    def share_out(self) -> None:
        self.ready.set_permits(self.backoff.permits(self.most), self.now)

    def nsqd_reads(self) -> None:
        for peer in self.one_of([peer for peer in self.peers if peer.unread]):
            peer.read(self.random.randint(1, 5), self.now)

    def nsqd_sends(self) -> None:
        for peer in self.one_of([peer for peer in self.peers if peer.held_by_nsqd < peer.rdy]):
            count = self.random.randint(1, peer.rdy - peer.held_by_nsqd)
            if not peer.on_the_way:
                peer.sent_since = self.now
            peer.held_by_nsqd += count
            peer.on_the_way += count

    def messages_arrive(self) -> None:
        for peer in self.one_of([peer for peer in self.peers if peer.on_the_way]):
            self.arrive(peer)

    def arrive(self, peer: Peer) -> None:
        count, peer.on_the_way, peer.sent_since = peer.on_the_way, 0, math.inf
        peer.in_flight += count
        self.ready.received(peer, count, self.now)
        self.follow()

    def answer(self) -> None:
        outcome = self.random.choice([True, True, True, False, None])  # None: requeued without back-off
        for peer in self.one_of([peer for peer in self.peers if peer.in_flight]):
            peer.in_flight -= 1
            self.tell(peer, -1)
            backoff = self.backoff
            if outcome is False or (outcome and backoff.pace is not Pace.FLOWING):
                if backoff.succeeded(self.now) if outcome else backoff.failed(self.now):
                    self.share_out()
            elif self.ready.is_short:
                self.ready.answered(self.now)

    def pass_time(self, seconds: float = 0.3) -> None:
        self.now += seconds
        latest = self.now - SETTLE_SECONDS / 2
        for peer in self.peers:
            if peer.unread_since <= latest:
                peer.read(len(peer.unread), self.now)
            if peer.sent_since <= latest:
                self.arrive(peer)
        if self.backoff.passed(self.now):
            self.share_out()
        self.ready.settle(self.now)
        if self.now >= self.redistribute_due:
            self.redistribute_due = self.now + 5.0
            self.ready.redistribute(self.now)
        self.follow()

    def everything_arrives(self) -> None:
        for _ in range(6):
            self.pass_time(0.5)
        self.allowed = max(self.most, sum(max(peer.rdy, peer.in_flight) for peer in self.peers))

    @property
    def in_flight(self) -> int:
        return sum(peer.in_flight for peer in self.peers)

    @property
    def excess(self) -> int:
        """Messages that nsqds have sent and the consumer has not answered, above what is allowed."""
        return self.in_flight + sum(peer.on_the_way for peer in self.peers) - self.allowed

    def check(self) -> None:
        asked_for = sum(share.sent for share in self.ready.shares.values())
        assert asked_for <= self.backoff.permits(self.most)
        assert all(share.sent <= peer.max_rdy_count for peer, share in self.ready.shares.items())
        assert all(peer.held_by_nsqd <= min(peer.max_rdy_count, MOST) for peer in self.peers)
        unanswered = sum(peer.held_by_nsqd - peer.unread.count(-1) for peer in self.peers)
        assert unanswered == self.in_flight + sum(peer.on_the_way for peer in self.peers)
        if self.ready.settles_at == math.inf and not self.in_flight and self.peers and self.ready.permits:
            assert asked_for > 0, "no message can come any more"


class ConsumingFromAfar(RuleBasedStateMachine):
    """Hypothesis looks for steps that break a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(random.Random(0))

    @rule(name=st.sampled_from(World.STEPS), generator=st.randoms(use_true_random=False))
    def step(self, name: str, generator: random.Random) -> None:
        self.world.random = generator
        self.world.step(name)

    @invariant()
    def the_consumer_behaves(self) -> None:
        self.world.check()
        assert self.world.excess <= 0


ConsumingFromAfar.TestCase.settings = settings(stateful_step_count=120)
TestConsumingFromAfar = ConsumingFromAfar.TestCase


def worst_excess(seed: int, settle_time: float) -> int:
    """The worst excess in a random walk."""
    world, excesses = World(random.Random(seed), settle_time), list[int]()
    for _ in range(300):
        world.step(world.random.choice(World.STEPS))
        excesses.append(world.excess)
        if settle_time:
            world.check()
    return max(excesses)


def test_messages_in_flight_never_exceed_the_permits_whatever_the_delays():
    assert max(worst_excess(seed, SETTLE_SECONDS) for seed in range(300)) <= 0


def test_without_settling_messages_in_flight_would_exceed_the_permits():
    """The random walk detects excess messages."""
    assert max(worst_excess(seed, 0.0) for seed in range(100)) > 0


# --- Back-off ---------------------------------------------------------------------------------------------------------


def test_failures_wait_twice_as_long_each_time():
    backoff = Backoff(first=2, longest=120)
    now, waits = 100.0, []
    for _ in range(8):
        assert backoff.failed(now)
        assert backoff.pace is Pace.WAITING
        waits.append(backoff.until - now)
        now = backoff.until
        assert backoff.passed(now)
    assert waits == [2, 4, 8, 16, 32, 64, 120, 120]


def test_outcomes_are_ignored_while_the_consumer_waits():
    backoff = Backoff(first=2)
    backoff.failed(0)
    assert not backoff.failed(1)
    assert not backoff.succeeded(1)
    assert (backoff.level, backoff.until) == (1, 2)


def test_after_the_wait_it_tests_with_one_message():
    backoff = Backoff(first=2)
    backoff.failed(0)
    assert not backoff.passed(1.9)
    assert backoff.passed(2)
    assert backoff.pace is Pace.TESTING
    assert not backoff.passed(3)


def test_each_success_lowers_the_level_until_messages_flow():
    backoff = Backoff(first=2)
    backoff.failed(0)
    backoff.passed(2)
    backoff.failed(2)
    assert backoff.until == 6
    backoff.passed(6)
    assert backoff.succeeded(6)
    assert (backoff.pace, backoff.until) == (Pace.WAITING, 8)
    backoff.passed(8)
    assert backoff.succeeded(8)
    assert backoff.pace is Pace.FLOWING
    assert not backoff.succeeded(9)


def test_failures_at_the_longest_wait_do_not_raise_the_level():
    backoff = Backoff(first=2, longest=8)
    now = 0.0
    for _ in range(50):
        backoff.failed(now)
        now = backoff.until
        backoff.passed(now)
    successes = 0
    while backoff.pace is not Pace.FLOWING:
        backoff.succeeded(now)
        successes += 1
        now = max(now, backoff.until)
        backoff.passed(now)
    assert successes == 3


def test_backoff_can_be_turned_off():
    backoff = Backoff(longest=0)
    assert not backoff.failed(0)
    assert backoff.pace is Pace.FLOWING
