"""The tests' record of published, delivered and finished messages, against which nsqd is checked.

A body has its producer and its number, and so identifies its message. `began` and `due` are monotonic times; times of
finishing are wall-clock times, because they are compared with those of files.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_EARLINESS = 0.005
"""Tolerance for early deferred messages, in seconds: clocks differ by this between two lives of a process."""
_SHOWN = 20


class Sent(NamedTuple):
    """A message that is being published."""

    began: float
    due: float


@dataclass
class ChannelLedger:
    """A channel with its deliveries and finished messages. `since`: monotonic time from which it surely existed."""

    name: str
    since: float
    seen: set[bytes] = field(default_factory=set)
    confirmed: dict[bytes, float] = field(default_factory=dict)
    """Messages whose FIN nsqd has confirmed in this life, with times."""
    settled: set[bytes] = field(default_factory=set)
    """Messages finished before the last checkpoint, which must not return."""
    attempts: dict[bytes, int] = field(default_factory=dict)
    """The attempts of a message seen in this life of nsqd, a bit for each number."""
    deliveries: int = 0
    finishes: int = 0
    missed: int = 0
    """Messages acknowledged before the channel existed."""


class Ledger:
    """The ledger of a topic; thread-safe."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent: dict[bytes, Sent] = {}
        self.acknowledged: set[bytes] = set()
        self.channels: dict[str, ChannelLedger] = {}
        self.problems: list[str] = []
        self._together: list[Sequence[bytes]] = []
        self._lock = threading.Lock()

    # --- Producers ----------------------------------------------------------------------------------------------------

    def begin(self, bodies: Sequence[bytes], now: float, defer: float = 0.0, together: bool = False) -> None:
        """Record messages before they are sent; with `together`, all or none must arrive."""
        with self._lock:
            self.sent.update((body, Sent(now, now + defer)) for body in bodies)
            if together:
                self._together.append(bodies)

    def acknowledge(self, bodies: Iterable[bytes]) -> None:
        """Record nsqd's OK."""
        with self._lock:
            self.acknowledged.update(bodies)

    @property
    def backlog(self) -> int:
        """The approximate backlog of the slowest channel."""
        behind = [len(self.acknowledged) - each.missed - each.finishes for each in self.channels.values()]
        return max(behind, default=0)

    # --- Consumers ----------------------------------------------------------------------------------------------------

    def see(self, channel: ChannelLedger, body: bytes, now: float, attempt: int) -> None:
        """Record the delivery of a message."""
        with self._lock:
            before = channel.attempts.get(body, 0)
            channel.attempts[body] = before | 1 << attempt
            # An old delivery may have waited in a socket until it timed out and another consumer finished the message.
            is_late = not before & 1 << attempt and before > 1 << attempt
            channel.deliveries += 1
            channel.seen.add(body)
            sent = self.sent.get(body)
            if sent is None:
                self._complain(channel, "was delivered, but never sent", body)
            elif now < sent.due - _MAX_EARLINESS:
                self._complain(channel, f"was delivered {sent.due - now:.3f} s early", body)
            if body in channel.settled:
                self._complain(channel, "was delivered again, though finished before the last checkpoint", body)
            if body in channel.confirmed and not is_late:
                self._complain(channel, "was delivered again, though finished and without a kill", body)

    def confirm(self, channel: ChannelLedger, bodies: Iterable[bytes], at: float) -> None:
        """Record that nsqd has executed the FINs of these messages."""
        with self._lock:
            for body in bodies:
                channel.confirmed[body] = at
                channel.finishes += 1

    # --- Ends ---------------------------------------------------------------------------------------------------------

    def settle(self, known_until: float) -> None:
        """Record the end of nsqd. Messages finished until `known_until` (wall clock) must not return."""
        with self._lock:
            for channel in self.channels.values():
                channel.settled |= {body for body, at in channel.confirmed.items() if at < known_until}
                channel.confirmed.clear()
                channel.attempts.clear()

    def check(self) -> list[str]:
        """Check the ledger after everything is drained; returns a sentence for each error."""
        problems = list(self.problems)
        for channel in self.channels.values():
            expected = {body for body in self.acknowledged if self.sent[body].began >= channel.since}
            lost = expected - channel.seen
            if lost:
                problems.append(f"{self.topic}/{channel.name}: {len(lost)} acknowledged but lost: {_some(lost)}")
            for bodies in self._together:
                came = channel.seen.intersection(bodies)
                if came and len(came) < len(bodies) and self.sent[bodies[0]].began >= channel.since:
                    problems.append(
                        f"{self.topic}/{channel.name}: a partial MPUB was delivered, without {_some({*bodies} - came)}"
                    )
        return problems

    def _complain(self, channel: ChannelLedger, what: str, body: bytes) -> None:
        if len(self.problems) < _SHOWN:
            self.problems.append(f"{self.topic}/{channel.name}: {_name(body)} {what}")


def _name(body: bytes) -> str:
    return body.partition(b" ")[0].decode()


def _some(bodies: Iterable[bytes]) -> str:
    return ", ".join(sorted(map(_name, bodies))[:_SHOWN])
