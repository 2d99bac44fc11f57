"""One topic of nsq_to_file: its consumer, the thread that writes, and when messages are finished.

The consumer's handler only passes messages on. The thread takes what has gathered, so that a batch is one write, and
syncs when the recording says so, or when the consumer would receive no more before some messages are finished.

Invariant: a message is finished after the file that contains it was synced, never before. When the disk fails, nothing
more is written: messages that are not synced are requeued, and `on_failure` is called.
"""

import base64
import enum
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

from nsq_compat.client import Consumer, Message
from nsq_compat.client.message import Handler
from nsq_compat.log.data_path import reason
from nsq_compat.protocol.durations import seconds
from nsq_compat.protocol.go_json import dumps
from nsq_compat.tools.nsq_to_file.file_series import JSON, FileOptions, FileSeries

log = logging.getLogger(__name__)

_MAX_BATCH: Final = 1000
_POLL_SECONDS: Final = 1.0
"""Between checks whether more messages can come, because RDY may have been redistributed."""


def json_line(message: Message) -> bytes:
    """A message as a JSON object: its id, nsqd, timestamp in nanoseconds since 1970, attempts, headers, and body.

    A body that is not UTF-8 is `body_base64`.
    """
    own = {
        "id": message.id.decode("ascii", "backslashreplace"),  # an nsqd may send any bytes
        "nsqd": message.nsqd,
        "timestamp": message.timestamp,
        "attempts": message.attempts,
        "headers": dict(message.headers),
    }
    try:
        body = {"body": message.body.decode("utf-8")}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode("ascii")}
    return dumps({**own, **body}).encode("utf-8")


class Recording:
    """Messages of one topic that are written and not finished yet. No I/O but that of `series`, and no threads.

    A sync is due when enough messages wait for one, when the interval is over, when a file ends, and before nsqd's
    message timeout. `now` is monotonic, `now_ns` wall clock.
    """

    def __init__(self, label: str, series: FileSeries, options: FileOptions, now: float) -> None:
        self.label = label
        self.series = series
        self.recorded = 0
        """Number of messages synced and finished."""
        self.unsynced: list[Message] = []
        self._options = options
        self._line: Callable[[Message], bytes] = json_line if options.format == JSON else attrgetter("body")
        self._tick_due = now + seconds(options.sync_interval)
        self._sync_due = 0.0

    def write(self, messages: Sequence[Message], now: float, now_ns: int, timeout: float) -> None:
        """Write messages, which are to be finished within `timeout` seconds."""
        if not self.unsynced:
            self._sync_due = now + timeout
        # nsqd delivers the messages of lost connections again.
        left = [message for message in messages if not message.is_lost]
        while left:
            if self.series.must_rotate(now, now_ns):
                self.sync()
                self.series.open_next(now, now_ns)
            count = self.series.write([self._line(message) for message in left])
            self.unsynced += left[:count]
            left = left[count:]
        if len(self.unsynced) >= self._options.max_in_flight:
            self.sync()

    def due(self) -> float:
        """When to call `tick`."""
        return min(self._tick_due, self._sync_due) if self.unsynced else self._tick_due

    def tick(self, now: float, now_ns: int) -> None:
        """Sync; at the end of the interval also end a file that is due."""
        self.sync()
        if now < self._tick_due:
            return
        self._tick_due = now + seconds(self._options.sync_interval)
        if self.series.must_rotate(now, now_ns):
            if self._options.skip_empty_files:
                self.series.close()
            else:
                self.series.open_next(now, now_ns)

    def sync(self) -> None:
        if not self.unsynced:
            return
        log.debug("[%s] syncing %d records to disk", self.label, len(self.unsynced))
        self.series.sync()
        for message in self.unsynced:
            message.finish()
        self.recorded += len(self.unsynced)
        self.unsynced.clear()

    def close(self) -> None:
        """Sync, finish, and put the file in place; the next message opens another."""
        self.sync()
        self.series.close()

    def requeue(self, messages: Iterable[Message]) -> None:
        """The disk has failed: another process may write these messages, and those that are not synced."""
        for message in (*self.unsynced, *messages):
            if not message.is_answered:
                message.requeue(delay=0, backoff=False)
        self.unsynced.clear()


_Order = enum.Enum("_Order", ["SYNC", "REOPEN", "END"])
"""Orders to the thread, in one queue with the messages."""


class TopicRecorder:
    """`subscribe` makes the consumer, given its handler."""

    def __init__(
        self, recording: Recording, subscribe: Callable[[Handler], Consumer], on_failure: Callable[[str], object]
    ) -> None:
        self.recording = recording
        self.consumer = subscribe(self._receive)
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Message | _Order] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"recorder {recording.label}", daemon=True)
        self._stopping = False

    def start(self) -> None:
        self._thread.start()
        self.consumer.start()

    def reopen(self) -> None:
        """Sync and close the file; the next message opens another."""
        self._queue.put(_Order.REOPEN)

    def stop(self, timeout: float) -> None:
        """Stop the consumer, write all received messages, and return when the file is closed."""
        self._stopping = True
        self._queue.put(_Order.SYNC)
        self.consumer.stop(timeout)
        self._queue.put(_Order.END)
        self._thread.join()

    def _receive(self, message: Message) -> None:
        message.enable_async()
        self._queue.put(message)

    # --- In its thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        order, messages = None, list[Message]()
        try:
            while order is not _Order.END:
                messages, order = self._gather()
                self._record(messages, order)
        except Exception as error:  # the top of a thread
            if isinstance(error, OSError):
                text = f"{error.filename or self.recording.series.path}: {reason(error)}"
            else:
                text = "internal error"
                log.exception("[%s] %s", self.recording.label, text)
            self._on_failure(f"[{self.recording.label}] {text}")
            self.consumer.set_max_in_flight(0)
            self.recording.requeue(messages)
            while order is not _Order.END:
                messages, order = self._gather()
                self.recording.requeue(messages)

    def _gather(self) -> tuple[list[Message], _Order | None]:
        """Received messages up to the next order; waits for the first one, until the recording is due."""
        messages = list[Message]()
        wait = self.recording.due() - time.monotonic()
        try:
            item = self._queue.get(timeout=max(0.0, min(wait, _POLL_SECONDS) if self.recording.unsynced else wait))
            while isinstance(item, Message):
                messages.append(item)
                if len(messages) == _MAX_BATCH:
                    return messages, None
                item = self._queue.get_nowait()
        except queue.Empty:
            return messages, None
        return messages, item

    def _record(self, messages: list[Message], order: _Order | None) -> None:
        recording, now, now_ns = self.recording, time.monotonic(), time.time_ns()
        if messages:
            timeout = min((connection.msg_timeout for connection in self.consumer.connections), default=0.0)
            recording.write(messages, now, now_ns, timeout / 2)
        if order in (_Order.REOPEN, _Order.END):
            recording.close()
        elif now >= recording.due():
            recording.tick(now, now_ns)
        elif recording.unsynced:
            is_starved = self._queue.empty() and (self._stopping or self.consumer.is_starved())
            if is_starved or order is _Order.SYNC:
                recording.sync()
