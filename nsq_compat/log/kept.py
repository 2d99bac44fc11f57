"""Kept messages: unfinished messages that were copied out of old segments, so that these can be deleted.

They are found by id; they have no message numbers. Each group is sorted by id, and its range of ids is kept in memory.
Like a segment, a file is written by one run only. A damaged message is counted when it is searched for.

No file gets the number of an earlier one: a standby may still need that while it is sent the new one. So of the file
with the highest number, the header stays when its messages are not needed any more.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from nsq_compat.log.damage import Damage
from nsq_compat.log.descriptors import Descriptors
from nsq_compat.log.group_reader import GroupReader, unfinished
from nsq_compat.log.segment import FIRST_GROUP, Segment, encode_group, locations_of, place_of
from nsq_compat.protocol.message import message_id, message_ids
from nsq_compat.protocol.storage_schema import MESSAGES

KEPT: Final = 1 << 23
"""Added to the number of a file of kept messages in a location, where those of segments are smaller."""
_GROUP_SIZE: Final = 1 << 16
"""Approximate bytes of frames in a group, which is read as a whole even for one message."""
_READ_AT_ONCE: Final = 1 << 22
_SORTED_AT_ONCE: Final = 1 << 24
"""Bytes that are copied together, so that the copies have narrow ranges of ids, and few groups are read for an id."""


class IdRange(NamedTuple):
    """A group in a file of kept messages, and the range of its ids, both ends included."""

    first_id: bytes
    last_id: bytes
    offset: int
    record_count: int


class KeptFile(Segment):
    """One file of kept messages. `is_damaged`: a message in it that is still needed could not be read."""

    is_damaged = False
    _ranges: list[IdRange] | None = None
    _reader: GroupReader | None = None

    def read_some(self) -> bool:
        """Read a few megabytes of the file for `ranges`; returns whether all of it is read. Raises ``OSError``."""
        if self._ranges is None:
            if self.index is None:
                self.read_header()
                self._reader = GroupReader(self, Damage(quiet=True), in_steps=True)
            self._ranges = []
        reader = self._reader
        if reader is None:
            return True
        offset = reader.offset
        stop = offset + _READ_AT_ONCE
        try:
            # 1 is smaller than any group, so that each is read by itself and its offset is known.
            while groups := reader.read(1):
                ids = [each for group in groups for each in message_ids(group.frames)]
                self._ranges.append(IdRange(ids[0], ids[-1], offset, len(ids)))
                offset = reader.offset
                if offset >= stop:
                    return False
        except BlockingIOError:
            return False
        self._reader = None
        return True

    def ranges(self, in_steps: bool = False) -> list[IdRange]:
        """The groups of the file, which is read at the first call. Raises ``OSError``.

        With `in_steps` one call does a step of that, and raises ``BlockingIOError`` if more steps are needed.
        """
        while not self.read_some():
            if in_steps:
                raise unfinished(self)
        assert self._ranges is not None, "it was read"
        return self._ranges


class Kept:
    """The files of kept messages of one log. All methods may raise ``OSError``, and then have changed nothing."""

    def __init__(self, descriptors: Descriptors, path_of: Callable[[int], str], segment_size: int) -> None:
        self._descriptors = descriptors
        self._path_of = path_of
        self._segment_size = segment_size
        self.files: list[KeptFile] = []
        self._headers: list[KeptFile] = []
        """Files without messages; the last one has the highest number so far, or is not needed."""
        self._active: KeptFile | None = None
        self._last_number = 0
        self._protected: set[KeptFile] = set()

    def add_file(self, number: int, size: int) -> None:
        """Add a file of an earlier run, in the order of the file numbers."""
        files = self.files if size > FIRST_GROUP else self._headers
        files.append(KeptFile(self._descriptors, self._path_of(number), number, 0, size))
        self._last_number = number

    def move(self, descriptors: Descriptors) -> None:
        """As `Segment.move`, for all files."""
        self._descriptors = descriptors
        for file in [*self.files, *self._headers]:
            file.move(descriptors, self._path_of(file.number))

    def begin_checkpoint(self) -> None:
        """Note that a checkpoint is being created, which contains all unfinished messages that were added so far."""
        self._protected.clear()

    def add(self, frames: Iterable[bytes], *, protects: bool = False) -> dict[bytes, bytes]:
        """Write frames; returns their locations, by id. If it raises, some of them may have been written.

        With `protects`, the files are kept until the next checkpoint is begun: one that is being written may lack them.
        """
        locations: dict[bytes, bytes] = {}
        for group in cut_by_size(sorted(frames, key=message_id), _GROUP_SIZE):
            active = self._active
            if active is None or active.abandoned or active.end >= self._segment_size:
                active = self._begin()
            if protects:
                self._protected.add(active)
            offset = active.end
            active.append(encode_group(MESSAGES, 0, 0, group, offset, active.salt), self._segment_size)
            active.ranges().append(IdRange(message_id(group[0]), message_id(group[-1]), offset, len(group)))
            found = locations_of(place_of(KEPT | active.number, offset), group)
            locations.update(zip(map(message_id, group), found, strict=True))
        return locations

    def read_ranges(self, pause: Callable[[], None]) -> None:
        """Read all files that were not read yet, and call `pause` after every few megabytes."""
        for file in [*self.files]:
            while not file.read_some():
                pause()

    def fetch(self, ids: Sequence[bytes], in_steps: bool = False) -> dict[bytes, bytes]:
        """The frames of the kept messages among these (sorted) ids, by id. `in_steps`: as `KeptFile.ranges`."""
        found: dict[bytes, bytes] = {}
        wanted = set(ids)
        for file in self.files:
            for group in file.ranges(in_steps):
                if len(found) == len(wanted):
                    return found
                if _count_in(ids, group):
                    for frame in _read_group(file, group, Damage(quiet=True)):
                        if (found_id := message_id(frame)) in wanted:
                            found[found_id] = frame
        return found

    def frames(self) -> Iterator[bytes]:
        """All frames, in no order, and possibly more than once."""
        for file in self.files:
            for group in file.ranges():
                yield from _read_group(file, group, Damage(quiet=True))

    def mostly_dead(self, unfinished: Sequence[bytes]) -> list[KeptFile]:
        """Files with few or none of the (sorted) unfinished messages. Nothing more is written to these files."""
        dead: list[KeptFile] = []
        for file in self.files:
            if file in self._protected:
                continue
            ranges = file.ranges()
            alive = sum(_count_in(unfinished, group) for group in ranges)
            if file.is_damaged and alive:
                continue  # messages that cannot be read cannot be copied, so each attempt would copy the file again
            if not alive or alive * 2 < sum(group.record_count for group in ranges):
                dead.append(file)
        if self._active in dead:
            self._active = None
        return dead

    def copy(self, file: KeptFile, unfinished: Sequence[bytes]) -> bool:
        """Copy a file's unfinished messages to other files. Returns whether all were read, so it can be deleted."""
        wanted = set(unfinished)
        damage = Damage(quiet=True)
        copied: list[bytes] = []
        size = 0
        for group in file.ranges():
            if _count_in(unfinished, group):
                some = [frame for frame in _read_group(file, group, damage) if message_id(frame) in wanted]
                copied += some
                size += sum(map(len, some))
                if size >= _SORTED_AT_ONCE:
                    self.add(copied)
                    copied, size = [], 0
        self.add(copied)
        file.is_damaged = damage.records > 0
        return not file.is_damaged

    def remove(self, file: KeptFile) -> None:
        """Discard a file's messages. Of the last file, the header stays."""
        if file.number == self._last_number:
            file.release()
            file.close()
            self._headers.append(file)
        else:
            file.remove()
        self.files.remove(file)
        self._protected.discard(file)
        while self._headers and self._headers[0].number != self._last_number:
            self._headers[0].remove()
            del self._headers[0]

    def close(self) -> None:
        for file in self.files:
            file.close()
        self._active = None

    def _begin(self) -> KeptFile:
        if self._active:
            self._active.close()
            self._active = None
        self._last_number += 1
        path = self._path_of(self._last_number)
        self._active = KeptFile.create(self._descriptors, path, self._last_number, 0, self._segment_size)
        self.files.append(self._active)
        return self._active


def _read_group(file: KeptFile, wanted: IdRange, damage: Damage) -> list[bytes]:
    reader = GroupReader(file, damage, wanted.offset)
    frames: list[bytes] = []
    while len(frames) < wanted.record_count and (groups := reader.read(_GROUP_SIZE)):
        frames += [frame for group in groups for frame in group.frames]
    if reader.suspect is not None or len(frames) < wanted.record_count:
        damage.report(file.path, wanted.offset, 1)
    return frames


def _count_in(ids: Sequence[bytes], group: IdRange) -> int:
    """The number of sorted ids in the group's range."""
    return bisect_right(ids, group.last_id) - bisect_left(ids, group.first_id)


def cut_by_size(frames: Iterable[bytes], max_bytes: int) -> Iterator[list[bytes]]:
    """The frames in batches of at most `max_bytes`, or of one larger frame."""
    group: list[bytes] = []
    size = 0
    for frame in frames:
        if size + len(frame) > max_bytes and group:
            yield group
            group, size = [], 0
        group.append(frame)
        size += len(frame)
    if group:
        yield group
