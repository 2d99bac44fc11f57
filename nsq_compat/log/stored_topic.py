"""A topic in its folder, read without a daemon: what it has to deliver, and to whom."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from nsq_compat.log import checkpoint
from nsq_compat.log.checkpoint import ENTRY, BadCheckpoint, ChannelState, TopicState
from nsq_compat.log.files import Files, read_file
from nsq_compat.log.recovery import recover
from nsq_compat.log.storage import CHECKPOINT
from nsq_compat.log.topic_log import DEFAULT_SEGMENT_SIZE, TopicLog
from nsq_compat.protocol.message import with_attempts

_FETCHED_AT_ONCE: Final = 1024


class StoredTopic:
    """A topic's log and where its channels stood. Raises ``OSError``; damage is counted, here and in `log`.

    To be closed. Nobody else may use the folder meanwhile.
    """

    def __init__(self, files: Files, folder: str, segment_size: int = DEFAULT_SEGMENT_SIZE) -> None:
        self.checkpoint_error = ""
        last = self._last_checkpoint(files, folder)
        start = last.end if last is not None else None
        self.log = TopicLog.open(files, folder, segment_size=segment_size, start=start)
        try:
            self.state: TopicState = recover(last, self.log)
        except OSError:
            self.log.close()
            raise

    def close(self) -> None:
        """Close the files."""
        self.log.close()

    def __enter__(self) -> "StoredTopic":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def depths(self) -> dict[str | None, int]:
        """Messages by channel, None being what no channel has got."""
        return {name: len(place.entries) + _distance(place, end) for name, place, end in self._places()}

    def backlogs(self) -> Iterator[tuple[str | None, Iterator[bytes]]]:
        """By channel, the frames of the next deliveries: those taken from the stream before, then what follows in it.

        None, where there is such a thing, is what no channel has got; it comes first.
        """
        for name, place, end in self._places():
            yield name, self._frames(place, end)

    def read_needed(self) -> None:
        """Read everything that is still to be delivered, so that `log` has counted what is damaged of it."""
        places = list(self._places())
        for _, place, _ in places:
            for _ in self._unfinished(place.entries):
                pass
        first = min((place.position for _, place, _ in places), default=self.state.end.seq)
        for _ in self._stream(ChannelState(first), self.state.end.seq):
            pass

    def _places(self) -> Iterator[tuple[str | None, ChannelState, int]]:
        """Each channel's name and place, and where the stream ends for it."""
        state = self.state
        if state.held is not None:
            yield None, state.held, state.end.seq
        for name, place in sorted(state.channels.items()):
            yield name, place, state.end.seq if state.held is None else state.held.position

    def _frames(self, place: ChannelState, end: int) -> Iterator[bytes]:
        yield from self._unfinished(place.entries)
        yield from self._stream(place, end)

    def _unfinished(self, entries: Iterable[bytes]) -> Iterator[bytes]:
        keys = iter(sorted(entries))
        while some := [ENTRY.unpack_from(key) for key in islice(keys, _FETCHED_AT_ONCE)]:
            found = self.log.fetch([number for _, _, number, _ in some])
            for _, _, number, attempt in some:
                if number in found:
                    yield with_attempts(found[number], attempt)

    def _stream(self, place: ChannelState, end: int) -> Iterator[bytes]:
        position = place.position
        for gap, following in [*place.gaps, (end, end)]:
            yield from self._part(position, gap)
            position = following

    def _part(self, position: int, end: int) -> Iterator[bytes]:
        if position >= end:
            return
        reader = self.log.reader(position)
        while reader.seq < end and (groups := reader.read()):
            for group in groups:
                yield from _before(end, group.first_seq, group.frames)

    def _last_checkpoint(self, files: Files, folder: str) -> TopicState | None:
        try:
            return checkpoint.decode(read_file(files, os.path.join(folder, CHECKPOINT)))
        except FileNotFoundError:
            return None
        except BadCheckpoint as error:
            self.checkpoint_error = str(error)
            return None


def _distance(place: ChannelState, end: int) -> int:
    return max(0, end - place.position - sum(stop - begin for begin, stop in place.gaps))


def _before(end: int, first: int, frames: Sequence[bytes]) -> Sequence[bytes]:
    return frames if first + len(frames) <= end else frames[: max(0, end - first)]
