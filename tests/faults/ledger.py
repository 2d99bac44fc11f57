"""What was said to nsqd and what it answered, kept by the tests, so that nsqd's memory can be held against it.

A body names its producer and its number, so it stands for its message. Times: `began` and `due` are monotonic, times of
finishing are wall clock, because they are compared with those of files.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_EARLY = 0.005
"""Seconds a deferred message may come early: the clocks of two lives of a process are not more equal than that."""
_SHOWN = 20


class Sent(NamedTuple):
    """A message on its way to nsqd."""

    began: float
    due: float


@dataclass
class ChannelLedger:
    """One channel: what it gave, and what was finished there. `since` is when it was sure to be there (monotonic)."""

    name: str
    since: float
    seen: set[bytes] = field(default_factory=set)
    confirmed: dict[bytes, float] = field(default_factory=dict)
    """Finished in this life of nsqd, and nsqd is known to have heard it: when."""
    settled: set[bytes] = field(default_factory=set)
    """Finished before the last checkpoint: gone for ever."""
    attempts: dict[bytes, int] = field(default_factory=dict)
    """Which deliveries of a message have been seen in this life of nsqd, a bit for each number."""
    deliveries: int = 0
    finishes: int = 0
    missed: int = 0
    """Acknowledged before it was there."""


class Ledger:
    """One topic. For several threads."""

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
        """These are about to be sent; `together` says that all of them or none must arrive."""
        with self._lock:
            self.sent.update((body, Sent(now, now + defer)) for body in bodies)
            if together:
                self._together.append(bodies)

    def acknowledge(self, bodies: Iterable[bytes]) -> None:
        """nsqd said OK."""
        with self._lock:
            self.acknowledged.update(bodies)

    @property
    def backlog(self) -> int:
        """Roughly how many messages the slowest channel has before it."""
        behind = [len(self.acknowledged) - each.missed - each.finishes for each in self.channels.values()]
        return max(behind, default=0)

    # --- Consumers ----------------------------------------------------------------------------------------------------

    def see(self, channel: ChannelLedger, body: bytes, now: float, attempt: int) -> None:
        """A message came, delivered for the `attempt`-th time."""
        with self._lock:
            before = channel.attempts.get(body, 0)
            channel.attempts[body] = before | 1 << attempt
            # One that lay in a socket until it had timed out and somebody else had finished it is no news of nsqd's.
            is_late = not before & 1 << attempt and before > 1 << attempt
            channel.deliveries += 1
            channel.seen.add(body)
            sent = self.sent.get(body)
            if sent is None:
                self._complain(channel, "came, and nobody sent it", body)
            elif now < sent.due - _EARLY:
                self._complain(channel, f"came {sent.due - now:.3f} s early", body)
            if body in channel.settled:
                self._complain(channel, "came again, though finished before the last checkpoint", body)
            if body in channel.confirmed and not is_late:
                self._complain(channel, "came again, though finished, and nobody was killed", body)

    def confirm(self, channel: ChannelLedger, bodies: Iterable[bytes], at: float) -> None:
        """nsqd has heard that these are finished."""
        with self._lock:
            for body in bodies:
                channel.confirmed[body] = at
                channel.finishes += 1

    # --- Ends ---------------------------------------------------------------------------------------------------------

    def settle(self, known_until: float) -> None:
        """nsqd has ended; what was finished up to then (wall clock) may not come again, what was finished later may."""
        with self._lock:
            for channel in self.channels.values():
                channel.settled |= {body for body, at in channel.confirmed.items() if at < known_until}
                channel.confirmed.clear()
                channel.attempts.clear()

    def check(self) -> list[str]:
        """Everything is drained: what is wrong, in sentences; nothing if all is well."""
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
                        f"{self.topic}/{channel.name}: half an MPUB came, without {_some({*bodies} - came)}"
                    )
        return problems

    def _complain(self, channel: ChannelLedger, what: str, body: bytes) -> None:
        if len(self.problems) < _SHOWN:
            self.problems.append(f"{self.topic}/{channel.name}: {_name(body)} {what}")


def _name(body: bytes) -> str:
    return body.partition(b" ")[0].decode()


def _some(bodies: Iterable[bytes]) -> str:
    return ", ".join(sorted(map(_name, bodies))[:_SHOWN])
