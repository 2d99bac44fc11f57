"""Consumers: the subscription to a topic and channel at several nsqd, and handlers in threads.

`coordinator` decides to which nodes to connect, and how max_in_flight is distributed. Here are the threads: one runs
timers, each connection has two, and each query of an nsqlookupd has one. The lock protects the coordinator; no thread
waits for a socket while holding it.
"""

import contextlib
import inspect
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final, Self, Unpack

from nsq_compat.client.connection import Connection, do_together, start_thread
from nsq_compat.client.coordinator import SOON_SECONDS, Coordinator
from nsq_compat.client.discovery import ask, note_failure
from nsq_compat.client.link import ConnectionLost, Observer
from nsq_compat.client.message import Handler, Message, finish_or_requeue, log_giving_up, requeue_after_error
from nsq_compat.client.settings import SubscriptionOptions, SubscriptionSettings, split_address
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.errors import without_secrets

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log: Final = logging.getLogger(__name__)


class Subscription(Observer[Connection]):
    """`deliver` is called with the number of new `waiting` messages, in their connection's thread; it must be quick.

    `unreachable` is called in a thread of its own when the first attempt to subscribe at a named nsqd fails, with the
    address and the error. Without it, the attempt is repeated. `options` are those of ``SubscriptionSettings``.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        deliver: Callable[[int], object],
        nsqd_tcp_addresses: str | Iterable[str] | None,
        lookupd_http_addresses: str | Iterable[str] | None,
        options: SubscriptionOptions,
        heartbeat: Callable[[Connection], object] | None = None,
        unreachable: Callable[[str, Exception], object] | None = None,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self._coordinator: Coordinator[Connection] = Coordinator(
            topic, channel, nsqd_tcp_addresses, lookupd_http_addresses, options, unreachable is not None, self
        )
        self._deliver = deliver
        self._heartbeat = heartbeat
        self._unreachable = unreachable
        self._lock = threading.Lock()
        self._next_due = 0.0
        self._wake_timer = threading.Event()
        self._changed = threading.Condition()
        """Notified of answers while stopping, and of connections that were opened or have ended."""

    # --- Interface ----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect, and stay connected until `stop`. Returns immediately."""
        self._coordinator.start()
        start_thread(f"nsq {self.topic}/{self.channel}", self._timer_loop)
        return self

    def stop(self, timeout: float) -> None:
        """Send CLS, wait up to `timeout` seconds for all answers, requeue waiting messages, close the connections."""
        deadline = time.monotonic() + timeout
        coordinator = self._coordinator
        with self._lock:
            connections = coordinator.stop(time.monotonic())
        self._wake_timer.set()
        with self._changed:
            self._changed.notify_all()  # nothing will be subscribed
        # No message arrives after the responses to CLS.
        wait([connection.ask(command_writer.CLS) for connection in connections], timeout)
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            all_answered = self._changed.wait_for(lambda: self.in_flight == 0, min(left, SOON_SECONDS))
            if not all_answered and left > SOON_SECONDS:
                with self._lock:
                    coordinator.note_waiting(left - SOON_SECONDS)
                all_answered = self._changed.wait_for(lambda: self.in_flight == 0, left - SOON_SECONDS)
        if not all_answered:
            self.requeue_waiting()
            if self.in_flight:
                log.warning("%d messages are still being handled; nsqd will deliver them again", self.in_flight)
        with self._lock:
            connections = list(coordinator.connections.values())
        do_together(connection.close for connection in connections)
        with self._changed:
            self._changed.wait_for(lambda: not coordinator.connections, self.settings.timeout)

    def wait_until_subscribed(self, timeout: float = 30.0) -> None:
        """Wait until at least one nsqd has confirmed the subscription.

        What is published there from then on is in the channel. Raises ``TimeoutError`` with the last failure, and
        ``RuntimeError`` if the consumer is stopped.
        """
        coordinator = self._coordinator
        with self._changed:
            self._changed.wait_for(lambda: coordinator.is_subscribed or coordinator.is_stopping, timeout)
        coordinator.check_subscribed(timeout)

    def requeue_waiting(self) -> None:
        """Let nsqd deliver the waiting messages again at once, here or elsewhere."""
        self._coordinator.requeue_waiting()

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
        with self._lock:
            return self._coordinator.subscribed

    @property
    def in_flight(self) -> int:
        """Messages received and not yet answered."""
        with self._lock:
            return self._coordinator.in_flight

    def is_starved(self) -> bool:
        """Whether to answer collected messages: none is waiting, and a connection has 85 % of its RDY in flight."""
        with self._lock:
            return self._coordinator.is_starved

    def set_max_in_flight(self, count: int) -> None:
        """Change the limit; 0 pauses."""
        with self._lock:
            self._coordinator.set_max_in_flight(count, time.monotonic())
            self._wake_if_earlier()

    def connect(self, address: str) -> None:
        """Connect to another nsqd, once. Does nothing if it is connected."""
        split_address(address)
        with self._lock:
            self._connect([address])

    def poll_lookupd(self) -> None:
        """Query every nsqlookupd now."""
        with self._lock:
            self._coordinator.discovery.poll_all()
        self._wake_timer.set()

    # --- Events of connections ----------------------------------------------------------------------------------------

    def received(self, connection: Connection, messages: list[Message]) -> None:
        with self._lock:
            self._coordinator.received(connection, len(messages), time.monotonic())
            self._wake_if_earlier()
        self.waiting.extend(messages)
        self._deliver(len(messages))

    def answered(self, connection: Connection, succeeded: bool | None) -> None:
        # Hot: runs for every message. Usually none of the conditions holds.
        coordinator = self._coordinator
        if coordinator.is_stopping:
            with self._changed:
                self._changed.notify_all()
        if coordinator.concerns(succeeded):
            with self._lock:
                coordinator.answered(succeeded, time.monotonic())
                self._wake_if_earlier()

    def heartbeat(self, connection: Connection) -> None:
        if self._heartbeat is not None:
            self._heartbeat(connection)

    def closed(self, connection: Connection, reason: Exception) -> None:
        with self._lock:
            is_unreachable = self._coordinator.closed(connection, reason, time.monotonic())
        with self._changed:
            self._changed.notify_all()  # the connection's messages are no longer in flight
        if is_unreachable and self._unreachable is not None:
            self._unreachable(connection.address, reason)
        self._wake_timer.set()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _wake_if_earlier(self) -> None:
        """Wake the timer if it sleeps for too long. The caller holds the lock."""
        if self._coordinator.due() < self._next_due:
            self._wake_timer.set()

    def _query(self, lookupd: str) -> None:
        """Query an nsqlookupd, and connect to the nodes that are known then."""
        listing = None
        try:
            listing = ask(lookupd, self.topic, self.settings)
        except Exception as error:  # the top of a thread
            note_failure(self.topic, lookupd, error)
        with self._lock:
            self._connect(self._coordinator.responded(lookupd, listing, time.monotonic()))
            self._wake_if_earlier()

    def _connect(self, addresses: Iterable[str]) -> None:
        """Connect to nodes that are not connected. The caller holds the lock."""
        for address in filter(self._coordinator.may_connect, addresses):
            connection = Connection(address, self.settings, self, (self.topic, self.channel))
            start_thread(f"nsqd {address}", self._serve, connection)  # if it fails, the address is tried again
            self._coordinator.connecting(connection)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.open()
        except Exception as error:  # the top of a thread
            if not isinstance(error, ConnectionLost):
                log.exception("[%s/%s] (%s) internal error", self.topic, self.channel, connection.address)
            self.closed(connection, error)
            return
        with self._lock:
            if self._coordinator.is_stopping:
                connection.abort()
            self._coordinator.opened(connection, time.monotonic())
        with self._changed:
            self._changed.notify_all()
        connection.run()

    # --- Timers -------------------------------------------------------------------------------------------------------

    def _timer_loop(self) -> None:
        while not self._coordinator.is_stopping:
            self._wake_timer.clear()
            try:
                with self._lock:
                    self._run_due()
            except Exception:  # the top of a thread, which reconnects
                log.exception("[%s/%s] internal error", self.topic, self.channel)
                self._next_due = time.monotonic() + 1.0
            self._wake_timer.wait(max(0.0, self._next_due - time.monotonic()))

    def _run_due(self) -> None:
        """Do what is due. The caller holds the lock."""
        due = self._coordinator.run_due(time.monotonic())
        self._connect(due.connect)
        for lookupd in due.query:
            start_thread(f"lookup {without_secrets(lookupd)}", self._query, lookupd)
            self._coordinator.asking(lookupd)
        self._next_due = self._coordinator.due()


class Consumer(Subscription):
    """Calls `handler` with each ``Message``, in order of arrival, in `concurrency` threads, at most max_in_flight.

    If the handler returns, the message is finished; if it returns False or raises, the message is requeued, with a
    growing delay. The handler may also call ``message.finish()`` or ``message.requeue()`` itself, or
    ``message.enable_async()`` to do so later.

    `giving_up` is called instead of the handler, and the message finished, after more than `max_tries` deliveries (0:
    no limit). `unreachable` is that of ``Subscription``. With `tracing`, handlers have spans of OpenTelemetry: of this
    provider or, if True, of the global one. Other options are those of ``SubscriptionSettings``.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler,
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
        if not callable(handler):
            raise TypeError(f"handler must be a function that is called with each message, not {handler!r}")
        if inspect.iscoroutinefunction(handler):
            raise TypeError("handler is a coroutine function: use the consumer of nsq_compat.client.aio")
        super().__init__(
            topic,
            channel,
            self._wake_workers,
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            options,
            unreachable=unreachable,
        )
        self._handler = handler
        self._max_tries = max_tries
        self._giving_up = giving_up or log_giving_up
        if tracing:
            from nsq_compat.client.tracing import Tracing  # needs an extra

            traces = Tracing(tracing)
            self._handler = traces.handler(handler, topic, channel)
            self._giving_up = traces.handler(self._giving_up, topic, channel, gives_up=True)
        self._concurrency = self._coordinator.handlers_at_once(concurrency)
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True wakes a worker, False ends it."""
        self._stopped = threading.Event()

    # --- Running ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Consume in the background. Raises ``RuntimeError`` if it was started before."""
        super().start()
        for number in range(self._concurrency):
            start_thread(f"nsq handler {number}", self._work)
        return self

    def run(self) -> None:
        """Consume until `stop` is called."""
        self.start()
        self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer has stopped. False after the timeout."""
        return self._stopped.wait(timeout)

    def stop(self, timeout: float = 30.0) -> None:
        """Stop receiving, handle arrived messages for at most `timeout` seconds, requeue the rest, and disconnect.

        A handler cannot call it, because it would wait for itself; it calls ``stop_soon``.
        """
        with self._lock:
            is_first, self._coordinator.is_stopping = not self._coordinator.is_stopping, True
        if is_first:
            super().stop(timeout)
            for _ in range(self._concurrency):
                self._wakeups.put(False)
            self._stopped.set()

    def stop_soon(self, timeout: float = 30.0) -> None:
        """`stop` in the background; for handlers and signal handlers, because `stop` waits for handlers."""
        start_thread("nsq stop", self.stop, timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- Handling -----------------------------------------------------------------------------------------------------

    def _wake_workers(self, messages: int) -> None:
        for _ in range(min(messages, self._concurrency)):
            self._wakeups.put(True)

    def _work(self) -> None:
        waiting = self.waiting
        while self._wakeups.get():
            with contextlib.suppress(IndexError):  # none is waiting
                while True:
                    self._handle(waiting.popleft())

    def _handle(self, message: Message) -> None:
        # Hot: runs for every message.
        if message.is_lost:
            return  # it will be delivered again
        try:
            if 0 < self._max_tries < message.attempts:
                self._giving_up(message)
                finish_or_requeue(message, True)
                return
            succeeded = self._handler(message) is not False
        except (Exception, SystemExit) as error:  # raised by the handler
            requeue_after_error(message, error)
        else:
            finish_or_requeue(message, succeeded)
