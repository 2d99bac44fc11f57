"""The messages in flight at consumers that have left a channel, of all of them together, until they time out.

nsqd: they are not requeued when their consumer leaves. Many thousands of consumers may leave within a timeout, so that
nothing here takes longer the more there were. Unlike a consumer's, these messages have deadlines in no order: they are
in a heap by *batch*, those of one delivery. Finished messages stay in their batch, and a touched message in the batch
in which it was, until that is due.

Invariant: every id in `frames` is in `_batches_by_id`, with a batch that is in the heap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Final

from nsq_compat.protocol.message import message_ids
from nsq_compat.queue.in_flight import ANY_NUMBER, Delivery, InFlight
from nsq_compat.queue.schedule import NEVER

_PEEKED_AT_ONCE: Final = 1024
"""Batches that a peek looks at, about 1 ms of work. They may have no message any more."""


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Messages that were delivered together, and time out together."""

    deadline: float
    delivered: float
    ids: Sequence[bytes]
    answerable: bool


class Departed(InFlight):
    """As ``InFlight``, for messages of many consumers."""

    def __init__(self) -> None:
        super().__init__()
        self._batches_by_id: dict[bytes, _Batch] = {}
        self._heap: list[tuple[float, int, _Batch]] = []
        self._touched: dict[bytes, float] = {}  # later deadlines than those of their batches
        self._serial = count()  # decides between equal deadlines

    def absorb(self, in_flight: InFlight, *, answerable: bool) -> None:
        """Take over all messages. If `answerable`, clients can still answer them, see ``answerable``."""
        for deadline, delivered, ids in in_flight.deliveries():
            self._push(_Batch(deadline, delivered, ids, answerable))
        self.frames.update(in_flight.frames)
        in_flight.clear()

    def answerable(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return those of these messages that clients can answer."""
        known = self._batches_by_id
        return [each for each in ids if (batch := known.get(each)) is not None and batch.answerable]

    def add(self, frames: Sequence[bytes], now: float, timeout: float) -> None:
        if not frames:
            return
        ids = message_ids(frames)
        self.frames.update(zip(ids, frames, strict=True))
        self._push(_Batch(now + timeout, now, ids, answerable=False))

    def add_again(self, frames: Sequence[bytes], now: float, timeout: float) -> None:
        self.add(frames, now, timeout)

    def finish(self, ids: Sequence[bytes]) -> list[bytes]:
        return [message_id for message_id in ids if self.take(message_id) is None]

    def take(self, message_id: bytes) -> bytes | None:
        frame = self.frames.pop(message_id, None)
        if frame is not None:
            del self._batches_by_id[message_id]
            self._touched.pop(message_id, None)
            if not self.frames:
                self.clear()
        return frame

    def touch(self, message_id: bytes, deadline: float, max_lifetime: float) -> float | None:
        batch = self._batches_by_id.get(message_id)
        if batch is None:
            return None
        deadline = min(deadline, batch.delivered + max_lifetime)
        self._touched.pop(message_id, None)
        if deadline < batch.deadline:
            self._push(_Batch(deadline, batch.delivered, [message_id], batch.answerable))
        else:
            self._touched[message_id] = deadline
        return deadline

    def delivery_of(self, message_id: bytes) -> Delivery | None:
        batch = self._batches_by_id.get(message_id)
        return None if batch is None else Delivery(self._touched.get(message_id, batch.deadline), batch.delivered)

    def deliveries(self) -> Iterator[tuple[float, float, list[bytes]]]:
        """Yield the first ones by deadline, not counting touches. There may be more."""
        # The entries that follow one in a heap are known by its place.
        heap = self._heap
        following = [(heap[0], 0)] if heap else []
        for _ in range(_PEEKED_AT_ONCE):
            if not following:
                return
            (_, _, batch), place = heappop(following)
            for each in (2 * place + 1, 2 * place + 2):
                if each < len(heap):
                    heappush(following, (heap[each], each))
            for message_id in batch.ids:
                if self._batches_by_id.get(message_id) is batch:
                    yield self._touched.get(message_id, batch.deadline), batch.delivered, [message_id]

    def expire(self, now: float, limit: int = ANY_NUMBER) -> list[bytes]:
        """Remove and return the frames that have timed out, first those that did first.

        May exceed `limit` by a part of one batch.
        """
        expired: list[bytes] = []
        while self._heap and self._heap[0][0] <= now and len(expired) < limit:
            batch = heappop(self._heap)[2]
            for message_id in batch.ids:
                if self._batches_by_id.get(message_id) is not batch:
                    continue
                deadline = self._touched.pop(message_id, now)
                if deadline > now:
                    self._push(_Batch(deadline, batch.delivered, [message_id], batch.answerable))
                else:
                    del self._batches_by_id[message_id]
                    expired.append(self.frames.pop(message_id))
        if not self.frames:
            self.clear()
        return expired

    def clear(self) -> None:
        super().clear()
        self._batches_by_id.clear()
        self._heap.clear()
        self._touched.clear()

    def next_deadline(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def _push(self, batch: _Batch) -> None:
        heappush(self._heap, (batch.deadline, next(self._serial), batch))
        self._batches_by_id.update(dict.fromkeys(batch.ids, batch))
