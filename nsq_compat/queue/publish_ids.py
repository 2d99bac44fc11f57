"""The publish ids (``headers.ID``) of a topic's last messages, by which repeated publishes are recognized.

A producer without an answer cannot know whether nsqd has its message. If the message has an id, it may publish it
again: a topic with a `dedup_window` publishes a known id no second time. What is kept of an id is a hash of 16 bytes,
and the time of its part. A part has the ids of about a 64th of the window, so an id is known for the window at least,
and for a 64th of it longer at most.

Invariants:

- An id is known once its message is in the log, so a publish that failed may be repeated.
- At most MAX_IDS are known, except for those of one publish; then the oldest are forgotten, and counted.
- No call takes longer than its own ids do. Ids are forgotten a few thousand at a time, and the table is split, because
  Python copies a dict that grows.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from nsq_compat.log.control_log import decode_ids
from nsq_compat.log.offsets import groups_since
from nsq_compat.log.reading import ReadableLog
from nsq_compat.protocol.message import publish_id, timestamp_ns
from nsq_compat.protocol.storage_schema import DIGEST_SIZE, PUBLISH_IDS
from nsq_compat.queue.schedule import NEVER

log = logging.getLogger(__name__)

MAX_IDS: Final = 1_000_000
MAX_IN_PART: Final = 4096
_PARTS: Final = 64
"""In a window."""
_SHARD_BITS: Final = 6
"""The table has 64 shards; one of MAX_IDS is copied in less than a millisecond."""
_SHARD_SHIFT: Final = sys.hash_info.width - _SHARD_BITS
_FORGOTTEN_AT_ONCE: Final = 4096
_PAUSE_SECONDS: Final = 0.001
_NS_PER_SECOND: Final = 1_000_000_000


def digest_of(identity: bytes) -> bytes:
    """What is kept of an id."""
    from hashlib import blake2b  # loads OpenSSL, which takes 4 MB of memory

    return blake2b(identity, digest_size=DIGEST_SIZE).digest()


class Part:
    """Ids that came at about the same time. The first `forgotten` of them are forgotten."""

    def __init__(self, number: int, began_ns: int) -> None:
        self.number = number
        self.began_ns = began_ns
        self.forgotten = 0
        self.is_overtaken = False
        """Another publish had one of the ids before those of this part were published."""
        self.digests: list[bytes] | tuple[bytes, ...] = []

    def close(self) -> None:
        self.digests = tuple(self.digests)  # the garbage collector soon untracks a tuple of bytes


class PublishIds:
    """The ids of one topic. The window is in seconds; `now_ns` returns the time, in nanoseconds since 1970."""

    def __init__(self, topic_name: str, window: float, now_ns: Callable[[], int], max_ids: int = MAX_IDS) -> None:
        self.alarm = NEVER
        self.duplicate_count = 0
        """Messages that were not published because their ids were known."""
        self.forgotten_count = 0
        """Ids that were forgotten within the window, because there were too many."""
        self.failed_commits = 0
        self._topic_name = topic_name
        self._now_ns = now_ns
        self._max_ids = max_ids
        self._numbers: list[dict[bytes, int]] = [{} for _ in range(1 << _SHARD_BITS)]
        """The number of the part, by digest; a dict of bytes and integers has nothing to collect."""
        self._times: dict[int, int] = {}
        """When the last id of a part was published, by number. The ids of a part that is not here are unknown."""
        self._parts: deque[Part] = deque()
        """The oldest first."""
        self._pending: dict[int, Part] = {}
        """Parts of which the messages are being written, see ``begin``."""
        self._current: Part | None = None
        self._last_number = 0
        self._count = 0
        self._window_ns = self._span_ns = 0  # how long an id is known, and how long a part gets ids
        self.window = 0.0
        self.set_window(window)

    def __len__(self) -> int:
        """The number of ids in memory."""
        return self._count

    def set_window(self, seconds: float) -> None:
        self.window = seconds
        self._window_ns = int(seconds * _NS_PER_SECOND)
        self._span_ns = self._window_ns // _PARTS

    # --- Publishing ---------------------------------------------------------------------------------------------------

    def fresh(self, frames: Sequence[bytes], now_ns: int) -> tuple[list[bytes], list[bytes]]:
        """Leave out the frames of known ids, and repetitions; return the others, and the digests of their ids.

        ``note`` must follow when the frames are in the log.
        """
        since = now_ns - self._window_ns
        left: list[bytes] = []
        found: dict[bytes, None] = {}
        for frame in frames:
            identity = publish_id(frame)
            if identity:
                digest = digest_of(identity)
                if digest in found or self._is_known(digest, since):
                    self.duplicate_count += 1
                    continue
                found[digest] = None
            left.append(frame)
        return left, list(found)

    def note(self, digests: Sequence[bytes], time_ns: int) -> None:
        """The messages with these ids were published at that time."""
        if not digests:
            return
        part = self._current
        if part is None or len(part.digests) >= MAX_IN_PART or not 0 <= time_ns - part.began_ns <= self._span_ns:
            part = self._begin_current(time_ns)
        self._add(part, digests)
        self._times[part.number] = max(time_ns, self._times.get(part.number, 0))
        if self._count > self._max_ids:
            self._forget_some(time_ns)

    def begin(self, now_ns: int) -> Part:
        """A part for a publish in steps. ``settle`` or ``drop`` must follow."""
        self._last_number += 1
        part = self._pending[self._last_number] = Part(self._last_number, now_ns)
        return part

    def fresh_in(self, part: Part, frames: Sequence[bytes]) -> list[bytes]:
        """As ``fresh``, for a part of a publish in steps, whose ids are added to `part`."""
        since = part.began_ns - self._window_ns
        left: list[bytes] = []
        for frame in frames:
            identity = publish_id(frame)
            if identity:
                digest = digest_of(identity)
                if self._number_of(digest) == part.number or self._is_known(digest, since):
                    continue
                self._add(part, [digest])
            left.append(frame)
        return left

    def settle(self, part: Part, duplicate_count: int) -> None:
        """The messages with the ids of this part are in the log."""
        del self._pending[part.number]
        self.duplicate_count += duplicate_count
        if part.digests:
            part.close()
            self._times[part.number] = part.began_ns  # as the messages say
            self._parts.append(part)

    def drop(self, part: Part) -> None:
        """The messages with the ids of this part were not published."""
        del self._pending[part.number]
        if part.digests:
            self._parts.appendleft(part)

    def commit_failed(self, digests: Sequence[bytes], part: Part | None = None) -> None:
        """The messages with these ids, or those of this part, may be lost, so they may be published again."""
        self.failed_commits += 1
        for digest in digests:
            self._shard(digest).pop(digest, None)
        if part is not None:
            self._times.pop(part.number, None)

    # --- Forgetting ---------------------------------------------------------------------------------------------------

    def next_alarm(self, now: float) -> float:
        """When ``on_alarm`` should be called; `now` is monotonic time."""
        return now if self._count > self._max_ids else now + self._span_ns / _NS_PER_SECOND

    def on_alarm(self, now: float) -> float:
        if self._forget_some(self._now_ns()):
            return now + _PAUSE_SECONDS
        return self.next_alarm(now) if self._parts else NEVER

    def _forget_some(self, now_ns: int) -> bool:
        """Forget some ids of the oldest part, if they are too old or too many; returns whether they were."""
        if not self._parts:
            return False
        part = self._parts[0]
        since = now_ns - self._window_ns
        is_old = self._times.get(part.number, since) <= since
        excess = self._count - self._max_ids
        if not is_old and excess <= 0:
            return False
        begin = part.forgotten
        end = min(len(part.digests), begin + (_FORGOTTEN_AT_ONCE if is_old else min(excess, _FORGOTTEN_AT_ONCE)))
        for digest in part.digests[begin:end]:
            numbers = self._shard(digest)
            if numbers.get(digest) == part.number:
                del numbers[digest]
        part.forgotten = end
        self._count -= end - begin
        if not is_old:
            self._note_forgotten(end - begin)
        if end == len(part.digests):
            self._parts.popleft()
            self._times.pop(part.number, None)
            if part is self._current:
                self._current = None
        return True

    def _note_forgotten(self, count: int) -> None:
        if not self.forgotten_count:
            log.warning(
                "TOPIC(%s): more than %d publish ids within dedup_window, forgetting the oldest (see "
                "forgotten_id_count in /stats)",
                self._topic_name, self._max_ids,
            )  # fmt: skip
        self.forgotten_count += count

    # --- The ids of earlier messages ----------------------------------------------------------------------------------

    def recall(self, topic_log: ReadableLog, now_ns: int) -> int:
        """Read the ids of the window from the topic's log; returns how many. Raises ``OSError``."""
        since, count = now_ns - self._window_ns, 0
        for group in groups_since(topic_log, since, PUBLISH_IDS):
            if group.kind == PUBLISH_IDS:
                time_ns, digests = decode_ids(group.frames[0])
                if time_ns > since:
                    self.note(digests, time_ns)
                    count += len(digests)
                continue
            for frame in group.frames:
                if (identity := publish_id(frame)) and (time_ns := timestamp_ns(frame)) > since:
                    self.note([digest_of(identity)], time_ns)
                    count += 1
        return count

    def parts(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """The ids, in parts of at most MAX_IN_PART, each with the time of the last of them."""
        for part in [*self._parts]:
            if part.number in self._times:
                for begin in range(part.forgotten, len(part.digests), MAX_IN_PART):
                    yield self._times[part.number], part.digests[begin : begin + MAX_IN_PART]

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _shard(self, digest: bytes) -> dict[bytes, int]:
        # Python's hash has a random key. By the digest itself, a producer could choose ids that fill a single shard.
        return self._numbers[hash(digest) >> _SHARD_SHIFT]  # from -32 to 31

    def _number_of(self, digest: bytes) -> int:
        return self._shard(digest).get(digest, 0)

    def _is_known(self, digest: bytes, since: int) -> bool:
        return self._times.get(self._number_of(digest), since) > since

    def _begin_current(self, time_ns: int) -> Part:
        if self._current is not None:
            self._current.close()
        self._last_number += 1
        part = self._current = Part(self._last_number, time_ns)
        self._parts.append(part)
        return part

    def _add(self, part: Part, digests: Sequence[bytes]) -> None:
        own = part.digests
        assert isinstance(own, list), "a part that gets ids is not closed"
        for digest in digests:
            numbers = self._shard(digest)
            if self._pending:
                other = self._pending.get(numbers.get(digest, 0))
                if other is not None and other is not part:
                    other.is_overtaken = True
            numbers[digest] = part.number
        own += digests
        self._count += len(digests)
