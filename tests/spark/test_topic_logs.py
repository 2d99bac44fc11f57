"""The logs that nsqd report, also ones that no nsqd has."""

import json

import pytest

from pyspark_nsq.topic_logs import Report, TopicLogs
from tests.spark.conftest import OptionsWith

LOG = {"first": 3, "next": 10, "bytes": 70, "retained": True, "first_timestamp": 1_000, "last_timestamp": 2_000}


@pytest.fixture
def report_of(lookupd, options_with: OptionsWith):
    """What is understood of an nsqd's answer."""

    def report(**topics: object) -> Report:
        lookupd.reply = 200, json.dumps({"topics": topics}).encode()
        options = options_with(subscribe="t", nsqdTcpAddresses="127.0.0.1:7", nsqdHttpAddresses=lookupd.address)
        return TopicLogs(options).ask(patience=20)

    return report


def test_a_log_has_what_an_nsqd_says(report_of, lookupd):
    ((key, log),) = report_of(t=LOG).logs.items()
    assert key == ("t", lookupd.address)
    assert (log.first, log.next, log.bytes, log.is_retained, log.mark) == (3, 10, 70, True, (9, 2_000))


def test_topics_that_were_not_asked_for_are_ignored(report_of, lookupd):
    assert report_of(t=LOG, other=LOG, **{"a b": None}).logs.keys() == {("t", lookupd.address)}
    assert not report_of(other=LOG).logs


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": -1},
        {"next": 1 << 63},
        {"next": 10**4000},
        {"bytes": "many"},
        {"first_timestamp": [1]},
        {"last_timestamp": 1e300},
        {"end": -5},
    ],
)
def test_an_nsqd_with_impossible_numbers_is_left_out(report_of, lookupd, wrong):
    report = report_of(t={**LOG, **wrong})
    assert not report.logs
    assert "cannot parse the answer of /topic/offsets" in report.silent[lookupd.address]
