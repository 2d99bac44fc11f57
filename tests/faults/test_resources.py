"""F12, F13: no descriptors are left, and everything at the limits of the configuration. Connected clients continue, and
memory stays within a bound that follows from the configuration.
"""

import time
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from nsq_conformance.nsqd_process import installed_nsqd
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.v2_client import dpub, pub

# --- Descriptors ------------------------------------------------------------------------------------------------------

LIMIT = 128
CLIENTS = 200
NEW_TOPICS = 30


def test_the_log_keeps_its_descriptors_while_clients_take_all_others(start: StartDaemon):
    daemon = start(
        "--max-bytes-per-file=20000", command=f"bash -c 'ulimit -n {LIMIT}; exec {installed_nsqd()} \"$@\"' nsqd"
    )
    daemon.create_channel("t", "c")
    with ExitStack() as stack, daemon.client() as producer:
        consumer = stack.enter_context(daemon.client())
        consumer.subscribes(ready=2500)
        # The kernel completes these connections, and nsqd accepts them when it has descriptors.
        crowd = [stack.enter_context(daemon.client(b"")) for _ in range(CLIENTS)]
        wait_until(lambda: "temporary Accept() failure" in daemon.log)

        busy_before, began = daemon.cpu_seconds, time.monotonic()
        time.sleep(2.0)
        assert daemon.cpu_seconds - busy_before < 0.2 * (time.monotonic() - began), "it spins"

        bodies = [b"%d " % number + b"x" * 500 for number in range(500)]  # enough for many segments
        producer.publishes(*bodies)
        assert {message.body for message in consumer.takes(500, finishing=True)} == set(bodies)
        for number in range(NEW_TOPICS):
            producer.publishes(b"first", b"second", topic=b"new%d" % number)

        for client in crowd[:-1]:
            client.close()
        crowd[-1].says(b"  V2").publishes(b"x")
        assert daemon.ping() == "OK"
        assert len(daemon.stats()) == NEW_TOPICS + 1
    daemon.kill()
    daemon = start()
    depths = {topic["topic_name"]: topic["depth"] for topic in daemon.stats()}
    assert all(depths[f"new{number}"] == 2 for number in range(NEW_TOPICS))


# --- Memory -----------------------------------------------------------------------------------------------------------

BODY = b"x" * 200
MAX_BACKLOG_MB = 30


class Size(NamedTuple):
    deferred: int
    in_flight: int
    topics: int
    big_messages: int
    waiting: int


SIZES = [
    pytest.param(Size(50_000, 20_000, 500, 100, 200_000), id="small"),
    pytest.param(
        Size(1_000_000, 100_000, 10_000, 2_000, 2_000_000), id="full", marks=[pytest.mark.long, pytest.mark.timeout(0)]
    ),
]

sizes = pytest.mark.parametrize("size", SIZES)


def assert_growth_is_bounded(daemon: Daemon, before: float, what: str, count: int, mb: float) -> None:
    growth = daemon.resident_mb - before
    print(f"{what}: {count} take {growth:.0f} MB, {growth * 1e6 / count:.0f} bytes each")
    assert growth < mb


@sizes
def test_deferred_messages_beyond_mem_queue_size_take_a_key_each(start: StartDaemon, size):
    daemon = start("--durability=os")
    daemon.create_channel("t", "c")
    before = daemon.resident_mb
    with daemon.client() as producer:
        producer.pipelines([dpub(BODY, 3_600_000)] * size.deferred)
    assert daemon.unfinished("t") == {"c": size.deferred}
    assert_growth_is_bounded(daemon, before, "deferred", size.deferred, 30 + size.deferred * 300 / 1e6)


@sizes
def test_memory_for_messages_in_flight_is_bounded_by_rdy(start: StartDaemon, size):
    daemon = start("--durability=os", "--mem-queue-size=1000")
    daemon.create_channel("t", "c")
    with ExitStack() as stack, daemon.client() as producer:
        producer.pipelines([pub(BODY)] * (size.in_flight + 5000))
        before = daemon.resident_mb
        for _ in range(size.in_flight // 2500):
            consumer = stack.enter_context(daemon.client())
            assert len(consumer.subscribes(ready=2500).takes(2500)) == 2500
        (channel,) = daemon.channels("t")
        assert (channel["in_flight_count"], channel["depth"]) == (size.in_flight, 5000)
        assert_growth_is_bounded(daemon, before, "in flight", size.in_flight, 30 + size.in_flight * 1000 / 1e6)


@sizes
def test_a_topic_takes_little_memory(start: StartDaemon, size):
    daemon = start("--durability=os", "--sync-timeout=100ms")
    before = daemon.resident_mb
    with daemon.client(timeout=120) as producer:
        producer.pipelines([pub(BODY, topic=b"t%d" % number) for number in range(size.topics)])
    assert len(daemon.stats()) == size.topics
    assert_growth_is_bounded(daemon, before, "topics", size.topics, 30 + size.topics * 12_000 / 1e6)


@sizes
@pytest.mark.parametrize("subscribed", [False, True])
def test_large_messages_that_are_not_read_stay_on_disk(start: StartDaemon, size, subscribed):
    daemon = start("--durability=os", "--mem-queue-size=10")
    daemon.create_channel("t", "c")
    before = daemon.resident_mb
    with daemon.client() as producer, daemon.client(heartbeat_interval=60_000) as consumer:
        if subscribed:
            consumer.subscribes(ready=2500)
        for _ in range(size.big_messages):
            producer.publishes(bytes(1_000_000))
        assert daemon.unfinished("t") == {"c": size.big_messages}
        assert_growth_is_bounded(daemon, before, "big messages", size.big_messages, 60)


def growth_by_backlog(daemon: Daemon, messages: int) -> float:
    """The growth in megabytes with `messages` waiting messages in each of three channels."""
    for channel in "abc":
        daemon.create_channel("t", channel)
    before = daemon.resident_mb
    together = [BODY] * 1000
    with daemon.client() as producer:
        for _ in range(messages // 1000):
            producer.publishes_together(together)
    assert daemon.unfinished("t") == dict.fromkeys("abc", messages)
    growth = daemon.resident_mb - before
    print(f"{messages} messages wait in each of three channels: {growth:.0f} MB, {before + growth:.0f} MB in all")
    return growth


@sizes
@pytest.mark.parametrize("allowed", [(), ("--mem-queue-size=10000000",)], ids=["default", "with memory for all of it"])
def test_a_backlog_in_three_channels_stays_on_disk(start: StartDaemon, size, allowed):
    assert growth_by_backlog(start("--durability=os", *allowed), size.waiting) < MAX_BACKLOG_MB


def test_the_measurement_detects_a_backlog_in_memory(start: StartDaemon):
    assert growth_by_backlog(start("--durability=memory", "--mem-queue-size=1000000"), 200_000) > MAX_BACKLOG_MB
