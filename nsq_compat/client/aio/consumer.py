"""Consumers on the event loop: the subscription to a topic and channel at several nsqd.

`coordinator` decides to which nodes to connect, and how max_in_flight is distributed. Here are a timer and tasks on the
event loop. Handlers are tasks that iterate over the consumer, as a program may do itself.

Invariants:

- A message is taken from the waiting ones in the same step in which it is returned or given to the handler. A task that
  is cancelled while it waits has therefore taken none.
- If a handler is cancelled, its message is requeued. So is one that an iteration returned, if it has no answer when the
  consumer stops. nsqd delivers any other without an answer again when its timeout is over.
"""

import asyncio
import inspect
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, Unpack

from nsq_compat.client.aio.connection import Connection
from nsq_compat.client.aio.http import ask
from nsq_compat.client.coordinator import SOON_SECONDS, Coordinator
from nsq_compat.client.discovery import note_failure
from nsq_compat.client.link import ConnectionLost, Observer
from nsq_compat.client.message import Handler, Message, finish_or_requeue, log_giving_up, requeue_after_error
from nsq_compat.client.settings import SubscriptionOptions, SubscriptionSettings, split_address
from nsq_compat.protocol import command_writer

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log: Final = logging.getLogger(__name__)

_NOT_STARTED = "the consumer is not started; use `async with`"
_MAX_BATCH_SECONDS = 0.01
"""Handlers that never wait let the event loop run after this time."""


class Consumer(Observer[Connection]):
    """Calls `handler` with each ``Message``, in order of arrival, in `concurrency` tasks, at most max_in_flight.

    Without a handler, the program iterates over the messages with ``async for``, and answers them.

    If the handler, a coroutine function, returns, the message is finished; if it returns False or raises, the message
    is requeued, with a growing delay. The handler may also call ``message.finish()`` or ``message.requeue()`` itself,
    or ``message.enable_async()`` to do so later.

    `giving_up` is called instead of the handler, and the message finished, after more than `max_tries` deliveries (0:
    no limit). `unreachable` is called when the first attempt to subscribe at a named nsqd fails, with the address and
    the error; without it, the attempt is repeated. With `tracing`, messages have spans of OpenTelemetry: of this
    provider or, if True, of the global one. Other options are those of ``SubscriptionSettings``.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        concurrency: int = 1,
        max_tries: int = 5,
        giving_up: Callable[[Message], object] | None = None,
        unreachable: Callable[[str, Exception], object] | None = None,
        tracing: "bool | TracerProvider" = False,
        **options: Unpack[SubscriptionOptions],
    ) -> None:
        if handler is not None and not callable(handler):
            raise TypeError(f"handler must be a function that is called with each message, not {handler!r}")
        self.topic = topic
        self.channel = channel
        self._coordinator: Coordinator[Connection] = Coordinator(
            topic, channel, nsqd_tcp_addresses, lookupd_http_addresses, options, unreachable is not None, self
        )
        self._handler = handler
        self._max_tries = max_tries
        self._giving_up = giving_up or log_giving_up
        self._begin_span: Callable[[Message], None] | None = None
        if tracing:
            from nsq_compat.client.tracing import Tracing  # needs an extra

            traces = Tracing(tracing)
            self._handler = handler and traces.handler_on_loop(handler, topic, channel)
            self._giving_up = traces.handler_on_loop(self._giving_up, topic, channel, gives_up=True)
            self._begin_span = traces.iteration(topic, channel)
        self._unreachable = unreachable
        self._concurrency = self._coordinator.handlers_at_once(concurrency)
        self._given: list[Message] = []
        """Messages that iterations returned, those without an answer among them."""
        self._given_limit = 0
        self._idle: deque[asyncio.Future[None]] = deque()
        """Of the tasks that wait for a message."""
        self._yield_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        """Connecting and querying."""
        self._workers: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        """While the consumer runs."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._stopping: asyncio.Task[None] | None = None
        self._is_complete = False
        """No message will arrive any more."""
        self._answered_all = asyncio.Event()
        """Set while stopping: no answer is awaited any more."""
        self._subscribed = asyncio.Event()
        """Set while at least one nsqd has confirmed the subscription, and from stopping on."""
        self._stopped = asyncio.Event()

    # --- Running ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Consume in the background of the running event loop, until `stop`.

        Raises ``RuntimeError`` if it was started before.
        """
        self._loop = asyncio.get_running_loop()
        self._coordinator.start()
        self._run_due()
        if self._handler is not None:
            for _ in range(self._concurrency):
                self._start_task(self._workers, self._work(self._handler))
        return self

    def __await__(self) -> NoReturn:
        raise TypeError("start() returns at once and is not awaited; to wait, await wait_until_subscribed() or wait()")

    async def run(self) -> None:
        """Consume until `stop` is called. If this is cancelled, it stops the consumer."""
        if self._handler is None:
            raise TypeError(
                "run() needs a consumer with a handler; iterate over others: `async with`, then `async for`"
            )
        async with self:
            await self.wait()

    async def wait_until_subscribed(self, timeout: float = 30.0) -> None:
        """Wait until at least one nsqd has confirmed the subscription.

        What is published there from then on is in the channel. Raises ``TimeoutError`` with the last failure, and
        ``RuntimeError`` if the consumer is stopped.
        """
        coordinator = self._coordinator
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (coordinator.is_subscribed or coordinator.is_stopping):
                    await self._subscribed.wait()
        coordinator.check_subscribed(timeout)

    async def wait(self) -> None:
        """Wait until the consumer has stopped."""
        await self._stopped.wait()

    async def stop(self, timeout: float = 30.0) -> None:
        """Stop receiving, handle arrived messages for at most `timeout` seconds, requeue the rest, and disconnect.

        Handlers that are still running are cancelled, and their messages requeued. A handler cannot wait for this,
        because it would wait for itself; it calls ``stop_soon``.
        """
        self.stop_soon(timeout)
        await self.wait()

    def stop_soon(self, timeout: float = 30.0) -> None:
        """`stop` in the background; for handlers and signal handlers."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(timeout))

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        if self._handler is None:
            # Messages were answered inside the block, or will not be.
            self._requeue_given()
            self.requeue_waiting()
            self._answered_all.set()
        await self.stop()

    # --- State --------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> SubscriptionSettings:
        return self._coordinator.settings

    @property
    def max_in_flight(self) -> int:
        return self._coordinator.max_in_flight

    @property
    def waiting(self) -> deque[Message]:
        """Messages that no handler has begun, oldest first."""
        return self._coordinator.waiting

    @property
    def connections(self) -> list[Connection]:
        """The subscribed connections."""
        return self._coordinator.subscribed

    @property
    def in_flight(self) -> int:
        """Messages received and not yet answered."""
        return self._coordinator.in_flight

    def is_starved(self) -> bool:
        """Whether to answer collected messages: none is waiting, and a connection has 85 % of its RDY in flight."""
        return self._coordinator.is_starved

    def set_max_in_flight(self, count: int) -> None:
        """Change the limit; 0 pauses."""
        self._coordinator.set_max_in_flight(count, time.monotonic())
        self._run_timer()

    def connect(self, address: str) -> None:
        """Connect to another nsqd, once. Does nothing if it is connected."""
        split_address(address)
        self._connect([address])

    def poll_lookupd(self) -> None:
        """Query every nsqlookupd now."""
        self._coordinator.discovery.poll_all()
        self._run_timer()

    def requeue_waiting(self) -> None:
        """Let nsqd deliver the waiting messages again at once, here or elsewhere."""
        self._coordinator.requeue_waiting()

    # --- Handling -----------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        if self._handler is not None:
            raise TypeError("a consumer with a handler cannot be iterated")
        if self._loop is None:
            raise RuntimeError(_NOT_STARTED)
        return self

    async def __anext__(self) -> Message:
        # Hot: runs for every message.
        waiting = self._coordinator.waiting
        while True:
            if not waiting:
                if self._is_complete:
                    raise StopAsyncIteration
                if self._loop is None:
                    raise RuntimeError(_NOT_STARTED)
                await self._wait_for_message()
            elif time.monotonic() >= self._yield_at:
                await asyncio.sleep(0)
                self._yield_at = time.monotonic() + _MAX_BATCH_SECONDS
            else:
                message = waiting.popleft()
                if message.is_lost:
                    continue  # it will be delivered again
                if 0 < self._max_tries < message.attempts:
                    await self._handle(self._giving_up, (message,))
                    continue
                if self._handler is None:
                    self._give(message)
                return message

    def _give(self, message: Message) -> None:
        if self._begin_span is not None:
            self._begin_span(message)
        given = self._given
        given.append(message)
        if len(given) > self._given_limit:
            given[:] = [each for each in given if not each.is_answered]
            self._given_limit = 2 * len(given) + 16

    async def _wait_for_message(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # `_wake` has passed it over
                    self._idle.remove(turn)
            else:
                self._wake(1)  # another one takes the message
            raise

    def _wake(self, count: int) -> None:
        """Wake as many idle tasks as there are messages for."""
        idle = self._idle
        while idle and count > 0:
            turn = idle.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1

    def _take(self) -> Message | None:
        """The next message, unless something else comes first, which ``__anext__`` does."""
        # Hot: runs for every message, and saves a coroutine.
        waiting = self._coordinator.waiting
        if not waiting or time.monotonic() >= self._yield_at:
            return None
        message = waiting[0]
        if message.is_lost or 0 < self._max_tries < message.attempts:
            return None
        return waiting.popleft()

    async def _work(self, handler: Handler) -> None:
        while True:
            await self._handle(handler, iter(self._take, None))
            try:
                message = await self.__anext__()
            except StopAsyncIteration:
                return
            await self._handle(handler, (message,))

    async def _handle(self, handler: Handler, messages: Iterable[Message]) -> None:
        # Hot: runs for every message. One coroutine handles all that are there.
        for message in messages:
            try:
                result: Any = handler(message)
                kind = type(result)
                if kind is CoroutineType or (result is not None and inspect.isawaitable(result)):
                    result = await result
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    if not message.is_answered:
                        message.requeue(delay=0, backoff=False)
                    raise
                requeue_after_error(message, error)
            except (Exception, SystemExit) as error:  # raised by the handler
                requeue_after_error(message, error)
            else:
                finish_or_requeue(message, result is not False)

    # --- Events of connections ----------------------------------------------------------------------------------------

    def received(self, connection: Connection, messages: list[Message]) -> None:
        now = time.monotonic()
        self._coordinator.received(connection, len(messages), now)
        self._run_timer()
        self._yield_at = now + _MAX_BATCH_SECONDS
        self.waiting.extend(messages)
        self._wake(len(messages))

    def answered(self, connection: Connection, succeeded: bool | None) -> None:
        # Hot: runs for every message. Usually none of the conditions holds.
        coordinator = self._coordinator
        if coordinator.concerns(succeeded):
            coordinator.answered(succeeded, time.monotonic())
            self._run_timer()
        if coordinator.is_stopping:
            self._check_answered()

    def closed(self, connection: Connection, reason: Exception) -> None:
        is_unreachable = self._coordinator.closed(connection, reason, time.monotonic())
        if not self._coordinator.is_subscribed:
            self._subscribed.clear()
        if self._coordinator.is_stopping:
            self._check_answered()
            return
        if is_unreachable and self._unreachable is not None:
            self._unreachable(connection.address, reason)
        self._run_timer()

    # --- Connecting ---------------------------------------------------------------------------------------------------

    def _run_timer(self) -> None:
        """Let the timer run when something is due."""
        due = self._coordinator.due()
        if self._loop is None or self._coordinator.is_stopping or self._timer_due <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(due - time.monotonic(), self._run_due)

    def _run_due(self) -> None:
        self._timer_due = math.inf
        if self._coordinator.is_stopping:
            return
        due = self._coordinator.run_due(time.monotonic())
        self._connect(due.connect)
        for lookupd in due.query:
            self._coordinator.asking(lookupd)
            self._start_task(self._tasks, self._query(lookupd))
        self._run_timer()

    def _start_task(self, tasks: set[asyncio.Task[None]], coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _query(self, lookupd: str) -> None:
        """Query an nsqlookupd, and connect to the nodes that are known then."""
        listing = None
        try:
            listing = await ask(lookupd, self.topic, self.settings)
        except Exception as error:  # the top of a task
            note_failure(self.topic, lookupd, error)
        self._connect(self._coordinator.responded(lookupd, listing, time.monotonic()))
        self._run_timer()

    def _connect(self, addresses: Iterable[str]) -> None:
        """Connect to nodes that are not connected."""
        for address in filter(self._coordinator.may_connect, addresses):
            connection = Connection(address, self.settings, self, (self.topic, self.channel))
            self._coordinator.connecting(connection)
            self._start_task(self._tasks, self._open(connection))

    async def _open(self, connection: Connection) -> None:
        try:
            await connection.open()
        except Exception as error:  # the top of a task
            if not isinstance(error, ConnectionLost):
                log.exception("[%s/%s] (%s) internal error", self.topic, self.channel, connection.address)
            self.closed(connection, error)
            return
        if not connection.is_closed:  # otherwise `closed` is called for it
            self._coordinator.opened(connection, time.monotonic())
            self._subscribed.set()
            self._run_timer()

    # --- Stopping -----------------------------------------------------------------------------------------------------

    async def _stop(self, timeout: float) -> None:
        try:
            deadline = asyncio.get_running_loop().time() + timeout
            await self._receive_no_more(deadline)
            self._check_answered()
            left = deadline - asyncio.get_running_loop().time()
            await _wait(self._answered_all.wait(), deadline - max(0.0, left - SOON_SECONDS))
            if left > SOON_SECONDS and not self._answered_all.is_set():
                self._coordinator.note_waiting(left - SOON_SECONDS)
                await _wait(self._answered_all.wait(), deadline)
            self._requeue_given()
            self.requeue_waiting()
            await self._end(self._workers)
            if self.in_flight:
                log.warning("%d messages are not answered; nsqd will deliver them again", self.in_flight)
            await asyncio.gather(*(connection.close() for connection in self._coordinator.connections.values()))
        finally:
            for task in (*self._tasks, *self._workers):
                task.cancel()
            for connection in list(self._coordinator.connections.values()):
                connection.abort()
            self._stopped.set()

    async def _receive_no_more(self, deadline: float) -> None:
        connections = self._coordinator.stop(time.monotonic())
        self._subscribed.set()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        # No message arrives after the responses to CLS.
        answers = [connection.ask(command_writer.CLS) for connection in connections]
        await _wait(asyncio.gather(*answers, return_exceptions=True), deadline)
        self._is_complete = True
        self._wake(len(self._idle))

    def _requeue_given(self) -> None:
        for message in self._given:
            if not message.is_answered:
                message.requeue(delay=0, backoff=False)
        self._given.clear()

    def _check_answered(self) -> None:
        if self._is_complete and self.in_flight == 0:
            self._answered_all.set()

    async def _end(self, tasks: set[asyncio.Task[None]]) -> None:
        """Cancel the tasks, and give them an iteration of the event loop or two to end."""
        ending = list(tasks)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=1.0)


async def _wait(awaited: "Coroutine[Any, Any, Any] | asyncio.Future[Any]", deadline: float) -> None:
    """Wait until the deadline at most."""
    try:
        async with asyncio.timeout_at(deadline):
            await awaited
    except TimeoutError:
        pass


def _is_cancelled() -> bool:
    """Whether the current task is to end, not only something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
