import math

import pytest

from nsq_compat.web.admin import formatting


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0ns"), (5, "5ns"), (12_000, "12us"), (189_110_000, "189.11ms"), (1.5e9, "1.5s"), (3.7e12, "1h 1m")],
)
def test_latencies_have_a_unit_and_two_decimals_at_most(ns, text):
    assert formatting.nanoseconds(ns) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (-5, "0s"), (65, "1m 5s"), (90061, "1d 1h"), (3600, "1h")])
def test_long_durations_have_two_units(seconds, text):
    assert formatting.long_duration(seconds) == text


@pytest.mark.parametrize(
    ("quantile", "name"), [(0.99, "99th"), (1.0, "100th"), (0.5, "50th"), (0.91, "91st"), (0.12, "12th"), (0.02, "2nd")]
)
def test_percentiles_are_named_by_their_ordinal(quantile, name):
    assert formatting.percentile_name(quantile) == name


@pytest.mark.parametrize(
    ("rate", "text"), [(None, "\u2013"), (math.nan, "\u2013"), (0, "0"), (0.26, "0.3"), (12345.6, "12,346")]
)
def test_small_rates_have_a_decimal(rate, text):
    assert formatting.per_second(rate) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (20, "20"), (0.5, "0.5"), (2500, "2.5k"), (1e6, "1M"), (2e9, "2G")]
)
def test_axis_labels_are_short(value, text):
    assert formatting.short(value) == text


@pytest.mark.parametrize(
    ("size", "text"), [(5, "5 B"), (2048, "2.0 KiB"), (5 * 1024**2, "5.0 MiB"), (1024**5, "1024.0 TiB")]
)
def test_sizes_have_a_unit(size, text):
    assert formatting.octets(size) == text


def test_numbers_have_commas_and_times_are_utc():
    assert formatting.commas(12304) == "12,304"
    assert formatting.clock(1_795_233_495) == "2026-11-21T03:58:15Z"
