"""Thousands of topics or messages, and what nsqd writes down of all of them."""

import threading
import time

import gevent

from nsq_compat.log.files import OsFiles
from nsq_compat.log.metadata import load_metadata
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.nsqd.durability import Checkpoints
from nsq_compat.nsqd.metadata import MetadataFile
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.limits import QueueLimits


class SlowToCreate(OsFiles):
    """Notes how many temporary files are being made at a time."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:  # type: ignore[override]
        if "checkpoint" not in path:
            return super().open(path, flags, mode)
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.001)
        with self._lock:
            self._now -= 1
        return super().open(path, flags, mode)


def test_at_the_end_the_disk_takes_several_checkpoints_at_a_time_and_all_are_there(tmp_path):
    (tmp_path / "nsq_compat").mkdir()
    files = SlowToCreate()
    storage = Storage(files, str(tmp_path), durability=Durability.OS, segment_size=1 << 20, commit=TopicLog.sync)
    broker = Broker(QueueLimits(), storage)
    for number in range(300):
        broker.topic(f"t{number}").channel("c")
    Checkpoints(broker, storage, 60.0).write_last()
    assert len(list(tmp_path.glob("nsq_compat/*.topic/checkpoint"))) == 300
    assert not list(tmp_path.glob("nsq_compat/*.topic/checkpoint?*"))
    assert files.most > 1


def test_others_run_while_the_names_of_all_topics_are_read(tmp_path):
    broker = Broker(QueueLimits())
    for number in range(2_000):
        broker.topic(f"t{number}").channel("c")
    metadata = MetadataFile(OsFiles(), str(tmp_path), broker)
    turns: list[float] = []

    def delete_the_last() -> None:
        broker.topics.pop("t1999")
        while True:
            turns.append(time.monotonic())
            gevent.sleep(0)

    gathered = gevent.spawn(metadata._topics)
    other = gevent.spawn(delete_the_last)
    names = [topic.name for topic in gathered.get()]
    other.kill()
    assert turns
    assert names == [f"t{number}" for number in range(1_999)]
    assert metadata.save()
    saved = load_metadata(OsFiles(), str(tmp_path))
    assert saved is not None
    assert len(saved) == 1_999


def test_between_two_pieces_of_a_large_checkpoint_the_loop_polls_its_sockets(tmp_path):
    (tmp_path / "nsq_compat").mkdir()
    storage = Storage(OsFiles(), str(tmp_path), durability=Durability.OS, segment_size=1 << 20, commit=TopicLog.sync)
    broker = Broker(QueueLimits(), storage)
    topic = broker.topic("t")
    topic.channel("c")
    for _ in range(60):
        topic.publish([b"x"] * 1000, 0.0, time.time_ns(), 3600.0)
    iterations = 0

    def count() -> None:
        nonlocal iterations
        iterations += 1

    watcher = gevent.get_hub().loop.prepare()
    watcher.start(count)
    try:
        Checkpoints(broker, storage, 60.0).write_all()
    finally:
        watcher.stop()
        watcher.close()
    pieces = 60_000 // 4096
    assert iterations > 3 * pieces  # encoded, their locations added, sorted to find what may be deleted
    assert len(list(tmp_path.glob("nsq_compat/t.topic/checkpoint"))) == 1
