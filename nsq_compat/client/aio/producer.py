"""Producer on the event loop: publishes to one of several nsqd, or to several at once.

Calls that wait at the same time share the connection to a node: their commands are written together, and nsqd answers
them in order. Which node is tried, for how long, and what the outcome is, is decided as for the producer in threads.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from nsq_compat.client.aio.connection import Connection
from nsq_compat.client.link import ConnectionLost, NotExecuted
from nsq_compat.client.nodes import (
    Attempt,
    Candidates,
    HeadersNotTaken,
    Nodes,
    Outcome,
    Published,
    PublishError,
    failed_attempt,
    may_be_for_one,
    retried,
)
from nsq_compat.client.publishing import Publish, checked, note_answer, publish_of
from nsq_compat.client.settings import ConnectionOptions, ConnectionSettings, address_list, check_number, split_address
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.headers import NO_HEADERS, Headers

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from nsq_compat.client.tracing import Tracing

log: Final = logging.getLogger(__name__)

_Call = asyncio.Future[Published]


class _Batch:
    """Calls of `publish` for one topic, which are published together."""

    __slots__ = ("bodies", "calls", "create_future", "size")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.calls: list[_Call] = []
        self.size = 0
        self.create_future: Callable[[], _Call] = asyncio.get_running_loop().create_future

    def drop_cancelled(self) -> None:
        left = [(body, call) for body, call in zip(self.bodies, self.calls, strict=True) if not call.done()]
        self.bodies = [body for body, _ in left]
        self.calls = [call for _, call in left]


class Producer:
    """Publishes messages. Any number of tasks may do so at the same time.

    `publish_timeout` (seconds) is the default timeout of a call. `copies` is the number of nodes that must answer OK;
    they are asked at the same time. An `idempotent` producer gives each message an id, with which it publishes again at
    a node that did not answer, and waits for nodes that cannot be reached. `batch_messages` and `batch_bytes`
    limit what is published together. With `tracing`, publishes have spans of OpenTelemetry: of this provider or, if
    True, of the global one. Other options are those of ``ConnectionSettings``.

    A call that is cancelled may have published or not. It affects no other call.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str],
        *,
        publish_timeout: float = 10.0,
        copies: int = 1,
        idempotent: bool = False,
        batch_messages: int = 500,
        batch_bytes: int = 1 << 20,
        tracing: "bool | TracerProvider" = False,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self.settings: ConnectionSettings = ConnectionSettings.of(options, self)
        self._nodes = Nodes(address_list(nsqd_tcp_addresses))
        for address in self._nodes.addresses:
            split_address(address)
        self._nodes.check_copies(copies)
        self.settings.check_idempotent(idempotent)
        check_number("publish_timeout", publish_timeout)
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._batches: dict[str, _Batch] = {}
        """By topic, those to which calls are added."""
        self._publish_timeout = publish_timeout
        self._copies = copies
        self._idempotent = idempotent
        self._tracing: Tracing | None = None
        if tracing:
            from nsq_compat.client import tracing as spans  # needs an extra

            self._tracing = spans.Tracing(tracing, with_ids=idempotent)
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._publishing = 0
        """Calls without an outcome."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False

    # --- Publishing ---------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        headers: Headers = NO_HEADERS,
        defer: float = 0.0,
        timeout: float | None = None,
    ) -> Published:
        """Publish with PUB, or with DPUB to defer the message by `defer` seconds; with HPUB if it has headers.

        Calls for one topic that are made in the same iteration of the event loop are published together, with MPUB,
        unless they have headers, a delay or a timeout of their own.

        Raises ``Refused``, ``Unknown`` or ``TooFewCopies``; ``TypeError`` for a body that is not bytes or headers that
        are not a dict of str; ``ValueError`` for an invalid topic, an empty body or invalid headers. An nsqd that does
        not take headers refuses a message that has some before anything is sent.
        """
        # Hot: runs for every message. What a batch needs once is done in `_begin_batch`.
        if self._tracing is not None:
            with self._tracing.publish(topic, [body], [headers]) as sending:
                if headers or defer or timeout is not None or not isinstance(sending.bodies[0], bytes):
                    return sending.note(await self._publish(publish_of(topic, sending.bodies, defer), timeout))
                return sending.note(await self._add_to_batch(topic, sending.bodies[0]))
        if headers or defer or timeout is not None or type(body) is not bytes or not body:
            return await self._publish(publish_of(topic, self._checked(topic, [body], [headers]), defer), timeout)
        return await self._add_to_batch(topic, body)

    async def publish_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        headers: Sequence[Headers] = (),
        timeout: float | None = None,
    ) -> Published:
        """Publish all messages or none, with MPUB; with HMPUB if they have `headers`, one element for each body.

        Raises like `publish`.
        """
        if self._tracing is None:
            return await self._publish(publish_of(topic, self._checked(topic, bodies, headers), 0.0), timeout)
        with self._tracing.publish(topic, bodies, headers, is_batch=True) as sending:
            return sending.note(await self._publish(publish_of(topic, sending.bodies, 0.0), timeout))

    async def retry(self, error: PublishError, *, timeout: float | None = None) -> Published:
        """Publish again what has failed with this error, with the same ids.

        Nodes that may have it are asked until they answer, and others only for a node that refuses it or was not asked.
        Raises like `publish`; ``ValueError`` if the error is not one of an idempotent producer.
        """
        return await self._publish(retried(error), timeout, error.attempts)

    @property
    def connections(self) -> list[Connection]:
        """The open connections. A connection is made when first needed."""
        return [connection for connection in self._connections.values() if not connection.is_closed]

    def connect(self) -> None:
        """Connect to every node in the background. Publishing connects by itself."""
        for node in self._nodes.addresses:
            self._start_task(self._connect_early(node))

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until every call has an outcome. False after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout: float | None = 30.0) -> bool:
        """Wait until every call has an outcome, then disconnect. False if some had none in time; they raise."""
        try:
            return await self.flush(timeout)
        finally:
            self._is_closed = True
            for task in self._opening.values():
                task.cancel()
            await asyncio.gather(*(connection.close() for connection in self.connections))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _add_to_batch(self, topic: str, body: bytes) -> _Call:
        # Hot: runs for every message.
        batch = self._batches.get(topic) or self._begin_batch(topic)
        call = batch.create_future()
        batch.bodies.append(body)
        batch.calls.append(call)
        batch.size += len(body)
        if len(batch.calls) >= self._batch_messages or batch.size >= self._batch_bytes:
            del self._batches[topic]
        return call

    def _begin_batch(self, topic: str) -> "_Batch":
        checked(topic, [b"x"], (), with_ids=False)
        self._batches[topic] = batch = _Batch()
        self._begin_call()
        self._start_task(self._publish_batch(topic, batch))
        return batch

    async def _publish_batch(self, topic: str, batch: "_Batch") -> None:
        """Publish what the calls of an iteration of the event loop have added, and give them the outcome."""
        if self._batches.get(topic) is batch:
            del self._batches[topic]
        deadline = asyncio.get_running_loop().time() + self._publish_timeout
        try:
            if any(call.done() for call in batch.calls):  # cancelled meanwhile
                batch.drop_cancelled()
            if batch.calls:
                has_ids = not self._idempotent or self._tracing is not None
                bodies = batch.bodies if has_ids else self._checked(topic, batch.bodies, ())
                await self._publish_together(topic, bodies, batch.calls, deadline)
        finally:
            for call in batch.calls:
                call.cancel()  # without effect unless this task is cancelled
            self._end_call()

    async def _publish_together(self, topic: str, bodies: Sequence[bytes], calls: list[_Call], deadline: float) -> None:
        left = deadline - asyncio.get_running_loop().time()
        try:
            published = await self._publish(publish_of(topic, bodies, 0.0), left)
        except Exception as error:  # passed to the callers
            if len(calls) > 1 and may_be_for_one(error):
                # One after the other, because a refusal ends the connection.
                for body, call in zip(bodies, calls, strict=True):
                    await self._publish_together(topic, [body], [call], deadline)
                return
            for call in calls:
                if not call.done():
                    call.set_exception(error)
        else:
            for call in calls:
                if not call.done():
                    call.set_result(published)

    def _checked(self, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers]) -> Sequence[bytes]:
        return checked(topic, bodies, headers, with_ids=self._idempotent)

    async def _publish(self, publish: Publish, timeout: float | None, earlier: Sequence[Attempt] = ()) -> Published:
        if timeout is not None:
            check_number("timeout", timeout)
        now = asyncio.get_running_loop().time()
        deadline = now + (self._publish_timeout if timeout is None else timeout)
        ids = self._idempotent or bool(earlier)
        candidates = Candidates(self._nodes, self._copies, now, deadline, ids=ids, earlier=earlier)
        self._begin_call()
        try:
            if candidates.missing == 1:
                await self._publish_copy(publish, candidates)
            else:
                async with asyncio.TaskGroup() as copies:
                    for _ in range(candidates.missing):
                        copies.create_task(self._publish_copy(publish, candidates))
        finally:
            self._end_call()
        return candidates.result(publish)

    def _begin_call(self) -> None:
        self._publishing += 1
        self._idle.clear()

    def _end_call(self) -> None:
        self._publishing -= 1
        if not self._publishing:
            self._idle.set()

    async def _publish_copy(self, publish: Publish, candidates: Candidates) -> None:
        """Publish one copy: try nodes until one has it, or no node or time is left."""
        now = asyncio.get_running_loop().time
        while (taken := candidates.take(now())) is not None:
            attempt = await self._attempt(*taken, publish)
            if candidates.note(attempt, now()) or self._is_closed:
                return
            if pause := candidates.pause_after(attempt, now()):
                await asyncio.sleep(pause)

    async def _attempt(self, node: str, deadline: float, publish: Publish) -> Attempt:
        try:
            connection = self._connections[node] if self._is_open(node) else await self._connect(node, deadline)
        except ConnectionLost as error:
            return failed_attempt(node, error, was_sent=False)
        command = publish.command_for(connection)
        if command is None:
            return failed_attempt(node, HeadersNotTaken(), was_sent=False)
        try:
            answer = await connection.ask(command, deadline)
        except (NsqError, ConnectionLost) as error:
            return failed_attempt(node, error, was_sent=True)
        note_answer(publish, node, answer)
        return Attempt(node, Outcome.SENT)

    # --- Connecting ---------------------------------------------------------------------------------------------------

    def _is_open(self, node: str) -> bool:
        connection = self._connections.get(node)
        return connection is not None and not connection.is_closed

    async def _connect(self, node: str, deadline: float) -> Connection:
        """The connection that is being made to a node, for this call and others. Raises ``ConnectionLost``."""
        if self._is_closed:
            raise NotExecuted("the producer is closed", node)
        task = self._opening.get(node) or self._start_opening(node)
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(task)
        except TimeoutError:
            raise ConnectionLost("not connected in time", node) from None
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`
                raise NotExecuted("the producer is closed", node) from None
            raise

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_early(self, node: str) -> None:
        now = asyncio.get_running_loop().time
        try:
            if not self._is_open(node):
                await self._connect(node, now() + self._publish_timeout)
        except ConnectionLost as error:
            log.warning("%s; the next publish tries again", error)
            self._nodes.note(Attempt(node, Outcome.REFUSED, error), now())

    def _start_opening(self, node: str) -> "asyncio.Task[Connection]":
        task = asyncio.get_running_loop().create_task(self._open(node))
        self._opening[node] = task
        task.add_done_callback(lambda task: self._on_opened(node, task))
        return task

    async def _open(self, node: str) -> Connection:
        connection = Connection(node, self.settings, publish_ids=self._idempotent)
        connection.is_known = node in self._connections
        await connection.open()
        self._connections[node] = connection
        return connection

    def _on_opened(self, node: str, task: "asyncio.Task[Connection]") -> None:
        del self._opening[node]
        if not task.cancelled():
            task.exception()  # every call that waits for it may have been cancelled
