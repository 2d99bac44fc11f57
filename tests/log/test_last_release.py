"""Data paths written by the last release are read.

``data-path-0.1.0.tar.xz`` was written by version 0.1.0, which did `use` on an empty data path at the levels os and
memory, and then stopped or was killed.
"""

import tarfile
from pathlib import Path
from typing import Any

import pytest

from nsq_compat.log.storage import Durability
from tests.broker import DataPath, Disk

ARCHIVE = Path(__file__).with_name("data-path-0.1.0.tar.xz")
WAITING = [b"of", b"several", b"sizes", b""]


def use(data_path: DataPath, durability: Durability):
    """Everything that a log and a checkpoint can hold, with ids and times that are always the same."""
    daemon = data_path.start(durability=durability, mem_queue_size=3)
    daemon.channel("archive")
    audit = daemon.channel("audit")
    daemon.publishes(b"alone")
    daemon.publishes(b"one", b"two", b"six")
    daemon.publishes(*WAITING)
    daemon.publishes(b"later", defer=600.0)
    consumer = daemon.consumer()
    while len(consumer.frames) < 4:
        consumer.takes(4)
    consumer.finishes(b"alone")
    consumer.requeues(b"one", 300.0)
    audit.pause()
    daemon.topic("held").publish([b"for no channel"], daemon.now, daemon.now_ns)
    daemon.topic("paused").channel("c")
    daemon.topic("paused").pause()
    daemon.publishes(b"while paused", topic="paused")
    daemon.topic("emptied").channel("c")
    daemon.publishes(b"dropped", topic="emptied")
    daemon.topic("emptied").empty_channel("c")
    daemon.waits(1.0)
    for topic in ("orders", "held", "paused"):
        data_path.checkpoint(daemon, topic)
    daemon.publishes(b"behind the checkpoint", b"too")
    consumer.requeues(b"two", 100.0)
    daemon.waits(0.5)
    return daemon


def extract(folder: Path) -> Path:
    """Write what is in the archive to this folder."""
    # Python 3.11.2, that of Debian 12, has no filters; later ones want one.
    options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, **options)
    return folder


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    return extract(tmp_path / "old")


def started_on(folder: Path):
    data_path = DataPath(Disk(), str(folder))
    data_path.now = 2000.0
    data_path.clock -= 1000.0 - 1.5  # one and a half seconds after `use` began
    return data_path, data_path.start()


def taken(daemon, channel: str = "archive", topic: str = "orders") -> list[bytes]:
    consumer, bodies = daemon.consumer(channel, topic=topic), []
    while some := consumer.takes():
        bodies += some
        consumer.finishes(*some)
    consumer.leaves()
    return bodies


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_everything_that_0_1_0_wrote_is_delivered_by_this_version(extracted, end):
    data_path, daemon = started_on(extracted / "os" / end)
    assert sorted(taken(daemon)) == sorted([b"six", *WAITING, b"behind the checkpoint", b"too"])
    assert sorted(taken(daemon, "audit")) == sorted(
        [b"alone", b"one", b"two", b"six", *WAITING, b"behind the checkpoint", b"too"]
    )
    assert [daemon.channel(name).deferred_count for name in ("archive", "audit")] == [3, 1]
    daemon.waits(99.4)
    assert taken(daemon) == []
    daemon.waits(0.2)
    assert taken(daemon) == [b"two"]
    daemon.waits(200)
    assert taken(daemon) == [b"one"]
    daemon.waits(300)
    assert (taken(daemon), taken(daemon, "audit")) == ([b"later"], [b"later"])
    assert taken(daemon, "first", "held") == [b"for no channel"]
    assert daemon.topic("paused").paused
    daemon.topic("paused").unpause()
    assert taken(daemon, "c", "paused") == [b"while paused"]
    assert taken(daemon, "c", "emptied") == []
    data_path.close()


def test_everything_that_0_1_0_kept_at_a_clean_stop_at_level_memory_is_delivered(extracted):
    data_path, daemon = started_on(extracted / "memory" / "stopped")
    assert sorted(taken(daemon)) == sorted([b"six", *WAITING, b"behind the checkpoint", b"too"])
    assert daemon.channel().deferred_count == 3
    assert taken(daemon, "first", "held") == [b"for no channel"]
    data_path.close()
