"""The last messages published to a topic, for as long as clients ask for them.

They begin with those that the log and memory still have. From then on every publish is added: none is missed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import message_id
from nsq_compat.queue.in_flight import NEVER

MAX_MESSAGES: Final = 100
MAX_BYTES: Final = 4 << 20
WATCHED_SECONDS: Final = 60.0
"""Kept for so long after the last request."""
_NS_PER_SECOND: Final = 1_000_000_000


class Published(NamedTuple):
    """`due_ns` is when a deferred message may be delivered, wall clock; 0 for at once."""

    frame: bytes
    due_ns: int


class RecentMessages:
    """`on_end` is called WATCHED_SECONDS after the last request, by the schedule's alarm."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.alarm = NEVER
        self._on_end = on_end
        self._kept: deque[Published] = deque()
        self._bytes = 0
        self._until = 0.0

    def begin(self, log: TopicLog | None, latest: Iterable[tuple[float, bytes]], now: float, now_ns: int) -> None:
        """Add the messages published before, from the log and ``Backlog.latest``. Raises ``OSError``."""
        known: dict[bytes, Published] = {}
        for group in log.latest(MAX_MESSAGES) if log is not None else ():
            known.update((message_id(frame), Published(frame, group.due_ns)) for frame in group.frames[-MAX_MESSAGES:])
        for due, frame in latest:
            known[message_id(frame)] = Published(frame, now_ns + int((due - now) * _NS_PER_SECOND) if due else 0)
        self._add(known[each] for each in sorted(known)[-MAX_MESSAGES:])  # ids are in the order of publishing

    def note(self, frames: Sequence[bytes], due_ns: int) -> None:
        """Add messages that are being published."""
        self._add(Published(frame, due_ns) for frame in frames[-MAX_MESSAGES:])

    def ask(self, now: float) -> float:
        """Note a request; returns until when messages are kept for it."""
        self._until = now + WATCHED_SECONDS
        return self._until

    def latest(self, count: int) -> list[Published]:
        """Return the last messages, oldest first."""
        return list(self._kept)[-count:]

    def on_alarm(self, now: float) -> float:
        if now < self._until:
            return self._until
        self._on_end()
        return NEVER

    def _add(self, published: Iterable[Published]) -> None:
        kept = self._kept
        for each in published:
            kept.append(each)
            self._bytes += len(each.frame)
            while len(kept) > MAX_MESSAGES or (self._bytes > MAX_BYTES and len(kept) > 1):
                self._bytes -= len(kept.popleft().frame)
