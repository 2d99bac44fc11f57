"""Discovery of nsqd and their backlogs, with real daemons over real HTTP."""

import json
import socket
import threading
import time

import pytest

from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from pyspark_nsq import nodes
from pyspark_nsq.nodes import HttpFailed, Node, Nodes, NoNodes, SideBySide, ask, registered
from pyspark_nsq.options import read_options
from tests.client.waiting import wait_until
from tests.cluster.hostile import DEADLINE, DRIPPING, HostileServer
from tests.spark.conftest import OptionsWith


def test_the_backlog_is_the_depth_of_the_channel(nsqd, topic, options_with: OptionsWith, publish):
    publish(5)
    node = Node(topic, nsqd.tcp_address, nsqd.http_address)
    assert Nodes(options_with()).backlog() == [(node, 5)]


def test_the_channel_is_created_on_every_node_once(nsqd, topic, options_with):
    nodes = Nodes(options_with())
    nodes.create_channels()
    assert nsqd.channel_stats(topic, "c")["depth"] == 0


def test_an_unknown_topic_has_no_backlog(options_with):
    assert [depth for _, depth in Nodes(options_with()).backlog()] == [0]


def test_the_settled_backlog_includes_messages_on_their_way_to_the_channel(lookupd, options_with):
    def stats(in_topic: int, in_channel: int) -> tuple[int, bytes]:
        channels = [{"channel_name": "c", "depth": in_channel}]
        return 200, json.dumps({"topics": [{"topic_name": "t", "depth": in_topic, "channels": channels}]}).encode()

    # As Go's nsqd, which reads the channel's depth first, so that some of the 5,001 messages are not counted at all.
    lookupd.replies = [stats(4000, 900), stats(60, 4930), stats(0, 4990)]
    lookupd.reply = stats(0, 5001)
    nodes = Nodes(options_with(subscribe="t", nsqdTcpAddresses="127.0.0.1:7", nsqdHttpAddresses=lookupd.address))
    assert [depth for _, depth in nodes.settled_backlog()] == [5001]


def test_the_wait_for_a_paused_topic_is_limited(nsqd, topic, options_with, publish):
    nsqd.asks("POST", f"/topic/pause?topic={topic}")
    publish(3)
    assert [depth for _, depth in Nodes(options_with()).settled_backlog()] == [3]


def test_without_an_http_address_the_backlog_is_unknown(nsqd, topic, options_with):
    assert Nodes(options_with(nsqdHttpAddresses="")).backlog() == [(Node(topic, nsqd.tcp_address, ""), None)]


def test_an_unreachable_node_is_skipped_unless_fail_on_unreachable(nsqd, topic, options_with, publish):
    publish(1)
    two = {
        "nsqdTcpAddresses": f"127.0.0.1:1,{nsqd.tcp_address}",
        "nsqdHttpAddresses": f"127.0.0.1:2,{nsqd.http_address}",
    }
    assert Nodes(options_with(**two)).backlog() == [(Node(topic, nsqd.tcp_address, nsqd.http_address), 1)]
    with pytest.raises(HttpFailed, match=r"http://127\.0\.0\.1:2/stats"):
        Nodes(options_with(**two, failOnUnreachable="true")).backlog()


def test_a_query_without_a_reachable_nsqd_fails(options_with):
    for http in ("", "127.0.0.1:2"):
        with pytest.raises(NoNodes, match="nsqdTcpAddresses: no nsqd can be reached"):
            Nodes(options_with(nsqdTcpAddresses="127.0.0.1:1", nsqdHttpAddresses=http)).require()


def looked_up(*addresses: str, **more: str):
    written = {"subscribe": "t", "channel": "c", "spoolDir": "/spool", "lookupdHttpAddresses": ",".join(addresses)}
    return read_options(written | more, "stream")


def test_nodes_are_found_through_nsqlookupd(tmp_path):
    with NsqlookupdProcess(installed_nsqlookupd()) as nsqlookupd:
        nodes = Nodes(looked_up(nsqlookupd.http_address, lookupIntervalMs="0"))
        assert nodes.all() == []
        options = [f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1"]
        with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd:
            nsqd.create_channel("t", "c")
            deadline = time.monotonic() + 30
            while not nodes.all() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert nodes.all() == [Node("t", nsqd.tcp_address, nsqd.http_address)]


def test_nsqlookupd_is_queried_again_after_the_interval(lookupd):
    now = 0.0
    lookupd.addresses = ["127.0.0.1:7"]
    nodes = Nodes(looked_up(lookupd.address, lookupIntervalMs="5000"), lambda: now)
    assert [each.tcp for each in nodes.all()] == ["127.0.0.1:7"]
    lookupd.addresses = ["127.0.0.1:8"]
    now = 4.9
    assert [each.tcp for each in nodes.all()] == ["127.0.0.1:7"]
    now = 5.1
    assert [each.tcp for each in nodes.all()] == ["127.0.0.1:8"]


@pytest.mark.parametrize("answer", DRIPPING)
def test_a_slow_answer_ends_at_the_deadline(answer):
    with HostileServer(answer) as server, pytest.raises(HttpFailed, match=": timeout$"):
        ask(server.address, "stats", DEADLINE)


def test_an_answer_of_tiny_values_is_refused():
    body = b"[" + b"0," * 1_000_001 + b"0]"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with HostileServer(lambda server: iter([answer])) as server, pytest.raises(HttpFailed, match="too many values"):
        ask(server.address, "stats", 30)


def test_an_invalid_registration_is_skipped_and_logged_once(lookupd, caplog):
    bad = {"broadcast_address": "a b", "tcp_port": 1, "http_port": 2, "hostname": "web3"}
    good = {"broadcast_address": "::1", "tcp_port": 1, "http_port": 2}
    lookupd.reply = 200, json.dumps({"producers": [bad, good, {**good, "tcp_port": 0}]}).encode()
    nodes = Nodes(looked_up(lookupd.address, lookupIntervalMs="0"))
    for _ in range(3):
        assert nodes.all() == [Node("t", "[::1]:1", "[::1]:2")]
    assert [line.partition("skipped ")[2] for line in caplog.messages] == [
        'nsqd "": invalid TCP port "0"',
        'nsqd "web3": invalid broadcast address "a b"',
    ]


def test_of_a_topic_at_one_nsqlookupd_a_thousand_nsqd_are_used(lookupd, caplog):
    lookupd.addresses = [f"127.0.{number // 250}.{number % 250}:7" for number in range(1200)]
    nodes = Nodes(looked_up(lookupd.address, lookupIntervalMs="0"))
    for _ in range(2):
        assert len(nodes.all()) == 1000
    assert caplog.messages == [f"nsqlookupd {lookupd.address}: lists 1200 nsqd of a topic, and only 1000 are used"]


def test_requests_that_hang_do_not_accumulate_when_nsqd_come_and_go():
    began: list[int] = []
    released = threading.Event()

    def request(key: int) -> int:
        began.append(key)
        released.wait(30)
        return key

    requests = SideBySide(request, str)
    assert all(isinstance(each, HttpFailed) for each in requests.ask(range(1000), patience=0.01).values())
    wait_until(lambda: len(began) == 64)
    requests.ask([1000], patience=0.01)
    released.set()
    assert requests.ask([1000], patience=30) == {1000: 1000}
    assert sorted(began) == [*range(64), 1000]


@pytest.mark.parametrize("reply", [(500, b"{}"), (200, b"no json"), (200, b"[]"), (200, b'{"producers": [{}]}')])
def test_an_invalid_answer_of_nsqlookupd_keeps_the_known_nodes(lookupd, reply):
    lookupd.addresses = ["127.0.0.1:7"]
    nodes = Nodes(looked_up(lookupd.address, lookupIntervalMs="0"))
    nodes.all()
    lookupd.reply = reply
    assert [each.tcp for each in nodes.all()] == ["127.0.0.1:7"]


def test_no_nsqlookupd_at_all_is_an_error_that_names_the_option():
    with pytest.raises(NoNodes, match="^lookupdHttpAddresses: no nsqlookupd answers"):
        Nodes(looked_up("127.0.0.1:1")).require()


def test_a_hanging_nsqd_delays_the_first_answer_only(nsqd, topic, options_with, publish, caplog):
    publish(3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        hanging = f"127.0.0.1:{server.getsockname()[1]}"
        addresses = {
            "nsqdTcpAddresses": f"{hanging},{nsqd.tcp_address}",
            "nsqdHttpAddresses": f"{hanging},{nsqd.http_address}",
        }
        nodes = Nodes(options_with(**addresses, connectTimeoutMs="40000"))
        nodes.create_channels()
        before = time.monotonic()
        for _ in range(20):
            assert [depth for _, depth in nodes.backlog()] == [3]
        assert time.monotonic() - before < 30
        report = nodes.report()
        assert report[nsqd.http_address]["messages"] == 3
        assert "unreachable" not in report[nsqd.http_address]
        assert report[hanging]["messages"] is None
        assert report[hanging]["unreachable"].endswith("no answer yet")
    assert len([line for line in caplog.messages if "left out of batches" in line]) == 1


def test_the_report_keeps_what_an_nsqd_had_that_is_gone(tmp_path, nsqd, topic, options_with, publish):
    publish(2)
    with NsqdProcess(installed_nsqd(), tmp_path) as other:
        other.create_channel(topic, "c")
        assert other.asks("POST", f"/pub?topic={topic}", b"left behind").status == 200
        both = {
            "nsqdTcpAddresses": f"{nsqd.tcp_address},{other.tcp_address}",
            "nsqdHttpAddresses": f"{nsqd.http_address},{other.http_address}",
        }
        nodes = Nodes(options_with(**both))
        nodes.backlog()
        assert {each["messages"] for each in nodes.report().values()} == {1, 2}
        other.kill()
        assert [depth for _, depth in nodes.backlog()] == [2]
        gone = nodes.report()[other.http_address]
        assert gone["messages"] == 1
        assert "connection refused" in gone["unreachable"]


def test_an_nsqd_that_is_registered_no_more_is_reported_with_what_it_had(lookupd, nsqd, topic, publish):
    publish(2)
    host, _, tcp = nsqd.tcp_address.rpartition(":")
    here = {"broadcast_address": host, "tcp_port": int(tcp), "http_port": int(nsqd.http_address.rpartition(":")[2])}
    lookupd.reply = 200, json.dumps({"producers": [here]}).encode()
    nodes = Nodes(looked_up(lookupd.address, lookupIntervalMs="0", subscribe=topic))
    nodes.backlog()
    lookupd.reply = 200, json.dumps({"producers": []}).encode()
    assert nodes.backlog() == []
    assert nodes.report()[nsqd.http_address]["messages"] == 2
    assert "not registered" in nodes.report()[nsqd.http_address]["unreachable"]


def test_all_nsqd_of_nsqlookupd_are_found_but_those_with_a_tombstone(lookupd):
    one = {"broadcast_address": "127.0.0.1", "tcp_port": 1, "http_port": 2, "topics": ["t"], "tombstones": [True]}
    two = {**one, "tcp_port": 3, "tombstones": [False]}
    lookupd.reply = 200, json.dumps({"producers": [one, two, {**one, "tcp_port": 5, "topics": ["u"]}]}).encode()
    assert registered([lookupd.address, "127.0.0.1:1"], "t", 5) == ["127.0.0.1:3", "127.0.0.1:5"]
    with pytest.raises(NoNodes, match="lookupdHttpAddresses: no nsqlookupd answers"):
        registered(["127.0.0.1:1"], "t", 5)


def test_a_name_that_no_topic_can_have_is_not_subscribed_to(lookupd):
    names = ["good", "orders archive", "../x", "a\nFIN", ""]
    producer = {"broadcast_address": "h", "tcp_port": 1, "http_port": 2}
    lookupd.reply = 200, json.dumps({"topics": names, "producers": [producer]}).encode()
    written = {
        "subscribePattern": "[^#]*",
        "channel": "c",
        "spoolDir": "/spool",
        "lookupdHttpAddresses": lookupd.address,
    }
    assert Nodes(read_options(written, "stream")).all() == [Node("good", "h:1", "h:2")]


@pytest.mark.parametrize("depth", ['"x"', "1e999", "[]", "[" * 100_000])
def test_an_nsqd_with_a_depth_that_is_no_number_is_left_out(lookupd, options_with, topic, depth):
    channel = '{"channel_name": "c", "depth": 1}'
    stats = f'{{"topics": [{{"topic_name": "{topic}", "channels": [{channel}], "depth": {depth}}}]}}'
    lookupd.reply = 200, stats.encode()
    assert Nodes(options_with(nsqdHttpAddresses=lookupd.address)).backlog(10) == []


@pytest.mark.parametrize(("claimed", "depth"), [(-5, 1), (10**4000, 1 << 63)])
def test_a_depth_that_no_nsqd_has_is_limited(lookupd, options_with, topic, claimed, depth):
    channel = {"channel_name": "c", "depth": 1}
    stats = {"topics": [{"topic_name": topic, "channels": [channel], "depth": claimed}]}
    lookupd.reply = 200, json.dumps(stats).encode()
    ((_, found),) = Nodes(options_with(nsqdHttpAddresses=lookupd.address)).backlog(10)
    assert found == depth


def test_of_the_topics_that_match_a_pattern_a_limited_number_is_used(lookupd, monkeypatch, caplog):
    monkeypatch.setattr(nodes, "_MAX_TOPICS", 2)
    producer = {"broadcast_address": "h", "tcp_port": 1, "http_port": 2}
    lookupd.reply = 200, json.dumps({"topics": ["c", "a", "b", "a"], "producers": [producer]}).encode()
    written = {"subscribePattern": ".*", "channel": "c", "spoolDir": "/spool", "lookupdHttpAddresses": lookupd.address}
    assert [node.topic for node in Nodes(read_options(written, "stream")).all()] == ["a", "b"]
    assert "3 topics match the pattern, and only 2 are used" in caplog.text
