"""Messages that must not be delivered before their time.

A heap has a short key for each. The first ones have their frames in memory; the others' frames are read from the log
when they are due. So a million deferred messages cost as much as their keys.

A key is bytes (`storage_schema.CHECKPOINT_ENTRY`), followed by the location of the message in the log if that is
known (`checkpoint.pack_key`). Compared as bytes, keys are in the order of due times. A message without a location has
to be searched for by its id, which costs a hundred times as much. So requeued messages are located in batches, while
neighbours in the log are still requeued together.
"""

import heapq
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from itertools import chain, islice, repeat
from typing import Final

from nsq_compat.log.checkpoint import ENTRY, entry_id, key_location, pack_key
from nsq_compat.log.segment import NOWHERE
from nsq_compat.protocol.message import attempts, with_attempts
from nsq_compat.protocol.message import message_id as id_of
from nsq_compat.queue.schedule import AT_ONCE, NEVER, Schedule

_MAX_SEARCHED = 50_000
"""Keys that `latest` and a part of `remove` examine; more would block the event loop for too long."""
_MAX_BYTES: Final = 1 << 24
"""Frames in memory, if there is a log."""
_LOCATED_AT_ONCE: Final = 256
_LOCATED_BYTES: Final = 1 << 20
_SEARCHED_AT_ONCE: Final = 16
"""Messages without a location that are released at once; others are served before the next."""
_PREPARED_AT_ONCE: Final = 2048
"""Keys, in about 2 ms."""
_REMEMBERED: Final = 8192
"""Locations of released messages, for requeues, beside those of as many messages as wait in memory."""

_MAX_SHARED: Final = 2048
"""Frames that channels may share before older ones are dropped; at most twice as many."""
_MAX_SHARED_BYTES: Final = 1 << 20
_SHARED_SECONDS: Final = 1.0

_pack_due: Final = struct.Struct(">d").pack
_serials: Final = itertools.count(1)


Fetch = Callable[[Sequence[bytes], Mapping[bytes, bytes]], Mapping[bytes, bytes]]
"""Read frames by id from the log, with the locations that are known. Those that cannot be read are left out. Raises
``OSError``."""
Locate = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]
"""Hand frames over to the log; returns the locations that a short search finds, by id. Raises ``OSError``."""


class Deferred:
    """Due times are monotonic seconds. Messages due at the same time are released in the order they were added.

    Without a log (`fetch` is None) every frame stays in memory. With a log, `memory` of them do, and _MAX_BYTES. The
    log finds the others by id, once they were handed over to it with `locate`.
    """

    def __init__(self, fetch: Fetch | None = None, memory: int = 1 << 62, locate: Locate | None = None) -> None:
        self._fetch = fetch
        self._locate = locate
        self._memory = memory
        self._keys: list[bytes] = []
        self._frames: dict[bytes, bytes] = {}
        self._size = 0  # bytes of `_frames`
        self._unlocated: dict[bytes, bytes] = {}  # by key, to be located together; never many
        self._recent: dict[bytes, bytes] = {}  # locations of the last released messages
        self._shared: list[bytes] | None = None  # sorted keys of `_frames`, once `share_with` has needed them

    def __len__(self) -> int:
        return len(self._keys) + len(self._unlocated)

    def room_after(self, count: int, size: int) -> int:
        """The number of such frames that stay in memory in addition to `count` with `size` bytes in all.

        It is negative if these do not.
        """
        if self._fetch is None:
            return 1 << 62
        left = (_MAX_BYTES - self._size - size) * count // size if size else 0
        return min(self._memory - len(self._frames) - count, left)

    def add_new(self, frames: Sequence[bytes], due: float, locations: Sequence[bytes] = ()) -> int:
        """Defer published messages. Without a log, those that memory has no room for are dropped; returns how many."""
        fitting = frames if self._fetch is not None else frames[: max(0, self._memory - len(self))]
        self.add(fitting, due, locations)
        return len(frames) - len(fitting)

    def add(self, frames: Sequence[bytes], due: float, locations: Sequence[bytes] = ()) -> None:
        """Defer messages until `due`. `locations` are given if they have just been logged."""
        if self.room_after(len(frames), sum(map(len, frames))) >= 0:
            for frame in frames:
                self._keep(id_of(frame), frame)
        elif not locations:  # returned messages, which the log may have released before
            for frame in frames:
                message_id = id_of(frame)
                if location := self._recent.pop(message_id, NOWHERE):
                    self.add_entry(due, message_id, attempts(frame), location)
                else:
                    self._add_unlocated(pack_key(due, next(_serials), message_id, attempts(frame)), frame)
            return
        for frame, location in zip(frames, locations or repeat(NOWHERE), strict=False):
            self.add_entry(due, id_of(frame), attempts(frame), location)

    def add_entry(self, due: float, message_id: bytes, attempt: int, location: bytes = NOWHERE) -> None:
        """Defer a message. Its frame is in the log, or was added before."""
        heapq.heappush(self._keys, pack_key(due, next(_serials), message_id, attempt, location))

    def release(self, now: float, limit: int) -> list[bytes]:
        """Take at most `limit` due messages, the earliest first. Raises ``OSError``, having taken nothing.

        It returns fewer if they have to be searched for. ``next_due`` shows whether more are due.
        """
        keys = self._take_keys(now, limit)
        try:
            entries, frames = self._read(keys)
        except OSError:
            for key in keys:
                heapq.heappush(self._keys, key)
            raise
        released: list[bytes] = []
        for _, _, message_id, attempt in entries:
            frame = frames.get(message_id)
            if frame is not None:
                self._forget(message_id)
                released.append(frame if attempts(frame) == attempt else with_attempts(frame, attempt))
        return released

    def remove(self, ids: AbstractSet[bytes], at: int) -> tuple[list[bytes], int]:
        """Take these messages out of a part of the heap; returns their frames, and where the next part begins.

        That is -1 after the last part. Call it with 0 first, and release nothing before the last part is searched.
        Raises ``OSError`` and ``BlockingIOError`` if a frame cannot be read, or not at once, having taken nothing.
        """
        heap = self._keys
        for key in [key for key in self._unlocated if entry_id(key) in ids]:
            self._keep(entry_id(key), self._unlocated.pop(key))
            heapq.heappush(heap, key)
            at = 0  # it may have moved up
        removed: list[bytes] = []
        stop = min(len(heap), at + _MAX_SEARCHED)
        while len(removed) < _SEARCHED_AT_ONCE and at < stop:
            # The last key takes the place of the one that is removed, so it has to be none that is sought.
            if entry_id(heap[-1]) in ids:
                index = len(heap) - 1
            else:
                index = next((index for index in range(at, stop) if entry_id(heap[index]) in ids), stop)
                at = index
            if index == stop:
                break
            try:
                entries, frames = self._read([heap[index]])
            except OSError:
                if removed:
                    break  # the next call raises
                raise
            _remove(heap, index)
            stop = min(len(heap), stop)
            for _, _, message_id, attempt in entries:
                if message_id in frames:
                    removed.append(with_attempts(frames[message_id], attempt))
                    self._forget(message_id)
        return removed, at if at < len(heap) else -1

    def find(self, message_id: bytes) -> tuple[float, int] | None:
        """Return when a message is due, and the attempt of its next delivery; None if it is not here."""
        for key in chain(self._unlocated, self._keys):
            if entry_id(key) == message_id:
                due, _, _, attempt = ENTRY.unpack_from(key)
                return due, attempt
        return None

    def peek(self, count: int) -> list[tuple[float, bytes]]:
        """Return the messages that are due first, with due times. Raises ``OSError``."""
        self._locate_gathered()
        entries, frames = self._read(_first(self._keys, count))
        return [
            (due, with_attempts(frames[message_id], attempt))
            for due, _, message_id, attempt in entries
            if message_id in frames
        ]

    def latest(self, count: int) -> list[tuple[float, bytes]]:
        """Return the messages in memory that were added last, with due times; of very many, those due first."""
        if len(self._keys) > _MAX_SEARCHED:
            return self.peek(count)
        newest = set(islice(reversed(self._frames), count))
        entries = (ENTRY.unpack_from(key) for key in self._keys if entry_id(key) in newest)
        return [(due, with_attempts(self._frames[message_id], attempt)) for due, _, message_id, attempt in entries]

    def restore(self, keys: list[bytes], shift: float) -> None:
        """Add the keys of a checkpoint, emptying the list; `shift` is added to their due times."""
        keys.sort(reverse=True)
        while keys:  # so that there are never two sets of keys in memory
            self._keys.append(_restored(keys.pop(), shift))
        heapq.heapify(self._keys)

    def take_over(self, keys: list[bytes]) -> None:
        """Add the result of ``prepare``, which belongs to this from now on. It is at once if nothing is deferred."""
        if self._keys:
            keys += self._keys
            heapq.heapify(keys)
        self._keys = keys

    def share_with(self, other: "Deferred") -> int:
        """Add a copy of all messages to another channel's; returns how many do not fit there.

        There may be millions, and hundreds of channels. Nothing may be added to this one any more.
        """
        self._locate_gathered()
        if other._fetch is None:  # it has room for some of the frames in memory
            if self._shared is None:
                self._shared = sorted(key for key in self._keys if entry_id(key) in self._frames)
            shared = self._shared[: max(0, other._memory - len(other))]
            other._keep_all({message_id: self._frames[message_id] for message_id in map(entry_id, shared)})
            left_out = len(self) - len(shared)
            other.take_over(shared)
            return left_out
        surplus: dict[bytes, bytes] = {}
        if other.room_after(len(self._frames), self._size) >= 0:
            other._keep_all(self._frames)
        else:
            for message_id, frame in self._frames.items():
                if other.room_after(1, len(frame)) >= 0:
                    other._keep(message_id, frame)
                else:
                    surplus[message_id] = frame
        if not surplus:
            other.take_over(self._keys.copy())
            return 0
        for key in self._keys:
            surplus_frame = None if key_location(key) else surplus.get(entry_id(key))
            if surplus_frame is None:
                other._keys.append(key)
            else:
                other._add_unlocated(key, surplus_frame)
        heapq.heapify(other._keys)
        return 0

    def keys(self) -> list[bytes]:
        """Return all keys, for a checkpoint."""
        return [*self._keys, *self._unlocated]

    def frames(self) -> Iterable[bytes]:
        """Return the frames in memory. The attempts in them are not up to date."""
        return chain(self._frames.values(), self._unlocated.values())

    def empty(self) -> None:
        self._keys.clear()
        self._frames.clear()
        self._size = 0
        self._unlocated.clear()

    def next_due(self) -> float:
        """Return the time at which `release` next has something to do."""
        keys = [*self._keys[:1], *self._unlocated]
        due: float = ENTRY.unpack_from(min(keys))[0] if keys else NEVER
        return due

    def _keep(self, message_id: bytes, frame: bytes) -> None:
        self._size += len(frame) - len(self._frames.get(message_id, b""))
        self._frames[message_id] = frame

    def _keep_all(self, frames: Mapping[bytes, bytes]) -> None:
        if self._frames:
            for message_id, frame in frames.items():
                self._keep(message_id, frame)
        else:
            self._frames, self._size = dict(frames), sum(map(len, frames.values()))

    def _forget(self, message_id: bytes) -> None:
        frame = self._frames.pop(message_id, None)
        if frame is not None:
            self._size -= len(frame)

    def _take_keys(self, now: float, limit: int) -> list[bytes]:
        """Take the keys of due messages from the heap, the earliest first."""
        heap = self._keys
        keys: list[bytes] = []
        until = _pack_due(now) + b"\xff" * 8  # no serial number is so great
        unlocated = sorted((key for key in self._unlocated if key < until), reverse=True)
        searches = 0
        while len(keys) < limit:
            if unlocated and (not heap or unlocated[-1] < heap[0]):  # it needs no location any more
                key = unlocated.pop()
                self._keep(entry_id(key), self._unlocated.pop(key))
                keys.append(key)
                continue
            if not heap or heap[0] >= until:
                break
            key = heap[0]
            if len(key) == ENTRY.size and entry_id(key) not in self._frames:
                searches += 1
                if searches > _SEARCHED_AT_ONCE:
                    break
            keys.append(heapq.heappop(heap))
        return keys

    def _read(self, keys: Sequence[bytes]) -> tuple[list[tuple[float, int, bytes, int]], dict[bytes, bytes]]:
        """Return the unpacked keys, and the frames that can be read, by id. Raises ``OSError``."""
        entries = [ENTRY.unpack_from(key) for key in keys]
        found: dict[bytes, bytes] = {}
        missing: list[bytes] = []
        locations: dict[bytes, bytes] = {}
        for key, (_, _, message_id, _) in zip(keys, entries, strict=True):
            frame = self._frames.get(message_id)
            if frame is not None:
                found[message_id] = frame
                continue
            missing.append(message_id)
            if location := key_location(key):
                locations[message_id] = location
        if missing:
            assert self._fetch is not None, "what is not in memory is in the log"
            found.update(self._fetch(missing, locations))
            if self._locate is not None:
                self._recent.update(locations)
                surplus = len(self._recent) - self._memory - _REMEMBERED
                for oldest in list(islice(self._recent, max(0, surplus))):
                    del self._recent[oldest]
        return entries, found

    def _add_unlocated(self, key: bytes, frame: bytes) -> None:
        self._unlocated[key] = frame
        if len(self._unlocated) >= _LOCATED_AT_ONCE or len(self._unlocated) * len(frame) > _LOCATED_BYTES:
            self._locate_gathered()

    def _locate_gathered(self) -> None:
        """Hand the gathered frames over to the log. They stay in memory if it fails."""
        if not self._unlocated:
            return
        assert self._locate is not None, "otherwise no frame is gathered"
        found: Mapping[bytes, bytes] = {}
        try:
            found = self._locate([*self._unlocated.values()])
        except OSError:
            for frame in self._unlocated.values():
                self._keep(id_of(frame), frame)
        for key in self._unlocated:
            due, serial, message_id, attempt = ENTRY.unpack_from(key)
            heapq.heappush(self._keys, pack_key(due, serial, message_id, attempt, found.get(message_id, NOWHERE)))
        self._unlocated.clear()


def prepare(keys: Iterable[bytes], shift: float, pause: Callable[[], None]) -> list[bytes]:
    """What `Deferred.restore` would make of these keys, for `Deferred.take_over`; calls `pause` after some of them.

    May be called in a thread.
    """
    remaining = iter(keys)
    pieces: list[list[bytes]] = []
    while piece := sorted(islice(remaining, _PREPARED_AT_ONCE)):
        pieces.append(piece)
        pause()
    found: list[bytes] = []
    merged = heapq.merge(*pieces)
    while piece := list(islice(merged, _PREPARED_AT_ONCE)):
        found += [_restored(key, shift) for key in piece]
        pause()
    return found


def _restored(key: bytes, shift: float) -> bytes:
    due, _, message_id, attempt = ENTRY.unpack_from(key)
    return pack_key(max(0.0, due + shift), next(_serials), message_id, attempt, key_location(key))


def _remove(heap: list[bytes], index: int) -> None:
    """Remove a key of a heap. Only the last key, and keys after `index`, may move to a smaller index."""
    last = heap.pop()
    if index == len(heap):
        return
    while index and last < heap[(index - 1) >> 1]:
        heap[index] = heap[(index - 1) >> 1]
        index = (index - 1) >> 1
    while (child := 2 * index + 1) < len(heap):
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if last <= heap[child]:
            break
        heap[index] = heap[child]
        index = child
    heap[index] = last


def _first(heap: Sequence[bytes], count: int) -> list[bytes]:
    """Return the smallest keys of a heap, in order, without changing it."""
    found: list[bytes] = []
    candidates = [(heap[0], 0)] if heap else []
    while candidates and len(found) < count:
        key, place = heapq.heappop(candidates)
        found.append(key)
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(candidates, (heap[child], child))
    return found


class SharedReads:
    """Log reads for the deferred messages of one topic, cached for about a second.

    All channels of a topic need the same messages at about the same time. What is remembered is bounded, and is
    dropped a second after the last read. `channels` are those of the topic.
    """

    def __init__(self, fetch: Fetch, schedule: Schedule, channels: Sized) -> None:
        self.alarm = NEVER
        self._fetch = fetch
        self._schedule = schedule
        self._channels = channels
        self._recent: dict[bytes, bytes] = {}
        self._less_recent: dict[bytes, bytes] = {}
        self._bytes = 0
        self._used = False

    def fetch(self, ids: Sequence[bytes], locations: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """See ``Fetch``."""
        if len(self._channels) < 2:
            return self._fetch(ids, locations)
        recent, older = self._recent, self._less_recent
        found = {each: frame for each in ids if (frame := recent.get(each) or older.get(each)) is not None}
        if len(found) < len(ids):
            missing = [message_id for message_id in ids if message_id not in found]
            known = {message_id: locations[message_id] for message_id in missing if message_id in locations}
            more = self._fetch(missing, known)
            found.update(more)
            self._remember(more)
        return found

    def on_alarm(self, now: float) -> float:
        if self._used:
            self._used = False
            return now + _SHARED_SECONDS
        self._recent, self._less_recent, self._bytes = {}, {}, 0
        return NEVER

    def _remember(self, frames: Mapping[bytes, bytes]) -> None:
        self._used = True
        self._schedule.at(AT_ONCE, self)
        self._recent.update(frames)
        self._bytes += sum(map(len, frames.values()))
        if len(self._recent) > _MAX_SHARED or self._bytes > _MAX_SHARED_BYTES:
            self._less_recent, self._recent, self._bytes = self._recent, {}, 0
