"""One delivery of a message, as handlers get it: what it is, and the answers nsqd may be given."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

FINISH: Final = "finish"
REQUEUE: Final = "requeue"
TOUCH: Final = "touch"


class Delivery(Protocol):
    """Where a message's answers go: the connection it came from."""

    @property
    def is_closed(self) -> bool: ...
    def finish(self, message: "Message") -> None: ...
    def requeue(self, message: "Message", delay: float | None, backoff: bool) -> None: ...
    def touch(self, message: "Message") -> None: ...


class AlreadyAnswered(AssertionError):
    """A message is finished or requeued once. An assertion, as pynsq's programs may expect."""


class Message:
    """A message in flight. It must be finished or requeued before nsqd's timeout, or be touched.

    `id` is 16 ASCII bytes, `timestamp` nanoseconds since 1970 (when it was published), `attempts` 1 at the first
    delivery. Answers may come from any thread.
    """

    __slots__ = (
        "_delivery",
        "_listeners",
        "attempts",
        "body",
        "id",
        "is_answered",
        "is_deferred",
        "nsqd",
        "timestamp",
    )

    def __init__(
        self, id: bytes, body: bytes, timestamp: int, attempts: int, delivery: Delivery, nsqd: str = ""
    ) -> None:
        self.id = id
        self.body = body
        self.timestamp = timestamp
        self.attempts = attempts
        self.nsqd = nsqd
        """The address it came from; ids are only unique together with it and the topic."""
        self.is_answered = False
        self.is_deferred = False
        """The handler has said that the answer comes later."""
        self._delivery = delivery
        self._listeners: list[tuple[str, Callable[..., object]]] | None = None

    @property
    def is_lost(self) -> bool:
        """Its connection is gone: no answer will reach nsqd, which delivers it again when its time is over."""
        return self._delivery.is_closed

    def finish(self) -> None:
        """Handled: nsqd forgets it. Raises ``AlreadyAnswered``."""
        self._answer(FINISH)
        self._delivery.finish(self)

    def requeue(self, *, delay: float | None = None, time_ms: float | None = None, backoff: bool = True) -> None:
        """Not handled: nsqd delivers it again after `delay` seconds (or `time_ms`).

        Without one the delay grows with the attempts. `backoff` False leaves the consumer's pace alone. Raises
        ``AlreadyAnswered``.
        """
        self._answer(REQUEUE)
        if time_ms is not None and time_ms >= 0:
            delay = time_ms / 1000
        self._delivery.requeue(self, delay if delay is not None and delay >= 0 else None, backoff)

    def touch(self) -> None:
        """More time is needed: nsqd's timeout begins anew. Raises ``AlreadyAnswered``."""
        if self.is_answered:
            raise AlreadyAnswered(f"message {self.id.decode('ascii', 'replace')} was answered before")
        self._tell(TOUCH)
        self._delivery.touch(self)

    def enable_async(self) -> None:
        """The handler's return is no answer; somebody will call `finish` or `requeue` later."""
        self.is_deferred = True

    def is_async(self) -> bool:
        return self.is_deferred

    def has_responded(self) -> bool:
        return self.is_answered

    def on(self, event: str, listener: Callable[..., object]) -> None:
        """Have `listener` called, with ``message=``, before the answer `event` ("finish", "requeue", "touch")."""
        if self._listeners is None:
            self._listeners = []
        self._listeners.append((event, listener))

    def _answer(self, event: str) -> None:
        if self.is_answered:
            raise AlreadyAnswered(f"message {self.id.decode('ascii', 'replace')} was answered before")
        self.is_answered = True
        if self._listeners is not None:
            self._tell(event)

    def _tell(self, event: str) -> None:
        for wanted, listener in self._listeners or ():
            if wanted == event:
                listener(message=self)

    def __repr__(self) -> str:
        return f"<Message {self.id.decode('ascii', 'replace')} attempt {self.attempts} from {self.nsqd}>"


Handler = Callable[[Message], object]


def log_giving_up(message: Message) -> None:
    log.warning("msg %s attempted %d times, giving up", message.id.decode("ascii", "replace"), message.attempts)


def finish_or_requeue(message: Message, succeeded: bool) -> None:
    """Answer for a handler that has returned, unless it did so itself or will."""
    if not message.is_answered and not message.is_deferred:
        if succeeded:
            message.finish()
        else:
            message.requeue()


def requeue_after_error(message: Message, error: BaseException) -> None:
    """Answer for a handler that has raised."""
    log.error("handling of message %s failed", message.id.decode("ascii", "replace"), exc_info=error)
    if not message.is_answered:
        message.requeue()
