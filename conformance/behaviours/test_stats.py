"""/stats: members, counts, and parameters that leave out parts."""

import pytest

from nsq_conformance.attached import RUN
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient

TOPIC = [
    "topic_name",
    "channels",
    "depth",
    "backend_depth",
    "message_count",
    "message_bytes",
    "paused",
    "e2e_processing_latency",
]
CHANNEL = [
    "channel_name",
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "message_count",
    "requeue_count",
    "timeout_count",
    "client_count",
    "clients",
    "paused",
    "e2e_processing_latency",
]
CLIENT = [
    "client_id",
    "hostname",
    "version",
    "remote_address",
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
    "connect_ts",
    "sample_rate",
    "deflate",
    "snappy",
    "user_agent",
    "topology_zone",
    "topology_region",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]
MEMORY = [
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
]


def text(nsqd: NsqdProcess, query: str = "") -> str:
    answer = nsqd.asks("GET", "/stats" + query)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    return answer.body.decode()


def test_the_document_begins_with_these_members(nsqd: NsqdProcess) -> None:
    members = ["version", "health", "start_time", "topics", "memory", "producers"]
    # A daemon may say more, which clients ignore.
    assert list(nsqd.stats_document())[: len(members)] == members


def test_a_topic_has_these_members_in_this_order(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel(topic, "ch")
    stats = nsqd.topic_stats(topic)
    assert stats is not None
    assert list(stats) == TOPIC


def test_a_channel_has_these_members_in_this_order(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel(topic, "ch")
    assert list(nsqd.channel_stats(topic, "ch")) == CHANNEL


def test_a_client_has_these_members_in_this_order(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic)
    (consumer,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert list(consumer) == CLIENT


def test_memory_has_these_members_in_this_order_and_all_are_integers(nsqd: NsqdProcess) -> None:
    memory = nsqd.stats_document()["memory"]
    assert list(memory) == MEMORY
    assert {type(value) for value in memory.values()} == {int}


def test_nsqd_is_healthy(nsqd: NsqdProcess) -> None:
    document = nsqd.stats_document()
    assert (document["version"], document["health"]) == ("1.3.0", "OK")


def test_topics_and_channels_are_sorted_by_name(nsqd: NsqdProcess, topic: str) -> None:
    for name in ("b", "a", "c"):
        nsqd.create_channel(f"{topic}.{name}", name)
        nsqd.create_channel(topic + ".a", name)
    topics = [each["topic_name"] for each in nsqd.stats_document()["topics"]]
    assert topics == sorted(topics)
    stats = nsqd.topic_stats(topic + ".a")
    assert stats is not None
    assert [each["channel_name"] for each in stats["channels"]] == ["a", "b", "c"]


def test_a_topic_without_channels_has_an_empty_list(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"x")
    stats = nsqd.topic_stats(topic)
    assert stats is not None
    assert stats["channels"] == []


def test_messages_and_bytes_are_counted(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"1", b"22", b"333")
    stats = nsqd.topic_stats(topic)
    assert stats is not None
    assert (stats["depth"], stats["message_count"], stats["message_bytes"]) == (3, 3, 6)


def test_a_channels_counts_follow_its_messages(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic).publishes(topic, b"a", b"b", b"c", b"d")
    first, second, _ = client.is_ready(3).messages(3)
    client.sends(b"RDY 1\n").finishes(first).requeues(second, 30_000).has_been_heard()
    channel = nsqd.channel_stats(topic, "ch")
    figures = ("depth", "in_flight_count", "deferred_count", "message_count", "requeue_count", "timeout_count")
    assert [channel[name] for name in figures] == [1, 1, 1, 4, 1, 0]


def test_a_consumers_counts_follow_its_messages(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic).publishes(topic, b"a", b"b", b"c")
    first, second, _ = client.is_ready(3).messages(3)
    client.finishes(first).requeues(second, 30_000).has_been_heard()
    (consumer,) = nsqd.channel_stats(topic, "ch")["clients"]
    figures = ("ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count")
    assert [consumer[name] for name in figures] == [3, 1, 3, 1, 1]


def test_a_disconnected_client_is_not_shown(
    client: RawClient, consumer: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    client.subscribes(topic)
    consumer.subscribes(topic).close()
    eventually(lambda: nsqd.channel_stats(topic, "ch")["client_count"] == 1)
    assert len(nsqd.channel_stats(topic, "ch")["clients"]) == 1


def test_a_consumer_is_known_by_its_address_and_protocol(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic)
    (consumer,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (consumer["remote_address"], consumer["version"]) == (f"127.0.0.1:{client.port}", "V2")


def test_an_unknown_topic_is_null(nsqd: NsqdProcess) -> None:
    document = nsqd.stats_document(topic="unknown")
    assert (document["topics"], document["producers"]) == (None, None)


def test_an_unknown_channel_leaves_no_topic(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel(topic, "ch")
    assert nsqd.stats_document(topic=topic, channel="unknown")["topics"] == []


def test_one_channel_can_be_selected(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel(topic, "one")
    nsqd.create_channel(topic, "other")
    (only,) = nsqd.stats_document(topic=topic, channel="one")["topics"]
    assert [each["channel_name"] for each in only["channels"]] == ["one"]


@pytest.mark.parametrize("value", ["false", "0"])
def test_clients_can_be_left_out(client: RawClient, nsqd: NsqdProcess, topic: str, value: str) -> None:
    client.subscribes(topic).publishes(topic, b"x")
    document = nsqd.stats_document(topic=topic, include_clients=value)
    channel = document["topics"][0]["channels"][0]
    assert (channel["clients"], channel["client_count"], document["producers"]) == (None, 1, None)


@pytest.mark.parametrize("value", ["true", "1", "nonsense", ""])
def test_clients_are_shown_otherwise(client: RawClient, nsqd: NsqdProcess, topic: str, value: str) -> None:
    client.subscribes(topic)
    (only,) = nsqd.stats_document(topic=topic, include_clients=value)["topics"]
    assert len(only["channels"][0]["clients"]) == 1


@pytest.mark.parametrize("value", ["false", "0"])
def test_memory_can_be_left_out(nsqd: NsqdProcess, value: str) -> None:
    assert "memory" not in nsqd.stats_document(include_mem=value)


@pytest.mark.difference("pub-counts")
def test_a_producer_shows_every_topic_it_published_to(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"x").publishes(topic + ".b", b"x", b"y")
    (producer,) = [
        each for each in nsqd.stats_document()["producers"] if each["remote_address"] == f"127.0.0.1:{client.port}"
    ]
    counts = {each["topic"]: each["count"] for each in producer["pub_counts"]}
    assert counts == {topic: 1, topic + ".b": 2}


def test_a_latency_is_only_measured_on_request(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel(topic, "ch")
    assert nsqd.channel_stats(topic, "ch")["e2e_processing_latency"] == {"count": 0, "percentiles": None}


@pytest.mark.parametrize("form", ["", "?format=text", "?format=JSON"])
def test_the_answer_is_text_unless_json_is_requested(nsqd: NsqdProcess, form: str) -> None:
    assert text(nsqd, form).startswith("nsqd v1.3.0 (built w/")


@pytest.mark.parametrize(
    "part", ["\nstart_time ", "\nuptime ", "\nHealth: OK\n", "\nMemory:\n", "\nTopics:", "\nProducers:"]
)
def test_the_text_has_its_parts(nsqd: NsqdProcess, part: str) -> None:
    assert part in text(nsqd)


def test_the_text_shows_a_topic_in_columns(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    name = f"text.{RUN}"
    client.publishes(name, b"x")
    line = f"   [{name:15}] depth: 1     be-depth: 0     msgs: 1        e2e%: \n"
    assert line in text(nsqd, f"?topic={name}")


def test_the_text_shows_a_channel_in_columns(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel("text.too", "ch")
    queues = "      [ch                       ] depth: 0     be-depth: 0     inflt: 0    def: 0    "
    counts = "re-q: 0     timeout: 0     msgs: 0        e2e%: \n"
    assert queues + counts in text(nsqd, "?topic=text.too")


def test_the_text_marks_paused_topics_and_channels(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel("text.p", "ch")
    assert nsqd.asks("POST", "/topic/pause?topic=text.p").status == 200
    assert "\n*P [text.p " in text(nsqd, "?topic=text.p")


def test_the_text_says_when_there_are_no_topics(nsqd: NsqdProcess) -> None:
    shown = text(nsqd, "?topic=unknown")
    assert "\nTopics: None\n" in shown
    assert shown.endswith("\nProducers: None\n")


def test_a_bad_query_is_refused(nsqd: NsqdProcess) -> None:
    answer = nsqd.asks("GET", "/stats?topic=%zz")
    assert (answer.status, answer.json()) == (400, {"message": "INVALID_REQUEST"})
