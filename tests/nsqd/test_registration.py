"""nsqd and nsqlookupds as processes: registrations, and changes of the addresses."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd


@pytest.fixture
def nsqlookupds() -> Iterator[list[NsqlookupdProcess]]:
    with NsqlookupdProcess(installed_nsqlookupd()) as one, NsqlookupdProcess(installed_nsqlookupd()) as other:
        yield [one, other]


def nodes(nsqlookupd: NsqlookupdProcess) -> list[dict[str, object]]:
    """What it was told, without what it found out by itself."""
    found: list[dict[str, object]] = nsqlookupd.get("/nodes")["producers"]
    return [{name: value for name, value in node.items() if name != "remote_address"} for node in found]


def test_a_node_registers_its_addresses_and_its_topology(nsqlookupds: list[NsqlookupdProcess], tmp_path: Path):
    one, _ = nsqlookupds
    options = [
        f"--lookupd-tcp-address={one.tcp_address}", "--broadcast-address=nsqd.example", "--broadcast-tcp-port=7000",
        "--broadcast-http-port=7001", "--topology-region=north", "--topology-zone=a",
    ]  # fmt: skip
    with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd:
        eventually(lambda: nodes(one))
        hostname = nsqd.asks("GET", "/info").json()["hostname"]
        assert nodes(one) == [
            {
                "hostname": hostname, "broadcast_address": "nsqd.example", "tcp_port": 7000, "http_port": 7001,
                "version": "1.3.0", "topology_region": "north", "topology_zone": "a", "tombstones": [], "topics": [],
            }
        ]  # fmt: skip
    eventually(lambda: not nodes(one))


def test_nsqlookupds_can_be_changed_while_it_runs(nsqlookupds: list[NsqlookupdProcess], tmp_path: Path):
    one, other = nsqlookupds
    options = [f"--lookupd-tcp-address={one.tcp_address}", "--broadcast-address=127.0.0.1"]
    with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd:
        nsqd.create_channel("orders", "archive")
        eventually(lambda: one.get("/channels", topic="orders")["channels"])
        nsqd.asks("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([other.tcp_address]).encode())
        eventually(lambda: other.get("/channels", topic="orders")["channels"] == ["archive"])
        eventually(lambda: not nodes(one))
        nsqd.asks("PUT", "/config/nsqlookupd_tcp_addresses", b"null")
        eventually(lambda: not nodes(other))
