"""Publishing in the background, in batches for each topic. Each call gets a future.

While a batch is being published, the next one accumulates, so batches grow when nsqd is slower than its producers. With
a `linger` a batch also waits for more messages. One worker preserves the order within a topic.
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
"""Parameters: topic, bodies, delay in seconds. Raises ``PublishError``."""


@dataclass(slots=True)
class Entry:
    """The messages of one call, which are published together."""

    bodies: Sequence[bytes]
    defer: float
    future: Future[Published]
    at: float
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.bodies)) + 4 * len(self.bodies)


@dataclass(slots=True)
class _Queue:
    """The waiting entries of a topic, oldest first."""

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
    """The producer is closed."""


class Batcher:
    """`max_messages` and `max_bytes` limit a batch (a larger entry is sent alone), `max_waiting_bytes` all entries."""

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
        """Add messages; blocks while `max_waiting_bytes` are waiting. Raises ``Closed``."""
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
            # A future cannot be cancelled any more once its batch is sent.
            self._send(topic, [entry for entry in entries if entry.future.set_running_or_notify_cancel()])
            with self._changed:
                self._unfinished -= len(entries)
                self._changed.notify_all()

    def _next_batch(self) -> tuple[str, list[Entry]] | None:
        """Wait for a batch that is due; None after `close`."""
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
        """The time to send the topic's next batch; 0 for at once."""
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
            self._topics[topic] = waiting  # after the other topics
        self._waiting_bytes -= sum(entry.size for entry in taken)
        return taken

    def _send(self, topic: str, entries: list[Entry]) -> None:
        if not entries:
            return
        try:
            outcome: Published | Exception = self._publish(
                topic, [body for entry in entries for body in entry.bodies], entries[0].defer
            )
        except Exception as error:  # passed to the caller by its future
            outcome = error
        if _may_concern_one_entry(outcome) and len(entries) > 1:
            # nsqd may have refused one entry: try each alone.
            for entry in entries:
                self._send(topic, [entry])
            return
        for entry in entries:
            if isinstance(outcome, Exception):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome)


def _may_concern_one_entry(outcome: object) -> bool:
    """Whether a node refused the batch. If no node could be reached, single entries would only wait again."""
    return isinstance(outcome, Refused) and any(isinstance(attempt.error, NsqError) for attempt in outcome.attempts)
