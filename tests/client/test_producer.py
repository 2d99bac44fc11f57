"""Producer, in threads and on an event loop."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from nsq_compat.client.connection import do_together, start_thread
from nsq_compat.client.nodes import Outcome, Refused, TooFewCopies, Unknown
from nsq_compat.client.producer import Producer as ThreadedProducer
from nsq_compat.protocol.frames import OK, error_frame
from tests.client.fake_nsqd import CLOSE, FakeNsqd, MakeNsqd
from tests.client.on_loop import LoopProducer, end_loops
from tests.client.waiting import wait_until

SILENT = {"PUB": None, "MPUB": None, "DPUB": None}
NOWHERE = "127.0.0.1:1"

Producer = ThreadedProducer
"""The kind that is tested."""


@pytest.fixture(params=[ThreadedProducer, LoopProducer], ids=["threads", "asyncio"], autouse=True)
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys.modules[__name__], "Producer", request.param)
    yield
    end_loops()


def depth(nsqd, topic: str) -> int:
    return int(nsqd.channel_stats(topic, "c")["depth"])


# --- With a real nsqd -------------------------------------------------------------------------------------------------


def test_published_messages_arrive(nsqd, topic):
    nsqd.create_channel(topic, "c")
    with Producer(nsqd.tcp_address) as producer:
        assert producer.publish(topic, b"one").nodes == (nsqd.tcp_address,)
        producer.publish_many(topic, [b"two", b"three"])
        producer.publish(topic, b"later", defer=600)
    wait_until(lambda: depth(nsqd, topic) == 3)
    assert nsqd.channel_stats(topic, "c")["deferred_count"] == 1


def test_an_error_of_the_message_is_final(nsqd, topic, fake):
    with Producer([nsqd.tcp_address, fake.address]) as producer, pytest.raises(Refused) as refusal:
        producer.publish(topic, b"x" * 2_000_000)
    (attempt,) = refusal.value.attempts
    assert (attempt.address, attempt.outcome) == (nsqd.tcp_address, Outcome.REFUSED)
    assert "E_BAD_MESSAGE PUB message too big" in str(refusal.value)


# --- Misbehaving nodes ------------------------------------------------------------------------------------------------


def test_an_unreachable_node_is_skipped(fake):
    with Producer([NOWHERE, fake.address]) as producer:
        published = producer.publish("t", b"body")
    assert published.nodes == (fake.address,)
    assert [attempt.outcome for attempt in published.attempts] == [Outcome.REFUSED, Outcome.SENT]
    assert published.doubtful == ()


def test_a_node_that_failed_is_tried_last_for_a_while(fake):
    with Producer([NOWHERE, fake.address]) as producer:
        producer.publish("t", b"body")
        for _ in range(4):
            assert len(producer.publish("t", b"body").attempts) == 1


def test_publishing_to_a_silent_node_fails_in_time_and_uses_another(make_nsqd):
    silent, good = make_nsqd(SILENT), make_nsqd()
    with Producer([silent.address, good.address]) as producer:
        published = producer.publish("t", b"body", timeout=4)
    assert published.nodes == (good.address,)
    assert published.doubtful == (silent.address,)


def test_a_node_that_does_not_read_blocks_no_other_publish(make_nsqd):
    # It accepts, negotiates, and then does not read: the kernel's buffers fill.
    stuck, good = make_nsqd(SILENT), make_nsqd()
    with Producer([stuck.address, good.address]) as producer:
        published = producer.publish("t", b"x" * 12_000_000, timeout=8)
        assert published.nodes == (good.address,)
        started = time.monotonic()
        assert producer.publish("t", b"body", timeout=30).nodes == (good.address,)
        assert time.monotonic() - started < 15


def test_without_another_node_the_outcome_is_unknown_within_the_timeout(make_nsqd):
    silent = make_nsqd(SILENT)
    with Producer(silent.address) as producer, pytest.raises(Unknown) as error:
        producer.publish("t", b"body", timeout=2)
    assert {attempt.outcome for attempt in error.value.attempts} == {Outcome.UNKNOWN}
    assert error.value.nodes == ()


def test_without_any_node_the_message_is_refused():
    with Producer([NOWHERE, "127.0.0.1:2"]) as producer, pytest.raises(Refused) as error:
        producer.publish("t", b"body", timeout=5)
    assert {attempt.outcome for attempt in error.value.attempts} == {Outcome.REFUSED}


def test_without_time_no_node_is_tried(fake):
    with Producer(fake.address) as producer, pytest.raises(Refused, match="no time"):
        producer.publish("t", b"body", timeout=0)


def test_a_node_with_a_full_disk_is_skipped(make_nsqd):
    full, good = make_nsqd({"PUB": error_frame(b"E_PUB_FAILED PUB failed no space left on device")}), make_nsqd()
    with Producer([full.address, good.address]) as producer:
        published = producer.publish("t", b"body")
    assert [attempt.outcome for attempt in published.attempts] == [Outcome.REFUSED, Outcome.SENT]
    assert published.doubtful == ()


def test_the_first_message_after_a_connection_died_is_not_lost(make_nsqd):
    dying = make_nsqd({"PUB": CLOSE})
    with Producer(dying.address) as producer:
        producer.connect()
        wait_until(lambda: producer.connections)
        dying.answers["PUB"] = OK
        dying.peer.close()
        published = producer.publish("t", b"body")
    assert published.nodes == (dying.address,)


def test_a_connection_that_breaks_during_a_publish_is_made_again(make_nsqd):
    fake = make_nsqd({"PUB": [CLOSE, OK]})
    with Producer(fake.address) as producer:
        published = producer.publish("t", b"body")
    assert [attempt.outcome for attempt in published.attempts] == [Outcome.UNKNOWN, Outcome.SENT]


def test_heartbeats_detect_a_half_open_connection(make_nsqd):
    fake = make_nsqd()
    with Producer(fake.address, heartbeat_interval=1) as producer:
        producer.publish("t", b"body")
        (connection,) = producer.connections
        wait_until(lambda: connection.is_closed)
        producer.publish("t", b"body")
    assert len(fake.peers) == 2


def test_messages_after_a_refused_one_are_published_again_without_doubt(make_nsqd):
    picky = make_nsqd({"PUB": None})
    with Producer(picky.address) as producer:
        outcomes: list[object] = []

        def publish() -> None:
            outcomes.append(producer.publish("t", b"body", timeout=20))

        threads = [start_thread("publisher", publish) for _ in range(3)]
        wait_until(lambda: len(picky.said("PUB")) == 3)
        peer = picky.peer  # the client may reconnect before this ends
        picky.answers["PUB"] = OK
        peer.send(error_frame(b"E_PUB_FAILED PUB failed exiting"))
        with suppress(OSError):  # the client may have disconnected
            peer.socket.shutdown(2)
        for thread in threads:
            thread.join()
    assert [each.doubtful for each in outcomes] == [(), (), ()]  # type: ignore[attr-defined]


def test_many_threads_share_one_connection(fake):
    with Producer(fake.address) as producer:
        do_together([lambda: producer.publish("t", b"body")] * 5)
    assert len(fake.peers) == 1


def test_waiting_for_another_threads_connection_ends_at_the_deadline(make_nsqd):
    silent = make_nsqd({"IDENTIFY": None})
    with Producer(silent.address, timeout=20) as producer:
        producer.connect()
        wait_until(lambda: silent.said("IDENTIFY"))
        with pytest.raises(Refused, match="not connected in time"):
            producer.publish("t", b"body", timeout=0.05)
        silent.peer.close()


# --- Redundant pairs --------------------------------------------------------------------------------------------------


def test_copies_are_published_to_several_nodes_at_once(make_nsqd):
    nodes = [make_nsqd() for _ in range(3)]
    with Producer([node.address for node in nodes], copies=2) as producer:
        published = producer.publish("t", b"body")
    assert len(set(published.nodes)) == 2
    assert sum(node.peer.bodies.count(b"body") for node in nodes if node.peers) == 2


def test_a_failed_copy_is_published_to_a_node_without_one(make_nsqd):
    silent, *good = make_nsqd(SILENT), make_nsqd(), make_nsqd()
    with Producer([silent.address, *(node.address for node in good)], copies=2) as producer:
        published = producer.publish("t", b"body", timeout=1)
    assert set(published.nodes) == {node.address for node in good}
    assert published.doubtful == (silent.address,)


def test_too_few_copies_name_the_nodes_that_have_one(fake):
    with Producer([fake.address, NOWHERE], copies=2) as producer, pytest.raises(TooFewCopies) as error:
        producer.publish("t", b"body", timeout=5)
    assert error.value.nodes == (fake.address,)
    assert fake.peer.bodies.count(b"body") == 1


# --- Wrong use, and idleness ------------------------------------------------------------------------------------------


def test_invalid_topics_and_bodies_are_refused_at_once(fake):
    with Producer(fake.address) as producer:
        for topic, body in (("no spaces", b"x"), ("t", b"")):
            with pytest.raises(ValueError, match="valid topic|empty"):
                producer.publish(topic, body)
        with pytest.raises(ValueError, match="empty"):
            producer.publish_many("t", [])


def test_wrong_types_are_refused_before_anything_is_sent(fake):
    with Producer(fake.address) as producer:
        wrong: list[tuple[Any, dict[str, Any]]] = [
            ("text", {}),
            ({"a": 1}, {}),
            (b"x", {"headers": {"a": 1}}),
            (b"x", {"headers": [("a", "b")]}),
        ]
        for body, options in wrong:
            with pytest.raises(TypeError, match="must be"):
                producer.publish("t", body, **options)
        with pytest.raises(TypeError, match="a list with a dict for each message, not dict"):
            producer.publish_many("t", [b"x"], headers={"a": "b"})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="bodies is empty"):
            producer.publish_many("t", [])
        assert fake.peers == []
        assert producer.publish("t", b"x").nodes == (fake.address,)


def test_the_port_of_a_node_that_has_answered_is_not_in_doubt(make_nsqd):
    fake = make_nsqd()
    with Producer(fake.address) as producer:
        producer.publish("t", b"x")
        fake.answers["IDENTIFY"] = CLOSE
        fake.peer.close()
        wait_until(lambda: not producer.connections)
        with pytest.raises(Refused) as refusal:
            producer.publish("t", b"x")
    assert "TCP port" not in str(refusal.value)


def test_a_producer_needs_at_least_as_many_nodes_as_copies():
    with pytest.raises(ValueError, match="no nsqd_tcp_addresses"):
        Producer([])
    with pytest.raises(ValueError, match="copies"):
        Producer([NOWHERE], copies=2)


def test_an_idle_producer_answers_heartbeats(fake: FakeNsqd, make_nsqd: MakeNsqd):
    with Producer(fake.address) as producer:
        producer.publish("t", b"body")
        fake.beat()
        wait_until(lambda: fake.peer.said("NOP"))
