"""Messages that outlive the segment they were logged in: copied forward, so that the segment can be deleted.

They are not sorted and have no numbers; they are found by id. One that is damaged is counted when it is looked for. A
file is written by one run only, as a segment is. Each
group is sorted by id, and what is remembered of it is the range.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from nsq_compat.log.damage import Damage
from nsq_compat.log.descriptors import Descriptors
from nsq_compat.log.group import encode_group
from nsq_compat.log.group_reader import GroupReader
from nsq_compat.log.segment import FIRST_GROUP, Segment
from nsq_compat.protocol.message import message_id, message_ids
from nsq_compat.protocol.storage_schema import MESSAGES

_GROUP_SIZE: Final = 1 << 16
"""Bytes of frames in a group, about: a single message is read back with all of its group."""


class Run(NamedTuple):
    """A group in a kept file: its ids are in this range, both ends included."""

    first_id: bytes
    last_id: bytes
    offset: int
    record_count: int


class KeptFile:
    """A file of kept messages."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.is_damaged = False
        """Whether a message in it that is still needed could not be read."""
        self._runs: list[Run] | None = None

    def runs(self) -> list[Run]:
        """What is where. Reads the file the first time. Raises ``OSError``."""
        if self._runs is None:
            self._runs = [] if self.segment.index else list(_read_runs(self.segment))
        return self._runs


class Retained:
    """The kept files of one log. Everything raises ``OSError``, and nothing is half done then."""

    def __init__(self, descriptors: Descriptors, path_of: Callable[[int], str], segment_size: int) -> None:
        self._descriptors = descriptors
        self._path_of = path_of
        self._segment_size = segment_size
        self._files: list[KeptFile] = []
        self._active: KeptFile | None = None
        self._last_number = 0
        self._protected: set[KeptFile] = set()

    def __len__(self) -> int:
        return len(self._files)

    @property
    def segments(self) -> Iterator[Segment]:
        """The files, as files."""
        return (file.segment for file in self._files)

    def found(self, number: int, size: int) -> None:
        """A file of an earlier run; in the order of the numbers."""
        self._files.append(KeptFile(Segment(self._descriptors, self._path_of(number), number, 0, size)))
        self._last_number = number

    def begin_checkpoint(self) -> None:
        """A checkpoint of this moment names all messages that are needed here; it does not know of later ones."""
        self._protected.clear()

    def protect_active(self) -> None:
        """The last messages that were added are needed, whatever the checkpoint that is being written says."""
        if self._active is not None:
            self._protected.add(self._active)

    def add(self, frames: Iterable[bytes]) -> None:
        """Write frames; those of one call are wholly written or an error is raised, but some may be found again."""
        for group in _cut(sorted(frames, key=message_id)):
            self._append(group)

    def fetch(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Those of the (sorted) ids that are here, with their frames."""
        found: dict[bytes, bytes] = {}
        wanted = set(ids)
        for file in self._files:
            for run in file.runs():
                if _between(ids, run):
                    for frame in _read_run(file, run, Damage(quiet=True)):
                        if (found_id := message_id(frame)) in wanted:
                            found[found_id] = frame
        return found

    def frames(self) -> Iterator[bytes]:
        """Everything that is here, in no order; some perhaps more than once."""
        for file in self._files:
            for run in file.runs():
                yield from _read_run(file, run, Damage(quiet=True))

    def ids(self) -> Iterator[Sequence[bytes]]:
        """The ids of everything that is here, group by group, in no order."""
        for file in self._files:
            for run in file.runs():
                yield message_ids(_read_run(file, run, Damage(quiet=True)))

    def mostly_dead(self, unfinished: Sequence[bytes]) -> list[KeptFile]:
        """Files of which little or nothing is among the (sorted) unfinished ids; nothing more is written to them."""
        dead: list[KeptFile] = []
        for file in self._files:
            if file in self._protected:
                continue
            runs = file.runs()
            alive = sum(_between(unfinished, run) for run in runs)
            if file.is_damaged and alive:
                continue  # copying would leave out what cannot be read, and has to be done with the rest every time
            if not alive or alive * 2 < sum(run.record_count for run in runs):
                dead.append(file)
        if self._active in dead:
            self._active = None
        return dead

    def copy(self, file: KeptFile, unfinished: Sequence[bytes]) -> bool:
        """Copy what is unfinished to other files. Whether all of it could be read: else the file is still needed."""
        wanted = set(unfinished)
        damage = Damage(quiet=True)
        for run in file.runs():
            if _between(unfinished, run):
                self.add(frame for frame in _read_run(file, run, damage) if message_id(frame) in wanted)
        file.is_damaged = damage.records > 0
        return not file.is_damaged

    def remove(self, file: KeptFile) -> None:
        """Delete a file."""
        file.segment.remove()
        self._files.remove(file)
        self._protected.discard(file)

    def close(self) -> None:
        """Close every file."""
        for file in self._files:
            file.segment.close()
        self._active = None

    def _append(self, frames: Sequence[bytes]) -> None:
        active = self._active
        if active is None or active.segment.abandoned or active.segment.end >= self._segment_size:
            active = self._begin()
        offset = active.segment.end
        active.segment.append(encode_group(MESSAGES, 0, 0, frames, offset), self._segment_size)
        active.runs().append(Run(message_id(frames[0]), message_id(frames[-1]), offset, len(frames)))

    def _begin(self) -> KeptFile:
        if self._active:
            self._active.segment.close()
            self._active = None
        self._last_number += 1
        path = self._path_of(self._last_number)
        segment = Segment.create(self._descriptors, path, self._last_number, 0, self._segment_size)
        self._active = KeptFile(segment)
        self._files.append(self._active)
        return self._active


def _read_run(file: KeptFile, run: Run, damage: Damage) -> list[bytes]:
    reader = GroupReader(file.segment, damage, run.offset)
    frames: list[bytes] = []
    while len(frames) < run.record_count and (groups := reader.read(_GROUP_SIZE)):
        frames += [frame for group in groups for frame in group.frames]
    if reader.suspect is not None or len(frames) < run.record_count:
        damage.report(file.segment.path, run.offset, 1)
    return frames


def _between(ids: Sequence[bytes], run: Run) -> int:
    """How many of the sorted ids are in a run's range."""
    return bisect_right(ids, run.last_id) - bisect_left(ids, run.first_id)


def _cut(frames: Iterable[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for frame in frames:
        if size + len(frame) > _GROUP_SIZE and group:
            yield group
            group, size = [], 0
        group.append(frame)
        size += len(frame)
    if group:
        yield group


def _read_runs(segment: Segment) -> Iterator[Run]:
    reader = GroupReader(segment, Damage(quiet=True), FIRST_GROUP)
    offset = reader.offset
    # Smaller than any group, so that each is read by itself and its offset is known.
    while groups := reader.read(1):
        ids = [found for group in groups for found in message_ids(group.frames)]
        yield Run(ids[0], ids[-1], offset, len(ids))
        offset = reader.offset
