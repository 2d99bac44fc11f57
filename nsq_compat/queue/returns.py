"""Why messages came back to a channel: for an operator, of those that did so last.

Noted only where a message comes back, so a message that is finished at its first delivery costs nothing. The number is
bounded for each channel, because an id is not forgotten when its message is finished, and nothing of it is in the log.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from nsq_compat.queue.schedule import NEVER

REQUEUED: Final = "requeued"
TIMED_OUT: Final = "timed_out"
DISCONNECTED: Final = "disconnected"
"""Its consumer left, so it came back when it timed out."""
OPERATOR: Final = "operator"

MAX_KEPT: Final = 250
"""Messages of a channel; up to twice as many between two removals."""


class Return(NamedTuple):
    reason: str
    at: float
    """When it came back, in monotonic seconds; ``NEVER`` if it has not yet, because its consumer has only left."""
    client: tuple[str, str] | None
    """The id and the address of the client that had the message."""


_Returned = tuple[str, float, tuple[str, str] | None]
"""The same, for less time and memory."""


class Returns:
    """The last return of each message, oldest first."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[bytes, _Returned] = {}

    def note_requeue(self, message_id: bytes, now: float, client: tuple[str, str]) -> None:
        # Hot: runs for every REQ.
        last = self._last
        if message_id in last:
            del last[message_id]  # to be the last one again
        last[message_id] = REQUEUED, now, client
        if len(last) > 2 * MAX_KEPT:
            self._forget_first()

    def note(self, ids: Iterable[bytes], reason: str, now: float, client: tuple[str, str] | None) -> None:
        last, returned = self._last, (reason, now, client)
        for message_id in ids:
            if message_id in last:
                del last[message_id]
            last[message_id] = returned
        if len(last) > 2 * MAX_KEPT:
            self._forget_first()

    def note_departure(self, ids: Iterable[bytes], client: tuple[str, str]) -> None:
        """Note that the consumer of these messages has left."""
        self.note(ids, DISCONNECTED, NEVER, client)

    def note_timeouts_of_departed(self, ids: Iterable[bytes], now: float) -> None:
        """Note that messages of consumers that have left came back, with the client if that is still known."""
        for message_id in ids:
            known = self._last.get(message_id)
            client = known[2] if known is not None and known[1] == NEVER else None
            self.note((message_id,), DISCONNECTED, now, client)

    def of(self, message_id: bytes) -> Return | None:
        found = self._last.get(message_id)
        return None if found is None else Return(*found)

    def clear(self) -> None:
        self._last = {}

    def _forget_first(self) -> None:
        self._last = dict(islice(self._last.items(), len(self._last) - MAX_KEPT, None))
