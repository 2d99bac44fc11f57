"""The messages that one consumer was sent and has not answered.

A consumer's timeout is fixed when it subscribes, so batches expire in the order in which they were sent: a deque of
(deadline, time of delivery, ids), and no heap. A finished id is removed from the dict only; its *place* in the deque is
skipped later. The deque is rewritten when finished places outnumber the frames by `_SPARE_PLACES`. Three kinds of ids
have a deadline that differs from that of their place, and are in `_own_deadlines`: those that were touched, those that
were requeued and then sent to the same consumer again, and those that were added with `add_again`.

Invariant: every id in `frames` has exactly one deadline, in `_own_deadlines` if it is there, else in the deque.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final, NamedTuple

from nsq_compat.protocol.message import message_ids
from nsq_compat.queue.schedule import NEVER

_SPARE_PLACES: Final = 1024
ANY_NUMBER: Final = 1 << 30


class Delivery(NamedTuple):
    deadline: float
    delivered: float


class InFlight:
    """Frames by id; deadlines and `now` are monotonic seconds."""

    def __init__(self) -> None:
        self.frames: dict[bytes, bytes] = {}
        self._batches: deque[tuple[float, float, list[bytes]]] = deque()  # deadline, delivered, ids
        self._places = 0
        self._own_deadlines: dict[bytes, Delivery] = {}
        self._void_places: set[bytes] = set()  # ids with a place that no longer counts: requeued or touched
        # When ids with a place were delivered, once the consumer has touched one; finished ids may be there, too.
        self._delivered: dict[bytes, float] | None = None

    def __len__(self) -> int:
        return len(self.frames)

    def add(self, frames: Sequence[bytes], now: float, timeout: float) -> None:
        """Add a delivery. `timeout` in seconds; no call may have a smaller one than an earlier call."""
        ids = message_ids(frames)
        if len(ids) == 1:  # Hot: a consumer at RDY 1
            self.frames[ids[0]] = frames[0]
        else:
            self.frames.update(zip(ids, frames, strict=True))
        deadline = now + timeout
        if self._void_places and not self._void_places.isdisjoint(ids):
            again = [message_id for message_id in ids if message_id in self._void_places]
            self._own_deadlines.update((message_id, Delivery(deadline, now)) for message_id in again)
            ids = [message_id for message_id in ids if message_id not in self._void_places]
        if not ids:
            return
        self._batches.append((deadline, now, ids))
        self._places += len(ids)
        if self._delivered is not None:
            self._delivered.update(dict.fromkeys(ids, now))
        if self._places > 2 * len(self.frames) + _SPARE_PLACES:
            self._forget_finished_places()

    def add_again(self, frames: Sequence[bytes], now: float, timeout: float) -> None:
        """As `add`, for messages that may have been finished here before, and may still have a place."""
        ids = message_ids(frames)
        self.frames.update(zip(ids, frames, strict=True))
        self._own_deadlines.update(dict.fromkeys(ids, Delivery(now + timeout, now)))

    def frames_of(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return the frames of those ids that are in flight, each once."""
        frames = self.frames
        return [frames[message_id] for message_id in dict.fromkeys(ids) if message_id in frames]

    def finish(self, ids: Sequence[bytes]) -> list[bytes]:
        """Remove these; returns the ids that are not in flight, in their order."""
        # Hot: runs for every FIN.
        pop = self.frames.pop
        missing = [message_id for message_id in ids if pop(message_id, None) is None]
        if self._own_deadlines:
            for message_id in ids:
                self._own_deadlines.pop(message_id, None)
        if not self._void_places:
            self._forget_first_places(1 + len(ids))
        return missing

    def take(self, message_id: bytes) -> bytes | None:
        """Remove one frame and return it; None if it is not in flight. It may be delivered again."""
        frame = self.frames.pop(message_id, None)
        if frame is not None and self._own_deadlines.pop(message_id, None) is None:
            self._void_places.add(message_id)
        return frame

    def take_all(self, ids: AbstractSet[bytes]) -> list[bytes]:
        """Remove those of these that are in flight; returns their frames."""
        return [frame for each in sorted(self.frames.keys() & ids) if (frame := self.take(each)) is not None]

    def touch(self, message_id: bytes, deadline: float, max_lifetime: float) -> float | None:
        """Move a deadline, at most to `max_lifetime` seconds after the delivery. None if it is not in flight."""
        if message_id not in self.frames:
            return None
        own = self._own_deadlines.get(message_id)
        if own is None:
            self._void_places.add(message_id)
            delivered = self._times_of_delivery()[message_id]
        else:
            delivered = own.delivered
        deadline = min(deadline, delivered + max_lifetime)
        self._own_deadlines[message_id] = Delivery(deadline, delivered)
        return deadline

    def delivery_of(self, message_id: bytes) -> Delivery | None:
        """Return when a message was delivered and times out; None if it is not in flight, or has no deadline."""
        if message_id not in self.frames:
            return None
        own = self._own_deadlines.get(message_id)
        if own is not None:
            return own
        found = ((deadline, delivered) for deadline, delivered, ids in self._batches if message_id in ids)
        return next((Delivery(*times) for times in found), None)

    def expire(self, now: float, limit: int = ANY_NUMBER) -> list[bytes]:
        """Remove and return the frames that have timed out: first by delivery, then those with a deadline of their own.

        May exceed `limit` by a part of one batch.
        """
        expired: list[bytes] = []
        while self._batches and self._batches[0][0] <= now and len(expired) < limit:
            ids = self._batches.popleft()[2]
            self._places -= len(ids)
            for message_id in ids:
                if message_id in self._void_places:
                    self._void_places.discard(message_id)
                elif message_id in self._own_deadlines:
                    continue
                elif (frame := self.frames.pop(message_id, None)) is not None:
                    expired.append(frame)
        due = (message_id for message_id, own in self._own_deadlines.items() if own.deadline <= now)
        for message_id in list(islice(due, max(0, limit - len(expired)))):
            del self._own_deadlines[message_id]
            expired.append(self.frames.pop(message_id))
        return expired

    def peek(self) -> Iterator[tuple[float, bytes]]:
        """Yield deadlines and frames: first touched messages, then the others, oldest delivery first."""
        for deadline, _, ids in self.deliveries():
            for message_id in ids:
                yield deadline, self.frames[message_id]

    def deliveries(self) -> Iterator[tuple[float, float, list[bytes]]]:
        """Yield deadline, time of delivery and ids, in the order of ``peek``."""
        own_deadlines, void, frames = self._own_deadlines, self._void_places, self.frames
        for message_id, own in own_deadlines.items():
            yield own.deadline, own.delivered, [message_id]
        for deadline, delivered, ids in self._batches:
            left = [each for each in ids if each in frames and each not in void and each not in own_deadlines]
            if left:
                yield deadline, delivered, left

    def clear(self) -> None:
        self.frames.clear()
        self._batches.clear()
        self._own_deadlines.clear()
        self._void_places.clear()
        self._delivered = None
        self._places = 0

    def next_deadline(self) -> float:
        """Return a time not later than the next deadline, perhaps earlier."""
        if not self.frames:
            return NEVER
        earliest = self._batches[0][0] if self._batches else NEVER
        return min([earliest, *(own.deadline for own in self._own_deadlines.values())])

    def _times_of_delivery(self) -> dict[bytes, float]:
        """By id, of those with a place. A consumer may touch all of its messages, so none is searched in the deque."""
        times = self._delivered
        if times is None or len(times) > 2 * self._places + _SPARE_PLACES:
            times = {message_id: delivered for _, delivered, ids in self._batches for message_id in ids}
            self._delivered = times
        return times

    def _forget_first_places(self, most: int) -> None:
        """Remove up to `most` finished batches from the front of the deque."""
        # Hot: keeps the deque short when FINs come in order, because rewriting it blocks the event loop for half a
        # millisecond per thousand places. One batch more than was finished may be removed, so the deque shrinks again
        # after a slow message. A batch's last id is checked first: in order it is finished last, so mostly it decides.
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
        frames, returned = self.frames, self._void_places
        self._batches = deque(
            (deadline, delivered, alive)
            for deadline, delivered, ids in self._batches
            if (alive := [message_id for message_id in ids if message_id in frames and message_id not in returned])
        )
        self._places = sum(len(ids) for _, _, ids in self._batches)
        returned.clear()
