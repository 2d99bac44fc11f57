"""What a topic or a channel has to deliver: its place in the topic's stream, returned frames, deferred frames.

*Returned* is what was taken from the stream and came back: requeued, timed out, or deferred and due now. It goes to the
end of the queue, as it stands then, but never behind more than `memory` messages, so that a long backlog in the log
does not delay it for hours.

*Restored* is what was returned or in flight when the daemon ended. It comes before everything else. Until its turn
comes only the ids are in memory.

Invariant: a message is in exactly one of the four parts, and leaves by ``take``, ``drop_oldest`` or ``empty`` only.
"""

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

_FETCHED_AT_ONCE: Final = 256


class Peek(NamedTuple):
    """Frames, those first that something will happen to first; moments are monotonic seconds."""

    waiting: list[bytes]
    deferred: list[tuple[float, bytes]]
    """When it is due."""
    in_flight: list[tuple[float, bytes]]
    """When its consumer's time is over."""


class Backlog:
    """`cursor` is the part that follows the stream. `fetch` reads restored messages from the log, if there is one."""

    def __init__(self, cursor: Cursor, deferred: Deferred, memory: int, fetch: Fetch | None = None) -> None:
        self.cursor = cursor
        self.deferred = deferred
        self.damaged_count = 0
        self.on_room: Callable[[], None] | None = None
        """Called once, as soon as no more than half of what may come back to memory waits there."""
        self._memory = memory
        self._fetch = fetch
        self._returned = FrameQueue()
        self._turns: deque[tuple[int, int]] = deque()  # of returned frames: after which position, how many
        self._passed = 0  # taken from the stream so far
        self._restored: deque[tuple[bytes, int]] = deque()  # id, number of the next delivery
        self._before_next_restored = 0  # returned frames to be taken before more restored messages are read

    def __len__(self) -> int:
        """Messages that could be delivered now: all but the deferred ones."""
        # Hot: asked twice for every delivery. Where nothing was returned this saves a call.
        if not self._turns and not self._restored:
            return len(self.cursor)
        return len(self.cursor) + len(self._returned) + len(self._restored)

    @property
    def backend_depth(self) -> int:
        """The part of the length that mem-queue-size has no room for."""
        return self.cursor.backend_depth

    @property
    def returned_count(self) -> int:
        return len(self._returned)

    def byte_count(self) -> int:
        """Approximate size of what waits, without restored messages, of which only the ids are known."""
        return self.cursor.byte_count() + sum(map(len, self.returned()))

    # --- In -----------------------------------------------------------------------------------------------------------

    def put_back(self, frames: Sequence[bytes]) -> None:
        """Frames that were delivered before, or deferred; they carry the number of their next delivery."""
        if frames:
            self._returned.extend(frames)
            self._turns.append((self._passed + min(len(self.cursor), self._memory), len(frames)))

    def defer(self, frames: Sequence[bytes], due: float, locations: Sequence[bytes] = ()) -> int:
        """Keep new messages until `due`; `locations` are those in the log, if they are there.

        Returns how many were dropped because there is no room and no log.
        """
        fitting = self.deferred.fitting(frames)
        self.deferred.add(fitting, due, locations)
        return len(frames) - len(fitting)

    def follow(self, held: "Backlog") -> int:
        """Take over a copy of what a topic held. Returns how many were dropped because there is no room and no log."""
        self.put_back(list(held.returned()))
        self._restored.extend(held._restored)
        return self.cursor.follow(held.cursor) + held.deferred.share_with(self.deferred)

    # --- Out ----------------------------------------------------------------------------------------------------------

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

    def drop_oldest(self, limit: int, max_bytes: int) -> int:
        """Forget what would be taken next; return how many messages that was. Raises ``OSError`` as ``take`` does."""
        return len(self.take(limit, max_bytes))

    def empty(self) -> None:
        """Forget everything."""
        self.cursor.skip_to_end()
        self.deferred.empty()
        self._returned.empty()
        self._turns.clear()
        self._restored.clear()
        self._before_next_restored = 0

    # --- Looking ------------------------------------------------------------------------------------------------------

    def peek_waiting(self, count: int) -> list[bytes]:
        """What would be taken next, `count` of it or fewer, about in that order.

        Raises ``OSError`` when the log cannot be read.
        """
        returned, stream = self.returned(), iter(self.cursor.peek(count))
        frames = [*islice(returned, max(0, self._before_next_restored)), *self._peek_restored(count)]
        passed = self._passed
        for turn, size in self._turns:
            if len(frames) >= count:
                break
            frames += islice(stream, max(0, turn - passed))
            frames += islice(returned, size)
            passed = max(passed, turn)
        return [*frames, *stream][:count]

    def peek(self, count: int, flights: Iterable[InFlight]) -> Peek:
        """At most `count` of each kind, at a cost that does not depend on how many there are. Raises ``OSError``."""
        first_of_each = chain.from_iterable(islice(each.peek(), count) for each in flights)
        return Peek(self.peek_waiting(count), self.deferred.peek(count), heapq.nsmallest(count, first_of_each))

    def latest(self, count: int, flights: Iterable[InFlight]) -> Peek:
        """The last `count` of each kind and consumer that are in memory; what is in flight is among what waits."""
        newest = (islice(reversed(each.frames.values()), count) for each in flights)
        waiting = [*self.cursor.latest(count), *chain.from_iterable(newest)]
        return Peek(waiting, self.deferred.latest(count), [])

    def returned(self) -> Iterator[bytes]:
        """Returned frames, oldest first."""
        for batch in self._returned.batches():
            yield from batch

    # --- What must survive --------------------------------------------------------------------------------------------

    def state(self, in_flight: Iterable[Mapping[bytes, bytes]] = ()) -> ChannelState:
        """What a checkpoint says of it; `in_flight` are the frames that consumers have, by id."""
        unfinished = copied_messages(in_flight, self.returned(), self._restored)
        return ChannelState(self.cursor.position, self.deferred.keys(), list(self.cursor.gaps), unfinished)

    def restore(self, state: ChannelState, end: int, shift: float) -> None:
        """Be as a checkpoint said, in a stream that ends at `end`; `shift` makes due times of today's clock."""
        self.cursor.move(state.position, end, state.gaps)
        self._restored.extend(state.at_once())
        self.deferred.restore(state.take_deferred(), shift)

    def frames(self) -> Iterator[bytes]:
        """The messages taken from the stream that it holds in memory: returned and deferred ones."""
        yield from self.returned()
        yield from self.deferred.frames()

    # --- Inside -------------------------------------------------------------------------------------------------------

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

    def _read_restored(self) -> None:
        assert self._fetch is not None, "restored messages are in a log"
        some = list(islice(self._restored, _FETCHED_AT_ONCE))
        found = self._fetch([number for number, _ in some])
        for _ in some:
            self._restored.popleft()
        frames = [with_attempts(found[number], attempt) for number, attempt in some if number in found]
        self.damaged_count += len(some) - len(frames)
        self._returned.extend(frames)
        self._turns.append((0, len(frames)))
        self._before_next_restored = len(self._returned)

    def _peek_restored(self, count: int) -> list[bytes]:
        some = list(islice(self._restored, count))
        if not some:
            return []
        assert self._fetch is not None, "restored messages are in a log"
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


class BacklogFactory:
    """Makes the backlogs of one topic: in memory what the options allow, the rest in the topic's log."""

    def __init__(self, limits: QueueLimits, store: TopicStore | None, schedule: Schedule) -> None:
        self._memory = limits.mem_queue_size
        self._store = store
        self._reads = None if store is None else SharedReads(store.log.fetch, schedule)

    def set_channel_count(self, count: int) -> None:
        """So many channels may read the same deferred messages from the log."""
        if self._reads is not None:
            self._reads.readers = count

    def make(self, position: int, *, logged: bool = True) -> Backlog:
        """An empty backlog at that place in the stream; not `logged` where the channel or the topic is ephemeral."""
        store, memory = self._store, self._memory
        fetch = store.log.fetch if store is not None else None
        if store is None or self._reads is None or not logged:
            return Backlog(Cursor(None, memory, position, position), Deferred(None, memory), memory, fetch)
        deferred = Deferred(self._reads.fetch, memory, store.locate)
        return Backlog(Cursor(store.log, memory, position, position), deferred, memory, fetch)
