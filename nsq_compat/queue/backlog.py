"""The messages that a topic or a channel has to deliver: its part of the stream, returned frames, deferred frames.

*Returned* messages were taken from the stream and came back: requeued, timed out, or deferred and due now. They go to
the end of the queue as it stands then, but never behind more than `memory` messages, so that a long backlog in the log
does not delay them for hours.

*Restored* messages were returned or in flight when nsqd stopped. They come before all others. Until then only their ids
are in memory.

Invariant: a message is in exactly one of the four parts, and leaves by ``take``, ``drop_oldest`` or ``empty`` only.
"""

import errno
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from nsq_compat.log.checkpoint import ChannelState, copied_messages
from nsq_compat.log.storage import TopicStore
from nsq_compat.protocol.message import with_attempts
from nsq_compat.queue.cursor import Cursor
from nsq_compat.queue.deferred import Deferred, Fetch, SharedReads
from nsq_compat.queue.frame_queue import FrameQueue
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.queue.schedule import Schedule

_RESTORED_BATCH: Final = 256
"""Restored messages that are in memory before they are delivered."""
_SEARCHED_AT_ONCE: Final = 16
"""Restored messages that are read at once, about 5 ms of work if they are far apart in the log."""


class Peek(NamedTuple):
    """Frames, the next ones first. Times are monotonic seconds."""

    waiting: list[bytes]
    deferred: list[tuple[float, bytes]]
    """With due times."""
    in_flight: list[tuple[float, bytes]]
    """With deadlines."""


class Backlog:
    """`cursor` is the part in the stream. `fetch` reads restored messages from the log, if there is one."""

    def __init__(self, cursor: Cursor, deferred: Deferred, memory: int, fetch: Fetch | None = None) -> None:
        self.cursor = cursor
        self.deferred = deferred
        self.on_room: Callable[[], None] | None = None
        """Called once, as soon as at most half as many returned frames wait as memory has room for."""
        self._memory = memory
        self._fetch = fetch
        self._returned = FrameQueue()
        self._turns: deque[tuple[int, int]] = deque()  # of returned frames: behind which message, how many
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
        if not self._turns and not self._restored:
            return ahead
        return ahead + len(self._returned) + len(self._restored)

    @property
    def backend_depth(self) -> int:
        """The number of messages that mem-queue-size has no room for."""
        return self.cursor.backend_depth

    @property
    def returned_count(self) -> int:
        return len(self._returned)

    def byte_count(self) -> int:
        """Approximate bytes of the waiting messages, without restored ones, of which only the ids are known."""
        return self.cursor.byte_count() + sum(map(len, self.returned()))

    # --- In -----------------------------------------------------------------------------------------------------------

    def put_back(self, frames: Sequence[bytes]) -> None:
        """Return frames that were delivered or deferred. They carry the attempts of their next delivery."""
        if frames:
            self._returned.extend(frames)
            self._turns.append((self._passed + min(len(self.cursor), self._memory), len(frames)))

    def defer(self, frames: Sequence[bytes], due: float, locations: Sequence[bytes] = ()) -> int:
        """Defer new messages until `due`; returns how many were dropped, because there is neither room nor a log.

        `locations` are those in the log, if they are there.
        """
        fitting = self.deferred.fitting(frames)
        self.deferred.add(fitting, due, locations)
        return len(frames) - len(fitting)

    def follow(self, held: "Backlog") -> int:
        """Add a copy of the messages that a topic held; returns how many were dropped, as ``defer`` does."""
        self.put_back(list(held.returned()))
        self._restored.extend(held._restored)
        return self.cursor.follow(held.cursor) + held.deferred.share_with(self.deferred)

    # --- Out ----------------------------------------------------------------------------------------------------------

    def take(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """Take at most `limit` frames and about `max_bytes` bytes. Raises ``OSError``, having taken nothing.

        ``BlockingIOError`` says that nothing is wrong, but more has to be read than should be at once: call it again
        in a later iteration of the event loop.
        """
        if not self._turns and not self._restored:  # Hot: usually nothing was returned
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
                break  # the frames taken so far are delivered; the next call raises
            if not more:
                break
            frames = [*frames, *more]
        return frames

    def drop_oldest(self, limit: int, max_bytes: int) -> int:
        """Drop the messages that ``take`` would return; returns how many. Raises ``OSError`` as ``take`` does."""
        return len(self.take(limit, max_bytes))

    def empty(self) -> None:
        self.cursor.skip_to_end()
        self.deferred.empty()
        self._returned.empty()
        self._turns.clear()
        self._restored.clear()
        self._read, self._searched = [], 0
        self._before_next_restored = 0

    # --- Peeking ------------------------------------------------------------------------------------------------------

    def peek_waiting(self, count: int) -> list[bytes]:
        """Return up to `count` frames that ``take`` would return next, in about that order. Raises ``OSError``."""
        returned, stream = self.returned(), iter(self.cursor.peek(count))
        frames = [
            *islice(returned, max(0, self._before_next_restored)),
            *self._fetch_restored(list(islice(self._restored, count))),
        ]
        passed = self._passed
        for turn, size in self._turns:
            if len(frames) >= count:
                break
            frames += islice(stream, max(0, turn - passed))
            frames += islice(returned, size)
            passed = max(passed, turn)
        return [*frames, *stream][:count]

    def peek(self, count: int, flights: Iterable[InFlight]) -> Peek:
        """Return at most `count` messages of each kind, at a cost that does not depend on their number.

        Raises ``OSError``.
        """
        first_of_each = chain.from_iterable(islice(each.peek(), count) for each in flights)
        return Peek(self.peek_waiting(count), self.deferred.peek(count), heapq.nsmallest(count, first_of_each))

    def latest(self, count: int, flights: Iterable[InFlight]) -> Peek:
        """Return the last `count` messages of each kind and consumer in memory; those in flight are among `waiting`."""
        newest = (islice(reversed(each.frames.values()), count) for each in flights)
        waiting = [*self.cursor.latest(count), *chain.from_iterable(newest)]
        return Peek(waiting, self.deferred.latest(count), [])

    def returned(self) -> Iterator[bytes]:
        """Returned frames, oldest first."""
        for batch in self._returned.batches():
            yield from batch

    # --- Checkpoints --------------------------------------------------------------------------------------------------

    def state(self, in_flight: Iterable[Mapping[bytes, bytes]] = ()) -> ChannelState:
        """Return the part of a checkpoint that describes it; `in_flight` are the frames that consumers have, by id."""
        unfinished = copied_messages(in_flight, self.returned(), self._restored)
        return ChannelState(self.cursor.position, self.deferred.keys(), list(self.cursor.gaps), unfinished)

    def restore(self, state: ChannelState, end: int, shift: float) -> None:
        """Restore a state, in a stream that ends at `end`; `shift` is added to due times."""
        self.cursor.move(state.position, end, state.gaps)
        self._restored.extend(state.at_once())
        self.deferred.restore(state.take_deferred(), shift)

    def frames(self) -> Iterator[bytes]:
        """Yield the frames in memory that were taken from the stream: returned and deferred ones."""
        yield from self.returned()
        yield from self.deferred.frames()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _take_run(self, limit: int, max_bytes: int) -> Sequence[bytes]:
        """Take frames from the stream up to the next returned ones, or take those."""
        if self._turns:
            turn, count = self._turns[0]
            if turn <= self._passed or not len(self.cursor):
                return self._take_returned(min(limit, count), max_bytes)
            limit = min(limit, turn - self._passed)
        frames = self.cursor.take(limit, max_bytes)
        self._passed += len(frames)
        return frames

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
        self._returned.extend(frames)
        self._turns.append((0, len(frames)))
        self._before_next_restored = len(self._returned)

    def _fetch_restored(self, batch: Sequence[tuple[bytes, int]]) -> list[bytes]:
        if not batch:
            return []
        assert self._fetch is not None, "restored messages are in a log"
        found = self._fetch([message_id for message_id, _ in batch])
        return [with_attempts(found[message_id], attempt) for message_id, attempt in batch if message_id in found]

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


class BacklogFactory:
    """Creates the backlogs of one topic. What memory has no room for is in the topic's log."""

    def __init__(self, limits: QueueLimits, store: TopicStore | None, schedule: Schedule) -> None:
        self._memory = limits.mem_queue_size
        self._store = store
        self._reads = None if store is None else SharedReads(store.log.fetch, schedule)

    def set_channel_count(self, count: int) -> None:
        """Set how many channels may read the same deferred messages from the log."""
        if self._reads is not None:
            self._reads.readers = count

    def make(self, position: int, *, logged: bool = True) -> Backlog:
        """Return an empty backlog at that position in the stream; `logged` is false for ephemeral channels."""
        store, memory = self._store, self._memory
        fetch = store.log.fetch if store is not None else None
        if store is None or self._reads is None or not logged:
            return Backlog(Cursor(None, memory, position, position), Deferred(None, memory), memory, fetch)
        deferred = Deferred(self._reads.fetch, memory, store.locate)
        return Backlog(Cursor(store.log, memory, position, position), deferred, memory, fetch)
