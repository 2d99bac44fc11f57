"""Moments as Go prints them."""

import time

import pytest

from nsq_compat.web.go_time import format_moment


@pytest.mark.parametrize(("zone", "text"), [("UTC", "2026-11-21T03:50:26Z"), ("XXX-5:30", "2026-11-21T09:20:26+05:30")])
def test_moments_are_local_and_utc_is_z(monkeypatch, zone, text):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert format_moment(1795233026.9) == text
    finally:
        monkeypatch.undo()
        time.tzset()
