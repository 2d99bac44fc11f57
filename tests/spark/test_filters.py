"""Filters leave out offsets that no matching message has, and never one of a matching message."""

import operator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_nsq.filters import NO_BOUNDS
from pyspark_nsq.log_plan import Range

WORK = Range("orders", "n:4151", 100, 200, "n:4150")


def read(*filters: Filter) -> list[int]:
    part = NO_BOUNDS.narrowed(filters).of(WORK)
    return list(range(part.begin, part.end))


@pytest.mark.parametrize(
    ("filters", "first", "count"),
    [
        ([GreaterThanOrEqual(("offset",), 150)], 150, 50),
        ([GreaterThan(("offset",), 150), LessThanOrEqual(("offset",), 160)], 151, 10),
        ([LessThan(("offset",), 101)], 100, 1),
        ([EqualTo(("offset",), 123)], 123, 1),
        ([EqualTo(("topic",), "orders"), In(("partition",), ("n:4151", "m:4151", None))], 100, 100),
        ([EqualNullSafe(("nsqd",), "n:4150")], 100, 100),
    ],
)
def test_offsets_that_no_matching_message_has_are_not_read(filters, first, count):
    assert read(*filters) == list(range(first, first + count))


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("topic",), "views"),
        In(("partition",), ("m:4151",)),
        EqualTo(("nsqd",), "n:4151"),
        LessThan(("offset",), 100),
        EqualTo(("offset",), 300),
    ],
)
def test_a_log_without_matching_messages_is_not_read(each):
    assert read(each) == []


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(("topic",), "orders")),
        Not(EqualTo(("offset",), 123)),
        IsNotNull(("offset",)),
        StringStartsWith(("topic",), "v"),
        EqualTo(("body",), b"x"),
        EqualTo(("offset", "a"), 3),
    ],
)
def test_other_filters_leave_out_nothing(each):
    assert len(read(each)) == 100
    assert NO_BOUNDS.narrowed([each]).since_ms is None
    assert NO_BOUNDS.narrowed([each]).until_ms is None


def test_a_time_is_looked_up_a_little_earlier_because_nsqd_finds_it_by_ids():
    at = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    millisecond = int(at.timestamp() * 1000)
    for kind in (EqualTo, GreaterThan, GreaterThanOrEqual):
        assert NO_BOUNDS.narrowed([kind(("timestamp",), at)]).since_ms == millisecond - 3
    assert NO_BOUNDS.narrowed([GreaterThan(("timestamp",), datetime(2026, 1, 31))]).since_ms is None
    assert NO_BOUNDS.narrowed([GreaterThan(("timestamp",), datetime.min.replace(tzinfo=UTC))]).since_ms == 0


def test_a_time_is_looked_up_to_the_end_of_its_millisecond():
    at = datetime(2026, 1, 31, 12, microsecond=1500, tzinfo=timezone(timedelta(hours=2)))
    after = int(at.timestamp()) * 1000 + 2
    for kind in (EqualTo, LessThan, LessThanOrEqual):
        assert NO_BOUNDS.narrowed([kind(("timestamp",), at)]).until_ms == after
    both = [LessThan(("timestamp",), at), LessThan(("timestamp",), at - timedelta(seconds=1))]
    assert NO_BOUNDS.narrowed(both).until_ms == after - 1000
    assert NO_BOUNDS.narrowed([LessThan(("timestamp",), datetime.min.replace(tzinfo=UTC))]).until_ms == 0
    latest = NO_BOUNDS.narrowed([LessThan(("timestamp",), datetime.max.replace(tzinfo=UTC))]).until_ms
    assert latest is not None
    assert datetime.fromtimestamp(latest / 1000, UTC).year == 9999


COMPARISONS = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@given(st.lists(st.tuples(st.sampled_from(list(COMPARISONS)), st.integers(90, 210)), max_size=4))
def test_no_matching_offset_is_left_out(comparisons):
    wanted = [
        offset for offset in range(100, 200) if all(COMPARISONS[kind](offset, value) for kind, value in comparisons)
    ]
    assert read(*(kind(("offset",), value) for kind, value in comparisons)) == wanted
