"""Writes to the disk in threads: they do not overlap at the end, and thousands of topics do not block others."""

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import gevent
import pytest

from nsq_compat.log.checkpoint import CHECKPOINT, decode
from nsq_compat.log.data_path import make_our_folder, topic_folder
from nsq_compat.log.files import OsFiles, read_file
from nsq_compat.log.metadata import load_metadata, read_metadata
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.net.event_loop import MAX_ENDINGS
from nsq_compat.nsqd.daemon import CollectionExemption
from nsq_compat.nsqd.durability import Checkpoints, MetadataFile, in_thread, in_threads
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import QueueLimits
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.broker import Daemon
from tests.nsqd.conftest import connect
from tests.v2_client import pub


class SlowFiles(OsFiles):
    """The thread that first opens a file named `name...` to write it waits until `go_on` is set."""

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


def storage_in(data_path: Path, files: OsFiles) -> Storage:
    make_our_folder(files, str(data_path))
    return Storage(files, str(data_path), durability=Durability.OS, segment_size=1 << 20)


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


def test_works_in_threads_run_together_and_the_first_error_comes_when_all_have_ended():
    met = threading.Barrier(3)
    ended = []

    def work(number: int) -> int:
        met.wait(20)
        ended.append(number)
        if number == 1:
            raise OSError(number)
        return number

    with pytest.raises(OSError, match="1"):
        in_threads([partial(work, number) for number in range(3)])
    assert sorted(ended) == [0, 1, 2]
    assert in_threads([partial(int, text) for text in "123"]) == [1, 2, 3]


def test_a_killed_greenlet_ends_when_all_its_threads_have():
    begun, go_on, done = threading.Semaphore(0), threading.Event(), []

    def work() -> None:
        begun.release()
        assert go_on.wait(20)
        done.append(True)

    greenlet = gevent.spawn(in_threads, [work] * 3)
    for _ in range(3):
        while not begun.acquire(blocking=False):
            gevent.sleep(0.001)
    gevent.spawn_later(0.01, go_on.set)
    greenlet.kill()
    assert done == [True] * 3


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[OsFiles], Daemon]]:
    """A daemon with what the data path has."""
    daemons = []

    def start(files: OsFiles) -> Daemon:
        storage = storage_in(tmp_path, files)
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
    metadata = MetadataFile(storage_in(tmp_path, files), daemon.broker)
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


def test_a_checkpoint_on_demand_is_written_after_one_under_way(start):
    files = SlowFiles("checkpoint")
    daemon = start(files)
    daemon.channel()
    daemon.publishes(*[b"later %d" % number for number in range(200)], defer=60.0)
    storage = daemon.broker._storage
    checkpoints = Checkpoints(daemon.broker, storage, 60.0)
    periodic = gevent.spawn(checkpoints.write_all)
    wait_for(files.began)
    daemon.topic().empty_channel("archive")
    gevent.spawn_later(0.01, files.go_on.set)
    checkpoints.save(daemon.topic())
    periodic.get()
    assert storage.error is None
    written = read_file(OsFiles(), os.path.join(topic_folder(storage.data_path, "orders"), CHECKPOINT))
    assert decode(written).channels["archive"].entries == []


# --- Thousands of topics or messages ----------------------------------------------------------------------------------


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
    files = SlowToCreate()
    storage = storage_in(tmp_path, files)
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
    metadata = MetadataFile(storage_in(tmp_path, OsFiles()), broker)
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


def iterations_of(act: Callable[[], object]) -> int:
    """The number of iterations of the event loop meanwhile."""
    iterations = 0

    def count() -> None:
        nonlocal iterations
        iterations += 1

    watcher = gevent.get_hub().loop.prepare()
    watcher.start(count)
    try:
        act()
    finally:
        watcher.stop()
        watcher.close()
    return iterations


def test_others_run_while_many_topics_are_examined_of_which_none_has_changed(tmp_path):
    broker = Broker(QueueLimits())
    for number in range(2_000):
        broker.topic(f"t{number}")
    broker.take_changed()
    assert iterations_of(Checkpoints(broker, storage_in(tmp_path, OsFiles()), 60.0).write_all) >= 3


def test_between_two_pieces_of_a_large_checkpoint_the_loop_polls_its_sockets(tmp_path):
    storage = storage_in(tmp_path, OsFiles())
    broker = Broker(QueueLimits(), storage)
    topic = broker.topic("t")
    topic.channel("c")
    for _ in range(60):
        topic.publish([b"x"] * 1000, 0.0, time.time_ns(), 3600.0)
    pieces = 60_000 // 4096
    # Encoded, their locations added, sorted to find what may be deleted.
    assert iterations_of(Checkpoints(broker, storage, 60.0).write_all) > 3 * pieces
    assert len(list(tmp_path.glob("nsq_compat/t.topic/checkpoint"))) == 1


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Its topics are exempted; afterwards nothing is."""
    broker = Broker(QueueLimits())
    broker.observers.append(CollectionExemption(broker))
    yield broker
    gc.unfreeze()


def test_topics_are_exempt_from_collection_once_there_are_many(broker):
    for number in range(2_000):
        broker.topic(f"t{number}").channel("c")
    collected = {id(each) for each in gc.get_objects()}
    assert not [name for name, topic in broker.topics.items() if id(topic) in collected]


def test_topics_that_come_and_go_are_not_exempted_again(broker):
    for number in range(500):
        broker.topic(f"t{number}")
    exempt = gc.get_freeze_count()
    for number in range(1_000):
        broker.delete_topic(f"t{number}")
        broker.topic(f"t{number + 500}")
    assert gc.get_freeze_count() <= exempt


def test_clients_that_publish_and_end_together_are_all_answered(tmp_path):
    """More than end in one iteration of the event loop, and their answers wait for the disk."""
    with NsqdProcess(installed_nsqd(), tmp_path, options=["--durability=fsync"]) as nsqd, ExitStack() as stack:
        clients = [stack.enter_context(connect(nsqd)) for _ in range(5 * MAX_ENDINGS)]
        for client in clients:
            client.publishes(b"first")
        nsqd.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, nsqd.pid, os.WSTOPPED | os.WNOWAIT)
        for client in clients:
            client.says(pub(b"last"))
            client.socket.shutdown(socket.SHUT_WR)
        nsqd.send_signal(signal.SIGCONT)
        for client in clients:
            client.hears(b"OK")
