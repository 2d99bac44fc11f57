"""The decisions of a producer: which nodes to try, for how long, and what attempts result in. Without I/O and threads.

Used by the producer in threads and by the one on an event loop.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nsq_compat.client.link import ConnectionLost, NotExecuted
from nsq_compat.client.publishing import Publish
from nsq_compat.protocol.errors import (
    E_BAD_BODY,
    E_BAD_MESSAGE,
    E_BAD_TOPIC,
    E_INVALID,
    E_NOT_MIRRORED,
    NsqError,
    one_line,
)

_MESSAGE_ERRORS: Final = frozenset({E_INVALID, E_BAD_TOPIC, E_BAD_BODY, E_BAD_MESSAGE})
_FIRST_PENALTY: Final = 1.0
_MAX_PENALTY: Final = 60.0
_MAX_FREE: Final = 10
"""Attempts of a call that do not count, because its command was not executed."""
_MAX_ALIKE: Final = 3
"""Equal attempts of a call, of which only the last ones are kept."""
_FIRST_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 1.0
_MIN_SHARE: Final = 1.0
"""Seconds that a further attempt at the same node gets at least, if that is left."""


class Outcome(enum.Enum):
    SENT = "sent"
    """nsqd answered OK."""
    REFUSED = "refused"
    """The node does not have the message: it refused it, or did not receive it."""
    UNKNOWN = "unknown"
    """The message was sent and not answered: the node may have it."""
    RETRIED = "retried"
    """The message was sent and not answered, but a later attempt with the same id was: the node has it once, or not."""


class HeadersNotTaken(NsqError):
    """nsqd does not take messages with headers, and was not sent any. Another one may."""

    def __init__(self) -> None:
        super().__init__("it does not take messages with headers or ids, which only an nsqd of nsq_compat does")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome at one node."""

    address: str
    outcome: Outcome
    error: Exception | None = None

    def __str__(self) -> str:
        error = self.error.reason if isinstance(self.error, ConnectionLost) else self.error
        doubt = "; nsqd may have the message" if self.outcome is Outcome.UNKNOWN else ""
        return f"{self.address}: {one_line(str(error or self.outcome.value))}{doubt}"

    @property
    def is_final(self) -> bool:
        """Whether nsqd refused the message itself, as every other node would."""
        return isinstance(self.error, NsqError) and self.error.code in _MESSAGE_ERRORS


def _is_unreached(attempt: Attempt) -> bool:
    """Whether the node did not take the command, because it was not there or was stopping."""
    error = attempt.error
    return isinstance(error, ConnectionLost) or (isinstance(error, NsqError) and str(error).endswith("exiting"))


def failed_attempt(address: str, error: Exception, *, was_sent: bool) -> Attempt:
    """The attempt that failed with this error, before or after the command was given to a connection."""
    if isinstance(error, NsqError):
        is_unknown = error.code == E_NOT_MIRRORED  # it is in the log, and may be delivered
    else:
        is_unknown = was_sent and not isinstance(error, NotExecuted)
    return Attempt(address, Outcome.UNKNOWN if is_unknown else Outcome.REFUSED, error)


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

    publish: Publish | None = None
    """Of an idempotent producer: what ``Producer.retry`` sends again."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts: tuple[Attempt, ...] = tuple(attempts)
        super().__init__("; ".join(dict.fromkeys(map(str, attempts))) or "no time was left to try a node")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that answered OK; there may be some if several copies were requested."""
        return _nodes_with(self.attempts, Outcome.SENT)

    @property
    def doubtful(self) -> tuple[str, ...]:
        """The nodes that may have the message."""
        return _nodes_with(self.attempts, Outcome.UNKNOWN)


class Refused(PublishError):
    """No node has the message."""


class Unknown(PublishError):
    """No node answered OK; at least one may have the message."""


class TooFewCopies(PublishError):
    """Fewer nodes than requested have the message."""


def may_be_for_one(outcome: object) -> bool:
    """Whether nsqd may have refused a batch because of one message: then try each alone.

    If no node could be reached, they would only wait again.
    """
    attempts = outcome.attempts if isinstance(outcome, Refused) else ()
    return any(isinstance(attempt.error, NsqError) for attempt in attempts)


def retried(error: PublishError) -> Publish:
    """What is published again. Raises ``ValueError`` if that could be published twice, else ``TypeError``."""
    if not isinstance(error, PublishError):
        raise TypeError(
            f"retry takes the error that a publish has raised (Unknown, Refused, TooFewCopies), not {error!r:.80}"
        )
    if error.publish is None:
        raise ValueError("only what an idempotent producer has published can be retried; other messages have no ids")
    return error.publish


def _nodes_with(attempts: Sequence[Attempt], outcome: Outcome) -> tuple[str, ...]:
    return tuple(dict.fromkeys(attempt.address for attempt in attempts if attempt.outcome is outcome))


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
        self.addresses: list[str] = list(dict.fromkeys(addresses))
        if not self.addresses:
            raise ValueError("no nsqd_tcp_addresses to publish to")
        self._turn = 0
        self._penalties: dict[str, tuple[float, float]] = {}
        """For nodes that have failed: the time until which they are tried last, and the next penalty."""

    def check_copies(self, copies: int) -> None:
        """Raises ``ValueError`` if a message cannot be published to so many nodes."""
        if not 1 <= copies <= (count := len(self.addresses)):
            raise ValueError(f"copies must be 1 to {count}, the number of nodes, not {copies!r}")

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
    """One publish: the nodes to try, each with a share of the time, and the attempts.

    Each node is tried twice, because an idle connection may have ended. `now` and `deadline` are seconds.

    With `ids`, the messages have publish ids. Then a node that did not answer is tried again until it does, and no
    other one in its place: only this node can know whether it has the messages. If all nodes were tried in vain, those
    that could not be reached, or were stopping, are tried again until the deadline, after longer and longer pauses.
    `earlier` are the attempts of an earlier call.
    """

    def __init__(
        self,
        nodes: Nodes,
        copies: int,
        now: float,
        deadline: float,
        *,
        ids: bool = False,
        earlier: Sequence[Attempt] = (),
    ) -> None:
        self.attempts: list[Attempt] = [*earlier]
        self.left: int = max(2, len(nodes.addresses)) + copies - 1
        """The number of further attempts."""
        self._nodes = nodes
        self._copies = copies
        self._deadline = deadline
        self._free = _MAX_FREE
        self._order = nodes.in_order(now) * 2
        self._ids = ids
        unknown = dict.fromkeys(_nodes_with(earlier, Outcome.UNKNOWN))
        self._again = [each for each in unknown if each in nodes.addresses]
        """Nodes that did not answer, to be tried next."""
        self._failures = dict.fromkeys(self._again, 0)
        """Nodes that did not answer, with the number of attempts since then."""
        self._answered: set[str] = set()
        """Nodes that have answered since they last did not."""
        self._unreached: set[str] = set()
        """Nodes that could not be reached when they were tried last, or were stopping."""
        self._rounds = 0
        """How often those were tried again."""
        self._ended_round: Attempt | None = None
        """The attempt after which the last round began."""
        self._taken = {*_nodes_with(earlier, Outcome.SENT), *self._again}

    @property
    def missing(self) -> int:
        """The number of copies that no node has for certain."""
        return self._copies - len(_nodes_with(self.attempts, Outcome.SENT))

    def take(self, now: float) -> tuple[str, float] | None:
        """The next node that no other copy uses, and the deadline for it; None if no node, attempt or time is left."""
        if self._again and now < self._deadline:
            left = self._deadline - now
            return self._again.pop(0), now + max(left / 2, min(left, _MIN_SHARE))
        if self.left > 0 and now < self._deadline:
            for node in self._order:
                if node not in self._taken:
                    self._order.remove(node)
                    self._taken.add(node)
                    self.left -= 1
                    return node, now + (self._deadline - now) / (self.left + 1)
        return None

    def note(self, attempt: Attempt, now: float) -> bool:
        """Record an attempt at a node from `take`. Returns whether its copy needs no attempt at another node."""
        alike = [each for each in self.attempts if str(each) == str(attempt)]
        if len(alike) >= _MAX_ALIKE:
            self.attempts.remove(alike[0])
        self.attempts.append(attempt)
        is_retried = attempt.address in self._failures and attempt.outcome is not Outcome.SENT
        # Neither says anything about the node: NotExecuted means that the connection had ended.
        if not isinstance(attempt.error, NotExecuted | HeadersNotTaken) and not is_retried:
            self._nodes.note(attempt, now)
        if self._ids and self._is_unanswered(attempt):
            self._answered.discard(attempt.address)
            self._failures[attempt.address] = self._failures.get(attempt.address, -1) + 1
            self._again.append(attempt.address)
            return False
        self._failures.pop(attempt.address, None)
        self._answered.add(attempt.address)
        if attempt.outcome is Outcome.SENT or attempt.is_final:
            return True
        self._taken.discard(attempt.address)
        if isinstance(attempt.error, NotExecuted) and self._free > 0:
            # The refusal of another call may have ended the connection, which does not count.
            self._free -= 1
            self.left += 1
            self._order.insert(0, attempt.address)
        elif self._ids:
            self._begin_round_after(attempt, now)
        return False

    def _begin_round_after(self, attempt: Attempt, now: float) -> None:
        """If no node is left, go on with those that may be there again."""
        if _is_unreached(attempt):
            self._unreached.add(attempt.address)
        else:
            self._unreached.discard(attempt.address)
        if self._unreached and (self.left <= 0 or self._taken.issuperset(self._order)):
            self._order = [node for node in self._nodes.in_order(now) if node in self._unreached]
            self.left = len(self._order)
            self._rounds += 1
            self._ended_round = attempt

    def pause_after(self, attempt: Attempt, now: float) -> float:
        """Seconds to wait before the node, or another one, is tried again."""
        count = self._rounds if attempt is self._ended_round else self._failures.get(attempt.address, 0)
        pause = min(_FIRST_PAUSE * 2.0 ** min(count, _MAX_FREE), _MAX_PAUSE) if count else 0.0
        return max(0.0, min(pause, self._deadline - now))

    def _is_unanswered(self, attempt: Attempt) -> bool:
        """Whether it is unknown after this attempt if the node has the message."""
        is_answered = isinstance(attempt.error, NsqError) and not isinstance(attempt.error, HeadersNotTaken)
        was_unknown = attempt.address in self._failures and attempt.outcome is not Outcome.SENT
        return attempt.outcome is Outcome.UNKNOWN or (was_unknown and not is_answered)

    def result(self, publish: Publish) -> Published:
        """The result of `publish`. Raises a ``PublishError`` if there are too few copies."""
        if not self._ids:
            return result_of(self.attempts, self._copies)
        attempts = [
            replace(each, outcome=Outcome.RETRIED)
            if each.outcome is Outcome.UNKNOWN and each.address in self._answered
            else each
            for each in self.attempts
        ]
        try:
            return result_of(attempts, self._copies)
        except PublishError as error:
            error.publish = publish
            raise
