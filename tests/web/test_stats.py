"""/ping, /info and /stats: keys of the JSON and their order, omitted and null values; columns of the text; memory."""

import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from nsq_compat import __version__, build, is_compiled
from nsq_compat.protocol.go_json import dumps
from nsq_compat.queue.values import ChannelStats, ClientStats, LatencyStats, TopicStats
from nsq_compat.web.stats import MemoryStats, _json_pieces, _lines, _time_text

MS = 1_000_000
SERVICE: Any = SimpleNamespace(
    started_at=1000.0,
    now_ns=lambda: 1127_687_255_628,
    health=lambda: "OK",
    disk_space=lambda: (1, 2),
    loop_lag=0.0,
    mirroring=lambda: {"standby": None, "accepts": False, "primaries": []},
)
_BUILD = {"version": __version__, "build": build(), "compiled": is_compiled()}
_MEASURED = {"disk_free_bytes": 2**30, "disk_bytes": 2**40, "event_loop_lag_seconds": 1.235}
OURS = f',"nsq_compat":{dumps({**_BUILD, **_MEASURED})}}}'.encode()
"""The end of the JSON, which Go's nsqd does not have."""
CHANNEL_COUNTS = (
    *("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count"),
    *("requeue_count", "timeout_count", "client_count"),
)
CLIENT_COUNTS = ("state", "ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count")
NO_CLIENT = ClientStats(
    client_id="vm",
    hostname="vm",
    version="V2",
    remote_address="127.0.0.1:34786",
    connect_ts=1125,
    user_agent="nsq_tail/1.3.0 go-nsq/1.1.0",
    **dict.fromkeys(CLIENT_COUNTS, 0),  # type: ignore[arg-type]
)


def channel(name, **values):
    counts = dict.fromkeys(CHANNEL_COUNTS, 0)
    return ChannelStats(**{"channel_name": name, "clients": (), "paused": False, **counts, **values})


def topic(name, *channels, **values):
    counts = dict.fromkeys(("depth", "backend_depth", "message_count", "message_bytes"), 0)
    return TopicStats(**{"topic_name": name, "channels": channels, "paused": False, **counts, **values})


def client(**values):
    return replace(NO_CLIENT, **values)


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


def test_info_has_nsqds_keys_in_nsqds_order_and_then_ours(call):
    nsqds, _, ours = call.get("/info").body.partition(b',"nsq_compat":')
    assert json.loads(ours[:-1]) == {"version": __version__, "build": build(), "compiled": is_compiled()}
    assert nsqds == (
        b'{"version":"1.3.0","broadcast_address":"node1","hostname":"%b","http_port":4151,"tcp_port":4150,'
        b'"start_time":1000,"max_heartbeat_interval":60000000000,"max_output_buffer_size":65536,'
        b'"max_output_buffer_timeout":30000000000,"max_deflate_level":6,"topology_zone":"","topology_region":""'
        % os.uname().nodename.encode()
    )


def test_stats_of_an_empty_daemon(call):
    assert call.get("/stats?format=json&include_mem=false").body == (
        b'{"version":"1.3.0","health":"OK","start_time":1000,"topics":[],"producers":null' + OURS
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
        b'"message_bytes":3,"paused":false,"e2e_processing_latency":{"count":0,"percentiles":null}}],"producers":null'
        + OURS
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
    daemon.connected_producers = (replace(NO_CLIENT, pub_counts=(("t", 2),)),)
    shown = stats(call, "&topic=nosuch")
    assert (shown["topics"], shown["producers"]) == (None, None)


@pytest.mark.parametrize(("query", "shown"), [("", True), ("&include_mem=x", True), ("&include_mem=false", False)])
def test_memory_may_be_left_out(call, query, shown):
    assert ("memory" in stats(call, query)) is shown


def test_clients_may_be_left_out(call, daemon):
    daemon.connected_producers = (replace(NO_CLIENT, pub_counts=(("t", 2),)),)
    call.post("/topic/create?topic=t")
    call.post("/channel/create?topic=t&channel=c")
    shown = stats(call, "&include_clients=0")
    assert shown["topics"][0]["channels"][0]["clients"] is None
    assert shown["producers"] is None


def test_producers_list_every_topic_unless_one_is_asked_for(call, daemon):
    call.post("/topic/create?topic=t")
    call.post("/topic/create?topic=other")
    daemon.connected_producers = (replace(NO_CLIENT, pub_counts=(("t", 2), ("u", 3))),)
    counts = [{"topic": "t", "count": 2}, {"topic": "u", "count": 3}]
    assert stats(call)["producers"][0]["pub_counts"] == counts
    assert stats(call, "&topic=t")["producers"][0]["pub_counts"] == counts[:1]
    assert "pub_counts" not in stats(call, "&topic=other")["producers"][0]


def test_clients_have_nsqds_keys_in_nsqds_order(call, daemon):
    daemon.connected_producers = (NO_CLIENT,)
    assert " ".join(stats(call)["producers"][0]) == (
        "client_id hostname version remote_address state ready_count in_flight_count message_count finish_count "
        "requeue_count connect_ts sample_rate deflate snappy user_agent topology_zone topology_region tls "
        "tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
    )
    full = replace(
        NO_CLIENT,
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
    latency = LatencyStats(count=8, percentiles=((1.0, 235346933.0), (0.99, 0.0)))
    counts = {"message_count": 8, "client_count": 1, "global_msg_count": 8, "dropped_count": 3}
    known = topic("t", channel("c", clients=(NO_CLIENT,), paused=True, e2e_processing_latency=latency, **counts))
    (shown,) = json.loads(b"".join(_json_pieces(SERVICE, iter((known,)), {}, ())))["topics"][0]["channels"]
    assert " ".join(shown) == (
        "channel_name depth backend_depth in_flight_count deferred_count message_count global_msg_count "
        "requeue_count timeout_count dropped_count client_count clients paused e2e_processing_latency"
    )
    assert shown["clients"][0]["client_id"] == "vm"
    assert shown["e2e_processing_latency"] == {
        "count": 8,
        "percentiles": [{"quantile": 1.0, "value": 235346933.0}, {"quantile": 0.99, "value": 0.0}],
    }


def test_stats_of_many_clients_let_others_run(monkeypatch):
    turns = []
    monkeypatch.setattr("nsq_compat.web.application.yield_to_loop", lambda: turns.append(1))
    clients = tuple(client(client_id=f"<{number}>") for number in range(200))
    known = topic("t", channel("c", clients=clients, client_count=200))
    shown = json.loads(b"".join(_json_pieces(SERVICE, iter((known,)), {}, clients)))
    expected = [f"<{number}>" for number in range(200)]
    assert [each["client_id"] for each in shown["topics"][0]["channels"][0]["clients"]] == expected
    assert [each["client_id"] for each in shown["producers"]] == expected
    assert len(turns) >= 8


def test_stats_of_many_clients_let_others_run_as_text(monkeypatch):
    turns: list[int] = []
    monkeypatch.setattr("nsq_compat.web.application.yield_to_loop", lambda: turns.append(1))
    clients = tuple(client(hostname=f"<{number}>") for number in range(200))
    known = topic("t", channel("c", clients=clients, client_count=200))
    assert body([known], clients).count("<199>:") == 2
    assert len(turns) >= 8


@pytest.mark.parametrize("form", ["json", "text"])
def test_stats_of_producers_of_many_topics_let_others_run(call, daemon, form, monkeypatch):
    turns: list[int] = []
    monkeypatch.setattr("nsq_compat.web.application.yield_to_loop", lambda: turns.append(1))
    counts = tuple((f"t{number}", 1) for number in range(6400))
    daemon.connected_producers = tuple(client(client_id=f"c{number}", pub_counts=counts) for number in range(8))
    response = call.get(f"/stats?format={form}")
    assert b"".join([response.body, *response.rest]).count(b"t6399") == 8
    assert len(turns) >= 16  # while collecting and while encoding


@pytest.mark.parametrize("form", ["json", "text"])
def test_stats_of_many_channels_let_others_run(call, daemon, form, monkeypatch):
    turns: list[int] = []
    monkeypatch.setattr("nsq_compat.web.application.yield_to_loop", lambda: turns.append(1))
    for number in range(1000):
        daemon.broker.topic("t").channel(f"c{number:03}")
    response = call.get(f"/stats?format={form}")
    body = b"".join([response.body, *response.rest])
    assert all(b"c%03d" % number in body for number in range(1000))
    assert len(turns) >= 5
    if form == "json":
        assert len(json.loads(body)["topics"][0]["channels"]) == 1000


def test_channels_are_read_in_steps_for_stats_and_for_metrics(call, daemon, monkeypatch):
    turns: list[int] = []
    for number in range(1000):
        daemon.broker.topic("t").channel(f"c{number:03}")
    monkeypatch.setattr("nsq_compat.web.application.yield_to_loop", lambda: turns.append(1))
    call.get("/stats?format=json")
    assert len(turns) >= 10  # while they are read, and while they are encoded
    turns.clear()
    call.get("/metrics")
    assert len(turns) >= 10


@pytest.mark.parametrize("form", ["json", "text"])
def test_stats_of_many_topics_let_others_run(call, daemon, form, monkeypatch):
    turns: list[int] = []

    def yield_to_loop():
        turns.append(1)
        daemon.broker.topics.pop("t249", None)

    monkeypatch.setattr("nsq_compat.web.application.yield_to_loop", yield_to_loop)
    for number in range(250):
        daemon.broker.topic(f"t{number:03}")
    body = call.get(f"/stats?format={form}").body
    assert len(turns) >= 4  # while collecting and while encoding
    assert b"t248" in body
    assert b"t249" not in body


def test_a_malformed_query_is_refused(call):
    assert call.get("/stats?topic=%zz").body == b'{"message":"INVALID_REQUEST"}'


# --- Text -------------------------------------------------------------------------------------------------------------


def body(topics=(), producers=(), memory=MappingProxyType({})):
    return "".join(f"{line}\n" for line in _lines(SERVICE, iter(topics), memory, producers)).split("\n\n", 2)[2]


def test_the_first_lines_are_version_start_uptime_and_health(call, daemon, monkeypatch):
    lines = call.get("/stats?include_mem=false").body.decode().split("\n")
    assert lines[0].startswith("nsqd v1.3.0 (built w/python3.")
    assert lines[1].startswith("start_time 1970-01-01T")
    assert lines[2:] == ["uptime 2m7.687255628s", "", "Health: OK", "", "Topics: None", "", "Producers: None", ""]


def test_memory_is_a_table_with_a_tab(call):
    lines = call.get("/stats").body.decode().split("\n")
    begin = lines.index("Memory:")
    assert lines[begin + 1] == "   heap_objects             \t0"
    assert lines[begin + 9] == "   gc_total_runs            \t8"
    assert lines[begin + 10 : begin + 12] == ["", "Topics: None"]


def test_topics_channels_and_clients_are_aligned():
    latency = LatencyStats(count=8, percentiles=((1.0, 235.3469 * MS), (0.99, 1_500.0), (0.5, 2e9)))
    consumer = client(state=3, ready_count=100, finish_count=8, message_count=8)
    text = body(
        (
            topic(
                "orders",
                channel(
                    "archive",
                    depth=11,
                    message_count=11,
                    e2e_processing_latency=LatencyStats(count=0, percentiles=((1.0, 0.0),)),
                ),
                channel("billing", message_count=8, clients=(consumer,), paused=True, e2e_processing_latency=latency),
                message_count=11,
            ),
            topic("z", paused=True),
        )
    )
    assert text == (
        "Topics:\n"
        "   [orders         ] depth: 0     be-depth: 0     msgs: 11       e2e%: \n"
        "      [archive                  ] depth: 11    be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 11       e2e%: 0.0ns\n"
        "   *P [billing                  ] depth: 0     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 8        e2e%: 235.3ms, 1.5us, 2.0s\n"
        "        [V2 vm:34786 nsq_tail/1.3.0 go-nsq/1.1.0] state: 3 inflt: 0    rdy: 100  fin: 8        re-q: 0        "
        "msgs: 8        connected: 2s\n"
        "\n"
        "*P [z              ] depth: 0     be-depth: 0     msgs: 0        e2e%: \n"
        "\n"
        "Producers: None\n"
    )


def test_texts_of_clients_stay_in_their_line():
    text = body(producers=(client(user_agent="a\n   [payments] depth: 9\x1b[2J"),))
    assert r"[V2 vm:34786 a\n   [payments] depth: 9\x1b[2J] state: 0" in text


def test_producers_show_where_they_published():
    text = body(producers=(client(user_agent="a", pub_counts=(("orders", 2), ("z", 1))), client(user_agent="b")))
    assert text == (
        "Topics: None\n"
        "\n"
        "Producers:\n"
        "   [V2 vm:34786 a           ] msgs: 3        topics: orders=2,z=1 connected: 2s\n"
        "   [V2 vm:34786 b           ] state: 0 inflt: 0    rdy: 0    fin: 0        re-q: 0        msgs: 0        "
        "connected: 2s\n"
    )


@pytest.mark.parametrize(("address", "shown"), [("[::1]:5000", "vm:5000 "), ("@", "vm: ")])
def test_the_port_follows_the_last_colon(address, shown):
    assert shown in body(producers=(client(remote_address=address),))


def test_anything_but_json_is_text(call):
    for query in ("", "?format=JSON", "?format=text", "?format=text&format=json"):
        response = call.get("/stats" + query)
        assert ("Content-Type", "text/plain; charset=utf-8") in response.headers
        assert response.body.startswith(b"nsqd v1.3.0")


@pytest.mark.parametrize(("zone", "text"), [("UTC", "2026-11-21T03:50:26Z"), ("XXX-5:30", "2026-11-21T09:20:26+05:30")])
def test_times_are_local_and_utc_is_z(monkeypatch, zone, text):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert _time_text(1795233026.9) == text
    finally:
        monkeypatch.undo()
        time.tzset()


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_without_a_free_descriptor_the_statistics_are_those_of_the_last_call(monkeypatch):
    memory = MemoryStats()
    before = memory.stats()
    assert before["heap_in_use_bytes"] > 1_000_000

    def no_descriptor(*_: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", no_descriptor)
    again = memory.stats()
    assert again["heap_in_use_bytes"] == before["heap_in_use_bytes"]
    assert again["heap_idle_bytes"] == before["heap_idle_bytes"]
