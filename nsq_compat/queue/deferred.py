"""Messages that may not be delivered before their time.

For each a short key is kept, in a heap; the frame too, as long as not too many wait, else it is fetched from the log
when its time has come. A million deferred messages cost what their keys cost.

Keys are bytes (`checkpoint_schema.CHECKPOINT_ENTRY`): compared as bytes they are in the order of their due times, and
a checkpoint writes them as they are.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from nsq_compat.protocol.message import attempts, message_id, with_attempts
from nsq_compat.queue.checkpoint import ENTRY, entry_id
from nsq_compat.queue.in_flight import NEVER

_MANY = 50_000
"""Too many to look for a few among them while everybody waits."""

Fetch = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]
"""Frames by id, from the log; those that cannot be read are left out."""
Keep = Callable[[Sequence[bytes]], None]
"""Write frames where ``Fetch`` finds them. Raises ``OSError``."""


class Deferred:
    """Due times in monotonic seconds; those due at the same time come out in the order they went in.

    `fetch` is None where there is no log: then every frame stays in memory. With a log, `memory` of them do; `keep` is
    None where all messages are in the log from the beginning.
    """

    def __init__(self, fetch: Fetch | None = None, memory: int = 1 << 62, keep: Keep | None = None) -> None:
        self.damaged_count = 0
        self._fetch = fetch
        self._keep = keep
        self._memory = memory
        self._keys: list[bytes] = []
        self._frames: dict[bytes, bytes] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._keys)

    def spills(self, count: int) -> bool:
        """Whether so many more need to be in the log."""
        return self._fetch is not None and len(self._frames) + count > self._memory

    def fitting(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """What of these may be added: all, unless there is no log for what memory does not hold."""
        return frames if self._fetch is not None else frames[: max(0, self._memory - len(self._keys))]

    def add(self, frames: Sequence[bytes], due: float, logged: bool = False) -> None:
        """Keep messages until `due`. `logged` says that they are in the log."""
        stays = self._stays(frames, logged)
        for frame in frames:
            number = message_id(frame)
            if stays:
                self._frames[number] = frame
            self.add_entry(due, number, attempts(frame))

    def add_entry(self, due: float, number: bytes, attempt: int) -> None:
        """Keep a message by its id alone; its frame is in the log."""
        self._serial += 1
        heapq.heappush(self._keys, ENTRY.pack(due, self._serial, number, attempt))

    def release(self, now: float, limit: int) -> list[bytes]:
        """Take out what is due, the earliest first, at most `limit`. Raises ``OSError``, having taken nothing."""
        keys: list[bytes] = []
        while len(keys) < limit and self.next_due() <= now:
            keys.append(heapq.heappop(self._keys))
        entries = [ENTRY.unpack_from(key) for key in keys]
        try:
            frames = self._frames_of([number for _, _, number, _ in entries])
        except OSError:
            for key in keys:
                heapq.heappush(self._keys, key)
            raise
        for number in [number for _, _, number, _ in entries]:
            self._frames.pop(number, None)
        self.damaged_count += len(entries) - len(frames)
        return [with_attempts(frames[number], attempt) for _, _, number, attempt in entries if number in frames]

    def look(self, count: int) -> list[tuple[float, bytes]]:
        """Those that are due first, and when; nothing is taken. Raises ``OSError``."""
        entries = [ENTRY.unpack_from(key) for key in _first(self._keys, count)]
        frames = self._frames_of([number for _, _, number, _ in entries])
        return [
            (due, with_attempts(frames[number], attempt)) for due, _, number, attempt in entries if number in frames
        ]

    def latest(self, count: int) -> list[tuple[float, bytes]]:
        """Those in memory that were put in last, and when they are due; where very many wait, `look`."""
        if len(self._keys) > _MANY:
            return self.look(count)
        newest = set(islice(reversed(self._frames), count))
        entries = (ENTRY.unpack_from(key) for key in self._keys if entry_id(key) in newest)
        return [(due, with_attempts(self._frames[number], attempt)) for due, _, number, attempt in entries]

    def restore(self, keys: Iterable[bytes], shift: float) -> None:
        """Take over the keys of a checkpoint; `shift` is added to their due times."""
        for key in sorted(keys):
            due, _, number, attempt = ENTRY.unpack_from(key)
            self.add_entry(max(0.0, due + shift), number, attempt)

    def share_with(self, other: "Deferred") -> int:
        """Give another all of it: the same frames, as a fan-out does. Returns how many it has no place for."""
        dropped = 0
        for key in sorted(self._keys):
            due, _, number, attempt = ENTRY.unpack_from(key)
            frame = self._frames.get(number)
            if other._fetch is None and (frame is None or len(other) >= other._memory):
                dropped += 1
                continue
            if frame is not None and other._stays([frame], logged=False):
                other._frames[number] = frame
            other.add_entry(due, number, attempt)
        return dropped

    def ids_on_disk(self) -> Iterable[bytes]:
        """Those whose frames are not in memory."""
        return (number for number in map(entry_id, self._keys) if number not in self._frames)

    def keys(self) -> Iterable[bytes]:
        """Every key, as a checkpoint keeps it."""
        return self._keys

    def frames(self) -> Mapping[bytes, bytes]:
        """Those in memory, by id; what they say of attempts is not up to date."""
        return self._frames

    def empty(self) -> int:
        """Forget everything; return how many messages that was."""
        dropped = len(self._keys)
        self._keys.clear()
        self._frames.clear()
        return dropped

    def next_due(self) -> float:
        """When `release` has something to do."""
        if not self._keys:
            return NEVER
        due: float = ENTRY.unpack_from(self._keys[0])[0]
        return due

    def _stays(self, frames: Sequence[bytes], logged: bool) -> bool:
        """Whether these are to stay in memory. What does not is in the log, or is written beside it now."""
        if not self.spills(len(frames)):
            return True
        if logged or self._keep is None:
            return False
        try:
            self._keep([*self._frames.values(), *frames])  # all at once, so that this does not come with every message
        except OSError:
            return True  # too much in memory is better than nothing anywhere
        self._frames.clear()
        return False

    def _frames_of(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        found = {number: self._frames[number] for number in ids if number in self._frames}
        if len(found) < len(ids):
            assert self._fetch is not None, "what is not in memory is in the log"
            found.update(self._fetch([number for number in ids if number not in found]))
        return found


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
