"""F13: everything at the limits of the configuration; memory stays within a bound that follows from them."""

from contextlib import ExitStack
from typing import NamedTuple

import pytest

from tests.faults.client import Client, sized
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon

BODY = b"x" * 200
PIPELINED = 5_000
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


def publish(client: Client, commands: list[bytes]) -> None:
    """Publish with pipelined commands."""
    for at in range(0, len(commands), PIPELINED):
        some = commands[at : at + PIPELINED]
        client.send(b"".join(some))
        for _ in some:
            client.expect_ok()


def assert_growth_is_bounded(daemon: Daemon, before: float, what: str, count: int, mb: float) -> None:
    growth = daemon.resident_mb - before
    print(f"{what}: {count} take {growth:.0f} MB, {growth * 1e6 / count:.0f} bytes each")
    assert growth < mb


@sizes
def test_deferred_messages_beyond_mem_queue_size_take_a_key_each(start: StartDaemon, size):
    daemon = start("--durability=os")
    daemon.create_channel("t", "c")
    before = daemon.resident_mb
    with Client(daemon.address()) as producer:
        for _ in range(0, size.deferred, PIPELINED):
            publish(producer, [b"DPUB t 3600000\n" + sized(BODY)] * PIPELINED)
    assert daemon.unfinished("t") == {"c": size.deferred}
    assert_growth_is_bounded(daemon, before, "deferred", size.deferred, 30 + size.deferred * 300 / 1e6)


@sizes
def test_memory_for_messages_in_flight_is_bounded_by_rdy(start: StartDaemon, size):
    daemon = start("--durability=os", "--mem-queue-size=1000")
    daemon.create_channel("t", "c")
    with ExitStack() as stack, Client(daemon.address()) as producer:
        publish(producer, [b"PUB t\n" + sized(BODY)] * (size.in_flight + 5000))
        before = daemon.resident_mb
        for _ in range(size.in_flight // 2500):
            consumer = stack.enter_context(Client(daemon.address()))
            consumer.subscribe("t", "c", 2500)
            assert len(consumer.take(2500)) == 2500
        (channel,) = daemon.channels("t")
        assert (channel["in_flight_count"], channel["depth"]) == (size.in_flight, 5000)
        assert_growth_is_bounded(daemon, before, "in flight", size.in_flight, 30 + size.in_flight * 1000 / 1e6)


@sizes
def test_a_topic_takes_little_memory(start: StartDaemon, size):
    daemon = start("--durability=os", "--sync-timeout=100ms")
    before = daemon.resident_mb
    with Client(daemon.address(), timeout=120) as producer:
        publish(producer, [b"PUB t%d\n" % number + sized(BODY) for number in range(size.topics)])
    assert len(daemon.stats()) == size.topics
    assert_growth_is_bounded(daemon, before, "topics", size.topics, 30 + size.topics * 12_000 / 1e6)


@sizes
@pytest.mark.parametrize("subscribed", [False, True])
def test_large_messages_that_are_not_read_stay_on_disk(start: StartDaemon, size, subscribed):
    daemon = start("--durability=os", "--mem-queue-size=10")
    daemon.create_channel("t", "c")
    before = daemon.resident_mb
    with Client(daemon.address()) as producer, Client(daemon.address(), heartbeat_interval=60_000) as consumer:
        if subscribed:
            consumer.subscribe("t", "c", 2500)
        for _ in range(size.big_messages):
            producer.publish("t", bytes(1_000_000))
        assert daemon.unfinished("t") == {"c": size.big_messages}
        assert_growth_is_bounded(daemon, before, "big messages", size.big_messages, 60)


def growth_by_backlog(daemon: Daemon, messages: int) -> float:
    """The growth in megabytes with `messages` waiting messages in each of three channels."""
    for channel in "abc":
        daemon.create_channel("t", channel)
    before = daemon.resident_mb
    together = [BODY] * 1000
    with Client(daemon.address()) as producer:
        for _ in range(messages // 1000):
            producer.publish_together("t", together)
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
