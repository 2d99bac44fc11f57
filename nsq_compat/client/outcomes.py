"""Results of a publish: of each attempt at a node, and of the whole."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Outcome(enum.Enum):
    SENT = "sent"
    """nsqd answered OK."""
    REFUSED = "refused"
    """The node does not have the message: it refused it, or did not receive it."""
    UNKNOWN = "unknown"
    """The message was sent and not answered: the node may have it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome at one node."""

    address: str
    outcome: Outcome
    error: Exception | None = None

    def __str__(self) -> str:
        return f"{self.address} {self.outcome.value}" + (f" ({self.error})" if self.error else "")


@dataclass(frozen=True, slots=True)
class Published:
    """A successful publish. If an earlier attempt is unknown, the message may be published twice."""

    attempts: tuple[Attempt, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that answered OK."""
        return _nodes_with(self.attempts, Outcome.SENT)

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Other nodes that may have the message."""
        return _nodes_with(self.attempts, Outcome.UNKNOWN)


class Error(Exception):
    """An error passed to callbacks of ``Writer``; the name is pynsq's."""


class PublishError(Error):
    """The publish failed."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = tuple(attempts)
        super().__init__("; ".join(map(str, attempts)) or "no time was left to try a node")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that answered OK; there may be some if several copies were requested."""
        return _nodes_with(self.attempts, Outcome.SENT)


class Refused(PublishError):
    """No node has the message."""


class Unknown(PublishError):
    """No node answered OK; at least one may have the message."""


class TooFewCopies(PublishError):
    """Fewer nodes than requested have the message."""


def _nodes_with(attempts: Sequence[Attempt], outcome: Outcome) -> tuple[str, ...]:
    return tuple(attempt.address for attempt in attempts if attempt.outcome is outcome)


def result_of(attempts: Sequence[Attempt], copies: int) -> Published:
    """The result of the attempts. Raises a ``PublishError`` if there are too few copies."""
    sent = len(_nodes_with(attempts, Outcome.SENT))
    if sent >= copies:
        return Published(tuple(attempts))
    if sent:
        raise TooFewCopies(attempts)
    raise (Unknown if _nodes_with(attempts, Outcome.UNKNOWN) else Refused)(attempts)
