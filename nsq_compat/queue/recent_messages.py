"""What was published to a topic last, kept for as long as somebody asks for it.

A topic has one only while it is watched, so nobody pays for it otherwise. It begins with what the log and memory still
have, and from then on is told of everything, so that it knows what never was in a log and was finished since.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import message_id
from nsq_compat.queue.backlog import Peek
from nsq_compat.queue.in_flight import NEVER

MOST: Final = 100
"""Messages that are kept."""
MOST_BYTES: Final = 4 << 20
WATCHED_SECONDS: Final = 60.0
"""After the last time somebody asked."""
_NS_PER_SECOND: Final = 1_000_000_000


class Published(NamedTuple):
    """`due_ns` is when a deferred message may be delivered, wall clock; 0 for at once."""

    frame: bytes
    due_ns: int


class RecentMessages:
    """Its alarm is for the schedule; `on_end` is called when nobody has asked for a while."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.alarm = NEVER
        self._on_end = on_end
        self._kept: deque[Published] = deque()
        self._bytes = 0
        self._until = 0.0

    def begin(self, log: TopicLog | None, peeks: Iterable[Peek], now: float, now_ns: int) -> None:
        """With what there still is of what was published before. Raises ``OSError``."""
        known: dict[bytes, Published] = {}
        for group in log.latest(MOST) if log is not None else ():
            known.update((message_id(frame), Published(frame, group.due_ns)) for frame in group.frames[-MOST:])
        for peek in peeks:
            known.update((message_id(frame), Published(frame, 0)) for frame in peek.waiting)
            for due, frame in peek.deferred:
                known[message_id(frame)] = Published(frame, now_ns + int((due - now) * _NS_PER_SECOND))
        self._add(known[number] for number in sorted(known)[-MOST:])  # ids are in the order of publishing

    def note(self, frames: Sequence[bytes], due_ns: int) -> None:
        """These are published now."""
        self._add(Published(frame, due_ns) for frame in frames[-MOST:])

    def ask(self, now: float) -> float:
        """Somebody watches; returns until when that counts."""
        self._until = now + WATCHED_SECONDS
        return self._until

    def latest(self, count: int) -> list[Published]:
        """The last of them, oldest first."""
        return list(self._kept)[-count:]

    def on_alarm(self, now: float) -> float:
        """Called by the schedule."""
        if now < self._until:
            return self._until
        self._on_end()
        return NEVER

    def _add(self, published: Iterable[Published]) -> None:
        kept = self._kept
        for each in published:
            kept.append(each)
            self._bytes += len(each.frame)
            while len(kept) > MOST or (self._bytes > MOST_BYTES and len(kept) > 1):
                self._bytes -= len(kept.popleft().frame)
