"""retain_for and retain_bytes: what channels have finished can be read, until the policy releases it."""

import os

import pytest

from nsq_compat.log.offsets import OffsetReader, oldest
from nsq_compat.log.storage import Durability
from nsq_compat.protocol.message import body
from nsq_compat.queue.broker import snapshot
from tests.broker import Consumer, Daemon, DataPath

SIZE = 1000


@pytest.fixture
def small(data_path: DataPath) -> DataPath:
    """Ten messages fill a segment."""
    data_path.segment_size = 10 * (SIZE + 80)
    return data_path


def pass_on(daemon: Daemon, consumer: Consumer, begin: int, end: int, *, every: float = 1.0) -> None:
    """Publish messages and finish them, one each second."""
    for number in range(begin, end):
        daemon.publishes(b"%04d" % number + bytes(SIZE - 4))
        consumer.finishes(*consumer.takes())
        daemon.waits(every)


def numbers(daemon: Daemon) -> list[int]:
    """What can be read."""
    store = daemon.topic().store
    assert store is not None
    if (first := oldest(store.log)) is None:
        return []
    reader = OffsetReader(store.log, first.offset)
    found: list[int] = []
    while groups := reader.read():
        found += [int(body(frame)[:4]) for group in groups for frame in group.frames]
    return found


def test_without_a_policy_nothing_is_retained(small):
    daemon = small.start()
    pass_on(daemon, daemon.consumer(), 0, 35)
    small.checkpoint(daemon)
    assert len(numbers(daemon)) < 10


def test_messages_are_retained_for_a_time(small):
    daemon = small.start()
    daemon.follows({"topic": "orders", "retain_for": "20s"})
    pass_on(daemon, daemon.consumer(), 0, 35)
    small.checkpoint(daemon)
    found = numbers(daemon)
    assert found == list(range(found[0], 35))
    assert 5 < found[0] <= 15
    assert not daemon.topic().is_release_due(daemon.now_ns)
    daemon.waits(60)
    assert daemon.topic().is_release_due(daemon.now_ns)
    small.checkpoint(daemon)
    assert len(numbers(daemon)) < 10


def test_what_a_channel_still_needs_is_not_due_for_release(small):
    daemon = small.start()
    daemon.follows({"retain_for": "5s"})
    daemon.channel("behind")
    pass_on(daemon, daemon.consumer(), 0, 35)
    small.checkpoint(daemon)
    daemon.waits(60)
    assert not daemon.topic().is_release_due(daemon.now_ns)
    daemon.topic().delete_channel("behind")
    assert daemon.topic().is_release_due(daemon.now_ns)


def test_a_topic_without_a_channel_retains_all_unless_its_backlog_is_limited(small):
    daemon = small.start()
    daemon.follows({"retain_for": "20s"})
    for number in range(35):
        daemon.publishes(b"%04d" % number + bytes(SIZE - 4))
        daemon.waits(1)
    small.checkpoint(daemon)
    assert numbers(daemon) == list(range(35))
    daemon.follows({"retain_for": "20s", "max_age": "1s", "when_full": "drop-oldest"})
    for _ in range(5):
        daemon.waits(1)
    small.checkpoint(daemon)
    found = numbers(daemon)
    assert found == list(range(found[0], 35))
    assert 5 < found[0] <= 20


def test_messages_are_retained_up_to_a_size(small):
    daemon = small.start()
    daemon.follows({"retain_bytes": 15 * (SIZE + 80)})
    pass_on(daemon, daemon.consumer(), 0, 55)
    small.checkpoint(daemon)
    found = numbers(daemon)
    assert found == list(range(found[0], 55))
    assert 15 <= len(found) <= 30


def test_the_limit_that_is_reached_first_applies(small):
    daemon = small.start()
    daemon.follows({"retain_bytes": 15 * (SIZE + 80), "retain_for": "1000s"})
    pass_on(daemon, daemon.consumer(), 0, 55)
    small.checkpoint(daemon)
    assert 15 <= len(numbers(daemon)) <= 30
    daemon.follows({"retain_bytes": 10**9, "retain_for": "12s"})
    pass_on(daemon, daemon.consumer(), 55, 60)
    small.checkpoint(daemon)
    assert 12 <= len(numbers(daemon)) <= 27


def test_a_policy_that_is_removed_releases_at_the_next_checkpoint(small):
    daemon = small.start()
    daemon.follows({"retain_for": "1h"})
    pass_on(daemon, daemon.consumer(), 0, 35)
    small.checkpoint(daemon)
    assert numbers(daemon) == list(range(35))
    (stats,) = snapshot(daemon.broker, daemon.now)
    assert (stats.retained_bytes, stats.released_segments) == (stats.log_bytes, 0)
    assert stats.retained_seconds == pytest.approx(35, abs=1)
    daemon.follows()
    small.checkpoint(daemon)
    assert len(numbers(daemon)) < 10
    (stats,) = snapshot(daemon.broker, daemon.now)
    assert (stats.retained_bytes, stats.retained_seconds) == (0, 0)
    assert stats.released_segments >= 2


def test_retained_messages_survive_a_restart_with_their_offsets(small):
    daemon = small.start()
    daemon.follows({"retain_for": "1h"})
    pass_on(daemon, daemon.consumer(), 0, 35)
    small.checkpoint(daemon)
    for stop in (False, True):
        if stop:
            small.stop(daemon)
            daemon = small.start()
        else:
            daemon = small.restart(daemon)
        daemon.follows({"retain_for": "1h"})
        assert daemon.channel().depth == 0
        small.checkpoint(daemon)
        assert numbers(daemon) == list(range(35))
        assert daemon.topic().next_offset == 35


def test_what_a_channel_replays_is_not_released(small):
    daemon = small.start()
    daemon.follows({"retain_for": "1h"})
    consumer = daemon.consumer()
    pass_on(daemon, consumer, 0, 35)
    daemon.topic().move_channel("archive", 3, daemon.now_ns)
    daemon.follows()
    small.checkpoint(daemon)
    daemon = small.restart(daemon)
    consumer = daemon.consumer()
    small.checkpoint(daemon)
    found: list[bytes] = []
    while some := consumer.takes(7):
        consumer.finishes(*some)
        found += some
        daemon.waits(0.1)
        small.checkpoint(daemon)
    assert [int(each[:4]) for each in found] == list(range(3, 35))
    pass_on(daemon, consumer, 35, 36)
    small.checkpoint(daemon)
    assert len(numbers(daemon)) < 10


def test_an_emptied_topic_retains_nothing(small):
    daemon = small.start()
    daemon.follows({"retain_for": "1h"})
    pass_on(daemon, daemon.consumer(), 0, 35)
    daemon.topic().empty_channel("archive")
    assert numbers(daemon) == list(range(35))
    daemon.topic().empty()
    assert numbers(daemon) == []
    assert daemon.topic().next_offset == 35
    again = small.restart(daemon)
    again.follows({"retain_for": "1h"})
    assert numbers(again) == []
    pass_on(again, again.consumer(), 35, 37)
    assert numbers(again) == [35, 36]
    small.checkpoint(again)  # it has the end, and the log before it is not read again
    assert len(os.listdir(small.folder())) < 4
    again = small.restart(again)
    assert numbers(again) == [35, 36]


def test_at_level_memory_a_topic_that_retains_writes_its_messages(small):
    daemon = small.start(durability=Durability.MEMORY, mem_queue_size=100)
    consumer = daemon.consumer()
    pass_on(daemon, consumer, 0, 5)
    daemon.publishes(b"0005" + bytes(SIZE - 4))
    daemon.follows({"retain_for": "1h"})
    daemon.publishes(b"0006" + bytes(SIZE - 4), defer=1.0)
    daemon.waits(2.0)
    consumer.finishes(*consumer.takes_all())
    pass_on(daemon, consumer, 7, 30)
    small.checkpoint(daemon)
    assert numbers(daemon) == list(range(5, 30))
    daemon.follows()
    pass_on(daemon, consumer, 30, 35)
    small.checkpoint(daemon)
    assert len(numbers(daemon)) < 15
    small.stop(daemon)
    again = small.start(durability=Durability.MEMORY)
    assert again.channel().depth == 0


def test_policies_of_channels_cannot_retain(small):
    daemon = small.start()
    with pytest.raises(ValueError, match="policy 1: channel: retain_for and retain_bytes are for topics"):
        daemon.follows({"channel": "archive", "retain_for": "1h"})
    with pytest.raises(ValueError, match="retain_for: must be a duration above 0"):
        daemon.follows({"retain_for": "0s"})
    with pytest.raises(ValueError, match="retain_bytes: must be an integer from 1"):
        daemon.follows({"retain_bytes": 0})
