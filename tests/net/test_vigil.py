"""Staying awake: when the event loop looks instead of sleeping, and what that may take."""

from collections.abc import Callable

import gevent
import pytest

from nsq_compat.net.vigil import EARNED, MOMENT, PENALTY, Vigil

ENOUGH = round(MOMENT / EARNED + 1)
"""Requests that earn a moment, whatever is rounded."""


class Loop:
    """An event loop's idle watcher, and its clock."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.looks: Callable[[], None] | None = None

    def now(self) -> float:
        return self.time

    def start(self, callback) -> None:
        self.looks = callback

    def stop(self) -> None:
        self.looks = None

    def close(self) -> None:
        pass

    def idles(self, seconds: float) -> None:
        """Nothing happens for so long; the loop comes round every microsecond, unless it sleeps."""
        end = self.time + seconds
        while self.time < end:
            if self.looks is not None:
                self.looks()
            self.time += 1e-6


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def vigil(loop) -> Vigil:
    return Vigil(loop, loop.now, cpus=2)


def awake_after(vigil: Vigil, limit: int) -> int:
    """How many requests it takes, each coming when the loop had other things to do."""
    for count in range(limit):
        if vigil.awake:
            return count
        vigil.served()
    raise AssertionError(f"{limit} requests are not enough")


def test_some_requests_earn_the_first_moment(vigil):
    assert 1 < awake_after(vigil, 100) <= ENOUGH


def test_a_request_that_comes_in_time_keeps_it_awake(vigil, loop):
    awake_after(vigil, 100)
    for _ in range(1000):
        loop.idles(EARNED / 2)
        vigil.served()
        assert vigil.awake


def test_looking_takes_no_more_than_was_earned(vigil, loop):
    looked = 0.0
    for _ in range(10_000):
        before = loop.time
        loop.idles(MOMENT * 0.8)
        looked += loop.time - before if vigil.awake else 0.0
        vigil.served()
    assert 0.5 * EARNED < looked / 10_000 <= EARNED * 1.01


def test_a_moment_in_vain_is_not_tried_again_soon(vigil, loop):
    awake_after(vigil, 100)
    loop.idles(0.01)
    assert not vigil.awake
    assert awake_after(vigil, 1000) >= PENALTY / EARNED


def test_where_nothing_ever_comes_in_time_it_is_hardly_tried(vigil, loop):
    looked = 0.0
    for _ in range(2000):
        looked += MOMENT if vigil.awake else 0.0
        loop.idles(2 * MOMENT)
        vigil.served()
    assert looked / 2000 < EARNED / 5


def test_a_loop_that_always_has_something_to_do_pays_nothing(vigil):
    awake_after(vigil, 100)
    for _ in range(1000):
        vigil.served()
        assert vigil.awake


def test_on_a_single_cpu_it_sleeps_for_whoever_asks_next_needs_it(loop):
    vigil = Vigil(loop, loop.now, cpus=1)
    for _ in range(1000):
        vigil.served()
        assert not vigil.awake


def test_a_real_event_loop_goes_to_sleep_when_nobody_comes():
    vigil = Vigil(cpus=2)
    awake_after(vigil, 100)
    with gevent.Timeout(20):
        while vigil.awake:
            gevent.sleep(0.001)
    vigil.stop()


def test_who_stops_looking_for_good_is_not_awake(vigil, loop):
    awake_after(vigil, 100)
    vigil.stop()
    assert not vigil.awake
    assert loop.looks is None
