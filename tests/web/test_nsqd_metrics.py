"""nsqd's metrics, as Prometheus parses them."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import LatencyOptions, QueueLimits
from nsq_compat.session.http_message import Request
from tests.web.conftest import Caller, Daemon

LABELS = ("topic", "channel", "quantile")
OPEN_METRICS = {b"accept": b"application/openmetrics-text; version=1.0.0"}


def scrape(daemon):
    """Values by name and labels."""
    request = Request("GET", b"/metrics", "/metrics", b"", OPEN_METRICS, b"", "127.0.0.1:5000")
    page = Caller(daemon).api.respond(request).body.decode()
    return {
        (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


@pytest.fixture
def orders(daemon):
    topic = daemon.broker.topic("orders")
    topic.channel("archive")
    topic.publish([b"one", b"four"], 50.0, 1)
    return topic


def test_topics_and_channels_have_the_values_of_stats(daemon, orders):
    orders.publish([b"later"], 50.0, 1, defer=10.0)
    found = scrape(daemon)
    assert found["nsqd_topic_messages_total", "orders"] == 3
    assert found["nsqd_topic_message_bytes_total", "orders"] == 12
    assert found["nsqd_channel_depth", "orders", "archive"] == 2
    assert found["nsqd_channel_deferred", "orders", "archive"] == 1
    assert found["nsqd_channel_messages_total", "orders", "archive"] == 3
    assert found["nsqd_channel_timeouts_total", "orders", "archive"] == 0
    assert found["nsqd_channel_ready", "orders", "archive"] == 0
    assert (found["nsqd_topics",], found["nsqd_channels",], found["nsqd_connections",]) == (1, 1, 3)
    assert (found["nsqd_topics_without_series",], found["nsqd_channels_without_series",]) == (0, 0)
    assert not any("(others)" in key for key in found)


def test_an_unhealthy_daemon_is_not_ready_but_live(daemon, call):
    assert call.get("/readyz").status == 200
    daemon.health_text = "NOK - no space left on device"
    assert (call.get("/readyz").status, call.get("/readyz").body) == (503, b"NOK - no space left on device")
    assert call.get("/livez").status == 200
    assert b"\nnsqd_healthy 0.0\n" in call.get("/metrics").body


def test_the_time_from_publish_to_fin_is_in_seconds():
    daemon = Daemon(broker=Broker(QueueLimits(latency=LatencyOptions((0.5, 0.99), 60.0))))
    channel = daemon.broker.topic("orders").channel("archive")
    assert channel.latency is not None
    daemon.broker.topic("orders").publish([b"x"], 50.0, 1_000_000_000)
    channel.latency.add([bytes(8) + (1_000_000_000).to_bytes(8, "big") + bytes(19)], 50.0, 3_000_000_000)
    assert scrape(daemon)["nsqd_channel_e2e_latency_seconds", "orders", "archive", "0.99"] == pytest.approx(2, rel=0.01)


def test_ephemeral_topics_and_channels_are_added_up(daemon, orders):
    orders.channel("tail1#ephemeral")
    orders.channel("tail2#ephemeral")
    daemon.broker.topic("gone#ephemeral").publish([b"x"], 50.0, 1)
    orders.publish([b"five"], 50.0, 1)
    found = scrape(daemon)
    assert not any("#ephemeral" in word for key in found for word in key)
    assert found["nsqd_channel_depth", "(others)", "(others)"] == 2
    assert found["nsqd_topic_depth", "(others)"] == 1
    assert found["nsqd_channels",] == 3
    assert found["nsqd_channels_without_series",] == 2


def test_topics_beyond_the_limit_of_names_are_added_up(daemon):
    daemon.options.metrics_max_names = 5
    for number in range(4):
        topic = daemon.broker.topic(f"topic{number}")
        topic.channel("c")
        topic.publish([b"x"] * (number + 1), 50.0, 1)
    found = scrape(daemon)
    assert sorted(key[1:] for key in found if key[0] == "nsqd_channel_depth") == [
        ("(others)", "(others)"),
        ("topic0", "c"),
        ("topic1", "c"),
    ]
    assert found["nsqd_channel_depth", "(others)", "(others)"] == 3 + 4
    assert found["nsqd_topics_without_series",] == 2
    # A sum of counters would decrease when a topic is deleted.
    assert not any("(others)" in key for key in found if key[0].endswith("_total"))


def test_a_long_page_lets_others_run(daemon, monkeypatch):
    turns: list[int] = []
    monkeypatch.setattr("nsq_compat.web.application.yield_to_loop", lambda: turns.append(1))
    for number in range(300):
        daemon.broker.topic(f"topic{number}").channel("c")
    found = scrape(daemon)
    assert len([key for key in found if key[0] == "nsqd_channel_depth"]) == 300
    assert len(turns) > 100  # the topics, and 300 samples of each of 22 families
