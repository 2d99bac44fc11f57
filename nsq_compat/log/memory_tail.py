"""The newest messages of a log at durability level ``memory``: in RAM, and in no file yet.

``TopicLog`` reads them like the end of its last segment. They leave in one of two ways:

- *trimmed*: no channel reads them any more, so they are dropped and never written;
- *spilled*: the oldest ones are written to a segment, when more than `limit` messages would wait, and when nsqd stops.

So a channel that still reads messages here finds all later ones in the segments or here, without a gap. Only immediate
messages are kept here: control records are written at once, and channels keep deferred messages.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from nsq_compat.log.segment import Group
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import MESSAGES

_TRIM_MESSAGES: Final = 256
_TRIM_BYTES: Final = 1 << 18
"""Messages or bytes that are added before the next attempt to trim: as many as the last one left, at least these."""


class MemoryTail:
    """`limit` bounds the number of messages; `first_needed` returns the lowest number that a channel still reads."""

    def __init__(self, limit: int, first_needed: Callable[[], int]) -> None:
        self.count = 0
        self._limit = limit
        self._first_needed = first_needed
        self._size = 0  # estimated, as if all frames of a batch were as long as the last one
        self._seqs: list[int] = []
        self._batches: list[Sequence[bytes]] = []
        self._trim_count = _TRIM_MESSAGES
        self._trim_size = _TRIM_BYTES

    @property
    def first_seq(self) -> int:
        """The number of the oldest message; there must be one."""
        return self._seqs[0]

    def append(self, first_seq: int, frames: Sequence[bytes]) -> bool:
        """Add the messages of one publish; returns False if there is no room for them."""
        # Hot: runs for every publish.
        if not frames:
            return True
        count = self.count + len(frames)
        if count > self._trim_count or self._size > self._trim_size or count > self._limit:
            self.trim()
            count = self.count + len(frames)
            if count > self._limit:
                return False
        self._seqs.append(first_seq)
        self._batches.append(frames)
        self.count = count
        self._size += len(frames) * len(frames[-1])
        return True

    def trim(self) -> None:
        """Drop the messages that no channel reads any more."""
        if self.count:
            self.drop_before(self._first_needed())
        self._trim_count = self.count + max(self.count, _TRIM_MESSAGES)
        self._trim_size = self._size + max(self._size, _TRIM_BYTES)

    def read(self, seq: int, max_bytes: int) -> Group:
        """Messages from number `seq` on, or from the first if that is higher; no frames at the end.

        About `max_bytes`, or those of one publish.
        """
        at = max(bisect_right(self._seqs, seq) - 1, 0)
        first = max(seq, self._seqs[at])
        batch = self._batches[at]
        frames = batch[first - self._seqs[at] :] if first > self._seqs[at] else batch
        size = sum(map(len, frames))
        at += 1
        if at == len(self._batches) or size >= max_bytes:
            return Group(MESSAGES, first, 0, frames)
        merged = list(frames)
        while at < len(self._batches) and size < max_bytes:
            merged += self._batches[at]
            size += sum(map(len, self._batches[at]))
            at += 1
        return Group(MESSAGES, first, 0, merged)

    def holding(self, ids: Iterable[bytes]) -> list[Group]:
        """The publishes that may have these messages. Ids grow with the numbers."""
        firsts = [message_id(batch[0]) for batch in self._batches]
        found = {bisect_right(firsts, each) - 1 for each in ids}
        return [Group(MESSAGES, self._seqs[at], 0, self._batches[at]) for at in sorted(found) if at >= 0]

    def latest(self, count: int) -> list[Group]:
        """The newest publishes, oldest first, with `count` messages if there are so many."""
        groups: list[Group] = []
        for seq, batch in zip(reversed(self._seqs), reversed(self._batches), strict=True):
            if count <= 0:
                break
            groups.append(Group(MESSAGES, seq, 0, batch))
            count -= len(batch)
        return groups[::-1]

    def bytes_behind(self, seq: int) -> int:
        end = self._seqs[-1] + len(self._batches[-1]) if self.count else 0
        return self._size * max(0, min(self.count, end - seq)) // self.count if self.count else 0

    def drop_before(self, seq: int) -> None:
        """Drop the publishes that only have messages with lower numbers."""
        end = bisect_right(self._seqs, seq)
        if end and seq < self._seqs[end - 1] + len(self._batches[end - 1]):
            end -= 1
        for batch in self._batches[:end]:
            self.count -= len(batch)
            self._size -= len(batch) * len(batch[-1])
        del self._batches[:end], self._seqs[:end]
