"""Work in threads at the end of nsqd: a write under way and the last one do not overlap."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest

from nsq_compat.log.checkpoint import CHECKPOINT, decode
from nsq_compat.log.data_path import make_our_folder, topic_folder
from nsq_compat.log.files import OsFiles, read_file
from nsq_compat.log.metadata import read_metadata
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.nsqd.durability import Checkpoints, in_thread
from nsq_compat.nsqd.metadata import MetadataFile
from nsq_compat.queue.limits import QueueLimits
from tests.broker import Daemon


class SlowFiles(OsFiles):
    """The thread that opens the first file whose name begins with `name`, to write it, waits until `go_on` is set."""

    def __init__(self, name: str) -> None:
        self.began = threading.Event()
        self.go_on = threading.Event()
        self._name = name

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:  # type: ignore[override]
        fd = super().open(path, flags, mode)
        if os.path.basename(path).startswith(self._name) and flags & os.O_CREAT and not self.began.is_set():
            self.began.set()
            assert self.go_on.wait(20)
        return fd


def wait_for(event: threading.Event) -> None:
    while not event.is_set():
        gevent.sleep(0.001)


def test_a_killed_greenlet_ends_when_its_thread_has():
    began, go_on, done = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        assert go_on.wait(20)
        done.append(True)

    greenlet = gevent.spawn(in_thread, work)
    wait_for(began)
    gevent.spawn_later(0.01, go_on.set)
    greenlet.kill()
    assert done == [True]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[OsFiles], Daemon]]:
    """A daemon with what the data path has."""
    make_our_folder(OsFiles(), str(tmp_path))
    daemons = []

    def start(files: OsFiles) -> Daemon:
        storage = Storage(files, str(tmp_path), durability=Durability.OS, segment_size=1 << 20, commit=lambda _: None)
        daemons.append(Daemon(QueueLimits(mem_queue_size=2), storage))
        for name in storage.names():
            daemons[-1].broker.restore(name, (), daemons[-1].now, daemons[-1].now_ns)
        return daemons[-1]

    yield start
    for daemon in daemons:
        for topic in daemon.broker.topics.values():
            if topic.store is not None:
                topic.store.log.close()


def test_the_last_nsqd_dat_is_written_after_one_under_way(start, tmp_path):
    files = SlowFiles("nsqd.dat")
    daemon = start(OsFiles())
    daemon.topic("deleted")
    metadata = MetadataFile(files, str(tmp_path), daemon.broker)
    metadata.start()
    metadata.topic_created(daemon.topic("deleted"))
    wait_for(files.began)
    daemon.broker.delete_topic("deleted")
    daemon.topic("orders")
    gevent.spawn_later(0.01, files.go_on.set)
    metadata.stop()
    gevent.get_hub().threadpool.join()
    assert [topic.name for topic in read_metadata(OsFiles(), str(tmp_path)).topics] == ["orders"]


def test_the_last_checkpoint_is_written_after_one_under_way(start):
    files = SlowFiles("checkpoint")
    daemon = start(files)
    daemon.channel()
    daemon.publishes(*[b"later %d" % number for number in range(200)], defer=60.0)
    storage = daemon.broker._storage
    checkpoints = Checkpoints(daemon.broker, storage, 60.0)
    checkpoints.start()
    wait_for(files.began)
    daemon.topic().empty_channel("archive")
    gevent.spawn_later(0.01, files.go_on.set)
    checkpoints.stop()
    checkpoints.write_last()
    gevent.get_hub().threadpool.join()
    written = read_file(OsFiles(), os.path.join(topic_folder(storage.data_path, "orders"), CHECKPOINT))
    assert decode(written).channels["archive"].entries == []
