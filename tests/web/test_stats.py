"""/ping, /info and /stats as JSON: keys and their order, omitted and null values."""

import json
from dataclasses import replace

import pytest

from nsq_compat.queue.stats import ChannelStats, ClientStats, LatencyStats, TopicStats
from nsq_compat.web.stats import _report_json
from nsq_compat.web.stats_text import StatsReport

CLIENT = ClientStats(
    client_id="c1",
    hostname="vm",
    version="V2",
    remote_address="127.0.0.1:34786",
    state=3,
    ready_count=100,
    in_flight_count=0,
    message_count=8,
    finish_count=8,
    requeue_count=0,
    connect_ts=1125,
)


def stats(call, query=""):
    response = call.get(f"/stats?format=json{query}")
    assert response.status == 200
    assert ("Content-Type", "application/json; charset=utf-8") in response.headers
    return json.loads(response.body)


def test_ping_tells_the_health_in_plain_text(call, daemon):
    response = call.get("/ping")
    assert (response.status, response.body) == (200, b"OK")
    assert response.headers == (("Content-Type", "text/plain; charset=utf-8"),)
    daemon.health_text = "NOK - disk full"
    response = call.get("/ping?a;b")
    assert (response.status, response.body) == (500, b"NOK - disk full")


def test_info_has_nsqds_keys_in_nsqds_order(call):
    assert call.get("/info").body == (
        b'{"version":"1.3.0","broadcast_address":"node1","hostname":"host1","http_port":4151,"tcp_port":4150,'
        b'"start_time":1000,"max_heartbeat_interval":60000000000,"max_output_buffer_size":65536,'
        b'"max_output_buffer_timeout":30000000000,"max_deflate_level":6,"topology_zone":"","topology_region":""}'
    )


def test_stats_of_an_empty_daemon(call):
    assert call.get("/stats?format=json&include_mem=false").body == (
        b'{"version":"1.3.0","health":"OK","start_time":1000,"topics":[],"producers":null}'
    )


def test_stats_of_a_topic_have_nsqds_keys_in_nsqds_order(call):
    call.post("/topic/create?topic=t")
    call.post("/channel/create?topic=t&channel=c")
    call.post("/pub?topic=t", b"abc")
    assert call.get("/stats?format=json&include_mem=0").body == (
        b'{"version":"1.3.0","health":"OK","start_time":1000,"topics":[{"topic_name":"t","channels":['
        b'{"channel_name":"c","depth":1,"backend_depth":0,"in_flight_count":0,"deferred_count":0,"message_count":1,'
        b'"requeue_count":0,"timeout_count":0,"client_count":0,"clients":[],"paused":false,'
        b'"e2e_processing_latency":{"count":0,"percentiles":null}}],"depth":0,"backend_depth":0,"message_count":1,'
        b'"message_bytes":3,"paused":false,"e2e_processing_latency":{"count":0,"percentiles":null}}],"producers":null}'
    )


@pytest.mark.parametrize(
    ("query", "topics"),
    [
        ("", {"a": ["x", "y"], "b": ["x"]}),
        ("&topic=a", {"a": ["x", "y"]}),
        ("&channel=y", {"a": ["y"]}),
        ("&topic=b&channel=x", {"b": ["x"]}),
        ("&topic=b&channel=y", {}),
        ("&topic=&channel=", {"a": ["x", "y"], "b": ["x"]}),
    ],
)
def test_filters_select_topics_and_channels(call, query, topics):
    for topic, channel in (("b", "x"), ("a", "y"), ("a", "x")):
        call.post(f"/topic/create?topic={topic}")
        call.post(f"/channel/create?topic={topic}&channel={channel}")
    shown = stats(call, query)["topics"]
    assert {topic["topic_name"]: [each["channel_name"] for each in topic["channels"]] for topic in shown} == topics
    assert list(topics) == [topic["topic_name"] for topic in shown]


def test_stats_of_an_unknown_topic_are_null(call, daemon):
    daemon.connected_producers = (replace(CLIENT, pub_counts=(("t", 2),)),)
    shown = stats(call, "&topic=nosuch")
    assert (shown["topics"], shown["producers"]) == (None, None)


@pytest.mark.parametrize(("query", "shown"), [("", True), ("&include_mem=x", True), ("&include_mem=false", False)])
def test_memory_may_be_left_out(call, query, shown):
    assert ("memory" in stats(call, query)) is shown


def test_clients_may_be_left_out(call, daemon):
    daemon.connected_producers = (replace(CLIENT, pub_counts=(("t", 2),)),)
    call.post("/topic/create?topic=t")
    call.post("/channel/create?topic=t&channel=c")
    shown = stats(call, "&include_clients=0")
    assert shown["topics"][0]["channels"][0]["clients"] is None
    assert shown["producers"] is None


def test_producers_list_every_topic_unless_one_is_asked_for(call, daemon):
    call.post("/topic/create?topic=t")
    call.post("/topic/create?topic=other")
    daemon.connected_producers = (replace(CLIENT, pub_counts=(("t", 2), ("u", 3))),)
    counts = [{"topic": "t", "count": 2}, {"topic": "u", "count": 3}]
    assert stats(call)["producers"][0]["pub_counts"] == counts
    assert stats(call, "&topic=t")["producers"][0]["pub_counts"] == counts[:1]
    assert "pub_counts" not in stats(call, "&topic=other")["producers"][0]


def test_clients_have_nsqds_keys_in_nsqds_order(call, daemon):
    daemon.connected_producers = (CLIENT,)
    assert " ".join(stats(call)["producers"][0]) == (
        "client_id hostname version remote_address state ready_count in_flight_count message_count finish_count "
        "requeue_count connect_ts sample_rate deflate snappy user_agent topology_zone topology_region tls "
        "tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
    )
    full = replace(
        CLIENT,
        zone_local_msg_count=1,
        region_local_msg_count=1,
        global_msg_count=1,
        authed=True,
        auth_identity="me",
        auth_identity_url="http://me",
        pub_counts=(("t", 1),),
    )
    daemon.connected_producers = (full,)
    assert " ".join(stats(call)["producers"][0]) == (
        "client_id hostname version remote_address state ready_count in_flight_count message_count "
        "zone_local_msg_count region_local_msg_count global_msg_count finish_count requeue_count connect_ts "
        "sample_rate deflate snappy user_agent authed auth_identity auth_identity_url topology_zone "
        "topology_region pub_counts tls tls_cipher_suite tls_version tls_negotiated_protocol "
        "tls_negotiated_protocol_is_mutual"
    )


def test_channels_show_clients_latency_and_what_is_not_zero():
    channel = ChannelStats(
        channel_name="c",
        depth=1,
        backend_depth=0,
        in_flight_count=0,
        deferred_count=0,
        message_count=8,
        requeue_count=0,
        timeout_count=0,
        client_count=1,
        clients=(CLIENT,),
        paused=True,
        global_msg_count=8,
        dropped_count=3,
        e2e_processing_latency=LatencyStats(count=8, percentiles=((1.0, 235346933.0), (0.99, 0.0))),
    )
    topic = TopicStats(
        topic_name="t",
        channels=(channel,),
        depth=0,
        backend_depth=0,
        message_count=8,
        message_bytes=17,
        paused=False,
    )
    report = StatsReport("1.3.0", "line", "OK", 1000.0, 0, (topic,), None, ())
    (shown,) = json.loads(b"".join(_report_json(report, (topic,))))["topics"][0]["channels"]
    assert " ".join(shown) == (
        "channel_name depth backend_depth in_flight_count deferred_count message_count global_msg_count "
        "requeue_count timeout_count dropped_count client_count clients paused e2e_processing_latency"
    )
    assert shown["clients"][0]["client_id"] == "c1"
    assert shown["e2e_processing_latency"] == {
        "count": 8,
        "percentiles": [{"quantile": 1.0, "value": 235346933.0}, {"quantile": 0.99, "value": 0.0}],
    }


@pytest.mark.parametrize("form", ["json", "text"])
def test_stats_of_many_topics_let_others_run(call, daemon, form):
    turns: list[int] = []

    def let_others_run():
        turns.append(1)
        daemon.broker.topics.pop("t249", None)

    daemon.let_others_run = let_others_run
    for number in range(250):
        daemon.broker.topic(f"t{number:03}")
    body = call.get(f"/stats?format={form}").body
    assert len(turns) >= 4  # while collecting and while encoding
    assert b"t248" in body
    assert b"t249" not in body


def test_a_malformed_query_is_refused(call):
    assert call.get("/stats?topic=%zz").body == b'{"message":"INVALID_REQUEST"}'
