"""A position in a topic's stream of messages, with the next messages in memory as far as there is room.

The messages of a stream are numbered. `position` is the number of the next one to be taken, `end` that of the next one
to be published. The messages from `position` on are in memory as far as they fit. The rest is read from the log, a
block at a time, when those in memory are used up.

Parts of the stream may be *passed over*: messages that a paused topic held and dropped are not for its channels, which
may still have to read messages before them.

Invariant: memory holds the messages from `position` on, without those passed over and without any other gap, and
everything up to `end` is in the log. A cursor without a log (ephemeral) drops messages that do not fit, and does not
number them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Final

from nsq_compat.log.segment import Group
from nsq_compat.log.topic_log import LogReader, TopicLog
from nsq_compat.queue.frame_queue import ANY_SIZE, FrameQueue

MAX_IN_MEMORY: Final = 50_000
MAX_BYTES_IN_MEMORY: Final = 1 << 24
"""Frames of a cursor with a log. Reading back costs less than memory for more: that has to be allocated by the system,
and is out of every cache when the messages are delivered (docs/decisions/0015)."""


class Cursor:
    """`memory` bounds the frames in memory; with a log, MAX_IN_MEMORY and MAX_BYTES_IN_MEMORY bound them too.

    The bytes are estimated as if all frames were as long as the last one. A block just read may exceed both bounds.
    """

    def __init__(self, log: TopicLog | None, memory: int, position: int = 0, end: int = 0) -> None:
        self.position = position
        self.end = end
        self._log = log
        self._allowed = memory
        self._memory = memory if log is None else min(memory, MAX_IN_MEMORY)
        self._memory_bytes = ANY_SIZE if log is None else MAX_BYTES_IN_MEMORY
        self._window = FrameQueue()
        self._reader: LogReader | None = None
        self._unused: deque[Group] = deque()
        self._gaps: deque[tuple[int, int]] = deque()  # passed over: from, up to; all of them ahead of `position`
        self.gaps_size = 0  # messages that are passed over

    def __len__(self) -> int:
        return self.end - self.position - self.gaps_size

    @property
    def behind(self) -> int:
        """The number of messages that are only in the log."""
        return self.end - self.position - self.gaps_size - len(self._window)

    @property
    def backend_depth(self) -> int:
        """The number of messages that mem-queue-size has no room for."""
        return max(0, min(self.behind, len(self) - self._allowed))

    @property
    def gaps(self) -> Iterable[tuple[int, int]]:
        """The ranges passed over between position and end, in order: first number, and the number after the last."""
        return self._gaps

    def byte_count(self) -> int:
        """Approximate bytes of all messages; those only in the log are estimated from its size."""
        in_memory = sum(sum(map(len, batch)) for batch in self._window.batches())
        if self._log is None or not self.behind:
            return in_memory
        return in_memory + self._log.bytes_behind(self.position + len(self._window))

    def extend(self, frames: Sequence[bytes]) -> int:
        """Add published frames, which are in the log if there is one. Returns how many were dropped."""
        # Hot: once per channel for every publish. `behind` is written out, because calls are what this costs.
        window, count = self._window, len(frames)
        if not count:
            return 0
        waiting = window.length
        behind = self.end - self.position - self.gaps_size - waiting
        fits = waiting + count <= self._memory and (waiting + count) * len(frames[-1]) <= self._memory_bytes
        if fits and not behind:
            window.extend(frames)
            self.end += count
            return 0
        if self._log is not None:
            self.end += count
            return 0
        kept = frames[: max(0, self._memory - waiting)]
        window.extend(kept)
        self.end += len(kept)
        return count - len(kept)

    def extend_by(self, count: int, first: Sequence[Sequence[bytes]]) -> int:
        """Like ``extend``, for `count` messages; `first` has batches of the first ones, as many as memory may hold."""
        window = self._window
        room = self._memory - window.length
        size = len(first[-1][-1]) if first else 0
        fits = count <= room and (window.length + count) * size <= self._memory_bytes
        if self._log is not None and (self.behind or not fits):
            self.end += count
            return 0
        kept = 0
        for batch in first:
            fitting = batch[: max(0, room - kept)]
            window.extend(fitting)
            kept += len(fitting)
        self.end += kept
        return count - kept

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """Take at most `limit` frames and about `max_bytes` bytes. Raises ``OSError`` if the log cannot be read."""
        if not self._window and self.position < self.end:
            self._read_block()
        frames = self._window.take(limit, max_bytes)
        if self._gaps:
            self._advance(len(frames))
        else:  # Hot: saves a call for every delivery
            self.position += len(frames)
        return frames

    def follow(self, other: "Cursor") -> int:
        """Go on with the messages of a cursor that begins where this one ends; returns how many were dropped.

        Memory may exceed its bound by the other's messages; it does not grow from there.
        """
        if self.behind:
            self.end = other.end
            self._adopt_gaps(other)
            return 0
        batches = list(other._window.batches())
        if self._log is None:
            return other.behind + sum(self.extend(batch) for batch in batches)
        for batch in batches:
            self._window.extend(batch)
        self.end = other.end
        self._adopt_gaps(other)
        return 0

    def pass_over(self, position: int) -> None:
        """Skip the part of the stream between its end and `position`, where it goes on."""
        if self._log is None or position <= self.end:
            return  # without a log numbers mean nothing
        if self.position == self.end:
            self.position = position
        else:
            self._gaps.append((self.end, position))
            self.gaps_size += position - self.end
        self.end = position

    def skip_to_end(self) -> None:
        """Drop all messages."""
        self._window.empty()
        self._stop_reading()
        self._gaps.clear()
        self.gaps_size = 0
        self.position = self.end

    def move(self, position: int, end: int, gaps: Iterable[tuple[int, int]] = ()) -> None:
        """Go to another place in the stream, all of which is in the log, except for the gaps."""
        self.skip_to_end()
        self.position, self.end = min(position, end), end
        self._gaps.extend(gaps)
        self.gaps_size = sum(stop - begin for begin, stop in self._gaps)

    def peek(self, count: int) -> list[bytes]:
        """Return up to `count` frames that ``take`` would return next. Raises ``OSError`` if the log cannot be read."""
        if not self._window and self.position < self.end:
            self._read_block()
        frames = list(islice(chain.from_iterable(self._window.batches()), count))
        if len(frames) < count and self.behind and not self._gaps:
            assert self._log is not None, "messages that are not in memory are in the log"
            with suppress(BlockingIOError):  # these frames suffice
                for group in self._log.reader(self.position + len(self._window)).read():
                    frames += group.frames[: max(0, self.end - group.first_seq)]
        return frames[:count]

    def latest(self, count: int) -> list[bytes]:
        """Return the last `count` frames in memory, oldest first."""
        return self._window.latest(count)

    def _adopt_gaps(self, other: "Cursor") -> None:
        self._gaps.extend(other._gaps)
        self.gaps_size += other.gaps_size

    def _advance(self, count: int) -> None:
        self.position += count
        while self._gaps and self._gaps[0][0] <= self.position:
            begin, stop = self._gaps.popleft()
            self.gaps_size -= stop - begin
            self.position += stop - begin

    def _read_block(self) -> None:
        assert self._log is not None, "messages that are not in memory are in the log"
        if self._reader is None:
            self._reader = self._log.reader(self.position)
        # The log may go on behind `end`, with messages that a paused topic holds.
        stop = self._gaps[0][0] if self._gaps else self.end
        groups = self._unused or deque(self._reader.read())
        expected = self.position
        while groups and groups[0].first_seq < stop and (not self._window or groups[0].first_seq == expected):
            group = groups.popleft()
            self._advance(group.first_seq - expected)  # over damaged messages, which the log counts
            frames = group.frames[: stop - group.first_seq]
            self._window.extend(frames)
            expected = group.first_seq + len(frames)
        self._unused = groups  # behind a gap, which `position` may pass only when it gets there
        if not self._window:
            self._advance(stop - self.position)
        if expected >= stop or not self._window:
            self._stop_reading()

    def _stop_reading(self) -> None:
        self._reader = None
        self._unused.clear()
