"""Writes the checkpoints of topics that changed, again and again; what they no longer need of their logs goes.

The interval bounds what comes again after a crash. It is the greater of --sync-timeout and twenty times what the last
round took, so that a million deferred messages do not make the daemon write checkpoints all day.

A life may be shorter than the interval. So the first pauses are short: 0.1 s behind the first change, then twice as
long each time, up to the interval. Whenever a life ends, what was finished in about its first half is written down.
"""

import logging
import time

import gevent

from nsq_compat.nsqd.waiting import in_thread
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.checkpoint import Encoding
from nsq_compat.queue.data_path import reason
from nsq_compat.queue.storage import Storage
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)

_SHARE_OF_TIME = 20
_FIRST_PAUSE_SECONDS = 0.1


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
            gevent.sleep(0)

    def write_last(self) -> None:
        """The daemon stops and nothing moves any more: write all there is to know, and let go of the logs.

        As durable as the level says: thousands of topics that wait for the disk one by one would hold up the stop.
        """
        for topic in self._broker.topics.values():
            if topic.store is None:
                continue
            try:
                if topic.is_checkpoint_current:
                    topic.store.log.close()
                    continue
                topic.surrender_memory()
                topic.store.commit()
                topic.store.write_checkpoint(*Encoding(topic.checkpoint(time.monotonic(), time.time_ns())).finish())
                topic.store.adopt_checkpoint()
                topic.store.commit()
                topic.store.log.close()
            except OSError as error:
                log.error("TOPIC(%s): cannot be closed properly - %s", topic.name, reason(error))

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
        if store is None or topic.exiting or not store.is_used:
            return
        checkpoint = topic.checkpoint(time.monotonic(), time.time_ns())
        store.commit()
        encoding = Encoding(checkpoint)
        while encoding.step():
            gevent.sleep(0)
        in_thread(store.write_checkpoint, *encoding.finish())
        if not topic.exiting:
            store.adopt_checkpoint()
            topic.checkpoint_saved(checkpoint)
            store.commit()  # before anything goes that only the checkpoint before it needed
            topic.release(checkpoint)
