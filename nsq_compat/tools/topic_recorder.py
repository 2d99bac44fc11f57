"""One topic of nsq_to_file: its consumer, and the thread that writes what comes.

The consumer's handler only passes messages on; the thread takes what has gathered, so that a batch is one write, and
syncs when the recording says so, or when the consumer would get no more before some are finished.

When the disk fails, nothing more is written: what is not safe goes back to nsqd, and `on_failure` is called.
"""

import enum
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from nsq_compat.client import Consumer, Message
from nsq_compat.client.message import Handler
from nsq_compat.tools.recording import Recording

log = logging.getLogger(__name__)

_LONGEST_BATCH: Final = 1000
_LOOK_AGAIN: Final = 1.0
"""Seconds after which it is asked again whether more would come: RDY may have been shared out anew."""


class _Order(enum.Enum):
    """What the thread is told, in turn with the messages."""

    SYNC = enum.auto()
    REOPEN = enum.auto()
    END = enum.auto()


class TopicRecorder:
    """`subscribe` makes the consumer, given its handler."""

    def __init__(
        self,
        label: str,
        recording: Recording,
        subscribe: Callable[[Handler], Consumer],
        on_failure: Callable[[], object],
    ) -> None:
        self.recording = recording
        self.consumer = subscribe(self._receive)
        self._label = label
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Message | _Order] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"recorder {label}", daemon=True)
        self._stopping = False

    def start(self) -> None:
        self._thread.start()
        self.consumer.start()

    def reopen(self) -> None:
        """Sync and close the file; the next message opens the next."""
        self._queue.put(_Order.REOPEN)

    def stop(self, timeout: float) -> None:
        """Ask for no more, write what has come, close the file. It returns when the file is closed."""
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
            log.critical("[%s] %s", self._label, error, exc_info=None if isinstance(error, OSError) else error)
            self._on_failure()
            self._give_back(messages)
            while order is not _Order.END:
                messages, order = self._gather()
                self._give_back(messages)

    def _gather(self) -> tuple[list[Message], _Order | None]:
        """What has come, up to the next order; waits for the first, until something is due."""
        messages = list[Message]()
        wait = self.recording.due() - time.monotonic()
        try:
            item = self._queue.get(timeout=max(0.0, min(wait, _LOOK_AGAIN) if self.recording.unsynced else wait))
            while isinstance(item, Message):
                messages.append(item)
                if len(messages) == _LONGEST_BATCH:
                    return messages, None
                item = self._queue.get_nowait()
        except queue.Empty:
            return messages, None
        return messages, item

    def _record(self, messages: list[Message], order: _Order | None) -> None:
        recording, now, now_ns = self.recording, time.monotonic(), time.time_ns()
        if messages:
            recording.write(messages, now, now_ns, self._patience())
        if order in (_Order.REOPEN, _Order.END):
            recording.close()
        elif now >= recording.due():
            recording.tick(now, now_ns)
        elif recording.unsynced and (order is _Order.SYNC or self._nothing_more_will_come()):
            recording.sync()

    def _nothing_more_will_come(self) -> bool:
        return self._queue.empty() and (self._stopping or self.consumer.is_starved())

    def _patience(self) -> float:
        """Half the time for which nsqd waits before it delivers a message again."""
        return min((connection.msg_timeout for connection in self.consumer.connections), default=0.0) / 2

    def _give_back(self, messages: Iterable[Message]) -> None:
        self.consumer.set_max_in_flight(0)
        self.recording.give_back()
        for message in messages:
            if not message.is_answered:
                message.requeue(delay=0, backoff=False)
