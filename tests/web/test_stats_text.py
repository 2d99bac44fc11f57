"""/stats as text: nsqd's columns."""

import time
from dataclasses import replace

import pytest

from nsq_compat.queue.stats import ChannelStats, ClientStats, LatencyStats, TopicStats
from nsq_compat.web.stats_text import StatsReport, format_time, render

MS = 1_000_000


NO_CHANNEL = ChannelStats(
    channel_name="",
    depth=0,
    backend_depth=0,
    in_flight_count=0,
    deferred_count=0,
    message_count=0,
    requeue_count=0,
    timeout_count=0,
    client_count=0,
    clients=(),
    paused=False,
)
NO_TOPIC = TopicStats(
    topic_name="", channels=(), depth=0, backend_depth=0, message_count=0, message_bytes=0, paused=False
)
NO_CLIENT = ClientStats(
    client_id="vm",
    hostname="vm",
    version="V2",
    remote_address="127.0.0.1:34786",
    state=0,
    ready_count=0,
    in_flight_count=0,
    message_count=0,
    finish_count=0,
    requeue_count=0,
    connect_ts=1125,
    user_agent="nsq_tail/1.3.0 go-nsq/1.1.0",
)


def channel(name, **values):
    return replace(NO_CHANNEL, channel_name=name, **values)


def topic(name, *channels, **values):
    return replace(NO_TOPIC, topic_name=name, channels=channels, **values)


def client(**values):
    return replace(NO_CLIENT, **values)


def body(topics=(), producers=(), memory=None):
    report = StatsReport("1.3.0", "nsqd v1.3.0", "OK", 1000.0, 1127_687_255_628, topics, memory, producers)
    return "".join(render(report, report.topics or ())).split("\n\n", 2)[2]


def test_the_first_lines_are_version_start_uptime_and_health(call, daemon, monkeypatch):
    lines = call.get("/stats?include_mem=false").body.decode().split("\n")
    assert lines[0] == "nsqd v1.3.0 (built w/python3)"
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
        assert format_time(1795233026.9) == text
    finally:
        monkeypatch.undo()
        time.tzset()
