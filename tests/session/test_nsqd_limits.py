"""IDENTIFY's fields against the daemon's limits, as values."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.errors import FatalClientError
from nsq_compat.protocol.identify import IdentifyRequest
from nsq_compat.session.nsqd_limits import NsqdLimits, grant, identify_response, negotiate, settings_before_identify

LIMITS = NsqdLimits()
BEFORE = settings_before_identify("10.0.0.7", LIMITS)

# field of the request, of the settings, lowest, highest, what -1 means (None: an error)
RANGES = [
    ("heartbeat_interval", "heartbeat_ms", 1000, LIMITS.max_heartbeat_interval_ms, 0),
    ("output_buffer_timeout", "output_buffer_timeout_ms", 25, LIMITS.max_output_buffer_timeout_ms, 0),
    ("output_buffer_size", "output_buffer_size", 64, LIMITS.max_output_buffer_size, 1),
    ("sample_rate", "sample_rate", 0, 99, None),
    ("msg_timeout", "msg_timeout_ms", 1000, LIMITS.max_msg_timeout_ms, None),
]


def asking(**fields):
    return replace(IdentifyRequest(), **fields)


def test_before_identify_a_client_is_its_host_and_has_the_defaults():
    assert (BEFORE.client_id, BEFORE.hostname, BEFORE.user_agent) == ("10.0.0.7", "10.0.0.7", "")
    assert (BEFORE.heartbeat_ms, BEFORE.msg_timeout_ms) == (30_000, 60_000)
    assert (BEFORE.output_buffer_size, BEFORE.output_buffer_timeout_ms, BEFORE.sample_rate) == (16384, 250, 0)


def test_the_options_of_the_daemon_are_the_defaults():
    limits = NsqdLimits(client_timeout_ms=10_000, msg_timeout_ms=7000, output_buffer_timeout_ms=40)
    settings = settings_before_identify("", limits)
    assert (settings.heartbeat_ms, settings.msg_timeout_ms, settings.output_buffer_timeout_ms) == (5000, 7000, 40)


@pytest.mark.parametrize(("asked", "settled", "low", "high", "off"), RANGES)
def test_both_ends_of_a_range_are_in_it(asked, settled, low, high, off):
    for value in (low, high):
        assert getattr(negotiate(asking(**{asked: value}), BEFORE, LIMITS), settled) == value


@pytest.mark.parametrize(("asked", "settled", "low", "high", "off"), RANGES)
def test_beyond_both_ends_is_an_error(asked, settled, low, high, off):
    for value in (low - 1, high + 1, -2, 1 << 62):
        if value == 0 or (value == -1 and off is not None):
            continue
        with pytest.raises(FatalClientError) as caught:
            negotiate(asking(**{asked: value}), BEFORE, LIMITS)
        assert caught.value.data == b"E_BAD_BODY IDENTIFY %b (%d) is invalid" % (
            asked.replace("_", " ").encode(),
            value,
        )


@pytest.mark.parametrize(("asked", "settled", "low", "high", "off"), RANGES)
def test_minus_one_turns_off_what_can_be_turned_off(asked, settled, low, high, off):
    if off is None:
        with pytest.raises(FatalClientError):
            negotiate(asking(**{asked: -1}), BEFORE, LIMITS)
    else:
        assert getattr(negotiate(asking(**{asked: -1}), BEFORE, LIMITS), settled) == off


@pytest.mark.parametrize(("asked", "settled", "low", "high", "off"), RANGES)
def test_zero_keeps_what_there_is_except_a_sample_rate(asked, settled, low, high, off):
    current = negotiate(asking(**{asked: high}), BEFORE, LIMITS)
    again = negotiate(asking(), current, LIMITS)
    assert getattr(again, settled) == (0 if asked == "sample_rate" else high)


def test_no_buffer_means_no_buffer_timeout_either():
    settings = negotiate(asking(output_buffer_size=-1, output_buffer_timeout=1000), BEFORE, LIMITS)
    assert (settings.output_buffer_size, settings.output_buffer_timeout_ms) == (1, 0)


def test_a_wrong_buffer_timeout_is_wrong_even_without_a_buffer():
    with pytest.raises(FatalClientError, match="output buffer timeout"):
        negotiate(asking(output_buffer_size=-1, output_buffer_timeout=1), BEFORE, LIMITS)


requests = st.builds(
    IdentifyRequest,
    heartbeat_interval=st.integers(-2, 70_000),
    output_buffer_timeout=st.integers(-2, 40_000),
    output_buffer_size=st.integers(-2, 70_000),
    sample_rate=st.integers(-2, 120),
    msg_timeout=st.integers(-2, 1_000_000),
)


@given(requests)
def test_what_is_settled_is_always_within_the_limits(wishes):
    try:
        settings = negotiate(wishes, BEFORE, LIMITS)
    except FatalClientError:
        return
    for _, settled, low, high, off in RANGES:
        value = getattr(settings, settled)
        assert value == off or low <= value <= high
    response = identify_response(settings, grant(wishes, LIMITS), LIMITS)
    assert response.msg_timeout == settings.msg_timeout_ms
    assert response.sample_rate == settings.sample_rate


ALL = NsqdLimits(tls=True)
NOTHING = {"tls": False, "deflate": False, "deflate_level": 6, "snappy": False}


@pytest.mark.parametrize(
    ("asked", "limits", "granted"),
    [
        ({}, ALL, {}),
        ({"tls_v1": True}, ALL, {"tls": True}),
        ({"tls_v1": True}, LIMITS, {}),
        ({"snappy": True}, ALL, {"snappy": True}),
        ({"snappy": True}, replace(ALL, snappy=False), {}),
        ({"deflate": True}, ALL, {"deflate": True}),
        ({"deflate": True}, replace(ALL, deflate=False), {}),
        ({"deflate": True, "snappy": True}, replace(ALL, deflate=False), {"snappy": True}),
        ({"deflate": True, "snappy": True}, replace(ALL, snappy=False), {"deflate": True}),
    ],
)
def test_a_feature_is_granted_where_it_is_asked_for_and_there(asked, limits, granted):
    features = grant(IdentifyRequest(**asked), limits)
    assert {name: getattr(features, name) for name in NOTHING} == NOTHING | granted


@pytest.mark.parametrize(
    ("asked", "most", "level"),
    [(0, 6, 6), (0, 3, 3), (-5, 6, 6), (1, 6, 1), (6, 6, 6), (7, 6, 6), (9, 9, 9), (10, 9, 9), (2, 1, 1)],
)
def test_a_deflate_level_is_the_one_asked_for_within_the_limit(asked, most, level):
    request = IdentifyRequest(deflate=True, deflate_level=asked)
    assert grant(request, replace(ALL, max_deflate_level=most)).deflate_level == level


def test_both_compressions_are_refused():
    with pytest.raises(FatalClientError) as refusal:
        grant(IdentifyRequest(deflate=True, snappy=True), ALL)
    assert refusal.value.data == b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
