"""The messages that a topic or a channel has to deliver: its part of the stream, returned frames, deferred frames.

A ``Backlog`` consists of four parts, and a message is in exactly one of them. It leaves by ``take``, ``remove`` or
``empty`` only.

- The *stream* of the topic, from the channel's position on (``Cursor``). The next messages are in memory as far as they
  fit. The rest is read from the log, a block at a time, when those in memory are used up.
- *Returned* messages were taken from the stream and came back: requeued, timed out, or deferred and due now. They go to
  the current end of the queue, but never after more than `memory` messages, so that a long backlog in the log does not
  delay them for hours.
- *Restored* messages were returned or in flight when nsqd stopped. They come before all others. Until then only their
  ids are in memory.
- *Deferred* messages are in ``Deferred``.

Frames in memory are in a ``FrameQueue``, which stores batches as they are: every channel of the topic has the same
list, so a fan-out to twenty channels takes twenty appends, however many messages the batch has.
"""

import errno
import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import accumulate, chain, filterfalse, islice, repeat
from typing import Final, NamedTuple

from nsq_compat.log.checkpoint import (
    ENTRY,
    ChannelState,
    Prepared,
    Replay,
    copied_messages,
    entry_id,
    is_immediate,
)
from nsq_compat.log.offsets import Logged
from nsq_compat.log.segment import Group
from nsq_compat.log.topic_log import LogReader, TopicLog
from nsq_compat.protocol.message import attempts, message_id, with_attempts
from nsq_compat.queue.deferred import Deferred, Fetch
from nsq_compat.queue.deferred import prepare as prepare_keys
from nsq_compat.queue.in_flight import InFlight

MAX_IN_MEMORY: Final = 50_000
MAX_BYTES_IN_MEMORY: Final = 1 << 24
"""Frames of a cursor with a log. Reading others back costs less than keeping them, because the system has to allocate
more memory, which is in no CPU cache any more when they are delivered (docs/decisions/0015)."""
ANY_SIZE: Final = 1 << 62
"""As a number of bytes: no limit."""
_LEAST_RETURNED: Final = 256
"""Returned messages for which there is room in any case, as many as are delivered at once."""
_RESTORED_BATCH: Final = 256
"""Restored messages that are in memory before they are delivered."""
_SEARCHED_AT_ONCE: Final = 16
"""Restored messages that are read at once, about 5 ms of work if they are far apart in the log."""
_PREPARED_AT_ONCE: Final = 2048
MAX_SEARCHED: Final = 50_000
"""Messages that a search for one examines, some milliseconds of work."""

WithoutInFlight = Callable[[Sequence[bytes]], Sequence[bytes]]
"""Return those of these frames that are not in flight, and defer the others."""


class TooManyToSearch(Exception):
    """A message may be among more than are examined: `MAX_SEARCHED`."""


class FrameQueue:
    """Frames in memory, in FIFO order and without a limit. `length` is their number.

    Batches are never changed. An offset skips the frames of the first batch that were taken.
    """

    def __init__(self) -> None:
        self._batches: deque[Sequence[bytes]] = deque()
        self._append = self._batches.append  # compiled, looking up a method costs as much as calling it
        self._popleft = self._batches.popleft
        self._offset = 0
        self.length = 0

    def extend(self, frames: Sequence[bytes]) -> None:
        """Append a batch, which must not be changed afterwards."""
        if frames:
            self._append(frames)
            self.length += len(frames)

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """Take at most `limit` frames and, from the second one on, at most `max_bytes` bytes."""
        wanted = min(limit, self.length)
        if wanted <= 0:
            return ()
        self.length -= wanted
        frames = self._take_from_first(wanted)
        if len(frames) < wanted:
            gathered = list(frames)
            while len(gathered) < wanted:
                gathered += self._take_from_first(wanted - len(gathered))
            frames = gathered
        if len(frames) > 1 and sum(map(len, frames)) > max_bytes:
            kept = max(1, bisect_right(list(accumulate(map(len, frames))), max_bytes))
            rest, frames = frames[kept:], frames[:kept]
            self.length += len(rest)
            in_first = min(len(rest), self._offset)  # they were not removed from the first batch
            self._offset -= in_first
            if in_first < len(rest):
                self._batches.appendleft(rest[: len(rest) - in_first])
        return frames

    def empty(self) -> None:
        self._batches.clear()
        self._offset = self.length = 0

    def remove(self, ids: AbstractSet[bytes]) -> list[tuple[int, bytes]]:
        """Take these messages out, wherever they are; returns their places in the queue, in order, and their frames."""
        removed: list[tuple[int, bytes]] = []
        kept: list[Sequence[bytes]] = []
        begin = 0
        for batch in self.batches():
            if ids.isdisjoint(map(message_id, batch)):
                kept.append(batch)
            else:
                removed += [(place, frame) for place, frame in enumerate(batch, begin) if message_id(frame) in ids]
                if rest := [frame for frame in batch if message_id(frame) not in ids]:
                    kept.append(rest)
            begin += len(batch)
        if removed:
            self.empty()
            self._batches.extend(kept)
            self.length = begin - len(removed)
        return removed

    def batches(self) -> Iterator[Sequence[bytes]]:
        """Yield the frames in order. The queue must not be changed meanwhile."""
        for number, batch in enumerate(self._batches):
            yield batch if number else batch[self._offset :]

    def frames(self) -> Iterator[bytes]:
        """Yield the frames, oldest first. The queue must not be changed meanwhile."""
        for batch in self.batches():
            yield from batch

    def latest(self, count: int) -> list[bytes]:
        """Return the last `count` frames, oldest first."""
        newest = chain.from_iterable(map(reversed, reversed(self._batches)))
        return list(islice(newest, min(count, self.length)))[::-1]

    def _take_from_first(self, limit: int) -> Sequence[bytes]:
        batch, begin = self._batches[0], self._offset
        if len(batch) - begin > limit:
            self._offset = begin + limit
            return batch[begin : self._offset]
        self._popleft()
        self._offset = 0
        return batch[begin:] if begin else batch


class Cursor:
    """A position in a topic's stream, with the next messages in memory, in `window`, as far as there is room.

    The messages of a stream are numbered. `position` is the number of the next one to be taken, `end` that of the next
    one to be published. The ranges of `gaps` are passed over: messages that were removed, and messages that a paused
    topic held and dropped, which are not for its channels.

    `memory` bounds the frames in memory; with a log, MAX_IN_MEMORY and MAX_BYTES_IN_MEMORY bound them too. Bytes are
    estimated as if all frames were as long as the last one. A block just read may exceed both bounds.

    Invariant: memory holds the messages from `position` on, without those passed over and without any other gap, and
    everything up to `end` is in the log. Without a log (ephemeral), messages that do not fit are dropped, and get no
    number.
    """

    def __init__(self, log: TopicLog | None, memory: int, position: int = 0) -> None:
        self.position = position
        self.end = position
        self.window = FrameQueue()
        self.gaps: deque[tuple[int, int]] = deque()
        """All of them ahead of `position`, in order: first number, and the number after the last."""
        self.gaps_size = 0  # messages in the gaps
        self._log = log
        self.allowed = memory
        self._memory = memory if log is None else min(memory, MAX_IN_MEMORY)
        self._memory_bytes = ANY_SIZE if log is None else MAX_BYTES_IN_MEMORY
        self._reader: LogReader | None = None
        self._unused: deque[Group] = deque()

    def __len__(self) -> int:
        return self.end - self.position - self.gaps_size

    def replay(self) -> Replay | None:
        """What it delivers before the stream (``ReplayingCursor``)."""
        return None

    @property
    def behind(self) -> int:
        """The number of messages that are only in the log."""
        return len(self) - self.window.length

    def byte_count(self) -> int:
        """Approximate bytes of all messages; those only in the log are estimated from its size."""
        in_memory = sum(map(len, self.window.frames()))
        if self._log is None or not self.behind:
            return in_memory
        return in_memory + self._log.bytes_behind(self.position + self.window.length)

    def extend(self, frames: Sequence[bytes]) -> int:
        """Add published frames, which are in the log if there is one. Returns how many were dropped."""
        # Hot: once per channel for every publish. `behind` is written out, because the cost is mainly that of calls.
        window, count = self.window, len(frames)
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
        dropped = sum(map(self.extend, first))
        rest = count - sum(map(len, first))
        if self._log is None:
            return dropped + rest
        self.end += rest
        return 0

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """Take at most `limit` frames and about `max_bytes` bytes. Raises ``OSError`` if the log cannot be read."""
        if not self.window.length and self.position < self.end:
            self._read_block()
        frames = self.window.take(limit, max_bytes)
        if self.gaps:
            self._advance(len(frames))
        else:  # Hot: saves a call for every delivery
            self.position += len(frames)
        return frames

    def count_beyond(self, max_bytes: int) -> int:
        """The number of the next messages without which those that are only in the log have about `max_bytes`.

        It is 0 if they have no more already, or if there are gaps.
        """
        log, position = self._log, self.position
        first = self.window.length
        if log is None or self.gaps or not self.behind or log.bytes_behind(position + first) <= max_bytes:
            return 0
        return bisect_left(range(len(self)), -max_bytes, first, key=lambda each: -log.bytes_behind(position + each))

    def drop(self, count: int) -> int:
        """Drop the next messages; those that are only in the log are not read. Returns how many there were."""
        count = min(count, len(self))
        if len(self.window.take(count, ANY_SIZE)) < count:
            self._stop_reading()
        self._advance(count)
        return count

    def follow(self, other: "Cursor") -> int:
        """Append the messages of a cursor that begins where this one ends; returns how many were dropped.

        The other's frames may exceed the bound of memory. Until they are taken, no further ones are added.
        """
        batches = other.window.batches()
        if self._log is None:
            return other.behind + sum(self.extend(batch) for batch in batches)
        if not self.behind:
            for batch in batches:
                self.window.extend(batch)
        self.end = other.end
        self.gaps.extend(other.gaps)
        self.gaps_size += other.gaps_size
        return 0

    def pass_over(self, position: int) -> None:
        """Skip the numbers from the end of the stream up to `position`, at which the stream continues."""
        if self._log is None or position <= self.end:
            return  # without a log the numbers are not used
        if self.position == self.end:
            self.position = position
        else:
            self.gaps.append((self.end, position))
            self.gaps_size += position - self.end
        self.end = position

    def remove(self, ids: AbstractSet[bytes]) -> list[bytes]:
        """Take out the messages that are in memory; returns their frames."""
        removed = self.window.remove(ids)
        if self._log is None:
            self.end -= len(removed)
        elif removed:
            self._skip(self._numbers([place for place, _ in removed]))
        return [frame for _, frame in removed]

    def remove_logged(self, ids: AbstractSet[bytes]) -> list[bytes]:
        """Like ``remove``, for a few messages that may be in the log only. Raises ``OSError``, as ``take`` does."""
        if self._log is None or not self.behind:
            return self.remove(ids)
        found = self._log.numbered(ids)
        frames = self.remove(ids)
        (begin,) = self._numbers([self.window.length])
        return [*frames, *self._remove_numbered(found, begin)]

    def _remove_numbered(self, found: Mapping[int, bytes], begin: int) -> Iterable[bytes]:
        """Pass over those of these messages of the log that wait from `begin` on; returns their frames."""
        is_outside = self._outside_gaps()
        waiting = {seq: found[seq] for seq in sorted(found) if begin <= seq < self.end and is_outside(seq)}
        self._skip([*waiting])
        return waiting.values()

    def _numbers(self, places: Sequence[int]) -> list[int]:
        """The numbers of the messages at these places in memory, given in order; the last may be behind them."""
        numbers: list[int] = []
        gaps, shift = deque(self.gaps), self.position
        for place in places:
            while gaps and gaps[0][0] <= place + shift:
                begin, stop = gaps.popleft()
                shift += stop - begin
            numbers.append(place + shift)
        return numbers

    def _is_in_gap(self, seq: int) -> bool:
        return any(begin <= seq < stop for begin, stop in self.gaps)

    def _outside_gaps(self) -> Callable[[int], bool]:
        """Whether a number is in no gap, for numbers in their order. It looks at each gap once."""
        gaps = deque(self.gaps)

        def is_outside(seq: int) -> bool:
            while gaps and gaps[0][1] <= seq:
                gaps.popleft()
            return not gaps or seq < gaps[0][0]

        return is_outside

    def _skip(self, numbers: Sequence[int]) -> None:
        """Make gaps of these numbers, which are in none."""
        merged: list[tuple[int, int]] = []
        for begin, stop in sorted([*self.gaps, *((number, number + 1) for number in numbers)]):
            if merged and merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((begin, stop))
        self.gaps.clear()
        self.gaps.extend(merged)
        self.gaps_size += len(numbers)
        self._stop_reading()  # what was read ahead may begin with one of them
        self._advance(0)

    def skip_to_end(self) -> None:
        """Drop all messages."""
        self.window.empty()
        self._stop_reading()
        self.gaps.clear()
        self.gaps_size = 0
        self.position = self.end

    def move(self, position: int, end: int, gaps: Iterable[tuple[int, int]] = ()) -> None:
        """Move to another position in the stream. All its messages except for the gaps must be in the log."""
        self.skip_to_end()
        self.position, self.end = min(position, end), end
        self.gaps.extend(gaps)
        self.gaps_size = sum(stop - begin for begin, stop in self.gaps)

    def has(self, sought: bytes, logged: Logged | None) -> bool:
        """Whether it has yet to deliver the message with the id `sought`, of which `logged` is the place in the log.

        Raises ``TooManyToSearch``.
        """
        if self._log is None:
            if self.window.length > MAX_SEARCHED:
                raise TooManyToSearch
            return any(message_id(frame) == sought for frame in self.window.frames())
        number = None if logged is None else logged.number
        return number is not None and self.position <= number < self.end and not self._is_in_gap(number)

    def peek(self, count: int) -> list[bytes]:
        """Return up to `count` frames that ``take`` would return next. Raises ``OSError`` if the log cannot be read."""
        if not self.window.length and self.position < self.end:
            self._read_block()
        frames = list(islice(self.window.frames(), count))
        if len(frames) < count and self.behind:
            assert self._log is not None, "messages that are not in memory are in the log"
            with suppress(BlockingIOError):  # these frames suffice
                is_outside = self._outside_gaps()
                for group in self._log.reader(self._numbers([self.window.length])[0]).read():
                    wanted = islice(enumerate(group.frames, group.first_seq), max(0, self.end - group.first_seq))
                    fitting = (frame for seq, frame in wanted if is_outside(seq))
                    frames += islice(fitting, count - len(frames))
                    if len(frames) == count:
                        break
        return frames

    def _advance(self, count: int) -> None:
        self.position += count
        while self.gaps and self.gaps[0][0] <= self.position:
            begin, stop = self.gaps.popleft()
            self.gaps_size -= stop - begin
            self.position += stop - begin

    def _read_block(self) -> None:
        assert self._log is not None, "messages that are not in memory are in the log"
        self._unused = groups = self._unused_from(self.position)
        if self._reader is None or (not groups and self._reader.seq < self.position):
            self._reader = self._log.reader(self.position)
        # The log may have messages after `end`, which a paused topic holds.
        stop = self.gaps[0][0] if self.gaps else self.end
        groups = groups or deque(self._reader.read())
        expected = self.position
        while groups and groups[0].first_seq < stop and (not self.window.length or groups[0].first_seq == expected):
            group = groups.popleft()
            self._advance(group.first_seq - expected)  # over damaged messages, which the log counts
            frames = group.frames[: stop - group.first_seq]
            self.window.extend(frames)
            expected = group.first_seq + len(frames)
            if len(frames) < len(group.frames):
                groups.appendleft(group._replace(first_seq=expected, frames=group.frames[len(frames) :]))
        self._unused = groups  # after a gap, which `position` passes only when it reaches it
        if not self.window.length:
            self._advance(stop - self.position)
        if expected >= self.end or not self.window.length:
            self._stop_reading()

    def _unused_from(self, position: int) -> deque[Group]:
        """What was read and not used, without messages before `position`, which were in a gap."""
        groups = self._unused
        while groups and groups[0].first_seq < position:
            group = groups.popleft()
            skipped = position - group.first_seq
            if skipped < len(group.frames):
                groups.appendleft(group._replace(first_seq=position, frames=group.frames[skipped:]))
        return groups

    def _stop_reading(self) -> None:
        self._reader = None
        self._unused.clear()


class Peek(NamedTuple):
    """Frames, the next ones first. Times are monotonic seconds."""

    waiting: list[bytes]
    deferred: list[tuple[float, bytes]]
    """With due times."""
    in_flight: list[tuple[float, bytes]]
    """With deadlines."""


def prepare(state: ChannelState, shift: float, pause: Callable[[], None]) -> None:
    """Do the long part of `Backlog.restore` before it, in a thread: there may be a million entries.

    `pause` is called every few milliseconds.
    """
    entries, state.entries = state.all_entries(), []
    if not entries:
        return
    # Filters, because a compiled generator expression is a list.
    immediate: deque[tuple[bytes, int]] = deque()
    for _, _, each_id, attempt in map(ENTRY.unpack_from, prepare_keys(filter(is_immediate, entries), 0.0, pause)):
        immediate.append((each_id, attempt))
        if not len(immediate) % _PREPARED_AT_ONCE:
            pause()
    first_id = entry_id(entries[0])
    for begin in range(0, len(entries), _PREPARED_AT_ONCE):
        first_id = min(first_id, *map(entry_id, entries[begin : begin + _PREPARED_AT_ONCE]))
        pause()
    deferred = prepare_keys(filterfalse(is_immediate, entries), shift, pause)
    state.prepared = Prepared(immediate, deferred, first_id)


class Backlog:
    """`cursor` is the part in the stream. `fetch` reads restored messages from the log, if there is one."""

    def __init__(self, cursor: Cursor, deferred: Deferred, memory: int, fetch: Fetch | None = None) -> None:
        self.cursor = cursor
        self.deferred = deferred
        self.on_room: Callable[[], None] | None = None
        """Called once, as soon as at most half as many returned frames wait as memory has room for."""
        self.without_in_flight: WithoutInFlight | None = None
        """Set once messages may be there twice, because the channel was moved back (``replay``)."""
        self._memory = memory
        self._most_returned = max(memory, _LEAST_RETURNED)
        self._fetch = fetch
        self.returned = FrameQueue()
        self._return_points: deque[tuple[int, int]] = deque()  # (n, count): `count` frames follow the n-th message
        self._passed = 0  # number of messages taken from the stream
        self._restored: deque[tuple[bytes, int]] = deque()  # id, attempts at the next delivery
        self._read: list[bytes] = []  # frames of the first restored messages, which are not delivered yet
        self._searched = 0  # restored messages that were read, or are lost
        self._before_next_restored = 0  # returned frames to be taken before more restored messages are read

    def __len__(self) -> int:
        """The number of messages that could be delivered now: all but the deferred ones."""
        # Hot: runs twice for every delivery, with `Cursor.__len__` written out. Usually nothing was returned.
        cursor = self.cursor
        ahead = cursor.end - cursor.position - cursor.gaps_size
        if not self._return_points and not self._restored:
            return ahead
        return ahead + self.returned.length + len(self._restored)

    @property
    def backend_depth(self) -> int:
        """The number of messages that mem-queue-size has no room for."""
        return max(0, min(self.cursor.behind + len(self._restored), len(self) - self.cursor.allowed))

    def byte_count(self) -> int:
        """Approximate bytes of the waiting messages, without restored ones, of which only the ids are known."""
        return self.cursor.byte_count() + sum(map(len, self.returned.frames()))

    # --- In -----------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The number of further returned frames that memory has room for; negative if there are too many."""
        return self._most_returned - self.returned.length

    def put_back(self, frames: Sequence[bytes]) -> None:
        """Return frames that were delivered or deferred, for which there should be `room`.

        They carry the attempts of their next delivery.
        """
        if frames:
            self.returned.extend(frames)
            self._return_points.append((self._passed + min(len(self.cursor), self._memory), len(frames)))

    def take_in(self, entries: Iterable[tuple[float, bytes, int]]) -> None:
        """Add messages that the log keeps: when each is due (0: at once), its id, and its next attempt."""
        for due, each, attempt in entries:
            if due:
                self.deferred.add_entry(due, each, attempt)
            else:
                self._restored.append((each, attempt))

    def follow(self, held: "Backlog") -> int:
        """Add a copy of the messages that a topic held; returns how many were dropped, as ``Deferred.add_new`` does."""
        self.put_back(list(held.returned.frames()))
        self._restored.extend(held._restored)
        return self.cursor.follow(held.cursor) + held.deferred.share_with(self.deferred)

    # --- Out ----------------------------------------------------------------------------------------------------------

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """Take at most `limit` frames and about `max_bytes` bytes. Raises ``OSError``, having taken nothing.

        ``BlockingIOError`` is not a failure: more has to be read than one call should read. Call it again in a later
        iteration of the event loop.
        """
        if not self._return_points and not self._restored:  # Hot: usually nothing was returned
            frames = self.cursor.take(limit, max_bytes)
            self._passed += len(frames)
            return frames
        if self._restored and self._before_next_restored <= 0:
            self._read_restored()
        frames = self._take_run(limit, max_bytes)
        while self._return_points and len(frames) < limit and (size := sum(map(len, frames))) < max_bytes:
            # One block of the log at most: it takes some milliseconds, and may have a single message for the channel.
            if frames and self._return_points[0][0] > self._passed and not self.cursor.window.length:
                break
            try:
                more = self._take_run(limit - len(frames), max_bytes - size)
            except OSError:
                break  # the frames taken so far are delivered; the next call raises
            if not more:
                break
            frames = [*frames, *more]
        return frames if self.without_in_flight is None else self.without_in_flight(frames)

    def remove(self, ids: AbstractSet[bytes]) -> list[bytes]:
        """Take out messages that are in memory or were restored, not deferred; returns their frames.

        Raises ``OSError``, having taken nothing. The frames of restored messages are read, some in each call, so call
        it again while it returns any, or raises ``BlockingIOError``: then those are lost.
        """
        if places := self._places_of_restored(ids):
            found = self._fetch_restored([self._restored[place] for place in places])
            for place in reversed(places):
                del self._restored[place]
            self._read, self._searched = [], 0
            if not found:
                raise BlockingIOError(errno.EAGAIN, "more has to be searched")
            return found
        frames = self.cursor.remove(ids)
        removed = self.returned.remove(ids)
        if removed:
            frames += [frame for _, frame in removed]
            places = [place for place, _ in removed]
            self._before_next_restored -= bisect_left(places, self._before_next_restored)
            # There may be a point for each returned message, so the loop is over those that were removed.
            points = list(self._return_points)
            ends = list(accumulate(count for _, count in points))
            for place in places:
                index = bisect_right(ends, place)
                point, count = points[index]
                points[index] = (point, count - 1)
            self._return_points = deque(each for each in points if each[1])
            self._note_room()
        return frames

    def empty(self) -> None:
        self.cursor.skip_to_end()
        self.drop_taken()

    def drop_oldest(self, limit: int, max_bytes: int) -> int:
        """Drop what ``take`` would return, or more of it if size does not matter; returns how many.

        Raises as ``take`` does.
        """
        if max_bytes < ANY_SIZE or not self._is_stream:
            return len(self.take(limit, max_bytes))
        count = self.cursor.drop(limit)
        self._passed += count
        return count

    def count_beyond(self, max_bytes: int) -> int:
        """As that of the cursor, or 0 if messages were returned or are delivered once more."""
        return self.cursor.count_beyond(max_bytes) if self._is_stream else 0

    @property
    def _is_stream(self) -> bool:
        """Whether all messages that wait are the next ones of the stream."""
        is_plain = self.cursor.replay() is None and self.without_in_flight is None
        return is_plain and not self._return_points and not self._restored

    def drop_taken(self) -> None:
        """Drop the messages that were taken from the stream."""
        self.deferred.empty()
        self.returned.empty()
        self._return_points.clear()
        self._restored.clear()
        self._read, self._searched = [], 0
        self._before_next_restored = 0

    # --- Peeking ------------------------------------------------------------------------------------------------------

    def peek_waiting(self, count: int) -> list[bytes]:
        """Return up to `count` frames that ``take`` would return next, in about that order. Raises ``OSError``."""
        returned, stream = self.returned.frames(), iter(self.cursor.peek(count))
        frames = [
            *islice(returned, max(0, self._before_next_restored)),
            *self._fetch_restored(list(islice(self._restored, count))),
        ]
        passed = self._passed
        for point, size in self._return_points:
            if len(frames) >= count:
                break
            frames += islice(stream, max(0, point - passed))
            frames += islice(returned, size)
            passed = max(passed, point)
        return [*frames, *stream][:count]

    def peek(self, count: int, flights: Iterable[InFlight]) -> Peek:
        """Return at most `count` messages of each kind, at a cost that does not depend on their number.

        Raises ``OSError``.
        """
        first_of_each = chain.from_iterable(islice(each.peek(), count) for each in flights)
        return Peek(self.peek_waiting(count), self.deferred.peek(count), heapq.nsmallest(count, first_of_each))

    def find(self, sought: bytes, logged: Logged | None) -> tuple[float, int] | None:
        """Return when a message is due, 0 for at once, and the attempt of its next delivery; None if it is not here.

        `logged` is its place in the log. Raises ``TooManyToSearch``.
        """
        if self.cursor.has(sought, logged):
            return 0.0, 1
        if self.returned.length + len(self._restored) + len(self.deferred) > MAX_SEARCHED:
            raise TooManyToSearch
        for frame in self.returned.frames():
            if message_id(frame) == sought:
                return 0.0, attempts(frame)
        for each, attempt in self._restored:
            if each == sought:
                return 0.0, attempt
        return self.deferred.find(sought)

    def latest(self, count: int, flights: Iterable[InFlight]) -> list[tuple[float, bytes]]:
        """Return the last `count` messages of each kind and consumer in memory, with due times, 0 if not deferred."""
        newest = chain.from_iterable(islice(reversed(each.frames.values()), count) for each in flights)
        return [*zip(repeat(0.0), chain(self.cursor.window.latest(count), newest)), *self.deferred.latest(count)]

    # --- Checkpoints --------------------------------------------------------------------------------------------------

    def state(self, in_flight: Iterable[Mapping[bytes, bytes]] = ()) -> ChannelState:
        """Return the part of a checkpoint that describes it; `in_flight` are the frames that consumers have, by id."""
        unfinished = copied_messages(in_flight, self.returned.frames(), self._restored)
        cursor = self.cursor
        return ChannelState(cursor.position, self.deferred.keys(), list(cursor.gaps), unfinished, cursor.replay())

    def restore(self, state: ChannelState, end: int, shift: float) -> None:
        """Restore a state, in a stream that ends at `end`; `shift` is added to due times."""
        self.cursor.move(state.position, end, state.gaps)
        if state.prepared is not None:
            self._restored, deferred, _ = state.prepared
            self.deferred.take_over(deferred)
            return
        self._restored.extend(state.immediate())
        self.deferred.restore(state.take_deferred(), shift)

    def frames(self) -> Iterator[bytes]:
        """Yield the frames in memory that were taken from the stream: returned and deferred ones."""
        yield from self.returned.frames()
        yield from self.deferred.frames()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _take_run(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """Take frames from the stream up to the next returned ones, or take those."""
        if self._return_points:
            point, count = self._return_points[0]
            if point <= self._passed or not len(self.cursor):
                frames = self.returned.take(min(limit, count), max_bytes)
                self._before_next_restored -= len(frames)
                self._return_points.popleft()
                if len(frames) < count:
                    self._return_points.appendleft((point, count - len(frames)))
                if self.on_room is not None:
                    self._note_room()
                return frames
            limit = min(limit, point - self._passed)
        frames = self.cursor.take(limit, max_bytes)
        self._passed += len(frames)
        return frames

    def _places_of_restored(self, ids: AbstractSet[bytes]) -> list[int]:
        """The places of the first of these messages among those that were restored, of which there may be a million."""
        places: list[int] = []
        for place, (each, _) in enumerate(self._restored):
            if each in ids:
                places.append(place)
                if len(places) == _SEARCHED_AT_ONCE:
                    break
        return places

    def _note_room(self) -> None:
        if self.on_room is not None and self.returned.length <= self._most_returned // 2:
            on_room, self.on_room = self.on_room, None
            on_room()

    def _read_restored(self) -> None:
        """Read a batch of restored messages. Raises ``BlockingIOError`` after each step but the last."""
        begin = self._searched
        some = list(islice(self._restored, begin, begin + _SEARCHED_AT_ONCE))
        self._read += self._fetch_restored(some)
        self._searched += len(some)
        if self._searched < min(len(self._restored), _RESTORED_BATCH):
            raise BlockingIOError(errno.EAGAIN, "more has to be read")
        frames = self._read
        for _ in range(self._searched):
            self._restored.popleft()
        self._read, self._searched = [], 0
        self.returned.extend(frames)
        self._return_points.append((0, len(frames)))
        self._before_next_restored = self.returned.length

    def _fetch_restored(self, batch: Sequence[tuple[bytes, int]]) -> list[bytes]:
        if not batch:
            return []
        assert self._fetch is not None, "restored messages are in a log"
        found = self._fetch([message_id for message_id, _ in batch], {})
        return [with_attempts(found[message_id], attempt) for message_id, attempt in batch if message_id in found]
