"""Frames that may not be delivered before their time."""

import heapq
from collections.abc import Sequence

from nsq_compat.queue.in_flight import NEVER


class Deferred:
    """Batches by due time, in monotonic seconds; those due at the same time come out in the order they went in."""

    def __init__(self) -> None:
        self._batches: list[tuple[float, int, Sequence[bytes]]] = []
        self._serial = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, frames: Sequence[bytes], due: float) -> None:
        """Keep a batch, which must not be changed afterwards, until `due`."""
        self._serial += 1
        heapq.heappush(self._batches, (due, self._serial, frames))
        self._length += len(frames)

    def release(self, now: float) -> list[bytes]:
        """Take out what is due."""
        released: list[bytes] = []
        while self._batches and self._batches[0][0] <= now:
            released += heapq.heappop(self._batches)[2]
        self._length -= len(released)
        return released

    def share_with(self, other: "Deferred") -> None:
        """Give another every batch with its due time: the same batches, as a fan-out does."""
        for due, _, frames in sorted(self._batches):
            other.add(frames, due)

    def empty(self) -> int:
        """Forget everything; return how many frames that was."""
        dropped = self._length
        self._batches.clear()
        self._length = 0
        return dropped

    def next_due(self) -> float:
        """When `release` has something to do."""
        return self._batches[0][0] if self._batches else NEVER
