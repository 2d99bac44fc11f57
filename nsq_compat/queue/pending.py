"""What a channel could deliver now: its place in the topic's stream, and what came back from consumers.

What it had taken from the stream and not finished when the daemon ended comes first; until it is its turn, only the ids
are in memory.

What comes back goes to the end of the line, as it stands then, but never behind more than `memory` messages, so that a
long backlog in the log does not put it off for hours.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from nsq_compat.protocol.message import with_attempts
from nsq_compat.queue.cursor import Cursor
from nsq_compat.queue.deferred import Fetch
from nsq_compat.queue.frame_queue import FrameQueue

_FETCHED_AT_ONCE: Final = 256


class Pending:
    """A queue of frames; `cursor` is the part that follows the stream."""

    def __init__(self, cursor: Cursor, memory: int) -> None:
        self.cursor = cursor
        self._memory = memory
        self._returned = FrameQueue()
        self._turns: deque[tuple[int, int]] = deque()  # of what came back: after which position, how many
        self._passed = 0  # taken from the stream so far
        self._restored: deque[tuple[bytes, int]] = deque()  # id, number of the next delivery
        self._before_next_restored = 0  # of what came back: to be taken until the next of them are read
        self._fetch: Fetch | None = None
        self.damaged_count = 0
        self.on_room: Callable[[], None] | None = None
        """Called once, as soon as no more than half of what may come back to memory waits there."""

    def __len__(self) -> int:
        # Hot: asked twice for every delivery. Where nothing came back this saves a call.
        if not self._turns and not self._restored:
            return len(self.cursor)
        return len(self.cursor) + len(self._returned) + len(self._restored)

    @property
    def returned_count(self) -> int:
        return len(self._returned)

    def put_back(self, frames: Sequence[bytes]) -> None:
        """Frames that were delivered before, or deferred; they carry the number of their next delivery."""
        if frames:
            self._returned.extend(frames)
            self._turns.append((self._passed + min(len(self.cursor), self._memory), len(frames)))

    def restore(self, messages: Iterable[tuple[bytes, int]], fetch: Fetch) -> None:
        """Messages (id, number of the next delivery) that come before all others; `fetch` finds their frames."""
        self._restored.extend(messages)
        self._fetch = fetch

    def byte_count(self) -> int:
        """About how big what waits is; those that are known by their ids alone do not count."""
        return self.cursor.byte_count() + sum(map(len, self.returned()))

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """At most `limit` frames and about `max_bytes` bytes.

        Raises ``OSError`` when the log cannot be read, having taken nothing.
        """
        if not self._turns and not self._restored:  # Hot: as a rule nothing came back
            frames = self.cursor.take(limit, max_bytes)
            self._passed += len(frames)
            return frames
        if self._restored and self._before_next_restored <= 0:
            self._read_restored()
        frames = self._take_run(limit, max_bytes)
        while self._turns and len(frames) < limit and (size := sum(map(len, frames))) < max_bytes:
            try:
                more = self._take_run(limit - len(frames), max_bytes - size)
            except OSError:
                break  # what was taken goes out; who asks again is told
            if not more:
                break
            frames = [*frames, *more]
        return frames

    def _take_run(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """From the stream up to the turn of what came back, or from that."""
        if self._turns:
            turn, count = self._turns[0]
            if turn <= self._passed or not len(self.cursor):
                return self._take_returned(min(limit, count), max_bytes)
            limit = min(limit, turn - self._passed)
        frames = self.cursor.take(limit, max_bytes)
        self._passed += len(frames)
        return frames

    def empty(self) -> None:
        """Forget everything."""
        self.cursor.skip_to_end()
        self._returned.empty()
        self._turns.clear()
        self._restored.clear()
        self._before_next_restored = 0

    def restored(self) -> Iterable[tuple[bytes, int]]:
        """What is left of ``restore``."""
        return self._restored

    def look(self, count: int) -> list[bytes]:
        """What would be taken next, `count` of it or fewer, about in that order.

        Raises ``OSError`` when the log cannot be read.
        """
        returned, stream = self.returned(), iter(self.cursor.look(count))
        frames = [*islice(returned, max(0, self._before_next_restored)), *self._look_at_restored(count)]
        passed = self._passed
        for turn, size in self._turns:
            if len(frames) >= count:
                break
            frames += islice(stream, max(0, turn - passed))
            frames += islice(returned, size)
            passed = max(passed, turn)
        return [*frames, *stream][:count]

    def returned(self) -> Iterator[bytes]:
        """What came back and waits, oldest first."""
        for batch in self._returned.batches():
            yield from batch

    def _read_restored(self) -> None:
        assert self._fetch is not None, "given with the ids"
        some = list(islice(self._restored, _FETCHED_AT_ONCE))
        found = self._fetch([number for number, _ in some])
        for _ in some:
            self._restored.popleft()
        frames = [with_attempts(found[number], attempt) for number, attempt in some if number in found]
        self.damaged_count += len(some) - len(frames)
        self._returned.extend(frames)
        self._turns.append((0, len(frames)))
        self._before_next_restored = len(self._returned)

    def _look_at_restored(self, count: int) -> list[bytes]:
        some = list(islice(self._restored, count))
        if not some:
            return []
        assert self._fetch is not None, "given with the ids"
        found = self._fetch([number for number, _ in some])
        return [with_attempts(found[number], attempt) for number, attempt in some if number in found]

    def _take_returned(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        turn, count = self._turns.popleft()
        frames = self._returned.take(min(limit, count), max_bytes)
        self._before_next_restored -= len(frames)
        if len(frames) < count:
            self._turns.appendleft((turn, count - len(frames)))
        if self.on_room is not None and len(self._returned) <= self._memory // 2:
            on_room, self.on_room = self.on_room, None
            on_room()
        return frames
