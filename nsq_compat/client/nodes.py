"""The nodes of a producer: the order in which to try them, and the results of attempts. Without I/O and threads."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from nsq_compat.client.connection import ConnectionLost
from nsq_compat.protocol.errors import E_BAD_BODY, E_BAD_MESSAGE, E_BAD_TOPIC, E_INVALID, NsqError

_MESSAGE_ERRORS: Final = frozenset({E_INVALID, E_BAD_TOPIC, E_BAD_BODY, E_BAD_MESSAGE})
_FIRST_PENALTY: Final = 1.0
_MAX_PENALTY: Final = 60.0


class Outcome(enum.Enum):
    SENT = "sent"
    """nsqd answered OK."""
    REFUSED = "refused"
    """The node does not have the message: it refused it, or did not receive it."""
    UNKNOWN = "unknown"
    """The message was sent and not answered: the node may have it."""


class HeadersNotTaken(NsqError):
    """nsqd does not take messages with headers, and was not sent any. Another one may."""

    def __init__(self) -> None:
        super().__init__("it does not take messages with headers, which only an nsqd of nsq_compat does")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome at one node."""

    address: str
    outcome: Outcome
    error: Exception | None = None

    def __str__(self) -> str:
        error = self.error.reason if isinstance(self.error, ConnectionLost) else self.error
        doubt = "; nsqd may have the message" if self.outcome is Outcome.UNKNOWN else ""
        return f"{self.address}: {error or self.outcome.value}{doubt}"

    @property
    def is_final(self) -> bool:
        """Whether nsqd refused the message itself, as every other node would."""
        return isinstance(self.error, NsqError) and self.error.code in _MESSAGE_ERRORS


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
        super().__init__("; ".join(dict.fromkeys(map(str, attempts))) or "no time was left to try a node")

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


# --- The order of attempts --------------------------------------------------------------------------------------------


class Nodes:
    """All nodes of a producer, by address."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = list(dict.fromkeys(addresses))
        if not self.addresses:
            raise ValueError("no nsqd_tcp_addresses to publish to")
        self._turn = 0
        self._penalties: dict[str, tuple[float, float]] = {}
        """For nodes that have failed: the time until which they are tried last, and the next penalty."""

    def in_order(self, now: float) -> list[str]:
        """The nodes in the order to try them: each call begins with the next node; penalized nodes are last."""
        turn = self._turn
        self._turn = (turn + 1) % len(self.addresses)
        rotated = [*self.addresses[turn:], *self.addresses[:turn]]
        if not self._penalties:
            return rotated
        return sorted(rotated, key=lambda node: max(now, self._penalties.get(node, (now, 0.0))[0]))

    def note(self, attempt: Attempt, now: float) -> None:
        """Penalize the node for a failure, each time for twice as long; a success ends the penalty."""
        if attempt.outcome is Outcome.SENT:
            self._penalties.pop(attempt.address, None)
        elif not attempt.is_final:
            _, penalty = self._penalties.get(attempt.address, (now, _FIRST_PENALTY))
            self._penalties[attempt.address] = now + penalty, min(2 * penalty, _MAX_PENALTY)


class Candidates:
    """The nodes to try for one publish, and the attempts. Each is tried twice: an idle connection may have ended."""

    def __init__(self, nodes: Sequence[str], copies: int) -> None:
        self.attempts: list[Attempt] = []
        self.left = max(2, len(nodes)) + copies - 1
        """The number of further attempts."""
        self._order = [*nodes, *nodes]
        self._taken: set[str] = set()

    def take(self) -> str | None:
        """The next node that no other copy uses; None if there is none, or no attempt is left."""
        node = next((node for node in self._order if node not in self._taken), None) if self.left > 0 else None
        if node is not None:
            self._order.remove(node)
            self._taken.add(node)
            self.left -= 1
        return node

    def note(self, attempt: Attempt) -> bool:
        """Record an attempt at a node from `take`. Returns whether its copy needs no attempt at another node."""
        self.attempts.append(attempt)
        if attempt.outcome is Outcome.SENT or attempt.is_final:
            return True
        self._taken.discard(attempt.address)
        return False
