"""Makes messages of bodies: an id for each, and the time."""

from collections.abc import Sequence

from nsq_compat.protocol.alike import Alike
from nsq_compat.protocol.message import cut_alike, join_alike, make_frame, make_frames
from nsq_compat.queue.guid import GuidFactory


class Stamper:
    """One topic's. `ids` are the topic's own."""

    def __init__(self, node_id: int) -> None:
        self.ids = GuidFactory(node_id)

    def stamp(self, bodies: Sequence[bytes], now_ns: int) -> tuple[tuple[bytes, ...], bytes, int]:
        """A frame for each of the bodies; the frames one behind the other, or b"" where nobody has joined them; bytes
        of the bodies together.
        """
        # Hot: runs for every publish.
        if len(bodies) == 1:
            body = bodies[0]
            return (make_frame(self.ids.take_one(now_ns), now_ns, body),), b"", len(body)
        if type(bodies) is Alike:
            frames, joined = self._stamp_alike(bodies, now_ns)
            return frames, joined, len(bodies) * len(bodies[0])
        lengths = list(map(len, bodies))
        return self._stamp_any(bodies, lengths, now_ns), b"", sum(lengths)

    def stamp_as(self, bodies: Sequence[bytes], now_ns: int, first: int) -> tuple[bytes, ...]:
        """Frames with the ids from number `first` on, which `ids` said lie ahead."""
        frames: list[bytes] = []
        for start, ends in self.ids.runs_from(first, len(bodies)):
            frames += make_frames(ends, now_ns, bodies[len(frames) : len(frames) + len(ends)], start)
        return tuple(frames)

    def _stamp_any(self, bodies: Sequence[bytes], lengths: Sequence[int], now_ns: int) -> tuple[bytes, ...]:
        runs = self.ids.take_runs(len(bodies), now_ns)
        if len(runs) == 1:
            ((start, ends),) = runs
            return make_frames(ends, now_ns, bodies, start, lengths)
        frames: list[bytes] = []
        for start, ends in runs:  # more than a tick has ids left
            frames += make_frames(ends, now_ns, bodies[len(frames) : len(frames) + len(ends)], start)
        return tuple(frames)

    def _stamp_alike(self, bodies: Alike, now_ns: int) -> tuple[tuple[bytes, ...], bytes]:
        joined, done = b"", 0
        for start, ends in self.ids.take_runs(len(bodies), now_ns):
            some = bodies if len(ends) == len(bodies) else Alike(bodies[done : done + len(ends)])
            joined += join_alike(ends, now_ns, some, start)
            done += len(ends)
        return cut_alike(joined, len(joined) // done, 0, done), joined
