"""Consumers: the subscription to a topic and channel at several nsqd, and handlers in threads.

A subscription discovers nodes, connects and reconnects, distributes max_in_flight, backs off when handling fails, and
collects the messages.

One thread runs timers, each connection has two threads, and each query of an nsqlookupd has one. The lock protects the
connections, RDY, the pace and what is known of nodes; no thread waits for a socket while holding it.

Invariants:

- There is at most one connection to an address, including attempts to connect.
- Named nodes are retried with a delay that doubles. Discovered nodes are retried only when a later poll lists them.
- RDY counts and messages in flight together never exceed max_in_flight, as far as the client can know.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from typing import Any, Self

from nsq_compat.bounded_http import FAILURES, reason_of
from nsq_compat.client.connection import Connection, ConnectionLost, Observer, do_together, start_thread, why
from nsq_compat.client.discovery import Discovery, ask
from nsq_compat.client.message import Handler, Message, finish_or_requeue, log_giving_up, requeue_after_error
from nsq_compat.client.ready import Backoff, Pace, ReadyCounts
from nsq_compat.client.settings import SubscriptionSettings, address_list, split_address
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.errors import without_secrets
from nsq_compat.protocol.names import is_valid_name

log = logging.getLogger(__name__)

REDISTRIBUTE_INTERVAL = 5.0
SETTLE_SECONDS = 0.25
"""Time, in addition to the round trip, in which a connection may still receive messages for an earlier, higher RDY."""


class Subscription(Observer):
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
        options: Mapping[str, Any],
        heartbeat: Callable[[Connection], object] | None = None,
        unreachable: Callable[[str, Exception], object] | None = None,
    ) -> None:
        for noun, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name):
                raise ValueError(f"{name!r} is not a valid {noun} name")
        self.topic = topic
        self.channel = channel
        self.settings = settings = SubscriptionSettings(**options)
        self.max_in_flight = settings.max_in_flight
        self.waiting: deque[Message] = deque()
        """Messages that no handler has begun, oldest first."""
        self._deliver = deliver
        self._heartbeat = heartbeat
        self._unreachable = unreachable
        nsqds, lookupds = address_list(nsqd_tcp_addresses), address_list(lookupd_http_addresses)
        for address in nsqds:
            split_address(address)
        if not nsqds and not lookupds:
            raise ValueError("nsqd_tcp_addresses or lookupd_http_addresses is required")
        self._discovery = Discovery(topic, lookupds, settings)
        self._lock = threading.Lock()
        self._connections: dict[str, Connection] = {}
        self._retry_at = dict.fromkeys(nsqds, 0.0)
        """When a named node is tried again, if it is not connected."""
        self._untried = set(nsqds)
        """Named nodes to which the first attempt to connect has no outcome yet."""
        self._retry_delays = dict.fromkeys(nsqds, settings.reconnect_delay)
        self._ready: ReadyCounts[Connection] = ReadyCounts(
            self.max_in_flight, settings.low_rdy_idle_timeout, settle_time=SETTLE_SECONDS
        )
        self._backoff = Backoff(
            settings.first_backoff_duration, settings.max_backoff_duration if settings.backoff else 0.0
        )
        self._redistribute_due = 0.0
        self._next_due = 0.0
        self._wake_timer = threading.Event()
        self._stopping = False
        self._answers = threading.Condition()

    # --- Interface ----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect, and stay connected until `stop`. Returns immediately."""
        start_thread(f"nsq {self.topic}/{self.channel}", self._timer_loop)
        return self

    def stop(self, timeout: float) -> None:
        """Send CLS, wait up to `timeout` seconds for all answers, requeue waiting messages, close the connections."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._stopping = True
            self._share_out()
            connections = list(self._ready.shares)
        self._wake_timer.set()
        # No message arrives after the responses to CLS.
        wait([connection.ask(command_writer.CLS) for connection in connections], timeout)
        with self._answers:
            all_answered = self._answers.wait_for(lambda: self.in_flight == 0, max(0.0, deadline - time.monotonic()))
        if not all_answered:
            self.requeue_waiting()
            if self.in_flight:
                log.warning("%d messages are still being handled; nsqd will deliver them again", self.in_flight)
        with self._lock:
            connections = list(self._connections.values())
        do_together(connection.close for connection in connections)
        with self._answers:
            self._answers.wait_for(lambda: not self._connections, self.settings.timeout)

    def requeue_waiting(self) -> None:
        """Let nsqd deliver the waiting messages again at once, here or elsewhere."""
        with contextlib.suppress(IndexError):  # none is left
            while True:
                self.waiting.popleft().requeue(delay=0, backoff=False)

    @property
    def connections(self) -> list[Connection]:
        """The subscribed connections."""
        with self._lock:
            return list(self._ready.shares)

    @property
    def in_flight(self) -> int:
        """Messages received and not yet answered."""
        with self._lock:
            return sum(max(0, connection.in_flight) for connection in self._ready.shares)

    def is_starved(self) -> bool:
        """Whether to answer collected messages: none is waiting, and a connection has 85 % of its RDY in flight."""
        with self._lock:
            return not self.waiting and self._ready.is_starved

    def set_max_in_flight(self, count: int) -> None:
        """Change the limit; 0 pauses."""
        if count < 0:
            raise ValueError(f"max_in_flight must be 0 or more, not {count!r}")
        with self._lock:
            self.max_in_flight = count
            self._share_out()

    def connect(self, address: str) -> None:
        """Connect to another nsqd, once. Does nothing if it is connected."""
        split_address(address)
        with self._lock:
            self._connect(address)

    def poll_lookupd(self) -> None:
        """Query every nsqlookupd now."""
        with self._lock:
            self._discovery.poll_all()
        self._wake_timer.set()

    # --- Events of connections ----------------------------------------------------------------------------------------

    def received(self, connection: Connection, messages: list[Message]) -> None:
        with self._lock:
            self._ready.received(connection, len(messages), time.monotonic())
            self._send_changes()
        self.waiting.extend(messages)
        self._deliver(len(messages))

    def answered(self, connection: Connection, succeeded: bool | None) -> None:
        # Hot: runs for every message. Usually none of the conditions holds.
        if self._stopping:
            with self._answers:
                self._answers.notify_all()
        if succeeded is False or (succeeded and self._backoff.pace is not Pace.FLOWING):
            self._count_outcome(succeeded)
        elif self._ready.is_short:
            with self._lock:
                self._ready.answered(time.monotonic())
                self._send_changes()

    def heartbeat(self, connection: Connection) -> None:
        if self._heartbeat is not None:
            self._heartbeat(connection)

    def closed(self, connection: Connection, reason: Exception) -> None:
        address, now = connection.address, time.monotonic()
        with self._lock:
            if self._connections.get(address) is connection:
                del self._connections[address]
            self._ready.remove(connection, now)
            self._send_changes()
            delay = self._retry_delays.get(address)
            if delay is not None:
                self._retry_at[address] = now + delay
        with self._answers:
            self._answers.notify_all()  # the connection's messages are no longer in flight
            is_first = address in self._untried
            self._untried.discard(address)
        if self._stopping:
            return
        if is_first and self._unreachable is not None:
            self._unreachable(address, reason)
            return
        log.warning("[%s/%s] (%s) %s", self.topic, self.channel, address, why(reason))
        if delay is not None:
            log.info("[%s/%s] (%s) re-connecting in %g s", self.topic, self.channel, address, delay)
            self._retry_delays[address] = min(2 * delay, self.settings.max_reconnect_delay)
        self._wake_timer.set()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _count_outcome(self, succeeded: bool) -> None:
        now, backoff = time.monotonic(), self._backoff
        with self._lock:
            if not (backoff.succeeded(now) if succeeded else backoff.failed(now)):
                return
            self._share_out()
        if backoff.pace is Pace.FLOWING:
            log.info("[%s/%s] resuming", self.topic, self.channel)
        else:
            seconds = backoff.until - now
            log.warning("[%s/%s] backing off for %.3g s (level %d)", self.topic, self.channel, seconds, backoff.level)
            self._wake_timer.set()

    def _share_out(self) -> None:
        """Distribute the permits at the current pace. The caller holds the lock."""
        permits = 0 if self._stopping else self.max_in_flight
        self._ready.set_permits(self._backoff.permits(permits), time.monotonic())
        self._send_changes()

    def _send_changes(self) -> None:
        for connection, count in self._ready.changes:
            connection.send(command_writer.ready(count))
        self._ready.changes.clear()
        if self._ready.settles_at < self._next_due:
            self._wake_timer.set()

    def _query(self, lookupd: str) -> None:
        """Query an nsqlookupd, and connect to the nodes that are known then."""
        listing = None
        try:
            listing = ask(lookupd, self.topic, self.settings)
        except FAILURES as error:
            log.warning("[%s] nsqlookupd %s: %s", self.topic, without_secrets(lookupd), reason_of(error))
        except Exception:  # the top of a thread
            log.exception("[%s] nsqlookupd %s: internal error", self.topic, without_secrets(lookupd))
        with self._lock:
            for address in sorted(self._discovery.responded(lookupd, listing, time.monotonic())):
                self._connect(address)
            if self._discovery.due < self._next_due:
                self._wake_timer.set()

    def _connect(self, address: str) -> None:
        """Connect if not connected. The caller holds the lock."""
        if address in self._connections or self._stopping:
            return
        connection = Connection(address, self.settings, self, (self.topic, self.channel))
        connection.requeue_delay = self.settings.requeue_delay
        connection.max_requeue_delay = self.settings.max_requeue_delay
        start_thread(f"nsqd {address}", self._serve, connection)  # if it fails, the address is tried again
        self._connections[address] = connection

    def _serve(self, connection: Connection) -> None:
        try:
            connection.open()
        except Exception as error:  # the top of a thread
            if not isinstance(error, ConnectionLost):
                log.exception("[%s/%s] (%s) internal error", self.topic, self.channel, connection.address)
            self.closed(connection, error)
            return
        with self._lock:
            self._untried.discard(connection.address)
            if self._stopping:
                connection.abort()
            elif connection.address in self._retry_delays:
                self._retry_delays[connection.address] = self.settings.reconnect_delay
            self._ready.add(connection, time.monotonic())
            self._send_changes()
        log.info("[%s/%s] (%s) subscribed", self.topic, self.channel, connection.address)
        connection.run()

    # --- Timers -------------------------------------------------------------------------------------------------------

    def _timer_loop(self) -> None:
        while not self._stopping:
            self._wake_timer.clear()
            try:
                with self._lock:
                    due = self._run_due(time.monotonic())
            except Exception:  # the top of a thread, which reconnects
                log.exception("[%s/%s] internal error", self.topic, self.channel)
                due = time.monotonic() + 1.0
            self._wake_timer.wait(max(0.0, due - time.monotonic()))

    def _run_due(self, now: float) -> float:
        """Do what is due, and return when to run again. The caller holds the lock."""
        for address, due in self._retry_at.items():
            if due <= now:
                self._connect(address)
        if now >= self._discovery.due:
            for lookupd in self._discovery.poll(now):
                start_thread(f"lookup {without_secrets(lookupd)}", self._query, lookupd)
                self._discovery.querying.add(lookupd)
        if self._backoff.passed(now):
            log.info("[%s/%s] testing with one message", self.topic, self.channel)
            self._share_out()
        self._ready.settle(now)
        if now >= self._redistribute_due:
            self._redistribute_due = now + REDISTRIBUTE_INTERVAL
            self._ready.redistribute(now)
        self._send_changes()
        waits = [due for address, due in self._retry_at.items() if address not in self._connections]
        if self._backoff.pace is Pace.WAITING:
            waits.append(self._backoff.until)
        self._next_due = min([self._redistribute_due, self._ready.settles_at, self._discovery.due, *waits])
        return self._next_due


class Consumer(Subscription):
    """Calls `handler` with each ``Message``, in order of arrival, in `concurrency` threads, at most max_in_flight.

    If the handler returns, the message is finished; if it returns False or raises, the message is requeued, with a
    growing delay. The handler may also call ``message.finish()`` or ``message.requeue()`` itself, or
    ``message.enable_async()`` to do so later.

    `giving_up` is called instead of the handler, and the message finished, after more than `max_tries` deliveries (0:
    no limit). `unreachable` is that of ``Subscription``. Other options are those of ``SubscriptionSettings``.
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
        **options: Any,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, not {concurrency!r}")
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
        self._concurrency = min(concurrency, self.max_in_flight)
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True wakes a worker, False ends it."""
        self._stopped = threading.Event()

    # --- Running ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Consume in the background."""
        for number in range(self._concurrency):
            start_thread(f"nsq handler {number}", self._work)
        return super().start()

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
            is_stopping, self._stopping = self._stopping, True
        if not is_stopping:
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
