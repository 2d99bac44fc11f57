"""Tracing with OpenTelemetry: spans of publishes and of handlers, and their context in the headers of messages.

Used by both forms of the client, and imported only with `tracing`, because it needs OpenTelemetry's API, an extra.
Names and attributes are those of OpenTelemetry's conventions for messaging:

- A publish has a span of the type `send`, from the call to its outcome. Its context is in the message's headers, unless
  the program gave a context itself; then the span has a link to that. There is no span for each message of a batch.
- A message that is handled has a span of the type `process`. It ends when the message is answered, and the handler and
  every block of ``Message.in_span`` have ended. It has a link to the span of the publish, and is its child, unless a
  span is current in an iteration.

An nsqd without headers, such as Go's, gets messages without the context.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self

from nsq_compat import __version__
from nsq_compat.client.message import Handler, Message
from nsq_compat.client.nodes import Attempt, Outcome, Published, PublishError
from nsq_compat.client.publishing import checked
from nsq_compat.client.settings import split_address
from nsq_compat.protocol.headers import Headers
from nsq_compat.protocol.names import is_ephemeral

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ImportError as _error:
    raise ImportError("tracing needs OpenTelemetry's API: pip install 'nsq_compat[tracing]'") from _error

Attributes = dict[str, AttributeValue]

_PUBLISH: Final[Attributes] = {
    "messaging.system": "nsq",
    "messaging.operation.name": "publish",
    "messaging.operation.type": "send",
}
_PROCESS: Final[Attributes] = {
    "messaging.system": "nsq",
    "messaging.operation.name": "process",
    "messaging.operation.type": "process",
}
_GAVE_UP: Final = "max_tries"
_RETURNED_FALSE: Final = "returned_false"


class Tracing:
    """Makes the spans of a producer or consumer, with this provider or, if it is True, with the global one."""

    def __init__(self, provider: TracerProvider | bool, *, with_ids: bool = False) -> None:
        """`with_ids` is passed to ``publishing.checked``."""
        chosen = None if isinstance(provider, bool) else provider
        self._with_ids = with_ids
        self._tracer = trace.get_tracer("nsq_compat.client", __version__, chosen)

    # --- Publishing ---------------------------------------------------------------------------------------------------

    def publish(
        self, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers], *, is_batch: bool = False
    ) -> "Sending":
        """Begin the span of a publish. Raises ``ValueError``, as ``publishing.checked`` does."""
        checked(topic, bodies, headers)
        attributes: Attributes = _PUBLISH | _destination(topic)
        attributes["messaging.message.body.size"] = sum(map(len, bodies))
        if is_batch:
            attributes["messaging.batch.message_count"] = len(bodies)
        # The contexts that the program itself gave.
        links = [link for each in headers or () if each for link in _links_to(_creation_of(each))]
        span = self._tracer.start_span(_name("publish", topic), None, SpanKind.PRODUCER, attributes, links)
        added: dict[str, str] = {}
        propagate.inject(added, trace.set_span_in_context(span))
        return Sending(span, checked(topic, bodies, headers, self._with_ids, added))

    # --- Consuming ----------------------------------------------------------------------------------------------------

    def handler(self, handler: Handler, topic: str, channel: str, *, gives_up: bool = False) -> Handler:
        """The same handler with a span for each message."""
        name, attributes = _name("process", topic), _subscription(topic, channel)

        def handle(message: Message) -> object:
            with self._begin(name, attributes, message, context.Context(), gives_up=gives_up).current() as handling:
                return handling.note(handler(message))

        return handle

    def handler_on_loop(self, handler: Handler, topic: str, channel: str, *, gives_up: bool = False) -> Handler:
        """The same for a handler that may be a coroutine function."""
        name, attributes = _name("process", topic), _subscription(topic, channel)

        async def handle(message: Message) -> object:
            with self._begin(name, attributes, message, context.Context(), gives_up=gives_up).current() as handling:
                result: Any = handler(message)
                return handling.note(await result if inspect.isawaitable(result) else result)

        return handle

    def iteration(self, topic: str, channel: str) -> Callable[[Message], None]:
        """What begins the span of a message that an iteration returns. ``Message.in_span`` makes it current.

        An iteration cannot do that itself: nothing tells it when the body of the loop ends, for example with a break.
        """
        name, attributes = _name("process", topic), _subscription(topic, channel)

        def begin(message: Message) -> None:
            self._begin(name, attributes, message, context.get_current())

        return begin

    def _begin(
        self,
        name: str,
        subscription: Attributes,
        message: Message,
        ambient: context.Context,
        *,
        gives_up: bool = False,
    ) -> "Handling":
        creation = _creation_of(message.headers)
        # By the conventions, a span that is current is the parent, and the publish is only linked.
        is_in_span = trace.get_current_span(ambient).get_span_context().is_valid
        parent = ambient if is_in_span else creation
        span = self._tracer.start_span(
            name,
            parent,
            SpanKind.CONSUMER,
            {
                **subscription,
                **_server(message.nsqd),
                "messaging.message.id": message.id.decode("ascii", "replace"),
                "messaging.message.body.size": len(message.body),
                "messaging.nsq.message.attempts": message.attempts,
            },
            _links_to(creation),
        )
        handling = Handling(span, parent, message)
        if gives_up:
            span.add_event("giving up")
            handling.fail(_GAVE_UP)
        return handling


class Sending:
    """A publish, from the call to its outcome. `bodies` are what is to be published."""

    def __init__(self, span: Span, bodies: Sequence[bytes]) -> None:
        self.bodies = bodies
        self._span = span

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self._fail(error)
        self._span.end()

    def note(self, published: Published) -> Published:
        """Note the outcome, and return it."""
        self._span.set_attributes(_server(published.nodes[0]))
        self._note_failures(published.attempts)
        return published

    def later(self, publish: Callable[[Sequence[bytes]], Future[Published]]) -> Future[Published]:
        """Publish in the background; the span ends with the future."""
        try:
            future = publish(self.bodies)
        except Exception as error:
            self.__exit__(None, error, None)
            raise
        future.add_done_callback(self._end_with)
        return future

    def _end_with(self, future: Future[Published]) -> None:
        with self:
            if future.cancelled():
                self._span.add_event("cancelled")
            elif (error := future.exception()) is not None:
                self._fail(error)
            else:
                self.note(future.result())

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, PublishError):
            self._note_failures(error.attempts)
        _fail(self._span, error)

    def _note_failures(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if attempt.outcome is not Outcome.SENT:
                outcome = {"error.message": str(attempt), "messaging.nsq.outcome": attempt.outcome.value}
                self._span.add_event("attempt failed", {**_server(attempt.address), **outcome})


class Handling:
    """A message that is handled."""

    def __init__(self, span: Span, parent: context.Context, message: Message) -> None:
        self._span = span
        self._open = [span] if span.is_recording() else []
        self._context = parent
        self._blocks: list[None] = []
        """One for each block in which the span is current. A list, because blocks may end in several threads."""
        self._is_answered = False
        self._error: BaseException | None = None
        """The last one that has left a block. It is recorded once if blocks are nested."""
        message.note_span(self.current)
        if self._open:
            message.on("finish", self._on_answer)
            message.on("requeue", self._on_requeue)
            message.on("touch", self._on_touch)

    @contextmanager
    def current(self) -> Iterator[Self]:
        """Make the span current in a block, which it outlasts, and record an error that leaves the block."""
        self._blocks.append(None)
        token = context.attach(trace.set_span_in_context(self._span, self._context))
        try:
            yield self
        except BaseException as error:
            if error is not self._error:
                self._error = error
                _fail(self._span, error)
            raise
        finally:
            context.detach(token)
            self._blocks.pop()
            self._end_if_over()

    def note(self, result: object) -> object:
        """Note what the handler returned, and return it."""
        if result is False:
            self.fail(_RETURNED_FALSE)
        return result

    def fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR, kind)

    def _end_if_over(self) -> None:
        if self._is_answered and not self._blocks:
            # A block may end in one thread while another one answers.
            with suppress(IndexError):
                self._open.pop().end()

    def _on_requeue(self, message: Message) -> None:
        self._span.add_event("requeue")
        self._on_answer(message)

    def _on_touch(self, message: Message) -> None:
        self._span.add_event("touch")

    def _on_answer(self, message: Message) -> None:
        self._is_answered = True
        if message.is_lost:
            self._span.add_event("connection lost")
        self._end_if_over()


# --- Attributes -------------------------------------------------------------------------------------------------------


def _name(operation: str, topic: str) -> str:
    """The name of a span. The conventions leave temporary destinations out."""
    return operation if is_ephemeral(topic) else f"{operation} {topic}"


def _destination(topic: str) -> Attributes:
    found: Attributes = {"messaging.destination.name": topic}
    return found | {"messaging.destination.temporary": True} if is_ephemeral(topic) else found


def _subscription(topic: str, channel: str) -> Attributes:
    return _PROCESS | _destination(topic) | {"messaging.consumer.group.name": channel}


@lru_cache(maxsize=1024)
def _server(address: str) -> Attributes:
    host, port = split_address(address)
    return {"server.address": host, "server.port": port}


def _creation_of(headers: Headers) -> context.Context:
    """The context in which a message was created; empty without one."""
    return propagate.extract(headers, context.Context()) if headers else context.Context()


def _links_to(creation: context.Context) -> list[Link]:
    created = trace.get_current_span(creation).get_span_context()
    return [Link(created)] if created.is_valid else []


def _fail(span: Span, error: BaseException) -> None:
    kind = type(error)
    span.record_exception(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    span.set_attribute("error.type", module + kind.__qualname__)
    span.set_status(StatusCode.ERROR, str(error))
