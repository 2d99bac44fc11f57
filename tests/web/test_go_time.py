"""Durations and moments as Go prints them."""

import time

import pytest

from nsq_compat.web.go_time import format_duration, format_moment


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (931, "931ns"),
        (2_034, "2.034µs"),
        (2_719_598, "2.719598ms"),
        (1_000_000, "1ms"),
        (2_000_000_000, "2s"),
        (127_687_255_628, "2m7.687255628s"),
        (3_600_000_000_000, "1h0m0s"),
        (90_061_000_000_001, "25h1m1.000000001s"),
        (-1_500_000_000, "-1.5s"),
    ],
)
def test_durations(ns, text):
    assert format_duration(ns) == text


@pytest.mark.parametrize(("zone", "text"), [("UTC", "2026-11-21T03:50:26Z"), ("XXX-5:30", "2026-11-21T09:20:26+05:30")])
def test_moments_are_local_and_utc_is_z(monkeypatch, zone, text):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert format_moment(1795233026.9) == text
    finally:
        monkeypatch.undo()
        time.tzset()
