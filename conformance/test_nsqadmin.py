"""The API of an nsqadmin over a real nsqlookupd and nsqd: counts, actions, and NSQ's error messages."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from nsq_conformance.attached import DAEMONS, AttachedNsqadmin, AttachedNsqd, AttachedNsqlookupd, is_address
from nsq_conformance.certificates import Certificates
from nsq_conformance.cluster import eventually
from nsq_conformance.daemons import given
from nsq_conformance.nsqadmin_process import NsqadminProcess
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

_PATIENCE = 30.0


class Cluster:
    """An nsqd, an nsqlookupd and an nsqadmin that belong together."""

    def __init__(self, nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, nsqadmin: NsqadminProcess) -> None:
        self.nsqd = nsqd
        self.nsqlookupd = nsqlookupd
        self.nsqadmin = nsqadmin

    def get(self, path: str) -> Any:
        return json.loads(self.nsqadmin.get(path))

    def refusal(self, method: str, path: str, body: str = "") -> tuple[int, Any]:
        with pytest.raises(HTTPError) as refused:
            self.nsqadmin.send(path, body, method) if method != "GET" else self.nsqadmin.get(path)
        with refused.value as error:
            return error.code, json.load(error)["message"]

    def fill(self, topic: str, *bodies: str) -> None:
        """Create the topic with a channel `archive` that has these messages, and wait until nsqlookupd knows it."""
        self.nsqd.create_channel(topic, "archive")
        for body in bodies:
            urlopen(f"http://{self.nsqd.http_address}/pub?topic={topic}", body.encode(), timeout=_PATIENCE).close()
        self.until_announced(topic, "archive")
        # A topic may hold its messages until nsqlookupd has returned its channels on other nodes.
        eventually(lambda: self.nsqd.channel_stats(topic, "archive")["depth"] == len(bodies))

    def until_announced(self, topic: str, channel: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while channel not in self.channels(topic):
            assert time.monotonic() < deadline, f"{topic}/{channel} was not registered at nsqlookupd in time"
            time.sleep(0.02)

    def channels(self, topic: str) -> list[str]:
        try:
            found: list[str] = self.nsqlookupd.get("/channels", topic=topic)["channels"]
        except HTTPError as error:
            error.close()
            return []
        return found


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The running cluster, if all three are given by addresses; otherwise a new one."""
    config = request.config
    attached = [is_address(name, given(name, config)) for name in DAEMONS]
    if any(attached) and not all(attached):
        pytest.skip("needs a cluster: give the addresses of all three daemons, or of none")
    if all(attached):
        where = {name: given(name, config) for name in DAEMONS}
        yield Cluster(
            AttachedNsqd(where["nsqd"]), AttachedNsqlookupd(where["nsqlookupd"]), AttachedNsqadmin(where["nsqadmin"])
        )
        return
    commands = {name: request.getfixturevalue(f"{name}_command") for name in DAEMONS}
    folder = request.getfixturevalue("tmp_path_factory").mktemp("nsqd")
    here = "--broadcast-address=127.0.0.1"
    with ExitStack() as stack:
        nsqlookupd = stack.enter_context(NsqlookupdProcess(commands["nsqlookupd"], options=[here]))
        options = [here, f"--lookupd-tcp-address={nsqlookupd.tcp_address}"]
        nsqd = stack.enter_context(NsqdProcess(commands["nsqd"], folder, options=options))
        options = [f"--lookupd-http-address={nsqlookupd.http_address}"]
        nsqadmin = stack.enter_context(NsqadminProcess(commands["nsqadmin"], options=options))
        yield Cluster(nsqd, nsqlookupd, nsqadmin)


def test_counts_equal_those_of_nsqd(cluster: Cluster, topic: str) -> None:
    cluster.fill(topic, "one", "two", "three")
    stats = cluster.nsqd.channel_stats(topic, "archive")
    channel = cluster.get(f"/api/topics/{topic}/archive")
    assert (channel["node"], channel["nodes"][0]["node"]) == ("*", cluster.nsqd.http_address)
    for name in ("depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count", "message_count"):
        assert channel[name] == channel["nodes"][0][name] == stats[name], name
    found = cluster.get(f"/api/topics/{topic}")
    assert (found["message_count"], found["channels"][0]["depth"], found["message"]) == (3, 3, "")
    counted = cluster.get("/api/counter")["stats"][f"{topic}:archive:{cluster.nsqd.http_address}"]
    assert counted["message_count"] == 3


def test_topics_and_nodes_are_listed(cluster: Cluster, topic: str) -> None:
    cluster.fill(topic)
    assert topic in cluster.get("/api/topics")["topics"]
    (node,) = cluster.get("/api/nodes")["nodes"]
    assert f"{node['broadcast_address']}:{node['http_port']}" == cluster.nsqd.http_address
    assert {"topic": topic, "tombstoned": False} in node["topics"]
    (address,) = node["remote_addresses"]
    assert address.startswith(f"{cluster.nsqlookupd.http_address}/127.0.0.1:")
    one = cluster.get(f"/api/nodes/{cluster.nsqd.http_address}")
    assert topic in [each["topic_name"] for each in one["topics"]]


def test_actions_reach_nsqd(cluster: Cluster, topic: str) -> None:
    cluster.fill(topic, "one", "two")
    path = f"/api/topics/{topic}/archive"
    for action, paused in (("pause", True), ("unpause", False)):
        assert cluster.nsqadmin.send(path, json.dumps({"action": action})) == '{"message":""}'
        assert cluster.nsqd.channel_stats(topic, "archive")["paused"] is paused
    cluster.nsqadmin.send(path, '{"action":"empty"}')
    assert cluster.nsqd.channel_stats(topic, "archive")["depth"] == 0
    assert cluster.nsqadmin.send(path, "", "DELETE") == '{"message":""}'
    with pytest.raises(LookupError):
        cluster.nsqd.channel_stats(topic, "archive")
    assert cluster.channels(topic) == []
    cluster.nsqadmin.send(f"/api/topics/{topic}", "", "DELETE")
    assert topic not in (cluster.get("/api/topics")["topics"] or ())  # null if there is no other topic


def test_a_created_topic_is_registered_and_then_listed_as_idle(cluster: Cluster, topic: str) -> None:
    assert cluster.nsqadmin.send("/api/topics", json.dumps({"topic": topic, "channel": "c"})) == '{"message":""}'
    assert cluster.channels(topic) == ["c"]
    assert cluster.get("/api/topics?inactive=true")["topics"][topic] == ["c"]


def test_a_tombstone_takes_a_node_out_of_a_topic(cluster: Cluster, topic: str) -> None:
    cluster.fill(topic, "one")
    body = json.dumps({"topic": topic})
    cluster.nsqadmin.send(f"/api/nodes/{cluster.nsqd.http_address}", body, "DELETE")
    with pytest.raises(LookupError):
        cluster.nsqd.channel_stats(topic, "archive")
    assert cluster.nsqlookupd.get("/lookup", topic=topic)["producers"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/api/nodes/unknown:1", "", 404, "NODE_NOT_FOUND"),
        ("GET", "/api/nope", "", 404, "NOT_FOUND"),
        ("PUT", "/api/topics", "", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/api/topics", "", 400, "EOF"),
        ("POST", "/api/topics", "{bad}", 400, "invalid character 'b' looking for beginning of object key string"),
        ("POST", "/api/topics", '{"topic":"a b"}', 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", '{"topic":"a","channel":"a b"}', 400, "INVALID_CHANNEL"),
        ("POST", "/api/topics/t", '{"action":"explode"}', 400, "INVALID_ACTION"),
        ("DELETE", "/api/nodes/unknown:1", "{", 400, "INVALID_BODY"),
        ("GET", "/api/graphite", "", 400, "INVALID_ARG_METRIC"),
        ("GET", "/config/nope", "", 400, "INVALID_OPTION"),
        ("PUT", "/config/log_level", "loud", 400, "INVALID_VALUE"),
    ],
)
def test_errors_are_those_of_nsq(
    cluster: Cluster, method: str, path: str, body: str, status: int, message: str
) -> None:
    assert cluster.refusal(method, path, body) == (status, message)


def test_an_unknown_topic_is_an_upstream_error(cluster: Cluster) -> None:
    status, message = cluster.refusal("GET", "/api/topics/not.known")
    assert status == 502
    assert message.startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: got response 404 Not Found")


def test_only_admins_may_change_things_if_admins_are_set(cluster: Cluster, nsqadmin_command: str) -> None:
    options = [f"--nsqd-http-address={cluster.nsqd.http_address}", "--admin-user=ada", "--base-path=/ui"]
    with NsqadminProcess(nsqadmin_command, options=options) as nsqadmin:
        guarded = Cluster(cluster.nsqd, cluster.nsqlookupd, nsqadmin)
        assert nsqadmin.get("/ui/ping") == "OK"
        assert guarded.refusal("POST", "/ui/api/topics", '{"topic":"t"}') == (403, "FORBIDDEN")
        assert guarded.get("/ui/api/nodes")["nodes"][0]["remote_addresses"] is None
        assert guarded.refusal("GET", "/api/nodes") == (404, "NOT_FOUND")


def test_an_nsqd_that_requires_tls_is_queried_over_https(
    nsqd_command: str, nsqadmin_command: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    (tmp_path / "data").mkdir()
    required = [*certificates.options, "--tls-required=true", "--broadcast-address=127.0.0.1"]
    with NsqdProcess(nsqd_command, tmp_path / "data", options=required) as nsqd:
        cluster = [f"--nsqd-http-address={nsqd.http_address}"]
        trusting = [*cluster, f"--http-client-tls-root-ca-file={certificates.root_ca}"]
        with NsqadminProcess(nsqadmin_command, options=trusting) as nsqadmin:
            assert json.loads(nsqadmin.get("/api/topics")) == {"topics": None, "message": ""}
        with NsqadminProcess(nsqadmin_command, options=cluster) as nsqadmin, pytest.raises(HTTPError) as failed:
            nsqadmin.get("/api/topics")
        with failed.value as error:
            assert (error.code, "certificate" in error.read().decode()) == (502, True)
        careless = [*cluster, "--http-client-tls-insecure-skip-verify"]
        with NsqadminProcess(nsqadmin_command, options=careless) as nsqadmin:
            assert json.loads(nsqadmin.get("/api/topics"))["message"] == ""
