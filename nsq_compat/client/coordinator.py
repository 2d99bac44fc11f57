"""The decisions of a consumer: to which nsqd to connect and when, which nsqlookupd to ask, RDY, and backoff.

Used by the consumer in threads and by the one on an event loop. It waits for nothing, has no threads and no clock:
callers pass the time, in seconds, act on the results, and call `run_due` at the time that `due` returns. It is not
thread-safe. RDY commands are given to the connections.

Invariants:

- There is at most one connection to an address, including attempts to connect.
- Named nodes are retried with a delay that doubles. Discovered nodes are retried only when a later poll lists them.
- RDY counts and messages in flight together never exceed max_in_flight, as far as the client can know.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from nsq_compat.client.discovery import MAX_NODES, Discovery, Listing
from nsq_compat.client.link import Link, why
from nsq_compat.client.message import Message
from nsq_compat.client.ready import Backoff, Pace, ReadyCounts
from nsq_compat.client.settings import SubscriptionOptions, SubscriptionSettings, address_list, split_address
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.errors import without_secrets
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.session.client_session import ProtocolError

log: Final = logging.getLogger(__name__)

REDISTRIBUTE_INTERVAL = 5.0
SOON_SECONDS: Final = 1.0
"""Time that handlers have after a stop before the log says that it waits for them."""
SETTLE_SECONDS = 0.25
"""Time, in addition to the round trip, in which a connection may still receive messages for an earlier, higher RDY."""

_FLOWING = Pace.FLOWING

C = TypeVar("C", bound=Link)


class Due(NamedTuple):
    """What is to be done now: connect to these nodes, and ask these nsqlookupds."""

    connect: list[str]
    query: list[str]


class Coordinator(Generic[C]):
    """`options` are those of ``SubscriptionSettings``. `owner` is the object with further options, for hints.

    With `reports_unreachable`, `closed` returns True when the first attempt at a named node fails.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd_tcp_addresses: str | Iterable[str] | None,
        lookupd_http_addresses: str | Iterable[str] | None,
        options: SubscriptionOptions,
        reports_unreachable: bool = False,
        owner: object = None,
    ) -> None:
        for noun, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name):
                raise ValueError(f"{name!r} is not a valid {noun} name")
        self.name: str = f"{topic}/{channel}"
        settings = SubscriptionSettings.of(options, owner)
        self.settings: SubscriptionSettings = settings
        self.max_in_flight: int = settings.max_in_flight
        self.waiting: deque[Message] = deque()
        """Messages that no handler has begun, oldest first."""
        nsqds, lookupds = address_list(nsqd_tcp_addresses), address_list(lookupd_http_addresses)
        for address in nsqds:
            split_address(address)
        if not nsqds and not lookupds:
            raise ValueError("nsqd_tcp_addresses or lookupd_http_addresses is required")
        self.discovery: Discovery = Discovery(topic, lookupds, settings)
        self.connections: dict[str, C] = {}
        """By address, including attempts to connect."""
        self.ready: ReadyCounts[C] = ReadyCounts(
            self.max_in_flight, settings.low_rdy_idle_timeout, settle_time=SETTLE_SECONDS
        )
        self.backoff: Backoff = Backoff(
            settings.first_backoff_duration, settings.max_backoff_duration if settings.backoff else 0.0
        )
        self.is_started: bool = False
        self.is_stopping: bool = False
        self._reports_unreachable = reports_unreachable
        self._retry_at = dict.fromkeys(nsqds, 0.0)
        """When a named node is tried again, if it is not connected."""
        self._unknown = set(nsqds)
        """Named addresses at which no nsqd has answered yet."""
        self._untried = set(nsqds)
        """Named nodes to which the first attempt to connect has no outcome yet."""
        self._retry_delays = dict.fromkeys(nsqds, settings.reconnect_delay)
        self._has_lookupds = bool(lookupds)
        self._found_by: dict[str, str] = {}
        """The nsqlookupd for which a connection to a node counts, which is not a named one."""
        self._last_failure = ""
        """Why a node or an nsqlookupd was of no use; empty before the first attempt."""
        self._redistribute_due = 0.0

    def start(self) -> None:
        """Note the start. Raises ``RuntimeError`` if it is not the first one."""
        if self.is_started:
            state = "stopped, make a new one" if self.is_stopping else "running"
            raise RuntimeError(f"[{self.name}] a consumer is started once, by start(), run() or with; it is {state}")
        self.is_started = True

    # --- State --------------------------------------------------------------------------------------------------------

    def handlers_at_once(self, concurrency: int) -> int:
        """How many handlers may run at once. Raises ``ValueError``."""
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, not {concurrency!r}")
        if concurrency > self.max_in_flight:
            log.warning(
                "[%s] concurrency=%d: at most %d handlers run at once, because max_in_flight is %d",
                self.name,
                concurrency,
                self.max_in_flight,
                self.max_in_flight,
            )
        return min(concurrency, self.max_in_flight)

    @property
    def is_subscribed(self) -> bool:
        """Whether at least one nsqd has confirmed the subscription."""
        return bool(self.ready.shares)

    def check_subscribed(self, timeout: float) -> None:
        """After waiting for `timeout` seconds: raises ``TimeoutError`` if it is not subscribed."""
        if self.is_subscribed:
            return
        if self.is_stopping:
            raise RuntimeError(f"[{self.name}] the consumer was stopped before it was subscribed")
        failure = self._last_failure or "the consumer is not started"
        raise TimeoutError(f"[{self.name}] not subscribed after {timeout:g} s: {failure}")

    @property
    def subscribed(self) -> list[C]:
        """The open connections."""
        return list(self.ready.shares)

    @property
    def in_flight(self) -> int:
        """Messages received and not yet answered."""
        return sum(max(0, connection.in_flight) for connection in self.ready.shares)

    @property
    def is_starved(self) -> bool:
        """Whether to answer collected messages: none is waiting, and a connection has 85 % of its RDY in flight."""
        return not self.waiting and self.ready.is_starved

    def may_connect(self, address: str) -> bool:
        return address not in self.connections and not self.is_stopping

    # --- Time ---------------------------------------------------------------------------------------------------------

    def run_due(self, now: float) -> Due:
        connect = [address for address, due in self._retry_at.items() if due <= now and self.may_connect(address)]
        query: list[str] = []
        if now >= self.discovery.due:
            query = self.discovery.poll(now)
        if self.backoff.passed(now):
            log.info("[%s] testing with one message", self.name)
            self._share_out(now)
        self.ready.settle(now)
        if now >= self._redistribute_due:
            self._redistribute_due = now + REDISTRIBUTE_INTERVAL
            self.ready.redistribute(now)
        self._send_changes()
        return Due(connect, query)

    def due(self) -> float:
        """When to call `run_due`; events make it earlier or later."""
        times = [self._redistribute_due, self.ready.settles_at, self.discovery.due]
        times += [due for address, due in self._retry_at.items() if address not in self.connections]
        if self.backoff.pace is Pace.WAITING:
            times.append(self.backoff.until)
        return min(times)

    # --- Requests of the program --------------------------------------------------------------------------------------

    def set_max_in_flight(self, count: int, now: float) -> None:
        if count < 0:
            raise ValueError(f"max_in_flight must be 0 or more, not {count!r}")
        self.max_in_flight = count
        self._share_out(now)

    def stop(self, now: float) -> list[C]:
        """Ask for no more messages, and connect no more. Returns the connections, which are to be closed with CLS."""
        self.is_stopping = True
        self._share_out(now)
        return self.subscribed

    def note_waiting(self, seconds: float) -> None:
        """Log that the stop waits for handlers."""
        handled = max(0, self.in_flight - len(self.waiting))
        log.warning(
            "[%s] stopping: waiting for %d messages that are being handled and %d after them, at most %.0f s",
            self.name, handled, len(self.waiting), seconds,
        )  # fmt: skip

    def requeue_waiting(self) -> None:
        """Let nsqd deliver the waiting messages again at once, here or elsewhere."""
        with suppress(IndexError):  # none is left
            while True:
                self.waiting.popleft().requeue(delay=0, backoff=False)

    # --- Events -------------------------------------------------------------------------------------------------------

    def asking(self, lookupd: str) -> None:
        """The nsqlookupd is being asked; it is not asked again before `responded`."""
        self.discovery.querying.add(lookupd)
        self._last_failure = self._last_failure or f"nsqlookupd {without_secrets(lookupd)}: no answer yet"

    def responded(self, lookupd: str, listing: Listing | None, now: float) -> list[str]:
        """Record the response of an nsqlookupd, or None for a failure. Returns the nodes to connect to."""
        nodes = self.discovery.responded(lookupd, listing, now)
        if not nodes:
            what = "no valid answer" if listing is None else "no nsqd has this topic yet"
            self._last_failure = f"nsqlookupd {without_secrets(lookupd)}: {what}"
        return self._with_room(sorted(filter(self.may_connect, nodes)))

    def _with_room(self, nodes: list[str]) -> list[str]:
        """Those of the nodes to which to connect. At most `MAX_NODES` connections are to nodes of one nsqlookupd.

        It may list others with each poll, and connections stay open that it does not list any more.
        """
        self._found_by = {node: lookupd for node, lookupd in self._found_by.items() if node in self.connections}
        counts = Counter(self._found_by.values())
        found: list[str] = []
        for node in nodes:
            named = node in self._retry_at
            free = next((each for each in self.discovery.lookupds_of(node) if counts[each] < MAX_NODES), None)
            if free is not None and not named:
                self._found_by[node] = free
                counts[free] += 1
            if free is not None or named:
                found.append(node)
        if len(found) < len(nodes):
            text = "[%s] nsqlookupd lists %d further nsqd; a client connects to %d at most"
            log.warning(text, self.name, len(nodes) - len(found), MAX_NODES)
        return found

    def connecting(self, connection: C) -> None:
        """A connection was made, and is being opened."""
        connection.requeue_delay = self.settings.requeue_delay
        connection.max_requeue_delay = self.settings.max_requeue_delay
        connection.is_known = connection.address not in self._unknown
        self.connections[connection.address] = connection
        self._last_failure = self._last_failure or f"{connection.address}: no answer yet"

    def opened(self, connection: C, now: float) -> None:
        address = connection.address
        self._untried.discard(address)
        self._unknown.discard(address)
        if address in self._retry_delays:
            self._retry_delays[address] = self.settings.reconnect_delay
        self.ready.add(connection, now)
        self._send_changes()
        log.info("[%s] (%s) subscribed", self.name, address)

    def received(self, connection: C, count: int, now: float) -> None:
        """Raises ``ProtocolError``, which ends the connection, if nsqd sends messages without end."""
        self.ready.received(connection, count, now)
        self._send_changes()
        if self.ready.is_exceeded(connection):
            raise ProtocolError(f"nsqd sends more messages than RDY permits: {connection.in_flight} are in flight")

    def concerns(self, succeeded: bool | None) -> bool:
        """Whether `answered` has to be called for an answer. Usually it does not for a success."""
        # Hot: runs for every message.
        if succeeded:
            return self.ready.is_short or self.backoff.pace is not _FLOWING
        return succeeded is False or self.ready.is_short

    def answered(self, succeeded: bool | None, now: float) -> None:
        """A message was finished (True), requeued (False) or requeued without backoff (None)."""
        backoff = self.backoff
        if succeeded is None or not (backoff.succeeded(now) if succeeded else backoff.failed(now)):
            self.ready.answered(now)
            self._send_changes()
            return
        self._share_out(now)
        if backoff.pace is Pace.FLOWING:
            log.info("[%s] resuming", self.name)
        else:
            log.warning("[%s] backing off for %.3g s (level %d)", self.name, backoff.until - now, backoff.level)

    def closed(self, connection: C, reason: Exception, now: float) -> bool:
        """A connection has ended, or could not be opened. Returns whether to report the node as unreachable."""
        address = connection.address
        if self.connections.get(address) is connection:
            del self.connections[address]
        self.ready.remove(connection, now)
        self._send_changes()
        for message in self.waiting.copy():
            if message.is_lost:  # no handler gets it; before its turn comes, others may have arrived in its place
                message.body = b""
        delay = self._retry_delays.get(address)
        if delay is not None:
            self._retry_at[address] = now + delay
        self._last_failure = f"{address}: {why(reason)}"
        is_first = address in self._untried
        self._untried.discard(address)
        if self.is_stopping:
            return False
        if is_first and self._reports_unreachable:
            return True
        if delay is not None:
            log.warning("[%s] (%s) %s; re-connecting in %g s", self.name, address, why(reason), delay)
            self._retry_delays[address] = min(2 * delay, self.settings.max_reconnect_delay)
        elif self._has_lookupds:
            until = max(0.0, self.discovery.due - now)
            text = "[%s] (%s) %s; trying it again if nsqlookupd lists it, which is asked in %.3g s"
            log.warning(text, self.name, address, why(reason), until)
        else:
            log.warning("[%s] (%s) %s; not trying it again", self.name, address, why(reason))
        return False

    # --- RDY ----------------------------------------------------------------------------------------------------------

    def _share_out(self, now: float) -> None:
        """Distribute the permits at the current pace."""
        permits = 0 if self.is_stopping else self.max_in_flight
        self.ready.set_permits(self.backoff.permits(permits), now)
        self._send_changes()

    def _send_changes(self) -> None:
        for connection, count in self.ready.changes:
            connection.send(command_writer.ready(count))
        self.ready.changes.clear()
