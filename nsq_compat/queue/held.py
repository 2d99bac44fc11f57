"""What a topic holds because no channel may have it: there is none, or the topic is paused, or waits to know them."""

from collections.abc import Iterator, Sequence

from nsq_compat.protocol.message import attempts, message_id
from nsq_compat.queue.checkpoint import ChannelState, entries_at_once
from nsq_compat.queue.cursor import Cursor
from nsq_compat.queue.deferred import Deferred, Fetch
from nsq_compat.queue.frame_queue import ANY_SIZE


class Held:
    """`cursor` is the part of the stream, `deferred` what may not be delivered yet.

    `restored`: messages (id, number of the next delivery) that come before all others, known by their ids alone.
    """

    def __init__(self, cursor: Cursor, deferred: Deferred) -> None:
        self.cursor = cursor
        self.deferred = deferred
        self.restored: list[tuple[bytes, int]] = []

    def __len__(self) -> int:
        return len(self.cursor) + len(self.deferred) + len(self.restored)

    def empty(self) -> None:
        """Forget everything."""
        self.cursor.skip_to_end()
        self.deferred.empty()
        self.restored.clear()

    def front(self, limit: int, fetch: Fetch) -> Sequence[bytes]:
        """Some of the frames that are the oldest, at most `limit`; what is deferred is not among them.

        Raises ``OSError``.
        """
        if self.restored:
            return list(fetch([number for number, _ in self.restored[:limit]]).values())
        return self.cursor.look(limit)

    def drop(self, limit: int, max_bytes: int) -> int:
        """Forget the oldest of what is not deferred; return how many. Raises ``OSError``."""
        if self.restored:
            count = min(limit, len(self.restored)) if max_bytes == ANY_SIZE else 1  # how big they are nobody knows
            del self.restored[:count]
            return count
        return len(self.cursor.take(limit, max_bytes))

    def state(self) -> ChannelState:
        """What a checkpoint says of it."""
        entries = [*entries_at_once(self.restored), *self.deferred.keys()]
        return ChannelState(self.cursor.position, entries, list(self.cursor.gaps))

    def restore(self, place: ChannelState, end: int, shift: float) -> None:
        """Be as a checkpoint said, in a stream that ends at `end`; `shift` makes due times of today's clock."""
        self.cursor.move(place.position, end, place.gaps)
        self.restored = place.at_once()
        self.deferred.restore(place.take_deferred(), shift)

    def frames_in_memory(self) -> Iterator[tuple[bytes, bytes]]:
        """All frames it has, with their ids, for when memory ends."""
        for batch in self.cursor.in_memory():
            yield from ((message_id(frame), frame) for frame in batch)
        yield from self.deferred.frames().items()

    def surrender_memory(self) -> None:
        """Make `state` name what waits in memory one by one: it is not in the log at its place in the stream."""
        self.restored += _named(self.cursor.take_memory())


def _named(frames: Sequence[bytes]) -> list[tuple[bytes, int]]:
    return [(message_id(frame), attempts(frame)) for frame in frames]
