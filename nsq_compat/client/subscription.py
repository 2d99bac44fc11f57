"""Subscription to a topic and channel at several nsqd.

It discovers nodes, connects and reconnects, distributes max_in_flight, backs off when handling fails, and passes each
batch of messages to a callable.

One thread runs timers, each connection has two threads, and nsqlookupd is queried in others. The lock protects the
connections, RDY and the pace; no thread waits for a socket while holding it.

Invariants:

- There is at most one connection to an address, including attempts to connect.
- Named nodes are retried with a delay that doubles. Discovered nodes are retried only when a later poll lists them.
- RDY counts and messages in flight together never exceed max_in_flight, as far as the client can know.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

from nsq_compat.client.connection import Connection, ConnectionLost, close_all, split_address
from nsq_compat.client.discovery import Discovery
from nsq_compat.client.message import Message
from nsq_compat.client.ready import Backoff, Pace, ReadyCounts
from nsq_compat.client.settings import address_list, split_options
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.names import is_valid_name

log = logging.getLogger(__name__)

REDISTRIBUTE_INTERVAL = 5.0
SETTLE_SECONDS = 0.25
"""Time, in addition to the round trip, in which a connection may still receive messages for an earlier, higher RDY."""


@dataclass(slots=True)
class _Retry:
    """When a named node is tried again, and the delay after the next failure."""

    due: float
    delay: float


class Subscription:
    """`deliver` is called with each batch, in the thread of its connection. It must return quickly.

    `options` are those of ``SubscriptionSettings`` and ``ConnectionSettings``.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        deliver: Callable[[list[Message]], object],
        *,
        nsqd_tcp_addresses: str | Iterable[str] | None,
        lookupd_http_addresses: str | Iterable[str] | None,
        options: Mapping[str, Any],
        heartbeat: Callable[[Connection], object] | None = None,
    ) -> None:
        for noun, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name):
                raise ValueError(f"{name!r} is not a valid {noun} name")
        self.topic = topic
        self.channel = channel
        settings, self._connection_settings = split_options(options)
        self.settings = settings
        self.max_in_flight = settings.max_in_flight
        self._deliver = deliver
        self._heartbeat = heartbeat
        nsqds, lookupds = address_list(nsqd_tcp_addresses), address_list(lookupd_http_addresses)
        for address in nsqds:
            split_address(address)
        if not nsqds and not lookupds:
            raise ValueError("nsqd_tcp_addresses or lookupd_http_addresses is required")
        self._discovery = Discovery(topic, lookupds, self._found, settings) if lookupds else None
        self._lock = threading.Lock()
        self._connections: dict[str, Connection] = {}
        self._threads: dict[Connection, threading.Thread] = {}
        self._retries = {address: _Retry(0.0, settings.reconnect_delay) for address in nsqds}
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
        self._timer: threading.Thread | None = None

    # --- Interface ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and stay connected until `stop`. Returns immediately."""
        self._timer = threading.Thread(target=self._timer_loop, name=f"nsq {self.topic}/{self.channel}", daemon=True)
        self._timer.start()
        if self._discovery is not None:
            self._discovery.start()

    def stop(self, timeout: float, requeue_waiting: Callable[[], object]) -> None:
        """Send CLS, wait for the answers to all messages in flight, and close the connections.

        After `timeout` seconds, `requeue_waiting` is called, to requeue the messages that no handler has begun.
        """
        deadline = time.monotonic() + timeout
        self._stop_receiving(timeout)
        with self._answers:
            all_answered = self._answers.wait_for(lambda: self.in_flight == 0, max(0.0, deadline - time.monotonic()))
        if not all_answered:
            requeue_waiting()
        with self._lock:
            connections, threads = list(self._connections.values()), list(self._threads.values())
        close_all(connections)
        for thread in threads:
            thread.join(self._connection_settings.timeout)

    def _stop_receiving(self, timeout: float) -> None:
        """Send CLS to every nsqd and wait for the responses: no message arrives after them."""
        with self._lock:
            self._stopping = True
            self._share_out()
            connections = list(self._ready.shares)
            opening = [each for each in self._connections.values() if each not in self._ready.shares]
        self._wake_timer.set()
        if self._discovery is not None:
            self._discovery.stop()
        for connection in opening:
            connection.abort()
        wait([connection.ask(command_writer.CLS) for connection in connections], timeout)

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

    @property
    def pace(self) -> Pace:
        return self._backoff.pace

    def is_starved(self) -> bool:
        """Whether a connection has at least 85 % of its RDY in flight."""
        with self._lock:
            return self._ready.is_starved

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
        if self._discovery is not None:
            self._discovery.poll_now()

    # --- Events of connections ----------------------------------------------------------------------------------------

    def received(self, connection: Connection, messages: list[Message]) -> None:
        with self._lock:
            self._ready.received(connection, len(messages), time.monotonic())
            self._send_changes()
        self._deliver(messages)

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
            self._threads.pop(connection, None)
            self._ready.remove(connection, now)
            self._send_changes()
            retry = self._retries.get(address)
            if retry is not None:
                retry.due = now + retry.delay
        with self._answers:
            self._answers.notify_all()  # its messages are no longer in flight
        if self._stopping:
            return
        log.warning("[%s/%s] (%s) %s", self.topic, self.channel, address, reason)
        if retry is not None:
            log.info("[%s/%s] (%s) re-connecting in %g s", self.topic, self.channel, address, retry.delay)
            retry.delay = min(2 * retry.delay, self.settings.max_reconnect_delay)
        self._wake_timer.set()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _count_outcome(self, succeeded: bool) -> None:
        now, backoff = time.monotonic(), self._backoff
        with self._lock:
            changed = backoff.succeeded(now) if succeeded else backoff.failed(now)
            if changed:
                self._share_out()
                wait_for = max(0.0, backoff.until - now)
        if not changed:
            return
        if backoff.pace is Pace.FLOWING:
            log.info("[%s/%s] resuming", self.topic, self.channel)
        else:
            log.warning("[%s/%s] backing off for %.3g s (level %d)", self.topic, self.channel, wait_for, backoff.level)
            self._wake_timer.set()

    def _share_out(self) -> None:
        """Distribute the permits at the current pace. The caller holds the lock."""
        permits = 0 if self._stopping else self.max_in_flight
        if self._backoff.pace is Pace.WAITING:
            permits = 0
        elif self._backoff.pace is Pace.TESTING:
            permits = min(1, permits)
        self._ready.set_permits(permits, time.monotonic())
        self._send_changes()

    def _send_changes(self) -> None:
        for connection, count in self._ready.changes:
            connection.send(command_writer.ready(count))
        self._ready.changes.clear()
        if self._ready.settles_at < self._next_due:
            self._wake_timer.set()

    def _found(self, addresses: set[str]) -> None:
        with self._lock:
            for address in sorted(addresses):
                self._connect(address)

    def _connect(self, address: str) -> None:
        """Connect if not connected. The caller holds the lock."""
        if address in self._connections or self._stopping:
            return
        connection = Connection(address, self._connection_settings, self, (self.topic, self.channel))
        connection.requeue_delay = self.settings.requeue_delay
        connection.max_requeue_delay = self.settings.max_requeue_delay
        thread = threading.Thread(target=self._serve, args=(connection,), name=f"nsqd {address}", daemon=True)
        thread.start()  # if it fails, the address is tried again
        self._connections[address] = connection
        self._threads[connection] = thread

    def _serve(self, connection: Connection) -> None:
        try:
            connection.open()
        except Exception as error:  # the top of a thread
            if not isinstance(error, ConnectionLost):
                log.exception("[%s/%s] (%s) internal error", self.topic, self.channel, connection.address)
            self.closed(connection, error)
            return
        with self._lock:
            if self._stopping:
                connection.abort()
            elif (retry := self._retries.get(connection.address)) is not None:
                retry.delay = self.settings.reconnect_delay
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
        for address, retry in self._retries.items():
            if retry.due <= now:
                self._connect(address)
        if self._backoff.passed(now):
            log.info("[%s/%s] testing with one message", self.topic, self.channel)
            self._share_out()
        self._ready.settle(now)
        self._send_changes()
        if now >= self._redistribute_due:
            self._redistribute_due = now + REDISTRIBUTE_INTERVAL
            self._ready.redistribute(now)
            self._send_changes()
        waits = [retry.due for address, retry in self._retries.items() if address not in self._connections]
        if self._backoff.pace is Pace.WAITING:
            waits.append(self._backoff.until)
        self._next_due = min([self._redistribute_due, self._ready.settles_at, *waits])
        return self._next_due
