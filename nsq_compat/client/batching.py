"""Publishing in the background, in batches for each topic. Each call gets a future.

While a batch is being published, the next one accumulates, so batches grow when nsqd is slower than its producers. With
a `linger` a batch also waits for more messages. One worker preserves the order within a topic.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from nsq_compat.client.connection import start_thread
from nsq_compat.client.nodes import Published, Refused, may_be_for_one


class Entry(NamedTuple):
    """The messages of one call, which are published together."""

    bodies: Sequence[bytes]
    future: Future[Published]


@dataclass(slots=True)
class _Batch:
    """Entries for one topic. A deferred entry is alone."""

    topic: str
    defer: float
    since: float
    entries: list[Entry] = field(default_factory=list)
    messages: int = 0
    size: int = 0


class Closed(Exception):
    """The producer is closed."""


class Batcher:
    """`max_messages` and `max_bytes` limit a batch (a larger entry is sent alone), `max_waiting_bytes` all entries."""

    def __init__(
        self,
        publish: Callable[[str, Sequence[bytes], float], Published],  # topic, bodies, delay in seconds
        *,
        max_messages: int = 500,
        max_bytes: int = 1 << 20,
        linger: float = 0.0,
        workers: int = 1,
        max_waiting_bytes: int = 64 << 20,
    ) -> None:
        self._publish = publish
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._linger = linger
        self._worker_count = workers
        self._max_waiting_bytes = max_waiting_bytes
        self._topics: dict[str, deque[_Batch]] = {}
        """The waiting batches of each topic, oldest first. Only the last one can grow."""
        self._waiting_bytes = 0
        self._unfinished = 0
        self._flushing = 0
        self._closed = False
        self._changed = threading.Condition()
        self._workers: list[threading.Thread] = []

    def add(self, topic: str, bodies: Sequence[bytes], defer: float = 0.0) -> Future[Published]:
        """Add messages; blocks while `max_waiting_bytes` are waiting. Raises ``Closed``."""
        entry, size = Entry(bodies, Future()), sum(map(len, bodies)) + 4 * len(bodies)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting_bytes < self._max_waiting_bytes)
            if self._closed:
                raise Closed("the producer is closed")
            batch = self._batch_with_room(topic, len(bodies), size, defer)
            batch.entries.append(entry)
            batch.messages += len(bodies)
            batch.size += size
            self._waiting_bytes += size
            self._unfinished += 1
            if not self._workers:
                self._workers = [start_thread("nsq publisher", self._work) for _ in range(self._worker_count)]
            self._changed.notify_all()
        return entry.future

    def _batch_with_room(self, topic: str, messages: int, size: int, defer: float) -> _Batch:
        batches = self._topics.setdefault(topic, deque())
        if batches and not defer and not batches[-1].defer:
            last = batches[-1]
            if last.messages + messages <= self._max_messages and last.size + size <= self._max_bytes:
                return last
        batches.append(_Batch(topic, defer, time.monotonic()))
        return batches[-1]

    def flush(self, timeout: float | None = None) -> bool:
        """Send all waiting entries without lingering, and wait for their outcomes. False after the timeout."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._unfinished == 0, timeout)
            self._flushing -= 1
            return done

    def close(self, timeout: float | None = None) -> bool:
        """Refuse new messages and flush. Entries not sent in time are ``Refused``; False if there are any."""
        with self._changed:
            self._closed = True
        done = self.flush(timeout)
        with self._changed:
            left = [entry for batches in self._topics.values() for batch in batches for entry in batch.entries]
            self._topics.clear()
        for entry in left:
            if entry.future.set_running_or_notify_cancel():
                entry.future.set_exception(Refused(()))
        with self._changed:
            self._unfinished -= len(left)
            self._changed.notify_all()
        for worker in self._workers if done else ():
            worker.join()
        return done

    # --- Workers ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            # A future cannot be cancelled any more once its batch is sent.
            self._send(batch, [entry for entry in batch.entries if entry.future.set_running_or_notify_cancel()])
            with self._changed:
                self._unfinished -= len(batch.entries)
                self._changed.notify_all()

    def _next_batch(self) -> _Batch | None:
        """Wait for a batch that is due; None after `close`."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = math.inf
                for topic, batches in self._topics.items():
                    due = min(due, self._due_at(batches))
                    if due <= now:
                        # The topic's further batches come after the other topics.
                        del self._topics[topic]
                        batch = batches.popleft()
                        if batches:
                            self._topics[topic] = batches
                        self._waiting_bytes -= batch.size
                        return batch
                if self._closed and not self._topics:
                    return None
                self._changed.wait(None if due == math.inf else due - now)

    def _due_at(self, batches: deque[_Batch]) -> float:
        """The time to send the first of a topic's batches; 0 for at once."""
        batch = batches[0]
        is_full = len(batches) > 1 or batch.messages >= self._max_messages or batch.size >= self._max_bytes
        return 0.0 if is_full or batch.defer or self._flushing or self._closed else batch.since + self._linger

    def _send(self, batch: _Batch, entries: list[Entry]) -> None:
        if not entries:
            return
        try:
            bodies = [body for entry in entries for body in entry.bodies]
            outcome: Published | Exception = self._publish(batch.topic, bodies, batch.defer)
        except Exception as error:  # passed to the caller by its future
            outcome = error
        if len(entries) > 1 and may_be_for_one(outcome):
            for entry in entries:
                self._send(batch, [entry])
            return
        for entry in entries:
            if isinstance(outcome, Exception):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome)
