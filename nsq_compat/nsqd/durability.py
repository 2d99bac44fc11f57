"""Background writes: group commit, checkpoints of the channels' positions, nsqd.dat, dead letters.

nsqd.dat is for Go's nsqd and for tools, and records which channels are paused, which is not in the logs. The creation
of a topic or channel is in the topic's own log before the client receives the reply.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import gevent
from gevent.event import AsyncResult, Event
from gevent.lock import Semaphore
from gevent.pool import Pool

from nsq_compat.log.checkpoint import Encoding
from nsq_compat.log.data_path import reason
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, path_of, save_metadata
from nsq_compat.log.storage import Done, Storage, TopicStore
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.policy.dead_letters import DeadLetterQueues
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SYNC_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_MIN_INTERVAL_PER_ROUND: Final = 20
"""Minimum interval between rounds of checkpoints, and between saves of nsqd.dat, in durations of the last one."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LAST_THREADS: Final = 8
_LAST_BATCH_TOPICS: Final = 32
_LAST_BATCH_BYTES: Final = 1 << 20
_LARGE_CHECKPOINT: Final = 1 << 20
_RETRY_SECONDS: Final = 1.0
"""Between attempts to save nsqd.dat, or to send dead letters while the disk or the dead-letter topic is full."""
_WATCH_SECONDS: Final = 0.1
"""Messages that are acknowledged in this time after the data path was moved are where it was moved to."""
_TOPICS_AT_ONCE: Final = 500
_PAUSE_SECONDS: Final = 0.001
"""With a sleep of 0 the event loop would not poll its sockets."""


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work`, which waits for the disk or takes long, in a thread, so that the event loop runs. Raises its errors.

    If the calling greenlet is killed meanwhile, it ends after the work has ended, so that another writer of the same
    file can follow.
    """
    return in_threads([partial(work, *args, **kwargs)])[0]


def in_threads(works: Sequence[Callable[[], T]]) -> list[T]:
    """As `in_thread`, of several at the same time. After all have ended it raises the first error."""

    def outcome(work: Callable[[], T]) -> T | Exception:
        # An exception that leaves a thread is printed by gevent with a traceback, although it is handled.
        try:
            return work()
        except Exception as error:
            return error

    pool: Any = gevent.get_hub().threadpool
    running: list[Any] = []
    results: list[T] = []
    failure: Exception | None = None
    try:
        for work in works:
            running.append(pool.spawn(outcome, work))
        for each in running:
            result: T | Exception = each.get()
            if not isinstance(result, Exception):
                results.append(result)
            elif failure is None:
                failure = result
    except gevent.GreenletExit:
        gevent.wait(running)
        raise
    if failure is not None:
        try:
            raise failure
        finally:
            del failure, result, running, each  # they would be in a cycle with the traceback
    return results


def wait_for(begin: Callable[[Done], None]) -> None:
    """Call `begin`, and return when it has called its argument. Raises the error that it was called with."""
    outcome: AsyncResult[OSError | None] = AsyncResult()
    begin(outcome.set)
    if (error := outcome.get()) is not None:
        raise error


class Committer:
    """Group commit: publishers wait together for one sync of their topic's log, which runs in a thread.

    While a sync runs, new publishers gather for the next one, which begins as soon as the last one has returned. There
    is no timer, because waiting for more publishers lowers the rate (measured). `observe` receives the seconds of each
    sync. `check_folder` raises ``OSError`` if the next start would not find the log that was synced.
    """

    def __init__(self, observe: Callable[[float], None], check_folder: Callable[[], None]) -> None:
        self._observe = observe
        self._check_folder = check_folder
        self._gathering: dict[TopicLog, list[Done]] = {}
        self._syncing: set[TopicLog] = set()

    def commit(self, log: TopicLog, done: Done) -> None:
        """Call `done` when everything appended so far is on the disk, or may not be."""
        self._gathering.setdefault(log, []).append(done)
        if log not in self._syncing:
            self._syncing.add(log)
            gevent.spawn(self._sync_while_wanted, log)

    def _sync_while_wanted(self, log: TopicLog) -> None:
        try:
            while log in self._gathering:
                waiting = self._gathering.pop(log)
                failure: OSError | None = None
                try:
                    job = log.begin_sync()
                    began = time.monotonic()
                    try:
                        in_thread(job.run)
                    except OSError as error:
                        log.finish_sync(job, error)
                        raise
                    log.finish_sync(job, None)
                    self._observe(time.monotonic() - began)
                    self._check_folder()
                except OSError as error:
                    failure = error
                for done in waiting:
                    done(failure)
        finally:
            self._syncing.discard(log)


class FolderWatch:
    """Checks often that the data path is still there (`Storage.check_folder`), without work for each message."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._watching = gevent.Greenlet(self._watch)
        self.start = self._watching.start
        self.stop = self._watching.kill

    def _watch(self) -> None:
        while True:
            with suppress(OSError):  # it is logged
                self._storage.check_folder()
            gevent.sleep(_WATCH_SECONDS)


class Checkpoints:
    """Writes the checkpoints of changed topics periodically, and then releases unneeded parts of their logs.

    It does not wait for a standby, which gets all changes in their order.

    The interval bounds the number of messages that are delivered again after a crash. It is the greater of `interval`
    seconds and twenty times the duration of the last round, so that a million deferred messages do not keep the daemon
    busy with checkpoints. The first intervals are shorter, because a process may end sooner: 0.1 s after the first
    change, then twice as long each time.
    """

    def __init__(self, broker: Broker, storage: Storage, interval: float) -> None:
        self._broker = broker
        self._storage = storage
        self._interval = interval
        self._lock = Semaphore()  # two writers of a topic's checkpoint would write the same file
        self._writing = gevent.Greenlet(self._write_periodically)

    def start(self) -> None:
        self._writing.start()

    def stop(self) -> None:
        """Stop. If a thread is writing a checkpoint, wait for it; it then possibly does not replace the last one."""
        self._writing.kill()

    def write_all(self) -> None:
        """Write the checkpoints of changed topics now. If one cannot be written, its topic stays changed."""
        self._storage.probe()
        now_ns = time.time_ns()
        for number, topic in enumerate(list(self._broker.topics.values()), 1):
            if not topic.exiting and topic.is_release_due(now_ns):
                self._broker.changed(topic)
            if not number % _TOPICS_AT_ONCE:
                yield_to_loop()
        for topic in self._broker.take_changed():
            try:
                self.save(topic)
            except OSError as error:
                if not topic.exiting:
                    self._storage.failed(error)
                    self._broker.changed(topic)
            yield_to_loop()

    def save(self, topic: Topic) -> None:
        """Write a checkpoint of this topic now. Raises ``OSError``."""
        with self._lock:
            self._write(topic)

    def write_last(self) -> None:
        """Write the final checkpoints and close the logs, when nothing changes any more.

        There may be tens of thousands of topics, so threads write the checkpoints of some while the logs of others are
        closed. The durability level decides whether they are synced.
        """
        outdated: list[tuple[Topic, TopicStore]] = []
        writers = Pool(_LAST_THREADS)
        for topic in self._broker.topics.values():
            store = topic.store
            if store is None:
                continue
            if topic.is_checkpoint_current:
                with _failed_close_logged(topic):
                    store.log.close()
                continue
            outdated.append((topic, store))
            if len(outdated) == _LAST_BATCH_TOPICS:
                writers.spawn(_write_last, outdated)
                outdated = []
        writers.spawn(_write_last, outdated)
        writers.join()

    def _write_periodically(self) -> None:
        pause = min(_FIRST_PAUSE_SECONDS, self._interval)
        while True:
            began = time.monotonic()
            has_changed = self._broker.has_changed
            try:
                self.write_all()
            except Exception:  # the top of a greenlet that must not end
                log.exception("checkpoints failed")
            gevent.sleep(max(pause, _MIN_INTERVAL_PER_ROUND * (time.monotonic() - began)))
            if has_changed:
                pause = min(2 * pause, self._interval)
            gevent.sleep(0)  # a client may have woken the loop just now, and timers run first

    def _write(self, topic: Topic) -> None:
        store = topic.store
        if store is None or topic.exiting:
            return
        checkpoint = topic.checkpoint(time.monotonic(), time.time_ns())
        store.sync()
        encoding = Encoding(checkpoint)
        while encoding.step():
            yield_to_loop()
        pieces = encoding.finish()
        in_thread(store.write_checkpoint, *pieces)
        replaced = store.open_checkpoint() if sum(map(len, pieces)) > _LARGE_CHECKPOINT else None
        try:
            if not topic.exiting:
                store.adopt_checkpoint()
                topic.checkpoint_saved(checkpoint)
                store.sync()  # before the deletion of data that only the previous checkpoint needed
                topic.release(checkpoint, time.time_ns(), yield_to_loop)
        finally:
            if replaced is not None:
                in_thread(self._storage.files.close, replaced)


_Batch = list[tuple[Topic, TopicStore, Sequence[bytes]]]


def _write_last(topics: Sequence[tuple[Topic, TopicStore]]) -> None:
    batch: _Batch = []
    size = 0
    for topic, store in topics:
        with _failed_close_logged(topic):
            topic.flush()
            store.sync()
            pieces = Encoding(topic.checkpoint(time.monotonic(), time.time_ns())).finish()
            batch.append((topic, store, pieces))
            size += sum(len(piece) for piece in pieces)
        if size > _LAST_BATCH_BYTES:
            _write_batch(batch)
            batch, size = [], 0
    _write_batch(batch)


def _write_batch(batch: _Batch) -> None:
    for topic, store in in_thread(_write_checkpoints, batch):
        with _failed_close_logged(topic):
            store.adopt_checkpoint()
            store.sync()
            store.log.close()


def _write_checkpoints(batch: _Batch) -> list[tuple[Topic, TopicStore]]:
    """Write the checkpoints, in a thread; returns the topics for which that succeeded."""
    written = []
    for topic, store, pieces in batch:
        with _failed_close_logged(topic):
            store.write_checkpoint(*pieces)
            written.append((topic, store))
    return written


@contextmanager
def _failed_close_logged(topic: Topic) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.error("TOPIC(%s): cannot be closed properly - %s", topic.name, reason(error))


# --- nsqd.dat ---------------------------------------------------------------------------------------------------------


class MetadataFile:
    """Keeps nsqd.dat up to date: it is saved soon after a topic or channel is created or deleted.

    An observer of the broker. Saving is done in a thread, and one save may cover several changes.
    """

    def __init__(self, storage: Storage, broker: Broker) -> None:
        self._storage = storage
        self._broker = broker
        self._wanted = Event()
        self._lock = Semaphore()
        self._saving = gevent.Greenlet(self._save_when_wanted)

    def start(self) -> None:
        self._broker.observers.append(self)
        self._saving.start()

    def stop(self) -> None:
        """Save the final state, after a running save has ended."""
        self._saving.kill()
        self.save()

    def save(self) -> bool:
        """Save the current state; returns whether it succeeded. A failure is logged."""
        with self._lock:  # because saves write the same file
            storage = self._storage
            log.info("NSQ: persisting topic/channel metadata to %s", path_of(storage.data_path))
            try:
                storage.check_folder()
                in_thread(save_metadata, storage.files, storage.data_path, self._topics())
            except OSError as error:
                log.error("failed to persist metadata - %s", reason(error))
                return False
            return True

    def _topics(self) -> list[TopicMetadata]:
        """The current topics, read in steps, between which other greenlets run.

        If they change meanwhile, another save follows.
        """
        taken = []
        for number, (name, topic) in enumerate(list(self._broker.topics.items()), 1):
            if self._broker.topics.get(name) is topic:
                channels = tuple(ChannelMetadata(each.name, each.paused) for each in topic.channels.values())
                taken.append(TopicMetadata(name, topic.paused, channels))
            if not number % _TOPICS_AT_ONCE:
                gevent.sleep(_PAUSE_SECONDS)
        return taken

    def topic_created(self, *_: object) -> None:
        self._wanted.set()

    topic_deleted = channel_created = channel_deleted = topic_created

    def _save_when_wanted(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            began = time.monotonic()
            if not self.save():
                self._wanted.set()
                gevent.sleep(_RETRY_SECONDS)
            gevent.sleep(_MIN_INTERVAL_PER_ROUND * (time.monotonic() - began))


# --- Dead letters -----------------------------------------------------------------------------------------------------


class DeadLetterSender:
    """Publishes dead letters in a greenlet, because publishing may wait for the disk."""

    def __init__(self, dead_letters: DeadLetterQueues) -> None:
        self._dead_letters = dead_letters
        self._wanted = Event()
        self._stop = Event()
        self._sending = gevent.Greenlet(self._send_until_stopped)
        dead_letters.wake = self._wanted.set

    def start(self) -> None:
        self._sending.start()

    def stop(self) -> None:
        """Send the dead letters that can be sent. The others return to their channels at the next start."""
        self._stop.set()
        self._wanted.set()
        self._sending.join()
        while self._dead_letters.is_waiting and self._send():
            pass

    def _send_until_stopped(self) -> None:
        while not self._stop.is_set():
            self._wanted.wait()
            self._wanted.clear()
            while self._dead_letters.is_waiting and not self._stop.is_set():
                self._stop.wait(0.0 if self._send() else _RETRY_SECONDS)  # 0 still lets other greenlets run

    def _send(self) -> bool:
        try:
            return self._dead_letters.send(time.monotonic(), time.time_ns(), yield_to_loop)
        except Exception:  # the top of a greenlet that must not end
            log.exception("dead letters cannot be sent")
            return False
