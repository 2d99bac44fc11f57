import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_compat.web.admin import formatting
from nsq_compat.web.admin.formatting import HEIGHT, WIDTH, chart, scale_of, span_of, sparkline


@pytest.mark.parametrize(
    ("show", "texts"),
    [
        (formatting.commas, {12304: "12,304"}),
        (
            lambda number: formatting.all_of(number, "node"),
            {1: "the only node", 2: "both nodes", 1200: "all 1,200 nodes"},
        ),
        (lambda value: formatting.setting(value, "max_rate"), {1_000_000: "1,000,000", "1234.5": "1,234.5", "x": "x"}),
        (lambda value: formatting.setting(value, "dead_letter_topic"), {"1000000": "1000000"}),
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


def test_a_peak_is_cut_off_marked_and_shown_on_request():
    values = [10.0] * 30 + [10_000.0, 9_000.0] + [10.0] * 30
    points = [(float(at), value) for at, value in enumerate(values)]
    cut = chart(points, 61.0, 61.0)
    assert [value for _, value in cut.value_ticks][-1] == 20.0
    assert [round(at) for at in cut.peaks] == [round(WIDTH * 30 / 61)]
    assert (cut.has_peak, cut.highest) == (True, 10_000.0)
    assert max(reading.value for reading in cut.readings) == 10_000.0
    whole = chart(points, 61.0, 61.0, whole=True)
    assert (whole.peaks, whole.has_peak, whole.value_ticks[-1][1]) == ((), True, 10_000.0)


@pytest.mark.parametrize("values", [[0.0] * 20 + [100.0], [1.0, 100.0], [10.0] * 10 + [39.0]])
def test_what_flattens_nothing_is_no_peak(values):
    drawn = chart([(float(at), value) for at, value in enumerate(values)], 20.0, 20.0)
    assert (drawn.has_peak, drawn.peaks) == (False, ())


def test_readings_cover_the_chart_without_gaps():
    drawn = chart([(90.0, 1.0), (95.0, 2.0), (100.0, 3.0)], 100.0, 10.0)
    assert [(reading.left, reading.width) for reading in drawn.readings] == [(0, 150), (150, 300), (450, 150)]
    assert [(reading.value, reading.age) for reading in drawn.readings] == [(1, 10), (2, 5), (3, 0)]


def test_the_highest_of_many_points_is_read():
    drawn = chart([(float(at), float(at == 501)) for at in range(1000)], 1000.0, 1000.0)
    assert len(drawn.readings) <= 120
    assert [reading.age for reading in drawn.readings if reading.value] == [499.0]


def test_a_single_point_between_gaps_is_drawn():
    drawn = chart([(1.0, math.nan), (2.0, 5.0), (3.0, math.nan)], 10.0, 10.0)
    assert len(drawn.lines[0].split()) == 2


@pytest.mark.parametrize(("age", "span"), [(0, 60), (59, 60), (61, 120), (400, 600), (1801, 3600), (99_999, 3600)])
def test_the_span_fits_what_there_is(age, span):
    assert span_of([(1000.0 - age, 1.0)], 1000.0, 3600.0) == span
    assert span_of([], 0.0, 3600.0) == 60.0


def test_samples_ten_seconds_apart_are_one_line_in_a_chart_of_a_minute():
    assert len(chart([(10.0 * at, 1.0) for at in range(6)], 55.0, 60.0).lines) == 1


def test_sparklines_have_a_scale_of_time_and_value():
    assert sparkline([(95.0, 0.0), (100.0, 10.0)], 100.0, 10.0, 20.0) == ("50.0,21.0 100.0,11.0",)
    assert sparkline([], 100.0, 10.0, 1.0) == ()
    assert (scale_of([1.0, math.nan, 17.0]), scale_of([])) == (20.0, 1.0)
