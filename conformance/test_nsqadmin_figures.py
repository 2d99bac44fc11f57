"""Two nsqadmins over one cluster give the same answers; ``--other-nsqadmin`` is the other one.

Deliberate differences (docs/differences.md, nsqadmin) are removed before: the order of nodes, and the distribution of
channels' counts over nodes in a topic's answer.
"""

import functools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.error import HTTPError

import pytest

from nsq_conformance.cluster import Cluster, eventually, producers
from nsq_conformance.daemons import command_of
from nsq_conformance.nsqadmin_process import NsqadminProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess
from nsq_conformance.raw_client import RawClient

_PATHS = (
    *("/api/topics", "/api/topics?inactive=true", "/api/nodes", "/api/counter"),
    *("/api/topics/orders", "/api/topics/held", "/api/topics/fast%23ephemeral", "/api/topics/unknown"),
    *("/api/topics/orders/archive", "/api/topics/orders/billing", "/api/topics/fast%23ephemeral/tail%23ephemeral"),
)


@pytest.fixture(scope="module")
def cluster(nsqd_command: str, nsqlookupd_command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nsqlookupds and two nsqds, with messages in every state that is counted."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, [nsqd_command], [nsqlookupd_command], nsqds=2) as running, ExitStack() as clients:
        first, second = running.nsqds
        for nsqd in running.nsqds:
            for channel in ("archive", "billing"):
                nsqd.create_channel("orders", channel)
            nsqd.asks("POST", "/mpub?topic=orders", b"\n".join(b"order %d" % number for number in range(20)))
        first.asks("POST", "/pub?topic=orders&defer=600000", b"later")
        first.asks("POST", "/pub?topic=held", b"no channel yet")
        second.create_channel("fast#ephemeral", "tail#ephemeral")
        second.asks("POST", "/channel/pause?topic=orders&channel=billing")
        for nsqd, count in ((first, 3), (second, 5)):
            consumer = clients.enter_context(RawClient(nsqd.tcp_address))
            consumer.identifies(client_id="c", hostname="host.example", user_agent="figures/1", msg_timeout=600_000)
            one, two, *_ = consumer.subscribes("orders", "archive", ready=count).messages(count)
            consumer.is_ready(0).finishes(one).requeues(two, 600_000).has_been_heard()
        running.nsqlookupds[0].asks("POST", "/channel/create?topic=idle&channel=left")
        for nsqlookupd in running.nsqlookupds:
            eventually(functools.partial(knows_all, nsqlookupd))
        eventually(lambda: [each.channel_stats("orders", "archive")["depth"] for each in running.nsqds] == [17, 15])
        yield running


def knows_all(nsqlookupd: NsqlookupdProcess) -> bool:
    wanted = {"orders": 2, "held": 1, "fast#ephemeral": 1}
    return {topic: producers(nsqlookupd, topic) for topic in wanted} == wanted


@pytest.fixture(scope="module", params=["nsqlookupd", "nsqd"])
def both(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[list[NsqadminProcess]]:
    """An nsqadmin of each kind, with nsqlookupds or with a list of nsqds."""
    flags = {
        "nsqlookupd": [f"--lookupd-http-address={address}" for address in cluster.lookupd_http],
        "nsqd": [f"--nsqd-http-address={nsqd.http_address}" for nsqd in cluster.nsqds],
    }[request.param]
    with ExitStack() as stack:
        commands = [command_of(name, request.config) for name in ("nsqadmin", "other-nsqadmin")]
        yield [stack.enter_context(NsqadminProcess(command, options=flags)) for command in commands]


def shown(nsqadmin: NsqadminProcess, path: str) -> Any:
    """The part of an answer that must be equal, whatever its status."""
    try:
        answer = json.loads(nsqadmin.get(path))
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
    for node in answer.get("nodes") or ():
        node.pop("remote_address", None)  # depends on which nsqlookupd answers first
    if path.startswith("/api/topics/") and path.count("/") == 3:
        for channel in answer["channels"] or ():
            del channel["nodes"], channel["node"], channel["hostname"], channel["clients"]
            del channel["e2e_processing_latency"]
        for node in answer["nodes"]:
            del node["channels"]
    return in_any_order(answer)


def in_any_order(value: Any) -> Any:
    """Sort lists, and remove values that change with time."""
    if isinstance(value, dict):
        return {key: in_any_order(each) for key, each in value.items() if key != "connected"}
    if isinstance(value, list):
        return sorted(map(in_any_order, value), key=lambda each: json.dumps(each, sort_keys=True))
    return value


@pytest.mark.parametrize("path", _PATHS)
def test_both_give_the_same_answer(both: list[NsqadminProcess], path: str) -> None:
    # Line by line, so that pytest shows a difference in one line.
    one, other = (json.dumps(shown(nsqadmin, path), indent=1, sort_keys=True).splitlines() for nsqadmin in both)
    assert one == other


def test_both_show_each_node_alike(both: list[NsqadminProcess], cluster: Cluster) -> None:
    for nsqd in cluster.nsqds:
        one, other = (shown(nsqadmin, f"/api/nodes/{nsqd.http_address}") for nsqadmin in both)
        assert one == other
        assert one["total_clients"] == 1


def test_the_compared_counts_are_not_empty(both: list[NsqadminProcess]) -> None:
    """Guards the comparisons above against empty answers."""
    channel = shown(both[0], "/api/topics/orders/archive")
    figures = ("depth", "in_flight_count", "deferred_count", "requeue_count", "message_count", "client_count")
    assert [channel[figure] for figure in figures] == [32, 4, 3, 2, 41, 2]
    assert shown(both[0], "/api/topics/orders/billing")["paused"]
