"""RDY counts: max_in_flight, distributed over the connections of a consumer; and backoff.

A *permit* allows one message in flight. There are max_in_flight permits; after failures none while the consumer waits,
and one while it tests with a single message. RDY is a connection's share: nsqd keeps that many messages in flight. A
connection occupies as many permits as its RDY, or as it has messages in flight if these are more (after its RDY was
lowered). The sum never exceeds the number of permits, so raising one connection's RDY may have to wait until messages
of others are answered.

nsqd does not confirm RDY, and messages that it sent before it read a lower one are still arriving. A connection with a
lowered RDY therefore occupies the previous one until that many messages have arrived, or until it has *settled*:
`settle_time` seconds and two round trips after RDY was sent.

- *Enough permits for all connections*: a connection begins with RDY 1 and gets its even share with its first message.
  RDY is sent again when less than a quarter of the last one remains.
- *Fewer permits than connections*: some, chosen at random, have RDY 1. A connection that was idle for `idle_timeout`
  loses its permit. If all of them are busy, one that has had its permit for that long loses it to another connection.

Nothing here sends: methods add the RDY commands to send to `changes`.
"""

import enum
import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_REFRESH_BELOW = 0.25
_STARVED_FROM = 0.85
_MAX_EXCESS = 10
_MAX_BEYOND = 100


class Consuming(Hashable, Protocol):
    """The properties of a connection that the distribution of RDY depends on."""

    @property
    def in_flight(self) -> int: ...
    @property
    def max_rdy_count(self) -> int: ...
    @property
    def round_trip(self) -> float:
        """Seconds, measured while the connection was opened."""
        ...


C = TypeVar("C", bound=Consuming)


@dataclass(slots=True, eq=False)
class Share(Generic[C]):
    """A connection's RDY: as last sent, and what remains of it."""

    connection: C
    last_message_at: float
    sent: int = 0
    remaining: int = 0
    granted_at: float = 0.0
    has_begun: bool = False
    previous: int = 0
    """A higher RDY that nsqd may still follow, until `settles_at`."""
    settles_at: float = 0.0

    @property
    def occupied(self) -> int:
        """The permits that the connection occupies."""
        return max(self.sent, self.previous, self.connection.in_flight)


class ReadyCounts(Generic[C]):
    """Distributes `permits` over connections."""

    def __init__(
        self, permits: int, idle_timeout: float, generator: random.Random | None = None, settle_time: float = 0.0
    ) -> None:
        self.permits: int = permits
        self._most_permits = permits
        self.shares: dict[C, Share[C]] = {}
        self.changes: list[tuple[C, int]] = []
        self.is_short: bool = False
        """A connection's RDY can be raised after messages of others are answered."""
        self.settles_at: float = math.inf
        """The next time at which `settle` has to be called."""
        self._idle_timeout = idle_timeout
        self._settle_time = settle_time
        self._random = generator or random.Random()

    # --- Events -------------------------------------------------------------------------------------------------------

    def set_permits(self, permits: int, now: float) -> None:
        self.permits = permits
        self._most_permits = max(self._most_permits, permits)
        self._share_out(now)

    def add(self, connection: C, now: float) -> None:
        self.shares[connection] = Share(connection, last_message_at=now)
        self._share_out(now)

    def remove(self, connection: C, now: float) -> None:
        if self.shares.pop(connection, None) is not None:
            self._share_out(now)

    def received(self, connection: C, count: int, now: float) -> None:
        share = self.shares.get(connection)
        if share is None:
            return
        if share.previous:
            # Messages for an RDY that was lowered: other connections get fewer.
            self._reclaim_unused(now)
            if connection.in_flight >= share.previous:
                share.previous = 0
        share.has_begun = True
        share.last_message_at = now
        share.remaining -= count
        if share.remaining <= 0 or share.remaining < _REFRESH_BELOW * share.sent:
            wanted = self._wanted(share)
            if share.sent and wanted >= share.sent:
                self._raise(share, wanted, now, again=True)

    def is_exceeded(self, connection: C) -> bool:
        """Whether far more messages are in flight than there have ever been permits.

        Some more are usual: nsqd delivers others when messages have timed out that handlers still have.
        """
        return connection.in_flight > _MAX_EXCESS * self._most_permits + _MAX_BEYOND

    def answered(self, now: float) -> None:
        if self.is_short:
            self._share_out(now)

    def settle(self, now: float) -> None:
        """Redistribute the permits of connections that have settled."""
        if now < self.settles_at:
            return
        for share in self.shares.values():
            if share.settles_at <= now:
                share.previous = 0
        self.settles_at = min((share.settles_at for share in self.shares.values() if share.previous), default=math.inf)
        self._share_out(now)

    def redistribute(self, now: float) -> None:
        """Move permits between connections if there are too few for all. Called every few seconds."""
        if not 0 < self.permits < len(self.shares):
            return
        before = now - self._idle_timeout
        held_long = [share for share in self.shares.values() if share.sent and share.granted_at <= before]
        idle = [share for share in held_long if share.last_message_at <= before and not share.connection.in_flight]
        taken = idle or self._random.sample(held_long, min(1, len(held_long)))
        for share in taken:
            self._send(share, 0, now)
        self._share_out(now, exclude=taken)

    @property
    def is_starved(self) -> bool:
        """Whether a connection has at least 85 % of its RDY in flight."""
        return any(0 < share.connection.in_flight >= _STARVED_FROM * share.sent for share in self.shares.values())

    # --- Distribution -------------------------------------------------------------------------------------------------

    def _share_out(self, now: float, exclude: Sequence[Share[C]] = ()) -> None:
        self.is_short = False
        for share in self.shares.values():
            wanted = self._wanted(share)
            if share.sent > wanted:
                self._send(share, wanted, now)
        if self.permits >= len(self.shares):
            self._reclaim_unused(now)
            for share in self.shares.values():
                self._raise(share, self._wanted(share), now)
        else:
            self._share_out_few(now, exclude)

    def _wanted(self, share: Share[C]) -> int:
        """The RDY that the connection should have if permits are free."""
        even = self.permits // len(self.shares) or min(1, self.permits)
        if not share.has_begun:
            even = min(even, 1)
        return min(even, share.connection.max_rdy_count)

    def _share_out_few(self, now: float, exclude: Sequence[Share[C]]) -> None:
        holding = [share for share in self.shares.values() if share.sent]
        for share in self._random.sample(holding, max(0, len(holding) - self.permits)):
            self._send(share, 0, now)
        self._reclaim_unused(now)
        free = self.permits - sum(share.occupied for share in self.shares.values())
        # A connection that has not settled may still receive messages without RDY.
        waiting = [share for share in self.shares.values() if not share.occupied]
        # A connection that has just lost its permit gets it again only if no other can have it.
        preferred = [share for share in waiting if share not in exclude] or waiting
        for share in self._random.sample(preferred, max(0, min(free, len(preferred)))):
            self._send(share, 1, now)
        self.is_short = sum(1 for share in self.shares.values() if share.sent) < self.permits

    def _reclaim_unused(self, now: float) -> None:
        """Lower unused RDY while connections have more messages in flight than permitted."""
        # A lower RDY does not take back messages in flight.
        excess = sum(max(share.sent, share.connection.in_flight) for share in self.shares.values()) - self.permits
        if excess <= 0:
            return
        for share in self._random.sample(list(self.shares.values()), len(self.shares)):
            unused = min(share.sent - share.connection.in_flight, excess)
            if unused > 0:
                self._send(share, share.sent - unused, now)
                excess -= unused

    def _raise(self, share: Share[C], wanted: int, now: float, again: bool = False) -> None:
        """Raise RDY up to `wanted`, as far as permits are free; with `again`, send it even if unchanged."""
        if share.sent >= wanted and not again:
            return
        room = self.permits - sum(other.occupied for other in self.shares.values() if other is not share)
        count = min(wanted, room)
        self.is_short |= count < wanted
        if count > share.sent or (again and count == share.sent):
            self._send(share, count, now)

    def _send(self, share: Share[C], count: int, now: float) -> None:
        connection = share.connection
        if count > 0 and not share.sent:
            share.granted_at = now
        if count < share.sent and connection.in_flight < share.sent and self._settle_time:
            share.previous = max(share.previous, share.sent)
            share.settles_at = now + self._settle_time + 2 * connection.round_trip
            self.settles_at = min(self.settles_at, share.settles_at)
        share.sent = share.remaining = count
        self.changes.append((connection, count))


class Pace(enum.Enum):
    FLOWING = "flowing"
    WAITING = "waiting"
    """RDY is 0 until `until`. Outcomes concern earlier messages and are ignored."""
    TESTING = "testing"
    """RDY is 1 on one connection. The next outcome decides."""


@dataclass(slots=True)
class Backoff:
    """The backoff of a consumer after failures: it stops, waits, tests with one message, and waits less or longer.

    Level n waits ``first * 2 ** (n - 1)`` seconds, at most `longest`; 0 turns backoff off. `failed` and `succeeded`
    return whether the pace has changed.
    """

    first: float = 2.0
    longest: float = 120.0
    level: int = 0
    pace: Pace = Pace.FLOWING
    until: float = 0.0

    def permits(self, most: int) -> int:
        """The number of permits at this pace, of at most `most`."""
        return {Pace.FLOWING: most, Pace.WAITING: 0, Pace.TESTING: min(1, most)}[self.pace]

    def failed(self, now: float) -> bool:
        if self.pace is Pace.WAITING or self.longest <= 0:
            return False
        # Higher levels would not wait longer, and each would take one more success to leave.
        if self._delay(self.level) < self.longest or self.level == 0:
            self.level += 1
        self._wait_from(now)
        return True

    def succeeded(self, now: float) -> bool:
        if self.pace is not Pace.TESTING:
            return False
        self.level -= 1
        if self.level:
            self._wait_from(now)
        else:
            self.pace = Pace.FLOWING
        return True

    def passed(self, now: float) -> bool:
        """Whether the wait is over; the pace becomes ``TESTING``."""
        if self.pace is not Pace.WAITING or now < self.until:
            return False
        self.pace = Pace.TESTING
        return True

    def _wait_from(self, now: float) -> None:
        self.pace = Pace.WAITING
        self.until = now + self._delay(self.level)

    def _delay(self, level: int) -> float:
        return float(min(self.longest, self.first * 2 ** (level - 1)))
