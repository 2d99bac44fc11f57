"""A place in a topic's stream: the next messages in memory, and behind them, if they are too many, the log.

Messages of a stream are numbered. `position` is the number of the next one to be taken, `end` that of the next one to
be published. What follows `position` is in memory as far as memory goes; the rest is read from the log, a block at a
time, when memory is used up.

A part of the stream may be *passed over*: what a paused topic held back and then dropped is not for its channels, which
may still have to read what comes before.

Invariant: memory holds the messages from `position` on, without those that are passed over and without any other gap,
and everything behind them up to `end` is in the log. A cursor without a log (ephemeral) drops what does not fit, and
those messages are never numbered.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

from nsq_compat.log.group import Group
from nsq_compat.log.topic_log import LogReader, TopicLog
from nsq_compat.queue.frame_queue import ANY_SIZE, FrameQueue

MAX_IN_MEMORY: Final = 50_000
MAX_BYTES_IN_MEMORY: Final = 1 << 24
"""Frames for a cursor whose stream is all in the log. Reading back takes less than what memory for more would: it has
to be got from the system, and is out of every cache when its turn comes (docs/decisions/0015)."""


class Cursor:
    """`memory` is how many frames may wait in memory; with a log, MAX_IN_MEMORY and MAX_BYTES_IN_MEMORY bound them too.

    The bytes are estimated as if all frames were as long as the last one. A block just read may exceed both bounds.
    """

    def __init__(
        self,
        log: TopicLog | None,
        memory: int,
        position: int = 0,
        end: int = 0,
    ) -> None:
        self.position = position
        self.end = end
        self.damaged_count = 0
        self._log = log
        self._allowed = memory
        self._memory = memory if log is None else min(memory, MAX_IN_MEMORY)
        self._memory_bytes = ANY_SIZE if log is None else MAX_BYTES_IN_MEMORY
        self._window = FrameQueue()
        self._reader: LogReader | None = None
        self._unused: deque[Group] = deque()
        self._gaps: deque[tuple[int, int]] = deque()  # passed over: from, up to; all of them ahead of `position`
        self._gaps_size = 0

    def __len__(self) -> int:
        return self.end - self.position - self._gaps_size

    @property
    def behind(self) -> int:
        """How many messages are only in the log."""
        return self.end - self.position - self._gaps_size - len(self._window)

    @property
    def backend_depth(self) -> int:
        """How many messages the options have no room in memory for."""
        return max(0, min(self.behind, len(self) - self._allowed))

    @property
    def gaps(self) -> Iterable[tuple[int, int]]:
        """What is passed over on the way to the end, in order: from the first number up to the second."""
        return self._gaps

    def byte_count(self) -> int:
        """About how big everything here is: what is only in the log is guessed from the size of the log there."""
        in_memory = sum(sum(map(len, batch)) for batch in self._window.batches())
        if self._log is None or not self.behind:
            return in_memory
        return in_memory + self._log.bytes_behind(self.position + len(self._window))

    def extend(self, frames: Sequence[bytes]) -> int:
        """The stream goes on with these, which are in the log, if there is one. Returns how many were dropped."""
        # Hot: once per channel for every publish. `behind` is spelled out, because calls are what this costs.
        window, count = self._window, len(frames)
        if not count:
            return 0
        waiting = window.length
        behind = self.end - self.position - self._gaps_size - waiting
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
        """The same for so many messages, of which `first` has the first ones, in batches, as many as memory may hold.

        They are in the log, if there is one.
        """
        window = self._window
        room = self._memory - window.length
        size = len(first[-1][-1]) if first else 0
        fits = count <= room and (window.length + count) * size <= self._memory_bytes
        if self._log is not None and (self.behind or not fits):
            self.end += count
            return 0
        kept = 0
        for batch in first:
            some = batch[: max(0, room - kept)]
            window.extend(some)
            kept += len(some)
        self.end += kept
        return count - kept

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """At most `limit` frames and about `max_bytes` bytes. Raises ``OSError`` when the log cannot be read."""
        if not self._window and self.position < self.end:
            self._read_block()
        frames = self._window.take(limit, max_bytes)
        if self._gaps:
            self._advance(len(frames))
        else:  # Hot: a call less for every delivery
            self.position += len(frames)
        return frames

    def follow(self, other: "Cursor") -> int:
        """Go on where another cursor of the same stream stands, which holds what follows; return how many were dropped.

        It may hold more in memory than this one has room for: it will not grow from there.
        """
        if self.behind:
            self.end = other.end  # whoever is behind made everything after it go to the log
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
        """The stream goes on at `position`: what lies between its end and there is not for who reads here."""
        if self._log is None or position <= self.end:
            return  # without a log numbers mean nothing
        if self.position == self.end:
            self.position = position
        else:
            self._gaps.append((self.end, position))
            self._gaps_size += position - self.end
        self.end = position

    def skip_to_end(self) -> None:
        """Nothing that is here is wanted any more."""
        self._window.empty()
        self._stop_reading()
        self._gaps.clear()
        self._gaps_size = 0
        self.position = self.end

    def move(self, position: int, end: int, gaps: Iterable[tuple[int, int]] = ()) -> None:
        """Stand somewhere else in the stream; all of it is in the log, but for the gaps."""
        self.skip_to_end()
        self.position, self.end = min(position, end), end
        self._gaps.extend(gaps)
        self._gaps_size = sum(stop - begin for begin, stop in self._gaps)

    def peek(self, count: int) -> list[bytes]:
        """What would be taken next, `count` of it or fewer. Raises ``OSError`` as `take` does."""
        if not self._window and self.position < self.end:
            self._read_block()
        frames = list(islice(chain.from_iterable(self._window.batches()), count))
        if len(frames) < count and self.behind and not self._gaps:
            frames += self._peek_behind()[: count - len(frames)]
        return frames

    def latest(self, count: int) -> list[bytes]:
        """The last of what waits in memory, oldest first."""
        return self._window.latest(count)

    def _adopt_gaps(self, other: "Cursor") -> None:
        self._gaps.extend(other._gaps)
        self._gaps_size += other._gaps_size

    def _advance(self, count: int) -> None:
        self.position += count
        while self._gaps and self._gaps[0][0] <= self.position:
            begin, stop = self._gaps.popleft()
            self._gaps_size -= stop - begin
            self.position += stop - begin

    def _read_block(self) -> None:
        assert self._log is not None, "what is not in memory is in the log"
        if self._reader is None:
            self._reader = self._log.reader(self.position)
        # The log may go on behind the end: with what a paused topic holds back.
        stop = self._gaps[0][0] if self._gaps else self.end
        groups = self._unused or deque(self._reader.read())
        expected = self.position
        while groups and groups[0].first_seq < stop and (not self._window or groups[0].first_seq == expected):
            group = groups.popleft()
            self._lose(group.first_seq - expected)
            frames = group.frames[: stop - group.first_seq]
            self._window.extend(frames)
            expected = group.first_seq + len(frames)
        self._unused = groups  # behind a gap, which the position may pass only when it gets there
        if not self._window:
            self._lose(stop - self.position)
        if expected >= stop or not self._window:
            self._stop_reading()

    def _peek_behind(self) -> list[bytes]:
        """Some of what memory does not hold."""
        assert self._log is not None, "what is not in memory is in the log"
        groups = self._log.reader(self.position + len(self._window)).read()
        return [frame for group in groups for frame in group.frames[: max(0, self.end - group.first_seq)]]

    def _stop_reading(self) -> None:
        self._reader = None
        self._unused.clear()

    def _lose(self, count: int) -> None:
        """Messages whose records are damaged; the log has said so."""
        self.damaged_count += count
        self._advance(count)
