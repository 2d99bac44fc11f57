"""A channel that was moved back in its topic's log: the messages from there up to its cursor are delivered once more.

A ``ReplayingCursor`` takes the place of the channel's cursor. It first delivers its *replay*, ranges of offsets that it
reads from the log, and then goes on as any other cursor. Messages that are published meanwhile are not kept in memory.

A message of the replay may be in flight, because it was delivered before the move. It then waits until it was answered
or has timed out, because a consumer cannot have the same message twice. The channel's deferred messages hold it.
"""

import errno
from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from nsq_compat.log.checkpoint import Replay
from nsq_compat.log.group_reader import BLOCK_SIZE, NEAR
from nsq_compat.log.offsets import Logged, OffsetReader, offsets_of
from nsq_compat.log.segment import Group
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.storage_schema import DEFERRED
from nsq_compat.queue.backlog import Cursor, WithoutInFlight

DeferAgain = Callable[[Sequence[bytes], int], None]
"""Defer messages of the log until a time, in nanoseconds since 1970."""


class ReplayingCursor(Cursor):
    """Made from the cursor that it replaces, whose messages in memory it reads from the log again.

    While there is something left of the replay, memory holds messages of it only. `gaps_size` is lower by their number,
    so that the number of waiting messages is computed as for any cursor.
    """

    def __init__(
        self, log: TopicLog, before: Cursor, replay: Replay, defer: DeferAgain, without_in_flight: WithoutInFlight
    ) -> None:
        super().__init__(log, before.allowed, before.position)
        self.move(before.position, before.end, before.gaps)
        self.left = 0
        """The number of messages that the replay has yet to deliver, also those that turn out to be lost."""
        self._moved_ns = replay.moved_ns
        self._again_from, self._again_to = replay.again_from, replay.again_to
        self._defer = defer
        self._without_in_flight = without_in_flight
        self._history = log
        self._ranges = deque(replay.ranges)  # what is not read yet
        self._offsets: deque[int] = deque()  # of the messages in memory
        self._offset_reader: OffsetReader | None = None
        self._is_passing_over = False  # whether the last read found no message to deliver
        self._count_left()

    def replay(self) -> Replay | None:
        """What is left of it, for a checkpoint."""
        if not self.left:
            return None
        ranges: list[tuple[int, int]] = []
        for begin, end in [*((offset, offset + 1) for offset in self._offsets), *self._ranges]:
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((begin, end))
        return Replay(tuple(ranges), self._moved_ns, self._again_from, self._again_to)

    # --- As for any cursor --------------------------------------------------------------------------------------------

    def extend(self, frames: Sequence[bytes]) -> int:
        if not self.left:
            return super().extend(frames)
        self.end += len(frames)
        return 0

    def follow(self, other: Cursor) -> int:
        if not self.left:
            return super().follow(other)
        self.end = other.end
        self.gaps.extend(other.gaps)
        self.gaps_size += other.gaps_size
        return 0

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        if not self.left:
            return super().take(limit, max_bytes)
        if not self.window.length:
            self._read_replay()
        frames = self.window.take(limit, max_bytes)
        for _ in range(len(frames)):
            self._offsets.popleft()
        self._count_left()
        return self._without_in_flight(frames)

    def remove(self, ids: AbstractSet[bytes]) -> list[bytes]:
        if not self.left:
            return super().remove(ids)
        removed = self.window.remove(ids)
        for place, _ in reversed(removed):
            del self._offsets[place]
        self._count_left()
        return [frame for _, frame in removed]

    def remove_logged(self, ids: AbstractSet[bytes]) -> list[bytes]:
        if not self.left:
            return super().remove_logged(ids)
        offsets = sorted(offsets_of(self._history, ids).values())
        found = {offset: OffsetReader(self._history, offset).read(1) for offset in offsets}
        numbered = self._history.numbered(ids)
        frames = self.remove(ids)  # after everything is read, because that may take several calls
        for offset, groups in found.items():
            for place, (begin, end) in enumerate(self._ranges):
                if begin <= offset < end:
                    frames += [groups[0].frames[0]] if groups and groups[0].offset == offset else []
                    parts = [(begin, offset), (offset + 1, end)]
                    self._ranges = deque(
                        each
                        for at, whole in enumerate(self._ranges)
                        for each in (parts if at == place else [whole])
                        if each[0] < each[1]
                    )
                    break
        self._offset_reader = None
        self._count_left()
        return [*frames, *self._remove_numbered(numbered, self.position)]  # also those that follow the replay

    def has(self, sought: bytes, logged: Logged | None) -> bool:
        replay = self.replay()
        if replay is None or logged is None or not replay.has(logged.offset):
            return super().has(sought, logged)
        # A deferred message that was not due when the channel was moved is passed over, as by `_add`.
        return logged.due_ns <= self._moved_ns or self._again_from <= logged.offset < self._again_to

    def peek(self, count: int) -> list[bytes]:
        if not self.left:
            return super().peek(count)
        frames = list(islice(self.window.frames(), count))
        if len(frames) < count and self._ranges:
            begin, end = self._ranges[0]
            for group in OffsetReader(self._history, begin).read():
                if not self._is_passed_over(group):
                    fitting = group.frames[: max(0, end - group.offset)]
                    frames += fitting[: count - len(frames)]
        return frames

    def byte_count(self) -> int:
        if not self.left or not self._ranges:
            return super().byte_count()
        return self._history.bytes_behind(max(0, self._ranges[0][0] - self._history.deferred_count))

    def skip_to_end(self) -> None:
        super().skip_to_end()
        self.left = 0
        self._ranges = deque()
        self._offsets = deque()
        self._offset_reader = None

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _count_left(self) -> None:
        left = len(self._offsets) + sum(end - begin for begin, end in self._ranges)
        self.gaps_size += self.left - left
        self.left = left

    def _read_replay(self) -> None:
        """Read the next messages of the replay into memory. Raises ``OSError``, as ``take`` does.

        If the log is read in steps, raises ``BlockingIOError`` after a part of many messages that are passed over.
        """
        size = BLOCK_SIZE
        if self._is_passing_over:  # which takes longer than to deliver them
            size = NEAR
        while self._ranges:
            begin, end = self._ranges[0]
            reader = self._offset_reader
            if reader is None:
                reader = self._offset_reader = OffsetReader(self._history, begin)
            groups = reader.read(size)
            for group in groups:
                self._add(group, end)
            reached = min(end, reader.offset) if groups else end
            self._ranges[0] = (reached, end)
            if reached == end:
                self._ranges.popleft()
                self._offset_reader = None
            self._count_left()
            self._is_passing_over = not self.window.length
            if self.window.length:
                return
            if self._ranges and self._history.in_steps:
                raise BlockingIOError(errno.EAGAIN, "more has to be read", self._history.folder)

    def _add(self, group: Group, end: int) -> None:
        frames = group.frames[: max(0, end - group.offset)]
        if not frames:
            return
        if not self._is_passed_over(group):
            self.window.extend(frames)
            self._offsets.extend(range(group.offset, group.offset + len(frames)))
            return
        first = max(group.offset, self._again_from)
        again = frames[first - group.offset : max(0, self._again_to - group.offset)]
        if again:
            self._defer(again, group.due_ns)
            self._again_from = first + len(again)

    def _is_passed_over(self, group: Group) -> bool:
        """Whether its messages were not due when the channel was moved."""
        return group.kind == DEFERRED and group.due_ns > self._moved_ns
