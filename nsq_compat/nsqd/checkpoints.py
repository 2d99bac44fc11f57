"""Writes the checkpoints of topics that changed, again and again; what they no longer need of their logs goes.

The interval bounds what comes again after a crash. It is the greater of --sync-timeout and twenty times what the last
round took, so that a million deferred messages do not make the daemon write checkpoints all day.

A life may be shorter than the interval. So the first pauses are short: 0.1 s behind the first change, then twice as
long each time, up to the interval. Whenever a life ends, what was finished in about its first half is written down.
"""

import logging
import time
from collections.abc import Sequence

import gevent
from gevent.pool import Pool

from nsq_compat.log.checkpoint import Encoding
from nsq_compat.log.data_path import reason
from nsq_compat.log.storage import Storage, TopicStore
from nsq_compat.net.long_work import let_others_run
from nsq_compat.nsqd.waiting import in_thread
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

_SHARE_OF_TIME = 20
_FIRST_PAUSE_SECONDS = 0.1
_LAST_AT_ONCE = 8
_LAST_IN_A_BATCH = 32
_LARGE_BATCH = 1 << 20
"""Bytes of encoded checkpoints that are not gathered beyond."""


class Checkpoints:
    """`interval` in seconds."""

    def __init__(self, broker: Broker, storage: Storage, interval: float) -> None:
        self._broker = broker
        self._storage = storage
        self._interval = interval
        self._writing: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        self._writing = gevent.spawn(self._write_for_ever)

    def stop(self) -> None:
        """Stop writing; a round under way is abandoned between two topics, whole or not at all."""
        if self._writing is not None:
            self._writing.kill()

    def write_all(self) -> None:
        """Write what has changed, now. A topic whose checkpoint cannot be written stays changed."""
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
        """The daemon stops and nothing moves any more: write all there is to know, and let go of the logs.

        As durable as the level says. There may be tens of thousands of topics: threads write the checkpoints of some
        while the logs of others are closed.
        """
        outdated: list[Topic] = []
        at_once = Pool(_LAST_AT_ONCE)
        for topic in self._broker.topics.values():
            if topic.is_checkpoint_current:
                _close(topic)
            elif topic.store is not None:
                outdated.append(topic)
                if len(outdated) == _LAST_IN_A_BATCH:
                    at_once.spawn(_write_last, outdated)
                    outdated = []
        at_once.spawn(_write_last, outdated)
        at_once.join()

    def _write_for_ever(self) -> None:
        pause = min(_FIRST_PAUSE_SECONDS, self._interval)
        while True:
            began = time.monotonic()
            something_changed = self._broker.has_changed
            try:
                self.write_all()
            except Exception:  # the top of a greenlet that must not end
                log.exception("checkpoints failed")
            gevent.sleep(max(pause, _SHARE_OF_TIME * (time.monotonic() - began)))
            if something_changed:
                pause = min(2 * pause, self._interval)
            gevent.sleep(0)  # a client may have woken the loop just now, and timers go before it

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
            store.commit()  # before anything goes that only the checkpoint before it needed
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
            _cannot_close(topic, error)
            continue
        pieces = Encoding(topic.checkpoint(time.monotonic(), time.time_ns())).finish()
        batch.append((topic, pieces))
        size += sum(len(piece) for piece in pieces)
        if size > _LARGE_BATCH:
            _write_batch(batch)
            batch, size = [], 0
    _write_batch(batch)


def _write_batch(batch: Sequence[tuple[Topic, Sequence[bytes]]]) -> None:
    for topic in in_thread(_written, batch):
        store = _store_of(topic)
        try:
            store.adopt_checkpoint()
            store.commit()
        except OSError as error:
            _cannot_close(topic, error)
        else:
            _close(topic)


def _written(batch: Sequence[tuple[Topic, Sequence[bytes]]]) -> list[Topic]:
    """Write the checkpoints, in a thread; those topics for which that succeeded."""
    written = []
    for topic, pieces in batch:
        try:
            _store_of(topic).write_checkpoint(*pieces)
        except OSError as error:
            _cannot_close(topic, error)
        else:
            written.append(topic)
    return written


def _close(topic: Topic) -> None:
    try:
        _store_of(topic).log.close()
    except OSError as error:
        _cannot_close(topic, error)


def _store_of(topic: Topic) -> TopicStore:
    assert topic.store is not None, "what lives in memory alone has no checkpoint"
    return topic.store


def _cannot_close(topic: Topic, error: OSError) -> None:
    log.error("TOPIC(%s): cannot be closed properly - %s", topic.name, reason(error))
