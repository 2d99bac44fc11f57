"""A FIFO queue of frames in memory, stored as batches.

A batch is stored as it is: every channel of the topic has the same list, so a fan-out to twenty channels takes twenty
appends, however many messages the batch has. Batches are never changed. An offset skips the frames of the first batch
that were taken.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

NOTHING: Sequence[bytes] = ()
ANY_SIZE: Final = 1 << 62
"""As a number of bytes: no limit."""


class FrameQueue:
    """Has no limit of its own. `length` is the same as ``len``, without a call."""

    def __init__(self) -> None:
        self._batches: deque[Sequence[bytes]] = deque()
        self._append = self._batches.append  # compiled, looking up a method costs as much as calling it
        self._popleft = self._batches.popleft
        self._offset = 0
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def extend(self, frames: Sequence[bytes]) -> None:
        """Append a batch, which must not be changed afterwards."""
        if frames:
            self._append(frames)
            self.length += len(frames)

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """Take at most `limit` frames and, from the second one on, at most `max_bytes` bytes."""
        frames = self._take(limit)
        if len(frames) > 1 and sum(map(len, frames)) > max_bytes:
            kept = max(1, bisect_right(list(accumulate(map(len, frames))), max_bytes))
            self._put_back(frames[kept:])
            frames = frames[:kept]
        return frames

    def empty(self) -> None:
        self._batches.clear()
        self._offset = self.length = 0

    def batches(self) -> Iterator[Sequence[bytes]]:
        """Yield the frames in order. The queue must not be changed meanwhile."""
        for number, batch in enumerate(self._batches):
            yield batch if number else batch[self._offset :]

    def latest(self, count: int) -> list[bytes]:
        """Return the last `count` frames, oldest first."""
        found: list[Sequence[bytes]] = []
        missing = count = min(count, self.length)
        for batch in reversed(self._batches):
            if missing <= 0:
                break
            found.append(batch[-missing:])
            missing -= len(found[-1])
        return [frame for batch in reversed(found) for frame in batch]

    def _take(self, limit: int) -> Sequence[bytes]:
        wanted = min(limit, self.length)
        if wanted <= 0:
            return NOTHING
        self.length -= wanted
        frames = self._take_from_first(wanted)
        if len(frames) == wanted:
            return frames
        gathered = list(frames)
        while len(gathered) < wanted:
            gathered += self._take_from_first(wanted - len(gathered))
        return gathered

    def _take_from_first(self, limit: int) -> Sequence[bytes]:
        batch, begin = self._batches[0], self._offset
        if len(batch) - begin > limit:
            self._offset = begin + limit
            return batch[begin : self._offset]
        self._popleft()
        self._offset = 0
        return batch[begin:] if begin else batch

    def _put_back(self, frames: Sequence[bytes]) -> None:
        """Undo a part of the last ``_take``."""
        self.length += len(frames)
        in_first = min(len(frames), self._offset)  # they were not removed from the first batch
        self._offset -= in_first
        if in_first < len(frames):
            self._batches.appendleft(frames[: len(frames) - in_first])
