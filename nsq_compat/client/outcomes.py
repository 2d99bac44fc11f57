"""How a publish ended: sent, refused, or unknown. One of the three, exactly, and what every node had to do with it."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Outcome(enum.Enum):
    SENT = "sent"
    """nsqd said OK."""
    REFUSED = "refused"
    """The node has not got it: it said so, or was never given it."""
    UNKNOWN = "unknown"
    """It was sent and nothing came back: the node may have it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of it at one node."""

    address: str
    outcome: Outcome
    error: Exception | None = None

    def __str__(self) -> str:
        return f"{self.address} {self.outcome.value}" + (f" ({self.error})" if self.error else "")


@dataclass(frozen=True, slots=True)
class Published:
    """It was sent. Where an earlier attempt is unknown, it may be there twice."""

    attempts: tuple[Attempt, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Which nodes said OK."""
        return _nodes_with(self.attempts, Outcome.SENT)

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Which nodes may have it besides."""
        return _nodes_with(self.attempts, Outcome.UNKNOWN)


class Error(Exception):
    """What the callbacks of ``Writer`` are given when something went wrong; the name is pynsq's."""


class PublishError(Error):
    """It was not published as asked."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = tuple(attempts)
        super().__init__("; ".join(map(str, attempts)) or "no time was left to try any node")

    @property
    def nodes(self) -> tuple[str, ...]:
        """Which nodes said OK all the same: some, where more copies were wanted."""
        return _nodes_with(self.attempts, Outcome.SENT)


class Refused(PublishError):
    """No node has it, for certain."""


class Unknown(PublishError):
    """No node said OK, one at least may have it."""


class TooFewCopies(PublishError):
    """Nodes have it, fewer than were asked for."""


def _nodes_with(attempts: Sequence[Attempt], outcome: Outcome) -> tuple[str, ...]:
    return tuple(attempt.address for attempt in attempts if attempt.outcome is outcome)


def result_of(attempts: Sequence[Attempt], copies: int) -> Published:
    """Raises the ``PublishError`` that the attempts amount to, unless there are enough copies."""
    sent = len(_nodes_with(attempts, Outcome.SENT))
    if sent >= copies:
        return Published(tuple(attempts))
    if sent:
        raise TooFewCopies(attempts)
    raise (Unknown if _nodes_with(attempts, Outcome.UNKNOWN) else Refused)(attempts)
