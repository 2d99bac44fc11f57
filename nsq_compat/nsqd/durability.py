"""What makes published and finished messages durable: group commit, and checkpoints of the channels' positions."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import gevent
from gevent.event import AsyncResult
from gevent.pool import Pool

from nsq_compat.log.checkpoint import Encoding
from nsq_compat.log.data_path import reason
from nsq_compat.log.storage import Storage, TopicStore
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.net.event_loop import let_others_run
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.topic import Topic
from nsq_compat.web.metrics import Metrics

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_SYNC_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_MIN_INTERVAL_PER_ROUND: Final = 20
"""The interval between checkpoints is at least so many times what the last round took."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LAST_THREADS: Final = 8
_LAST_BATCH_TOPICS: Final = 32
_LAST_BATCH_BYTES: Final = 1 << 20


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work`, which waits for the disk, in a thread while the event loop goes on. Raises its ``OSError``.

    If the calling greenlet is killed meanwhile, it ends when the work is done, so that another writer of the same file
    can follow.
    """

    def outcome() -> T | OSError:
        # An exception that leaves a thread is printed by gevent with a traceback, although it is handled.
        try:
            return work(*args, **kwargs)
        except OSError as error:
            return error

    running: Any = gevent.get_hub().threadpool.spawn(outcome)
    try:
        result: T | OSError = running.get()
    except gevent.GreenletExit:
        running.wait()
        raise
    if isinstance(result, OSError):
        raise result
    return result


def sync_seconds(metrics: Metrics) -> Callable[[float], None]:
    """The histogram of the seconds that disk syncs take."""
    return metrics.histogram("nsqd_fsync_seconds", "Time a sync of a log took.", _SYNC_BUCKETS)


class Committer:
    """Group commit: publishers wait together for one sync of their topic's log, which runs in a thread.

    While a sync runs, new publishers gather for the next one, which begins as soon as the last one returned. There is
    no timer: waiting for more publishers only makes it slower (measured). `observe` is given the seconds of each sync.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._gathering: dict[TopicLog, AsyncResult[None]] = {}
        self._syncing: set[TopicLog] = set()

    def commit(self, log: TopicLog) -> None:
        """Return when everything appended so far is on the disk. Raises ``OSError`` when it may not be."""
        turn = self._gathering.setdefault(log, AsyncResult())
        if log not in self._syncing:
            self._syncing.add(log)
            gevent.spawn(self._sync_while_wanted, log)
        turn.get()

    def _sync_while_wanted(self, log: TopicLog) -> None:
        try:
            while log in self._gathering:
                turn = self._gathering.pop(log)
                try:
                    self._sync(log)
                except OSError as error:
                    turn.set_exception(error)
                else:
                    turn.set(None)
        finally:
            self._syncing.discard(log)

    def _sync(self, log: TopicLog) -> None:
        job = log.begin_sync()
        began = time.monotonic()
        try:
            in_thread(job.run)
        except OSError as error:
            log.finish_sync(job, error)
            raise
        log.finish_sync(job, None)
        self._observe(time.monotonic() - began)


class Checkpoints:
    """Writes the checkpoints of changed topics in intervals; then parts of their logs that are not needed can go.

    The interval bounds how many messages are delivered again after a crash. It is the greater of `interval` seconds and
    twenty times what the last round took, so that a million deferred messages do not keep the daemon busy with
    checkpoints. The first pauses are shorter, because a process may live for less than an interval: 0.1 s after the
    first change, then twice as long each time.
    """

    def __init__(self, broker: Broker, storage: Storage, interval: float) -> None:
        self._broker = broker
        self._storage = storage
        self._interval = interval
        self._writing: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        self._writing = gevent.spawn(self._write_for_ever)

    def stop(self) -> None:
        """Stop writing. Returns when a checkpoint that a thread is writing is written; it may not be put in place."""
        if self._writing is not None:
            self._writing.kill()

    def write_all(self) -> None:
        """Write the checkpoints of changed topics now. A topic whose checkpoint cannot be written stays changed."""
        self._storage.probe()
        for topic in self._broker.take_changed():
            try:
                self._write(topic)
            except OSError as error:
                if not topic.exiting:
                    self._storage.failed(error)
                    self._broker.changed(topic)
            let_others_run()

    def write_last(self) -> None:
        """Write the final checkpoints and close the logs, as durably as the level says, when nothing changes any more.

        There may be tens of thousands of topics: threads write the checkpoints of some while the logs of others are
        closed.
        """
        outdated: list[Topic] = []
        writers = Pool(_LAST_THREADS)
        for topic in self._broker.topics.values():
            if topic.is_checkpoint_current:
                _close(topic)
            elif topic.store is not None:
                outdated.append(topic)
                if len(outdated) == _LAST_BATCH_TOPICS:
                    writers.spawn(_write_last, outdated)
                    outdated = []
        writers.spawn(_write_last, outdated)
        writers.join()

    def _write_for_ever(self) -> None:
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
        store.commit()
        encoding = Encoding(checkpoint)
        while encoding.step():
            let_others_run()
        in_thread(store.write_checkpoint, *encoding.finish())
        if not topic.exiting:
            store.adopt_checkpoint()
            topic.checkpoint_saved(checkpoint)
            store.commit()  # before data goes that only the previous checkpoint needed
            topic.release(checkpoint, let_others_run)


def _write_last(topics: Sequence[Topic]) -> None:
    batch: list[tuple[Topic, Sequence[bytes]]] = []
    size = 0
    for topic in topics:
        store = _store_of(topic)
        try:
            topic.flush()
            store.commit()
        except OSError as error:
            _log_failed_close(topic, error)
            continue
        pieces = Encoding(topic.checkpoint(time.monotonic(), time.time_ns())).finish()
        batch.append((topic, pieces))
        size += sum(len(piece) for piece in pieces)
        if size > _LAST_BATCH_BYTES:
            _write_batch(batch)
            batch, size = [], 0
    _write_batch(batch)


def _write_batch(batch: Sequence[tuple[Topic, Sequence[bytes]]]) -> None:
    for topic in in_thread(_write_checkpoints, batch):
        store = _store_of(topic)
        try:
            store.adopt_checkpoint()
            store.commit()
        except OSError as error:
            _log_failed_close(topic, error)
        else:
            _close(topic)


def _write_checkpoints(batch: Sequence[tuple[Topic, Sequence[bytes]]]) -> list[Topic]:
    """Write the checkpoints, in a thread; returns the topics for which that succeeded."""
    written = []
    for topic, pieces in batch:
        try:
            _store_of(topic).write_checkpoint(*pieces)
        except OSError as error:
            _log_failed_close(topic, error)
        else:
            written.append(topic)
    return written


def _close(topic: Topic) -> None:
    try:
        _store_of(topic).log.close()
    except OSError as error:
        _log_failed_close(topic, error)


def _store_of(topic: Topic) -> TopicStore:
    assert topic.store is not None, "a topic in memory alone has no checkpoint"
    return topic.store


def _log_failed_close(topic: Topic, error: OSError) -> None:
    log.error("TOPIC(%s): cannot be closed properly - %s", topic.name, reason(error))
