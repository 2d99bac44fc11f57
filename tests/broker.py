"""The real queue, with a clock that a test moves, and consumers that take messages, answer, and are woken.

A test names a message by its body: after `publishes(b"a", b"b")` it expects `takes(2) == [b"a", b"b"]`.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nsq_compat.log.checkpoint import TopicState
from nsq_compat.log.data_path import make_our_folder, topic_folder
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.storage import Done, Durability, Storage
from nsq_compat.policy.enforcer import PolicyEnforcer
from nsq_compat.policy.policies import Policies
from nsq_compat.protocol import message
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats, QueueLimits
from nsq_compat.queue.wait_queue import Locality

NOW_NS = 1_700_000_000_000_000_000


class Consumer:
    """The client as a channel sees it. `wakes` counts; `awake` is true until it takes."""

    def __init__(self, daemon: "Daemon", channel: Channel, timeout: float, locality: Locality) -> None:
        self.in_flight = InFlight()
        self.locality = locality
        self.awake = False
        self.wakes = 0
        self.closed = False
        self.frames: dict[bytes, bytes] = {}  # by body, as it was delivered last
        self._daemon = daemon
        self._channel = channel
        self._timeout = timeout

    def wake(self) -> None:
        self.awake = True
        self.wakes += 1

    def close(self) -> None:
        self.closed = True

    def begin_headers(self) -> None:
        pass

    @property
    def client(self) -> tuple[str, str]:
        return "c", "1.2.3.4:5"

    def stats(self) -> ClientStats:
        return ClientStats(
            client_id="c", hostname="h", version="V2", remote_address="1.2.3.4:5", state=3, ready_count=1,
            in_flight_count=len(self.in_flight), message_count=0, finish_count=0, requeue_count=0, connect_ts=0,
        )  # fmt: skip

    def takes(self, room: int = 100) -> list[bytes]:
        """Take one batch; returns its bodies."""
        self.awake = False
        frames = self._channel.take(self, room, self._daemon.now, self._timeout)
        bodies = [message.body(frame) for frame in frames]
        self.frames.update(zip(bodies, frames, strict=True))
        return bodies

    def takes_all(self) -> list[bytes]:
        """Everything that it gets now."""
        found: list[bytes] = []
        while some := self.takes():
            found += some
        return found

    def stands_back(self) -> None:
        self.awake = False
        self._channel.leave_wait_queue(self)

    def finishes(self, *bodies: bytes) -> list[bytes]:
        """Return the bodies that were refused."""
        by_id = {self.id_of(body): body for body in bodies}
        return [by_id[message_id] for message_id in self._channel.finish(self, list(by_id))]

    def requeues(self, body: bytes, delay: float = 0.0) -> None:
        self._channel.requeue(self, self.id_of(body), self._daemon.now, delay)

    def touches(self, body: bytes) -> None:
        self._channel.touch(self, self.id_of(body), self._daemon.now, self._timeout)

    def leaves(self) -> None:
        self._channel.remove_consumer(self)

    def id_of(self, body: bytes) -> bytes:
        return message.message_id(self.frames[body])

    def attempts(self, body: bytes) -> int:
        return message.attempts(self.frames[body])


class Daemon:
    """A broker and its clock."""

    def __init__(self, limits: QueueLimits, storage: Storage | None = None) -> None:
        self.now = 1000.0
        self.clock = NOW_NS / 1e9
        self.broker = Broker(limits, storage)
        self.enforcer = PolicyEnforcer(self.broker, lambda: self.now, lambda: self.now_ns)

    @property
    def now_ns(self) -> int:
        return int((self.clock + self.now) * 1e9)

    def follows(self, *policies: dict[str, object]) -> None:
        """Apply these policies, and no others."""
        self.enforcer.apply(Policies(policies))

    def sends_dead_letters(self) -> bool:
        """Send a batch of each channel; False if any was refused."""
        return self.enforcer.dead_letters.send(self.now, self.now_ns)

    def topic(self, name: str = "orders") -> Topic:
        return self.broker.topic(name)

    def channel(self, name: str = "archive", topic: str = "orders") -> Channel:
        return self.topic(topic).channel(name)

    def publishes(self, *bodies: bytes, topic: str = "orders", defer: float = 0.0) -> None:
        self.topic(topic).publish(bodies, self.now, self.now_ns, defer)

    def consumer(
        self,
        channel: str = "archive",
        topic: str = "orders",
        timeout: float = 60.0,
        locality: Locality = Locality.GLOBAL,
    ) -> Consumer:
        """A consumer of that channel that has not taken anything yet."""
        target = self.channel(channel, topic)
        consumer = Consumer(self, target, timeout, locality)
        target.add_consumer(consumer)
        return consumer

    def waiting_consumers(self, count: int) -> list[Consumer]:
        """Consumers that found no message, in this order."""
        consumers = [self.consumer() for _ in range(count)]
        for consumer in consumers:
            assert consumer.takes() == []
        return consumers

    def waits(self, seconds: float) -> None:
        """Time passes, and due alarms are handled."""
        self.now += seconds
        self.broker.schedule.run(self.now)


@pytest.fixture(scope="session")
def start() -> Callable[..., Daemon]:
    """A daemon with other limits than usual."""

    def start_with(**limits: float) -> Daemon:
        return Daemon(QueueLimits(**limits))  # type: ignore[arg-type]

    return start_with


@pytest.fixture
def daemon(start: Callable[..., Daemon]) -> Daemon:
    return start()


@pytest.fixture
def channel(daemon: Daemon) -> Channel:
    """The channel that consumers subscribe to by default."""
    return daemon.channel()


@pytest.fixture
def make_frames() -> Callable[..., Sequence[bytes]]:
    """Frames of the given bodies, with ids numbered from `first`."""

    def make(*bodies: bytes, first: int = 0) -> Sequence[bytes]:
        return message.make_frames([b"%016x" % (first + number) for number in range(len(bodies))], NOW_NS, bodies)

    return make


class Log(dict[bytes, bytes]):
    """Frames by id, as a topic's log gives them; notes the ids that were fetched, and fails on demand."""

    def __init__(self, *frames: bytes) -> None:
        super().__init__((message.message_id(frame), frame) for frame in frames)
        self.asked: list[bytes] = []
        self.failing = False

    def fetch(self, ids: Sequence[bytes], locations: object = None, /) -> dict[bytes, bytes]:
        self.asked += ids
        if self.failing:
            raise OSError("cannot read")
        return {each: self[each] for each in ids if each in self}

    def locate(self, frames: Sequence[bytes]) -> dict[bytes, bytes]:
        if self.failing:
            raise OSError("cannot write")
        return {}


class Disk(OsFiles):
    """The real file system. Reads fail with `errno` while `unreadable` is set, and writes while it is full.

    A test may replace `write`.
    """

    def __init__(self) -> None:
        self.unreadable = False
        self.full = False
        self.errno = errno.ENOMEM
        self.write = os.pwrite
        self.pread = self._pread
        self.pwrite = self._pwrite

    def _pwrite(self, fd: int, data: Any, offset: int, /) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write(fd, data, offset)

    def _pread(self, fd: int, size: int, offset: int, /) -> bytes:
        if self.unreadable:
            raise OSError(self.errno, os.strerror(self.errno))
        return os.pread(fd, size, offset)


class DataPath:
    """A folder on which one daemon runs after the other. `clock` is the wall clock minus the monotonic one."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.clock = NOW_NS / 1e9
        self.now = 1000.0
        self._daemons: list[Daemon] = []

    def start(self, durability: Durability = Durability.OS, named: Sequence[str] = (), **limits: int) -> Daemon:
        """Start from the logs; `named` are the channels that nsqd.dat has, of every topic."""
        storage = Storage(
            self.files,
            self.path,
            durability=durability,
            segment_size=self.segment_size,
            clock_offset=lambda: self.clock,
        )
        daemon = Daemon(QueueLimits(**{"mem_queue_size": 2, **limits}), storage)  # type: ignore[arg-type]
        daemon.now = self.now
        daemon.clock = self.clock
        self._daemons.append(daemon)
        for name in storage.names():
            daemon.broker.restore(name, named, daemon.now, daemon.now_ns)
        daemon.waits(0)
        return daemon

    segment_size = 1 << 20

    def kill(self, daemon: Daemon) -> None:
        """End without closing anything. The files stay as they are."""
        self.now = daemon.now

    def restart(self, daemon: Daemon, durability: Durability = Durability.OS, **options: Any) -> Daemon:
        """Kill this daemon and start the next one."""
        self.kill(daemon)
        return self.start(durability, **options)

    def stop(self, daemon: Daemon) -> None:
        """A clean stop."""
        self.kill(daemon)
        daemon.broker.close()
        for topic in daemon.broker.topics.values():
            if topic.store is not None:
                topic.flush()
                self._write(daemon, topic)
                topic.store.log.close()

    def checkpoint(self, daemon: Daemon, topic: str = "orders") -> None:
        target = daemon.topic(topic)
        target.release(self._write(daemon, target), daemon.now_ns)

    def _write(self, daemon: Daemon, topic: Topic) -> TopicState:
        assert topic.store is not None
        checkpoint = topic.checkpoint(daemon.now, daemon.now_ns)
        topic.store.write_checkpoint(checkpoint.encode())
        topic.store.adopt_checkpoint()
        return checkpoint

    def folder(self, topic: str = "orders") -> str:
        return topic_folder(self.path, topic)

    def close(self) -> None:
        for daemon in self._daemons:
            for topic in daemon.broker.topics.values():
                if topic.store is not None:
                    topic.store.log.close()


def with_consumer(daemon: Daemon) -> tuple[Any, Any]:
    return daemon, daemon.consumer()


@pytest.fixture
def data_path(disk: Disk, tmp_path: Path) -> Iterator[DataPath]:
    make_our_folder(disk, str(tmp_path))
    data_path = DataPath(disk, str(tmp_path))
    yield data_path
    data_path.close()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def logging_daemon(data_path: DataPath) -> Daemon:
    """A daemon at level `os` that has two messages of a channel in memory."""
    return data_path.start()


class SlowDisk:
    """A storage at level fsync. Its disk syncs when a test says so, or when a commit blocks."""

    def __init__(self, path: Path) -> None:
        make_our_folder(OsFiles(), str(path))
        self._waiting: list[Done] = []
        self.storage = Storage(
            OsFiles(),
            str(path),
            durability=Durability.FSYNC,
            segment_size=1 << 20,
            commit=lambda log, done: self._waiting.append(done),
            wait=self._wait,
        )

    def syncs(self, error: OSError | None = None) -> None:
        """All that waits is synced, or nothing."""
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(error)

    def _wait(self, begin: Callable[[Done], None]) -> None:
        begin(lambda error: None)
        self.syncs()
