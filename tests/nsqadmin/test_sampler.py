"""Samples of the cluster in intervals."""

import base64
from collections.abc import Callable, Iterator

import gevent
import pytest

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.history import History
from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions
from nsq_compat.nsqadmin.sampler import Sampler
from tests.cluster.daemon import Addresses, Daemon


@pytest.fixture
def nsqd() -> Iterator[Daemon]:
    daemon = Daemon()
    channel = {"channel_name": "c", "depth": 2, "clients": [{"ready_count": 0}], "client_count": 1}
    daemon.says("info", daemon.info())
    daemon.says("stats", {"health": "OK", "topics": [{"topic_name": "t", "channels": [channel]}]})
    body = base64.b64encode(b"x").decode()
    daemon.says("channel/peek", {"messages": [{"id": "i", "timestamp": 5 * 10**9, "size": 1, "body": body}]})
    yield daemon
    daemon.close()


@pytest.fixture
def cluster(nsqd: Daemon) -> Cluster:
    client = HttpClient(HttpClientOptions(request_timeout=20))
    return Cluster(client, Addresses(nsqd_http_addresses=(nsqd.address,)))


def until(condition: Callable[[], object]) -> None:
    with gevent.Timeout(30):
        while not condition():
            gevent.sleep(0.01)


def test_samples_feed_the_history_and_the_first_has_clients(cluster, nsqd):
    history = History()
    sampler = Sampler(cluster, history, 0.01)
    sampler.start()
    until(lambda: sum("/stats" in f"/{heard[4:]}" for heard in nsqd.heard) >= 6)
    sampler.stop()
    assert history.latest is not None
    assert [topic.topic_name for topic in history.latest.topics] == ["t"]
    assert history.oldest == {("t", "c"): 5.0}
    assert history.not_ready == {("t", "c")}
    looks = [heard for heard in nsqd.heard if heard.startswith("GET stats?format=json&include_mem=false")]
    assert any("include_clients" not in look for look in looks)


def test_an_interval_of_zero_turns_sampling_off(cluster, nsqd):
    sampler = Sampler(cluster, History(), 0.0)
    sampler.start()
    gevent.sleep(0.05)
    sampler.stop()
    assert nsqd.heard == []


def test_sampling_continues_after_a_failure(cluster, nsqd, caplog, monkeypatch):
    history = History()
    failures = iter([ZeroDivisionError("once")])
    add = history.add

    def fails_once(*arguments: object) -> None:
        if failure := next(failures, None):
            raise failure
        add(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(history, "add", fails_once)
    sampler = Sampler(cluster, history, 0.01)
    sampler.start()
    until(lambda: history.latest)
    sampler.stop()
    assert "SAMPLER: failed" in caplog.text
