"""Quantiles of the time from publish to FIN; `seconds` is how long ago a message was published."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_compat.protocol.message import make_frames
from nsq_compat.queue.latency import Latency
from nsq_compat.queue.values import LatencyOptions, LatencyStats

NOW_NS = 1_700_000_000_000_000_000
WITHIN = 0.0101  # what the sketch promises, and the rounding to whole nanoseconds


def latency(*quantiles: float, window: float = 600.0) -> Latency:
    return Latency(LatencyOptions(quantiles or (0.5,), window))


def frames(nanoseconds: int, count: int = 1) -> Sequence[bytes]:
    return make_frames([b"%016x" % number for number in range(count)], NOW_NS - nanoseconds, [b"x"] * count)


def add(target: Latency, *nanoseconds: int, now: float = 0.0) -> Latency:
    target.add([frame for each in nanoseconds for frame in frames(each)], now, NOW_NS)
    return target


def values(stats: LatencyStats) -> list[float]:
    assert stats.percentiles is not None
    return [value for _, value in stats.percentiles]


def test_without_messages_every_percentile_is_0():
    assert latency(1.0, 0.5).stats(0.0) == LatencyStats(count=0, percentiles=((1.0, 0.0), (0.5, 0.0)))


def test_percentiles_are_shown_in_the_order_asked_for():
    stats = add(latency(0.5, 1.0, 0.9), *range(1_000_000, 11_000_000, 1_000_000)).stats(0.0)
    assert stats.percentiles is not None
    assert [quantile for quantile, _ in stats.percentiles] == [0.5, 1.0, 0.9]
    assert values(stats) == pytest.approx([5_000_000, 10_000_000, 9_000_000], rel=WITHIN)


def test_the_slowest_of_two_is_what_99_percent_do_not_exceed():
    assert values(add(latency(0.99), 1000, 9_000_000).stats(0.0)) == pytest.approx([9_000_000], rel=WITHIN)


def test_messages_published_together_count_one_by_one():
    target = latency(0.5)
    target.add(frames(1_000_000, count=7), 0.0, NOW_NS)
    target.add([*frames(8_000_000, count=3), *frames(2_000_000, count=5)], 0.0, NOW_NS)
    stats = target.stats(0.0)
    assert stats.count == 15
    assert values(stats) == pytest.approx([2_000_000], rel=WITHIN)


def test_a_clock_that_was_set_back_gives_no_negative_latency():
    assert add(latency(1.0), -5_000_000).stats(0.0) == LatencyStats(count=1, percentiles=((1.0, 0.0),))


def test_values_older_than_the_window_are_dropped_by_halves():
    target = latency(1.0, window=60.0)
    add(target, 1_000_000, now=600.0)
    add(target, 2_000_000, now=629.9)
    assert target.stats(659.9).count == 2
    add(target, 3_000_000, now=630.0)
    assert target.stats(659.9).count == 3
    assert target.stats(660.0).count == 1
    assert target.stats(690.0).count == 0


def test_a_long_silence_leaves_nothing():
    target = add(latency(window=60.0), 1_000_000, now=600.0)
    add(target, 2_000_000, now=6000.0)
    assert target.stats(6000.0).count == 1


def test_reading_with_an_earlier_time_drops_nothing():
    target = add(latency(window=60.0), 1_000_000, now=630.0)
    assert target.stats(629.0).count == 1
    assert target.stats(689.0).count == 1


def test_merged_latencies_are_those_of_one_channel():
    one, other, empty = add(latency(0.5, 0.9), 1_000_000, 5_000_000), add(latency(), 9_000_000), latency()
    together = one.stats(0.0, [other, empty])
    assert together == add(latency(0.5, 0.9), 1_000_000, 5_000_000, 9_000_000).stats(0.0)
    assert (one.stats(0.0).count, other.stats(0.0).count, empty.stats(0.0).count) == (2, 1, 0)


NANOSECONDS = st.lists(st.integers(min_value=1, max_value=10**18), min_size=1, max_size=200)


@example([679], 1.0)
@example([1, 900_186_251_275_136_065], 0.5)
@given(NANOSECONDS, st.floats(min_value=0.0001, max_value=1.0))
def test_every_percentile_is_within_one_percent_of_a_message_at_that_place(nanoseconds, quantile):
    exact = sorted(nanoseconds)[math.ceil(quantile * len(nanoseconds)) - 1]
    stats = add(latency(quantile), *nanoseconds).stats(0.0)
    assert stats.count == len(nanoseconds)
    # What the sketch promises, and half a nanosecond for rounding to whole ones.
    assert values(stats) == pytest.approx([exact], rel=0, abs=exact * 0.010001 + 0.5)
    assert all(value.is_integer() for value in values(stats))


@given(NANOSECONDS, NANOSECONDS)
def test_it_makes_no_difference_which_channel_a_message_was_in(first, second):
    apart = add(latency(0.5, 0.99), *first).stats(0.0, [add(latency(), *second)])
    assert apart == add(latency(0.5, 0.99), *first, *second).stats(0.0)
