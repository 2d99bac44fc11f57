import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_compat.web.admin import formatting
from nsq_compat.web.admin.formatting import HEIGHT, WIDTH, chart, sparkline


@pytest.mark.parametrize(
    ("show", "texts"),
    [
        (formatting.commas, {12304: "12,304"}),
        (formatting.clock, {1_795_233_495: "2026-11-21T03:58:15Z"}),
        (formatting.nanoseconds, {0: "0ns", 5: "5ns", 12_000: "12us", 189_110_000: "189.11ms", 1.5e9: "1.5s"}),
        (formatting.nanoseconds, {3.7e12: "1h 1m"}),
        (formatting.long_duration, {0: "0s", -5: "0s", 65: "1m 5s", 90061: "1d 1h", 3600: "1h"}),
        (formatting.percentile_name, {0.99: "99th", 1.0: "100th", 0.91: "91st", 0.12: "12th", 0.02: "2nd"}),
        (formatting.per_second, {None: "\u2013", math.nan: "\u2013", 0: "0", 0.26: "0.3", 12345.6: "12,346"}),
        (formatting.short, {0: "0", 20: "20", 0.5: "0.5", 2500: "2.5k", 1e6: "1M", 2e9: "2G"}),
        (formatting.octets, {5: "5 B", 2048: "2.0 KiB", 5 * 1024**2: "5.0 MiB", 1024**5: "1024.0 TiB"}),
    ],
)
def test_a_filter_shows_a_value_as_text(show, texts):
    assert {value: show(value) for value in texts} == texts


# --- Charts -----------------------------------------------------------------------------------------------------------


def test_time_goes_to_the_right_and_values_go_up():
    drawn = chart([(98.0, 0.0), (99.0, 5.0), (100.0, 10.0)], 100.0, 100.0)
    assert drawn.lines == (f"588.0,{HEIGHT:.1f} 594.0,{HEIGHT / 2:.1f} {WIDTH:.1f},0.0",)
    assert [value for _, value in drawn.value_ticks] == [0.0, 5.0, 10.0]
    assert [seconds for _, seconds in drawn.time_ticks] == [100.0, 75.0, 50.0, 25.0, 0.0]
    assert (drawn.latest, drawn.highest) == (10.0, 10.0)


def test_a_gap_separates_lines():
    drawn = chart([(10.0, 1.0), (11.0, 1.0), (12.0, math.nan), (13.0, 1.0), (90.0, 1.0)], 100.0, 100.0)
    assert len(drawn.lines) == 3


def test_points_older_than_the_span_are_left_out():
    drawn = chart([(0.0, 1000.0), (99.0, 1.0)], 100.0, 10.0)
    assert drawn.highest == 1.0
    assert len(drawn.lines) == 1


def test_no_points_are_an_empty_chart():
    drawn = chart([(1.0, math.nan)], 100.0, 100.0)
    assert (drawn.lines, drawn.latest, drawn.highest) == ((), None, 0.0)


@example([(0.0, 5e-324)])
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e12) | st.just(math.nan)), max_size=30))
def test_every_point_is_inside_the_chart(points):
    for line in chart(sorted(points), 100.0, 100.0).lines:
        for point in line.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH
            assert -0.1 <= y <= HEIGHT


def test_a_sparkline_needs_two_points():
    assert sparkline([1.0]) == ""
    assert sparkline([0.0, 1.0]) == "0.0,21.0 100.0,1.0"
    assert sparkline([0.0, 0.0]) == "0.0,21.0 100.0,21.0"
    assert len(sparkline(range(1000)).split()) == 60
