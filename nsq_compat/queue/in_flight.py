"""The messages that one consumer was sent and has not answered.

How it works. A consumer's timeout is fixed when it subscribes, so batches expire in the order in which they were sent:
a deque of (deadline, ids), and no heap. A finished id is removed from the dict only. Its place in the deque is skipped
later, and the deque is rewritten once more than half of it is such places. Two kinds of ids have a deadline that
differs from that of their place, and are in `_exceptions`: those that were touched, and those that were requeued and
then sent to the same consumer again.

Invariant: every id in `frames` has exactly one deadline, in `_exceptions` if it is there, else in the deque.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from nsq_compat.protocol.message import message_ids

NEVER: Final = float("inf")
_SPARE_PLACES: Final = 1024
_ALL: Final = 1 << 30


class _Exception(NamedTuple):
    deadline: float
    delivered: float


class InFlight:
    """Frames by id; deadlines and `now` are monotonic seconds."""

    def __init__(self) -> None:
        self.frames: dict[bytes, bytes] = {}
        self._batches: deque[tuple[float, float, list[bytes]]] = deque()  # deadline, delivered, ids
        self._places = 0
        self._exceptions: dict[bytes, _Exception] = {}
        self._returned: set[bytes] = set()  # requeued, or touched, while their place remains in the deque

    def __len__(self) -> int:
        return len(self.frames)

    def add(self, frames: Sequence[bytes], now: float, timeout: float) -> None:
        """Add a delivery. `timeout` in seconds must not shrink from call to call."""
        ids = message_ids(frames)
        if len(ids) == 1:  # Hot: a consumer at RDY 1
            self.frames[ids[0]] = frames[0]
        else:
            self.frames.update(zip(ids, frames, strict=True))
        deadline = now + timeout
        if self._returned and not self._returned.isdisjoint(ids):
            again = [message_id for message_id in ids if message_id in self._returned]
            self._exceptions.update((message_id, _Exception(deadline, now)) for message_id in again)
            ids = [message_id for message_id in ids if message_id not in self._returned]
        if not ids:
            return
        self._batches.append((deadline, now, ids))
        self._places += len(ids)
        if self._places > 2 * len(self.frames) + _SPARE_PLACES:
            self._forget_finished_places()

    def frames_of(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the frames of those ids that are in flight, each once."""
        frames = self.frames
        return [frames[message_id] for message_id in dict.fromkeys(ids) if message_id in frames]

    def finish(self, ids: Sequence[bytes]) -> list[bytes]:
        """Remove these; returns the ids that are not in flight, in their order."""
        # Hot: runs for every FIN.
        pop = self.frames.pop
        missing = [message_id for message_id in ids if pop(message_id, None) is None]
        if self._exceptions:
            for message_id in ids:
                self._exceptions.pop(message_id, None)
        if not self._returned:
            self._forget_first_places(1 + len(ids))
        return missing

    def take(self, message_id: bytes) -> bytes | None:
        """Remove one frame and return it; None if it is not in flight. It may be delivered again."""
        frame = self.frames.pop(message_id, None)
        if frame is not None and self._exceptions.pop(message_id, None) is None:
            self._returned.add(message_id)
        return frame

    def touch(self, message_id: bytes, deadline: float, max_lifetime: float) -> float | None:
        """Move a deadline, at most to `max_lifetime` seconds after the delivery; returns the new one.

        None if the message is not in flight.
        """
        if message_id not in self.frames:
            return None
        exception = self._exceptions.get(message_id)
        delivered = self._delivered(message_id) if exception is None else exception.delivered
        if exception is None:
            self._returned.add(message_id)
        deadline = min(deadline, delivered + max_lifetime)
        self._exceptions[message_id] = _Exception(deadline, delivered)
        return deadline

    def expire(self, now: float, limit: int = _ALL) -> list[bytes]:
        """Remove the frames that have timed out, oldest delivery first. One batch may exceed `limit`."""
        expired: list[bytes] = []
        while self._batches and self._batches[0][0] <= now and len(expired) < limit:
            ids = self._batches.popleft()[2]
            self._places -= len(ids)
            for message_id in ids:
                if message_id in self._returned:
                    self._returned.discard(message_id)
                else:
                    self._take_if_there(message_id, expired)
        due = (message_id for message_id, exception in self._exceptions.items() if exception.deadline <= now)
        for message_id in list(islice(due, max(0, limit - len(expired)))):
            del self._exceptions[message_id]
            self._take_if_there(message_id, expired)
        return expired

    def peek(self) -> Iterator[tuple[float, bytes]]:
        """Yield deadlines and frames: first touched messages, then the others, oldest delivery first."""
        for message_id, exception in self._exceptions.items():
            yield exception.deadline, self.frames[message_id]
        for deadline, _, ids in self._batches:
            for message_id in ids:
                if message_id in self.frames and message_id not in self._returned:
                    yield deadline, self.frames[message_id]

    def clear(self) -> None:
        self.frames.clear()
        self._batches.clear()
        self._exceptions.clear()
        self._returned.clear()
        self._places = 0

    def next_deadline(self) -> float:
        """Return a time not later than the next deadline, perhaps earlier."""
        if not self.frames:
            return NEVER
        earliest = self._batches[0][0] if self._batches else NEVER
        if self._exceptions:
            earliest = min(earliest, min(exception.deadline for exception in self._exceptions.values()))
        return earliest

    def _take_if_there(self, message_id: bytes, expired: list[bytes]) -> None:
        frame = self.frames.pop(message_id, None)
        if frame is not None:
            expired.append(frame)

    def _delivered(self, message_id: bytes) -> float:
        for _, delivered, ids in self._batches:
            if message_id in ids:
                return delivered
        raise AssertionError("a message in flight has a place among the batches or the exceptions")

    def _forget_first_places(self, most: int) -> None:
        """Remove up to `most` finished batches from the front of the deque."""
        # Hot: rewriting the deque blocks the event loop, for half a millisecond per thousand places. It is not needed
        # if FINs come in the order of the messages. One batch more than was finished may be removed, which catches up
        # after a slow message. In order, a batch's last message is finished last, so the others need not be checked.
        batches, frames = self._batches, self.frames
        for _ in range(most):
            if not batches:
                return
            ids = batches[0][2]
            if ids[-1] in frames or not frames.keys().isdisjoint(ids):
                return
            batches.popleft()
            self._places -= len(ids)

    def _forget_finished_places(self) -> None:
        frames, returned = self.frames, self._returned
        self._batches = deque(
            (deadline, delivered, alive)
            for deadline, delivered, ids in self._batches
            if (alive := [message_id for message_id in ids if message_id in frames and message_id not in returned])
        )
        self._places = sum(len(ids) for _, _, ids in self._batches)
        returned.clear()
