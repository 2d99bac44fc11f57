"""A reading task against a real nsqd, also killed at every point, loses and repeats no message."""

import contextlib
import dataclasses
import itertools

import pytest

from nsq_compat.client import Producer
from nsq_compat.protocol.frames import OK
from nsq_compat.protocol.message import make_frame
from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from pyspark_nsq import drain as drain_module
from pyspark_nsq.connection import NsqdUnreachable
from pyspark_nsq.drain import POINTS, drain
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.rows import Origin
from pyspark_nsq.spool import Spool
from tests.client.fake_nsqd import FakeNsqd
from tests.client.waiting import wait_until
from tests.spark.dying import die_at
from tests.spark.frames import bodies_of


def origin_of(options: ReadOptions) -> Origin:
    return Origin(options.topics[0], options.channel, options.nsqd_tcp_addresses[0])


def drained(spool: Spool, options: ReadOptions, count: int, part: int = 0) -> list[bytes]:
    """The bodies that a task reads."""
    partition = spool.partition(1, part)
    pieces = drain(spool, partition, origin_of(options), count, options)
    return bodies_of(partition, pieces)


def waiting(nsqd: NsqdProcess, topic: str) -> int:
    """The number of unfinished messages."""
    stats = nsqd.channel_stats(topic, "c")
    return int(stats["depth"] + stats["in_flight_count"])


def drained_dry(nsqd: NsqdProcess, spool: Spool, options: ReadOptions) -> list[bytes]:
    """The bodies that further tasks read until no message is left."""
    bodies: list[bytes] = []
    parts = itertools.count(1)
    while waiting(nsqd, options.topics[0]):
        bodies += drained(spool, options, 100, next(parts))
    return bodies


def test_a_task_reads_its_count_and_leaves_the_rest(nsqd, topic, spool, options_with, publish):
    bodies = publish(10)
    assert drained(spool, options_with(), 7) == bodies[:7]
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (3, 0, 0)


def test_messages_are_finished_in_chunks_and_none_is_requeued(nsqd, topic, spool, options_with, publish):
    bodies = publish(1000)
    assert drained(spool, options_with(maxInFlight="20", chunkMessages="7", msgTimeoutMs="0"), 1000) == bodies
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"], stats["timeout_count"]) == (0, 0, 0, 0)


def test_messages_of_all_sizes_arrive_as_they_were_published(nsqd, topic, spool, options_with):
    nsqd.create_channel(topic, "c")
    alike = [b"%06d\n\0\xff" % number + bytes(190) for number in range(4_000)]
    mixed = [bytes([number % 256]) * (1 + number * 7919 % 5_000) for number in range(1_000)]
    bodies = [*alike, *mixed, b"\n" * 900_000, b"\n", *alike[:500]]
    with Producer(nsqd.tcp_address) as producer:
        for begin in range(0, len(bodies), 500):
            producer.publish_many(topic, bodies[begin : begin + 500])
    assert drained(spool, options_with(), len(bodies)) == bodies
    assert waiting(nsqd, topic) == 0


def test_suspects_are_dropped_at_their_first_attempt_too(nsqd, topic, spool, options_with, publish):
    nsqd.create_channel(topic, "another")
    bodies, options = publish(9), options_with(maxInFlight="9", chunkMessages="3")
    partition = spool.partition(2, 0)
    pieces = drain(spool, partition, dataclasses.replace(origin_of(options), channel="another"), 9, options)
    ids = [id for batch in partition.read(pieces) for id in batch.column("id").to_pylist()]
    spool.suspects.add(origin_of(options), ids[5:8])
    assert drained(spool, options, 6) == [*bodies[:5], bodies[8]]
    assert waiting(nsqd, topic) == 0


def test_a_task_ends_after_the_idle_timeout(spool, options_with, publish):
    bodies = publish(3)
    assert drained(spool, options_with(idleTimeoutMs="100"), 50) == bodies


def test_a_chunk_that_fills_slowly_is_finished_before_messages_time_out(nsqd, topic, spool, options_with, publish):
    bodies = publish(3)
    options = options_with(idleTimeoutMs="3000", msgTimeoutMs="1000")
    assert drained(spool, options, 100) == bodies
    assert nsqd.channel_stats(topic, "c")["timeout_count"] == 0


def test_a_chunk_of_large_messages_is_finished_before_it_is_full(nsqd, topic, spool, options_with, monkeypatch):
    nsqd.create_channel(topic, "c")
    monkeypatch.setattr(drain_module, "_MAX_CHUNK_BYTES", 500_000)
    for _ in range(8):
        assert nsqd.asks("POST", f"/pub?topic={topic}", bytes(300_000)).status == 200
    options = options_with(maxInFlight="8", chunkMessages="8")
    pieces = drain(spool, spool.partition(1, 0), origin_of(options), 8, options)
    rows = [batch.num_rows for batch in spool.partition(1, 0).read(pieces)]
    assert sum(rows) == 8
    assert max(rows) < 8


def test_a_message_redelivered_to_the_same_task_is_read_once(nsqd, topic, spool, options_with, publish):
    bodies = publish(6)
    options = options_with(maxInFlight="6", chunkMessages="3", idleTimeoutMs="1500")
    late = iter([True])

    def at(point: str) -> None:
        # The chunk is spooled, and its messages time out before nsqd receives the FINs.
        while point == drain_module.SPOOLED and next(late, False):
            wait_until(lambda: nsqd.channel_stats(topic, "c")["timeout_count"])

    partition = spool.partition(1, 0)
    pieces = drain(spool, partition, origin_of(options), 7, options, at)
    assert sorted(bodies_of(partition, pieces)) == sorted(bodies)
    assert waiting(nsqd, topic) == 0


def test_every_attempt_at_a_sealed_partition_gives_the_same_rows(spool, options_with, publish):
    bodies = publish(5)
    assert drained(spool, options_with(), 5) == bodies
    publish(5)
    assert drained(spool, options_with(), 5) == bodies


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_a_task_reads_through_compression(spool, options_with, publish, compression):
    bodies = publish(100)
    assert drained(spool, options_with(**{compression: "true"}), 100) == bodies


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_task_killed_at_any_point_loses_and_repeats_nothing(nsqd, topic, spool, options_with, publish, point, times):
    bodies = publish(30)
    options = options_with(maxInFlight="10", chunkMessages="5", idleTimeoutMs="1200")
    sealing = point in (drain_module.BEFORE_SEAL, drain_module.SEALED)
    die_at(point, 1 if sealing else times, drain, spool, spool.partition(1, 0), origin_of(options), 30, options)
    assert sorted(drained(spool, options, 30) + drained_dry(nsqd, spool, options)) == sorted(bodies)


def test_without_suppress_redelivered_unfinished_messages_are_read_twice(nsqd, spool, options_with, publish):
    bodies = publish(5)
    options = options_with(suppressRedelivered="false", idleTimeoutMs="1200")
    die_at(drain_module.SPOOLED, 1, drain, spool, spool.partition(1, 0), origin_of(options), 5, options)
    assert sorted(drained(spool, options, 5) + drained_dry(nsqd, spool, options)) == sorted(bodies * 2)


def test_an_nsqd_that_cannot_be_reached_is_an_empty_partition_or_an_error(spool, options_with):
    options = options_with(nsqdTcpAddresses="127.0.0.1:1")
    assert drained(spool, options, 5) == []
    with pytest.raises(NsqdUnreachable, match=r"nsqd 127\.0\.0\.1:1 cannot be reached"):
        drained(spool, options_with(nsqdTcpAddresses="127.0.0.1:1", failOnUnreachable="true"), 5, part=1)


def test_tls_without_tls_at_nsqd_is_an_error(spool, options_with):
    with pytest.raises(NsqdUnreachable, match="TLS is required, and nsqd does not offer it"):
        drained(spool, options_with(tls="true", failOnUnreachable="true"), 5)


def test_reading_ends_at_a_message_id_that_is_not_ascii(spool, options_with, caplog):
    with contextlib.closing(FakeNsqd({"SUB": OK + make_frame(b"\xff" * 16, 1, b"body")})) as server:
        assert drained(spool, options_with(nsqdTcpAddresses=server.address, nsqdHttpAddresses=""), 1) == []
    assert "reading ends early: a message id is not ASCII" in caplog.text


def test_a_kill_of_nsqd_after_a_chunk_was_spooled_loses_and_repeats_nothing(tmp_path, spool, options_with, topic):
    (tmp_path / "data").mkdir()
    bodies = [b"body %d" % number for number in range(20)]
    listen = [f"--tcp-address={own_host()}:0"]
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=listen) as nsqd:
        nsqd.create_channel(topic, "c")
        assert nsqd.asks("POST", f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200
        options = options_with(
            nsqdTcpAddresses=nsqd.tcp_address,
            nsqdHttpAddresses="",
            maxInFlight="10",
            chunkMessages="5",
            idleTimeoutMs="1200",
        )

        def at(point: str) -> None:
            if point == drain_module.SPOOLED:
                nsqd.kill()

        partition = spool.partition(1, 0)
        pieces = drain(spool, partition, origin_of(options), 20, options, at)
        first = bodies_of(partition, pieces)
        assert first
        nsqd.start()
        assert sorted(first + drained_dry(nsqd, spool, options)) == sorted(bodies)
