"""Publishing in the background: what waits for the same topic leaves together, and each caller has a future.

While one batch is on its way the next one gathers, so batches grow by themselves when nsqd is slower than its
producers; with a `linger` they are also waited for. Order within a topic is kept with one worker.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from nsq_compat.client.outcomes import Published, Refused
from nsq_compat.protocol.errors import NsqError

Publish = Callable[[str, Sequence[bytes], float], Published]
"""Topic, bodies, seconds to defer them. Raises ``PublishError``."""


@dataclass(slots=True)
class Entry:
    """What one call has handed in: it is published whole."""

    bodies: Sequence[bytes]
    defer: float
    future: Future[Published]
    at: float
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.bodies)) + 4 * len(self.bodies)


@dataclass(slots=True)
class _Queue:
    """What waits for one topic, the oldest first."""

    entries: deque[Entry] = field(default_factory=deque)
    messages: int = 0
    size: int = 0

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.messages += len(entry.bodies)
        self.size += entry.size

    def popleft(self) -> Entry:
        entry = self.entries.popleft()
        self.messages -= len(entry.bodies)
        self.size -= entry.size
        return entry


class Closed(Exception):
    """The producer was closed."""


class Batcher:
    """`max_messages` and `max_bytes` bound a batch (a larger entry goes alone), `max_waiting_bytes` all that waits."""

    def __init__(
        self,
        publish: Publish,
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
        self._topics: dict[str, _Queue] = {}
        self._waiting_bytes = 0
        self._unfinished = 0
        self._flushing = 0
        self._closed = False
        self._changed = threading.Condition()
        self._workers: list[threading.Thread] = []

    def add(self, topic: str, bodies: Sequence[bytes], defer: float = 0.0) -> Future[Published]:
        """Waits while too much waits already. Raises ``Closed``."""
        entry = Entry(bodies, defer, Future(), time.monotonic())
        with self._changed:
            while not self._closed and self._waiting_bytes >= self._max_waiting_bytes:
                self._changed.wait()
            if self._closed:
                raise Closed("the producer is closed")
            waiting = self._topics.get(topic)
            if waiting is None:
                waiting = self._topics[topic] = _Queue()
            waiting.append(entry)
            self._waiting_bytes += entry.size
            self._unfinished += 1
            self._start_workers()
            self._changed.notify_all()
        return entry.future

    def flush(self, timeout: float | None = None) -> bool:
        """Send all that waits, without lingering, and wait until each has its outcome; whether that was in time."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._unfinished == 0, timeout)
            self._flushing -= 1
            return done

    def close(self, timeout: float | None = None) -> bool:
        """Take nothing more, send what waits; what is not sent in time is ``Refused``. Whether all was sent in time."""
        with self._changed:
            self._closed = True
        done = self.flush(timeout)
        with self._changed:
            left = [entry for waiting in self._topics.values() for entry in waiting.entries]
            self._topics.clear()
            self._changed.notify_all()
        for entry in left:
            if entry.future.set_running_or_notify_cancel():
                entry.future.set_exception(Refused(()))
        for worker in self._workers if done else ():
            worker.join()
        return done

    # --- Workers ------------------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        while len(self._workers) < self._worker_count:
            worker = threading.Thread(target=self._work, name="nsq publisher", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            topic, entries = batch
            # Once on its way nothing can be cancelled any more.
            self._send(topic, [entry for entry in entries if entry.future.set_running_or_notify_cancel()])
            with self._changed:
                self._unfinished -= len(entries)
                self._changed.notify_all()

    def _next_batch(self) -> tuple[str, list[Entry]] | None:
        """Waits for one; None at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = float("inf")
                for topic, waiting in self._topics.items():
                    due_at = self._due_at(waiting)
                    if due_at <= now:
                        return topic, self._take(topic, waiting)
                    due = min(due, due_at)
                if self._closed and not self._topics:
                    return None
                self._changed.wait(None if due == float("inf") else due - now)

    def _due_at(self, waiting: _Queue) -> float:
        """When the oldest of a topic leaves at the latest; long ago for a full batch."""
        oldest = waiting.entries[0]
        is_full = waiting.messages >= self._max_messages or waiting.size >= self._max_bytes
        if self._flushing or self._closed or oldest.defer or is_full:
            return 0.0
        return oldest.at + self._linger

    def _take(self, topic: str, waiting: _Queue) -> list[Entry]:
        taken, entries = [waiting.popleft()], waiting.entries
        messages, size = len(taken[0].bodies), taken[0].size
        while entries and not taken[0].defer and not entries[0].defer:
            messages, size = messages + len(entries[0].bodies), size + entries[0].size
            if messages > self._max_messages or size > self._max_bytes:
                break
            taken.append(waiting.popleft())
        del self._topics[topic]
        if entries:
            self._topics[topic] = waiting  # behind the others
        self._waiting_bytes -= sum(entry.size for entry in taken)
        return taken

    def _send(self, topic: str, entries: list[Entry]) -> None:
        if not entries:
            return
        try:
            outcome: Published | Exception = self._publish(
                topic, [body for entry in entries for body in entry.bodies], entries[0].defer
            )
        except Exception as error:  # the caller's to judge, through its future
            outcome = error
        if _may_concern_one_entry(outcome) and len(entries) > 1:
            # One of them may be what nsqd does not take; the others must not suffer for it.
            for entry in entries:
                self._send(topic, [entry])
            return
        for entry in entries:
            if isinstance(outcome, Exception):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome)


def _may_concern_one_entry(outcome: object) -> bool:
    """Whether a node has said no. Who is not there would let each of them wait as long again."""
    return isinstance(outcome, Refused) and any(isinstance(each.error, NsqError) for each in outcome.attempts)
