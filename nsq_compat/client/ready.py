"""Who may be sent how many messages: max_in_flight, shared by the connections of a consumer.

Theory of operation. A *permit* is the right to have one message in flight; there are max_in_flight of them, one while
the consumer tests the waters after failures, none while it waits. RDY is a connection's share of the permits: nsqd
keeps that many messages in flight. What a connection occupies is its RDY, or what it still has in flight if that is
more (its RDY was lowered); all of it together never exceeds the permits, so who should have more waits until others
have answered.

nsqd does not confirm RDY. What it sent before it read a lower one is still on its way, so a connection that was lowered
occupies its previous RDY until that many messages have come, or until it has *settled*: `settle_time` seconds and twice
its round trip after RDY was sent.

- *Enough permits for all*: a connection begins with RDY 1 and gets its even share with its first message. RDY is sent
  again when less than a quarter of the last one remains.
- *Fewer permits than connections*: a random few have RDY 1. Who was idle for `idle_timeout` gives it back; if all who
  hold one are busy, one of those who have had it for so long does, and it goes to somebody else.

Nothing here sends: every method returns nothing and leaves what is to be sent in `changes`.
"""

import enum
import math
import random
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_REFRESH_BELOW = 0.25
_STARVED_FROM = 0.85


class Consuming(Hashable, Protocol):
    """What is asked of a connection."""

    @property
    def in_flight(self) -> int: ...
    @property
    def max_rdy_count(self) -> int: ...
    @property
    def round_trip(self) -> float:
        """Seconds from a command to its answer, as measured when the connection was opened."""


C = TypeVar("C", bound=Consuming)


@dataclass(slots=True)
class Share:
    """One connection's RDY as last sent, what remains of it, and since when."""

    sent: int = 0
    remaining: int = 0
    granted_at: float = 0.0
    last_message_at: float = 0.0
    has_begun: bool = False
    previous: int = 0
    """The RDY that nsqd may still follow until `settles_at`, while it is greater than `sent`."""
    settles_at: float = 0.0


class ReadyCounts(Generic[C]):
    """Shares out `permits`. `choose` makes the random choices (``random.sample``)."""

    def __init__(
        self, permits: int, idle_timeout: float, generator: random.Random | None = None, settle_time: float = 0.0
    ) -> None:
        self.permits = permits
        self.shares: dict[C, Share] = {}
        self.changes: list[tuple[C, int]] = []
        self.is_short = False
        """Somebody waits for others to answer: `answered` will serve him."""
        self.settles_at = math.inf
        """When `settle` has something to do."""
        self._idle_timeout = idle_timeout
        self._settle_time = settle_time
        self._random = generator or random.Random()

    # --- What happens -------------------------------------------------------------------------------------------------

    def set_permits(self, permits: int, now: float) -> None:
        self.permits = permits
        self._share_out(now)

    def add(self, connection: C, now: float) -> None:
        self.shares[connection] = Share(last_message_at=now)
        self._share_out(now)

    def remove(self, connection: C, now: float) -> None:
        if self.shares.pop(connection, None) is not None:
            self._share_out(now)

    def received(self, connection: C, count: int, now: float) -> None:
        share = self.shares.get(connection)
        if share is None:
            return
        if share.previous:
            # Of an RDY that was taken back: others get that much less.
            self._reclaim_unused(now)
            if connection.in_flight >= share.previous:
                share.previous = 0
        share.has_begun = True
        share.last_message_at = now
        share.remaining -= count
        if share.remaining <= 0 or share.remaining < _REFRESH_BELOW * share.sent:
            wanted = self._wanted(connection, share)
            if share.sent and wanted >= share.sent:
                self._raise(connection, share, wanted, now, again=True)

    def answered(self, now: float) -> None:
        """Messages were answered."""
        if self.is_short:
            self._share_out(now)

    def settle(self, now: float) -> None:
        """Give to others what connections whose RDY was lowered no longer occupy."""
        if now < self.settles_at:
            return
        for share in self.shares.values():
            if share.settles_at <= now:
                share.previous = 0
        self.settles_at = min((share.settles_at for share in self.shares.values() if share.previous), default=math.inf)
        self._share_out(now)

    def redistribute(self, now: float) -> None:
        """Every few seconds: take permits from where they lie idle when there are too few for all."""
        if not 0 < self.permits < len(self.shares):
            return
        held_long = [
            (connection, share)
            for connection, share in self.shares.items()
            if share.sent and now - max(share.granted_at, share.last_message_at) >= self._idle_timeout
        ]
        taken = [connection for connection, _ in held_long if not connection.in_flight]
        if not taken:
            busy = [
                connection
                for connection, share in self.shares.items()
                if share.sent and now - share.granted_at >= self._idle_timeout
            ]
            taken = self._random.sample(busy, min(1, len(busy)))
        for connection in taken:
            self._send(connection, self.shares[connection], 0, now)
        self._share_out(now, exclude=frozenset(taken))

    @property
    def is_starved(self) -> bool:
        """Whether somebody has nearly as much in flight as it may: whoever gathers messages should answer them now."""
        return any(0 < connection.in_flight >= _STARVED_FROM * share.sent for connection, share in self.shares.items())

    # --- Sharing out --------------------------------------------------------------------------------------------------

    def _share_out(self, now: float, exclude: frozenset[C] = frozenset()) -> None:
        self.is_short = False
        for connection, share in self.shares.items():
            wanted = self._wanted(connection, share)
            if share.sent > wanted:
                self._send(connection, share, wanted, now)
        if self.permits >= len(self.shares):
            self._reclaim_unused(now)
            for connection, share in self.shares.items():
                self._raise(connection, share, self._wanted(connection, share), now)
        else:
            self._share_out_few(now, exclude)

    def _wanted(self, connection: C, share: Share) -> int:
        """What the connection should have, if there is room."""
        each = self.permits // len(self.shares) or min(1, self.permits)
        if not share.has_begun:
            each = min(each, 1)
        return min(each, connection.max_rdy_count)

    def _share_out_few(self, now: float, exclude: frozenset[C]) -> None:
        holding = [connection for connection, share in self.shares.items() if share.sent]
        for connection in self._random.sample(holding, max(0, len(holding) - self.permits)):
            self._send(connection, self.shares[connection], 0, now)
        self._reclaim_unused(now)
        free = self.permits - self._occupied()
        # A connection that has not settled may get messages without RDY.
        waiting = [connection for connection in self.shares if not self._occupied_by(connection)]
        # Who has just given its permit back gets it again only if nobody else can have it.
        preferred = [connection for connection in waiting if connection not in exclude] or waiting
        for connection in self._random.sample(preferred, max(0, min(free, len(preferred)))):
            self._send(connection, self.shares[connection], 1, now)
        self.is_short = sum(1 for share in self.shares.values() if share.sent) < self.permits

    def _reclaim_unused(self, now: float) -> None:
        """While others still have in flight what they may no longer have, those who could get more may not."""
        # What is on its way already is not made less by a lower RDY.
        excess = sum(max(share.sent, connection.in_flight) for connection, share in self.shares.items()) - self.permits
        if excess <= 0:
            return
        for connection in self._random.sample(list(self.shares), len(self.shares)):
            share = self.shares[connection]
            unused = min(share.sent - connection.in_flight, excess)
            if unused > 0:
                self._send(connection, share, share.sent - unused, now)
                excess -= unused

    def _occupied_by(self, connection: C) -> int:
        share = self.shares[connection]
        return max(share.sent, share.previous, connection.in_flight)

    def _occupied(self) -> int:
        return sum(map(self._occupied_by, self.shares))

    def _raise(self, connection: C, share: Share, wanted: int, now: float, again: bool = False) -> None:
        """Up to `wanted`, as far as the others leave room; with `again` also if that is no more than before."""
        if share.sent >= wanted and not again:
            return
        room = self.permits - (self._occupied() - self._occupied_by(connection))
        count = min(wanted, room)
        self.is_short |= count < wanted
        if count > share.sent or (again and count == share.sent):
            self._send(connection, share, count, now)

    def _send(self, connection: C, share: Share, count: int, now: float) -> None:
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
    """Nothing is asked for until `until`; results are of what came before and count no more."""
    TESTING = "testing"
    """One message is asked for; its result decides."""


@dataclass(slots=True)
class Backoff:
    """Level n waits ``first * 2 ** (n - 1)`` seconds, at most `longest`. A `longest` of 0 turns it off."""

    first: float = 2.0
    longest: float = 120.0
    level: int = 0
    pace: Pace = Pace.FLOWING
    until: float = 0.0

    def failed(self, now: float) -> bool:
        """True when the pace has changed."""
        if self.pace is Pace.WAITING or self.longest <= 0:
            return False
        # Further levels would wait no longer, and would have to be gone down again one by one.
        if self._wait(self.level) < self.longest or self.level == 0:
            self.level += 1
        self._rest(now)
        return True

    def succeeded(self, now: float) -> bool:
        """True when the pace has changed."""
        if self.pace is not Pace.TESTING:
            return False
        self.level -= 1
        if self.level:
            self._rest(now)
        else:
            self.pace = Pace.FLOWING
        return True

    def passed(self, now: float) -> bool:
        """Whether the wait is over now: the pace is ``TESTING`` then."""
        if self.pace is not Pace.WAITING or now < self.until:
            return False
        self.pace = Pace.TESTING
        return True

    def _rest(self, now: float) -> None:
        self.pace = Pace.WAITING
        self.until = now + self._wait(self.level)

    def _wait(self, level: int) -> float:
        return float(min(self.longest, self.first * 2 ** (level - 1)))
