"""A publish of so many messages that creating and writing them at once would hold up the event loop: done in steps.

Other greenlets run between two steps, and may publish to the same topic. Their messages are before or behind the batch,
never inside it. The last step publishes all messages of the batch; before it none is published.

Ids grow in the order of publishing. So the batch takes ids ahead of those that other publishes get meanwhile. If these
reach them all the same, the frames are created again, with ids further ahead.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from nsq_compat.log.segment import StagedBatch
from nsq_compat.log.storage import TopicStore
from nsq_compat.queue.ids import FrameFactory

MAX_AT_ONCE: Final = 16384
"""Messages published without steps, at about 0.3 us each."""
_MAX_BYTES_AT_ONCE: Final = 1 << 20
_MIN_MESSAGES: Final = 256
"""Fewer messages are never published in steps. A step has at least one message, so little would be gained."""
_STEP: Final = 4096
_STEP_BYTES: Final = 1 << 20
_FREED_AT_ONCE: Final = 1 << 15
_AHEAD_NS: Final = 60_000_000_000
"""How far the ids of a batch are ahead of the clock, which the ids of other publishes follow."""
_ROOM: Final = 1 << 14
"""Ids left for other publishes, if ids are ahead of the clock already."""


def is_large(bodies: Sequence[bytes]) -> bool:
    """Whether publishing these at once would hold the event loop for too long."""
    count = len(bodies)
    return count > _MIN_MESSAGES and (count > MAX_AT_ONCE or sum(map(len, bodies)) > _MAX_BYTES_AT_ONCE)


class LargeBatch:
    """Created by a topic. `queue` has that topic's large batches; only the first one proceeds. `bodies` are consumed.

    `store` has the file for the messages; without it they stay in memory. Of the frames, the first `keep` and those of
    the last step are kept. `admit` raises ``Refused``; `publish` is called when everything is ready.
    """

    def __init__(
        self,
        bodies: list[bytes],
        now_ns: int,
        frames: FrameFactory,
        queue: "deque[LargeBatch]",
        *,
        store: TopicStore | None,
        keep: int,
        admit: Callable[[int], None],
        publish: Callable[["LargeBatch"], None],
    ) -> None:
        self.count = len(bodies)
        self.size = 0
        self.kept: list[Sequence[bytes]] = []
        self.latest: Sequence[bytes] = ()
        self.staged: StagedBatch | None = None
        self.is_published = False
        self._bodies = bodies
        self._now_ns = now_ns
        self._frames = frames
        self._queue = queue
        self._store = store
        self._keep = keep
        self._admit = admit
        self._publish = publish
        self._next = 0
        self._first_id = -1
        self._ahead_ns = _AHEAD_NS
        self._room = max(_ROOM, self.count >> 2)
        queue.append(self)

    def step(self) -> bool:
        """Do a part of the work; returns whether the batch is published now.

        Raises ``Refused`` and ``OSError``: then no message is published.
        """
        try:
            self._admit(self.count)
            if self._queue[0] is not self:
                return False
            if self._next < self.count:
                self._make_some()
                return False
            if self._store is not None and not self._store.spill_some():
                return False
            if self._frames.ids.has_reached(self._first_id):
                self._start_again()
                return False
            self._frames.ids.skip_to(self._first_id + self.count)
            self._publish(self)
        except BaseException:
            self.cancel()
            raise
        self.is_published = True
        self._queue.remove(self)
        self.kept.clear()
        return True

    def forget_bodies(self) -> bool:
        """Free some of the published bodies; returns whether there are more. 500,000 at once take 20 ms."""
        del self._bodies[-_FREED_AT_ONCE:]
        return len(self._bodies) > 0

    def cancel(self) -> None:
        """Give up, unless the batch is published already. May be called twice."""
        if self in self._queue:
            self._queue.remove(self)
        self._discard()

    def _make_some(self) -> None:
        if self._first_id < 0:
            self._first_id = self._frames.ids.ahead(self._now_ns + self._ahead_ns, self._room)
            if self._store is not None:
                self.staged = self._store.stage()
        begin, count = self._next, _STEP
        bodies = self._bodies[begin : begin + count]
        while (size := sum(map(len, bodies))) > _STEP_BYTES and count > 1:
            count //= 2
            bodies = bodies[:count]
        frames = self._frames.make_from(bodies, self._now_ns, self._first_id + begin)
        if self._store is not None and self.staged is not None:
            self._store.add_to(self.staged, frames)
        if begin < self._keep:
            self.kept.append(frames)
        self.latest = frames
        self.size += size
        self._next = begin + len(bodies)

    def _start_again(self) -> None:
        self._discard()
        self._next, self._first_id = 0, -1
        self.size = 0
        self._ahead_ns *= 2
        self._room *= 2

    def _discard(self) -> None:
        self.kept.clear()
        if self.staged is not None:
            self.staged.discard()
            self.staged = None
