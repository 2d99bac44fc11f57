"""A delivered message, with its answers, and the answer for a handler's outcome."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Protocol

from nsq_compat.client.settings import check_number
from nsq_compat.protocol.errors import one_line
from nsq_compat.protocol.headers import NO_HEADERS, Headers

log: Final = logging.getLogger(__name__)


class Delivery(Protocol):
    """The connection that a message came from, which gets its answers."""

    @property
    def is_closed(self) -> bool: ...
    def finish(self, message: "Message") -> None: ...
    def requeue(self, message: "Message", delay: float | None, backoff: bool) -> None: ...
    def touch(self, message: "Message") -> None: ...


class AlreadyAnswered(AssertionError):
    """The message was finished or requeued before. An AssertionError, because it is one in pynsq."""


@dataclass(slots=True, eq=False, repr=False)
class Message:
    """A message in flight. It must be finished, requeued or touched before nsqd's timeout; from any thread.

    `id` is 16 ASCII bytes, `timestamp` the time of publishing in nanoseconds since 1970. `attempts` begins with 1.
    """

    id: bytes
    body: bytes
    timestamp: int
    attempts: int
    _connection: Delivery
    nsqd: str = ""
    """The address of its nsqd. Ids are unique only together with it and the topic."""
    headers: Headers = field(default_factory=lambda: NO_HEADERS)
    """By name, in lower case. Only an nsqd of nsq_compat has any."""
    is_answered: bool = field(default=False, init=False)
    is_deferred: bool = field(default=False, init=False)
    """The handler has called ``enable_async``."""
    _listeners: tuple[tuple[str, Callable[..., object]], ...] = field(default=(), init=False)
    _span: Callable[[], AbstractContextManager[object]] | None = field(default=None, init=False)
    """Makes its span current in a block, with tracing."""

    @property
    def is_lost(self) -> bool:
        """Whether its connection has ended. nsqd then delivers it again, even after an answer."""
        return self._connection.is_closed

    def finish(self) -> None:
        """Finish the message. Raises ``AlreadyAnswered``."""
        self._begin_answer("finish")
        self._connection.finish(self)

    def requeue(self, *, delay: float | None = None, time_ms: float | None = None, backoff: bool = True) -> None:
        """Let nsqd deliver it again, after `delay` seconds or `time_ms` milliseconds. Raises ``AlreadyAnswered``.

        By default the delay grows with the attempts. With `backoff` False the consumer does not back off. Raises
        ``TypeError`` for a delay that is not a number; the message can then still be answered.
        """
        # Before the answer begins, because a message that is refused here has none.
        if time_ms is not None:
            check_number("time_ms", time_ms)
            delay = time_ms / 1000 if time_ms >= 0 else delay
        if delay is not None:
            check_number("delay", delay)
            delay = delay if delay >= 0 else None
        self._begin_answer("requeue")
        self._connection.requeue(self, delay, backoff)

    def touch(self) -> None:
        """Restart nsqd's timeout. Raises ``AlreadyAnswered``."""
        self._begin_answer("touch")
        self._connection.touch(self)

    def in_span(self) -> AbstractContextManager[object]:
        """Make the span of the message current in a block. Without tracing, the block has no span of its own.

        An error that leaves the block is recorded. The span ends when the message is answered and no block is left.
        """
        return nullcontext() if self._span is None else self._span()

    def note_span(self, span: Callable[[], AbstractContextManager[object]]) -> None:
        """Note what ``in_span`` returns."""
        self._span = span

    def enable_async(self) -> None:
        """Answer the message later: the handler's return value is ignored."""
        self.is_deferred = True

    def is_async(self) -> bool:
        return self.is_deferred

    def has_responded(self) -> bool:
        return self.is_answered

    def on(self, event: str, listener: Callable[..., object]) -> None:
        """Call `listener(message=)` before the answer `event` ("finish", "requeue" or "touch")."""
        self._listeners += ((event, listener),)

    def _begin_answer(self, event: str) -> None:
        if self.is_answered:
            raise AlreadyAnswered(f"message {self.id.decode('ascii', 'replace')} was answered before")
        self.is_answered = event != "touch"
        for name, listener in self._listeners:
            if name == event:
                listener(message=self)

    def __repr__(self) -> str:
        return f"<Message {self.id.decode('ascii', 'replace')} attempt {self.attempts} from {self.nsqd}>"


Handler = Callable[[Message], object]


def log_giving_up(message: Message) -> None:
    log.warning("msg %s attempted %d times, giving up", _shown(message), message.attempts)


def finish_or_requeue(message: Message, succeeded: bool) -> None:
    """Answer for a handler that has returned, unless it has answered or will."""
    if not message.is_answered and not message.is_deferred:
        if succeeded:
            message.finish()
        else:
            message.requeue()


def requeue_after_error(message: Message, error: BaseException) -> None:
    """Answer for a handler that has raised, and log the error."""
    log.error("handling of message %s failed", _shown(message), exc_info=error)
    if not message.is_answered:
        message.requeue()


def _shown(message: Message) -> str:
    """The id for a log line: an nsqd may send any bytes."""
    return one_line(message.id.decode("ascii", "replace"))
