"""Messages that may not be delivered before their time.

For each a short key is kept, in a heap; the frame too, as long as not too many wait, else it is fetched from the log
when its time has come. A million deferred messages cost what their keys cost.

Keys are bytes (`checkpoint_schema.CHECKPOINT_ENTRY`), followed by the location of the message in the log if that is
known (`checkpoint.pack_key`): compared as bytes they are in the order of their due times. A message without a location
has to be searched for by its id, which costs a hundred times as much; so messages that were requeued are located by the
batch, while those that were published together are still put back together.
"""

import heapq
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Final, Protocol

from nsq_compat.log.checkpoint import ENTRY, entry_id, key_location, pack_key
from nsq_compat.log.group import NOWHERE
from nsq_compat.protocol.message import attempts, message_id, with_attempts
from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.schedule import AT_ONCE, Schedule

_MANY = 50_000
"""Too many to look for a few among them while everybody waits."""
_LOCATED_AT_ONCE: Final = 256
_SEARCHED_AT_ONCE: Final = 16
"""Messages without a location that are released at once, so that others need not wait for the search."""
_REMEMBERED: Final = 4096
"""Locations of messages that were released, for when they are requeued; twice as many at most."""

_pack_due: Final = struct.Struct(">d").pack
_serials: Final = itertools.count(1)


class Fetch(Protocol):
    """Frames by id, from the log; those that cannot be read are left out."""

    def __call__(self, ids: Sequence[bytes], locations: Mapping[bytes, bytes] = ..., /) -> Mapping[bytes, bytes]:
        """`locations` are those of some of them. Raises ``OSError``."""


Locate = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]
"""Hand frames over to the log: their locations by id, as far as they are found easily. Raises ``OSError``."""


class Deferred:
    """Due times in monotonic seconds; those due at the same time come out in the order they went in.

    Without a log (`fetch` is None) every frame stays in memory. With a log, `memory` of them do. The log finds the
    others by id, once they were handed over to it with `locate`.
    """

    def __init__(
        self,
        fetch: Fetch | None = None,
        memory: int = 1 << 62,
        locate: Locate | None = None,
    ) -> None:
        self.damaged_count = 0
        self._fetch = fetch
        self._locate = locate
        self._memory = memory
        self._keys: list[bytes] = []
        self._frames: dict[bytes, bytes] = {}
        self._unlocated: dict[bytes, bytes] = {}  # keys of messages to be located together, and their frames
        self._first_unlocated = NEVER
        self._recent: dict[bytes, bytes] = {}  # locations of what was released last, and before that
        self._less_recent: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._keys) + len(self._unlocated)

    def fit_in_memory(self, count: int) -> bool:
        """Whether the frames of `count` more messages stay in memory."""
        return self._fetch is None or len(self._frames) + count <= self._memory

    def fitting(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """What of these may be added: all, unless there is no log for what memory does not hold."""
        return frames if self._fetch is not None else frames[: max(0, self._memory - len(self))]

    def add(self, frames: Sequence[bytes], due: float, locations: Sequence[bytes] = ()) -> None:
        """Keep messages until `due`. `locations` are given if they have just been logged."""
        if self.fit_in_memory(len(frames)):
            self._frames.update(zip(map(message_id, frames), frames, strict=True))
        elif not locations:
            for frame in frames:
                self._hand_over(due, frame)
            return
        for frame, location in zip(frames, locations or repeat(NOWHERE), strict=False):
            self.add_entry(due, message_id(frame), attempts(frame), location)

    def add_entry(self, due: float, number: bytes, attempt: int, location: bytes = NOWHERE) -> None:
        """Keep a message by its id alone; its frame is in the log."""
        heapq.heappush(self._keys, pack_key(due, next(_serials), number, attempt, location))

    def release(self, now: float, limit: int) -> list[bytes]:
        """Take out what is due, the earliest first, at most `limit`. Raises ``OSError``, having taken nothing.

        Fewer where they have to be searched for: there is more as long as ``next_due`` says so.
        """
        if self._first_unlocated <= now:
            self._settle_those_due(now)
        keys = self._take_keys(now, limit)
        try:
            entries, frames = self._read(keys)
        except OSError:
            for key in keys:
                heapq.heappush(self._keys, key)
            raise
        released: list[bytes] = []
        for _, _, number, attempt in entries:
            frame = frames.get(number)
            if frame is not None:
                self._frames.pop(number, None)
                released.append(frame if attempts(frame) == attempt else with_attempts(frame, attempt))
        self.damaged_count += len(entries) - len(released)
        return released

    def peek(self, count: int) -> list[tuple[float, bytes]]:
        """Those that are due first, and when; nothing is taken. Raises ``OSError``."""
        self._settle()
        entries, frames = self._read(_first(self._keys, count))
        return [
            (due, with_attempts(frames[number], attempt)) for due, _, number, attempt in entries if number in frames
        ]

    def latest(self, count: int) -> list[tuple[float, bytes]]:
        """Those in memory that were put in last, and when they are due; where very many wait, `look`."""
        if len(self._keys) > _MANY:
            return self.peek(count)
        newest = set(islice(reversed(self._frames), count))
        entries = (ENTRY.unpack_from(key) for key in self._keys if entry_id(key) in newest)
        return [(due, with_attempts(self._frames[number], attempt)) for due, _, number, attempt in entries]

    def restore(self, keys: list[bytes], shift: float) -> None:
        """Take over the keys of a checkpoint, and the list itself; `shift` is added to their due times."""
        keys.sort(reverse=True)
        while keys:  # so that there is never a second set of them
            key = keys.pop()
            due, _, number, attempt = ENTRY.unpack_from(key)
            self._keys.append(pack_key(max(0.0, due + shift), next(_serials), number, attempt, key_location(key)))
        heapq.heapify(self._keys)

    def share_with(self, other: "Deferred") -> int:
        """Give another all of it: the same frames, as a fan-out does. Returns how many it has no place for."""
        self._settle()
        if other._fetch is None:
            return self._share_frames_with(other)
        room = max(0, other._memory - len(other._frames))
        other._frames.update(islice(self._frames.items(), room))
        surplus = dict(islice(self._frames.items(), room, None))
        for key in self._keys:
            frame = None if key_location(key) else surplus.get(entry_id(key))
            if frame is None:
                other._keys.append(key)
            else:
                other._add_unlocated(key, frame)
        heapq.heapify(other._keys)
        return 0

    def keys(self) -> list[bytes]:
        """Every key there is now, as a checkpoint keeps it."""
        return [*self._keys, *self._unlocated]

    def frames(self) -> Iterable[bytes]:
        """Those in memory; what they say of attempts is not up to date."""
        return chain(self._frames.values(), self._unlocated.values())

    def empty(self) -> int:
        """Forget everything; return how many messages that was."""
        dropped = len(self)
        self._keys.clear()
        self._frames.clear()
        self._unlocated.clear()
        self._first_unlocated = NEVER
        return dropped

    def next_due(self) -> float:
        """When `release` has something to do."""
        if not self._keys:
            return self._first_unlocated
        due: float = ENTRY.unpack_from(self._keys[0])[0]
        return due if due < self._first_unlocated else self._first_unlocated

    def _take_keys(self, now: float, limit: int) -> list[bytes]:
        """The keys of what is due, the earliest first, no longer in the heap."""
        heap = self._keys
        keys: list[bytes] = []
        until = _pack_due(now) + b"\xff" * 8  # no serial number is so great
        searches = 0
        while heap and len(keys) < limit and heap[0] < until:
            key = heap[0]
            if len(key) == ENTRY.size and entry_id(key) not in self._frames:
                searches += 1
                if searches > _SEARCHED_AT_ONCE:
                    break
            keys.append(heapq.heappop(heap))
        return keys

    def _read(self, keys: Sequence[bytes]) -> tuple[list[tuple[float, int, bytes, int]], dict[bytes, bytes]]:
        """What the keys say, and the frames that can be read, by id. Raises ``OSError``."""
        entries = [ENTRY.unpack_from(key) for key in keys]
        found: dict[bytes, bytes] = {}
        missing: list[bytes] = []
        locations: dict[bytes, bytes] = {}
        for key, (_, _, number, _) in zip(keys, entries, strict=True):
            frame = self._frames.get(number)
            if frame is not None:
                found[number] = frame
                continue
            missing.append(number)
            if location := key_location(key):
                locations[number] = location
        if missing:
            assert self._fetch is not None, "what is not in memory is in the log"
            found.update(self._fetch(missing, locations))
            self._remember(locations)
        return entries, found

    def _remember(self, locations: Mapping[bytes, bytes]) -> None:
        if self._locate is not None:
            if len(self._recent) > _REMEMBERED:
                self._less_recent, self._recent = self._recent, {}
            self._recent.update(locations)

    def _hand_over(self, due: float, frame: bytes) -> None:
        """A message that came back and does not stay in memory: it is in the log, but nobody said where."""
        number = message_id(frame)
        location = self._recent.pop(number, NOWHERE) or self._less_recent.pop(number, NOWHERE)
        if location:
            self.add_entry(due, number, attempts(frame), location)
            return
        self._add_unlocated(pack_key(due, next(_serials), number, attempts(frame)), frame)

    def _add_unlocated(self, key: bytes, frame: bytes) -> None:
        self._unlocated[key] = frame
        self._first_unlocated = min(self._first_unlocated, ENTRY.unpack_from(key)[0])
        if len(self._unlocated) >= _LOCATED_AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        """Hand the frames that have gathered over to the log. What it does not take stays in memory."""
        if not self._unlocated:
            return
        assert self._locate is not None, "else nothing gathers"
        found: Mapping[bytes, bytes] = {}
        try:
            found = self._locate([*self._unlocated.values()])
        except OSError:
            self._frames.update((message_id(frame), frame) for frame in self._unlocated.values())
        for key in self._unlocated:
            due, serial, number, attempt = ENTRY.unpack_from(key)
            heapq.heappush(self._keys, pack_key(due, serial, number, attempt, found.get(number, NOWHERE)))
        self._unlocated.clear()
        self._first_unlocated = NEVER

    def _settle_those_due(self, now: float) -> None:
        """What is due already needs no location: its frame is there."""
        rest = self._unlocated
        self._unlocated, self._first_unlocated = {}, NEVER
        for key, frame in rest.items():
            due: float = ENTRY.unpack_from(key)[0]
            if due <= now:
                self._frames[entry_id(key)] = frame
                heapq.heappush(self._keys, key)
            else:
                self._unlocated[key] = frame
                self._first_unlocated = min(self._first_unlocated, due)

    def _share_frames_with(self, other: "Deferred") -> int:
        """With one that has no log: as many as it has room for, of those that are in memory."""
        here = sorted(key for key in self._keys if entry_id(key) in self._frames)
        shared = here[: max(0, other._memory - len(other))]
        for key in shared:
            due, _, number, attempt = ENTRY.unpack_from(key)
            other._frames[number] = self._frames[number]
            other.add_entry(due, number, attempt)
        return len(self) - len(shared)


def _first(heap: Sequence[bytes], count: int) -> list[bytes]:
    """The smallest keys of a heap, which stays as it is, in order: only their neighbours are compared."""
    found: list[bytes] = []
    candidates = [(heap[0], 0)] if heap else []
    while candidates and len(found) < count:
        key, place = heapq.heappop(candidates)
        found.append(key)
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(candidates, (heap[child], child))
    return found


_MOST: Final = 2048
"""Frames read since the older ones were forgotten; twice as many are remembered at most."""
_MOST_BYTES: Final = 1 << 20
_REMEMBERED_SECONDS: Final = 1.0
_NO_LOCATIONS: Final[Mapping[bytes, bytes]] = {}


class SharedReads:
    """Of one topic. `readers` is how many channels it has. Its alarm is for the schedule."""

    def __init__(self, fetch: Fetch, schedule: Schedule) -> None:
        self.alarm = NEVER
        self.readers = 0
        self._fetch = fetch
        self._schedule = schedule
        self._recent: dict[bytes, bytes] = {}
        self._less_recent: dict[bytes, bytes] = {}
        self._bytes = 0
        self._used = False

    def fetch(self, ids: Sequence[bytes], locations: Mapping[bytes, bytes] = _NO_LOCATIONS) -> Mapping[bytes, bytes]:
        """As the log does. Raises ``OSError``."""
        if self.readers < 2:
            return self._fetch(ids, locations)
        found = {number: frame for number in ids if (frame := self._remembered(number)) is not None}
        if len(found) < len(ids):
            missing = [number for number in ids if number not in found]
            known = {number: locations[number] for number in missing if number in locations}
            more = self._fetch(missing, known)
            found.update(more)
            self._remember(more)
        return found

    def on_alarm(self, now: float) -> float:
        """Called by the schedule."""
        if self._used:
            self._used = False
            return now + _REMEMBERED_SECONDS
        self._recent, self._less_recent, self._bytes = {}, {}, 0
        return NEVER

    def _remembered(self, number: bytes) -> bytes | None:
        return self._recent.get(number) or self._less_recent.get(number)

    def _remember(self, frames: Mapping[bytes, bytes]) -> None:
        self._used = True
        self._schedule.at(AT_ONCE, self)
        self._recent.update(frames)
        self._bytes += sum(map(len, frames.values()))
        if len(self._recent) > _MOST or self._bytes > _MOST_BYTES:
            self._less_recent, self._recent, self._bytes = self._recent, {}, 0
