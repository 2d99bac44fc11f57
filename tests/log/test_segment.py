import errno
from typing import cast

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log import segment as segment_module
from nsq_compat.log.damage import Damage
from nsq_compat.log.data_path import LaterVersion, reason
from nsq_compat.log.descriptors import Descriptors
from nsq_compat.log.files import Files
from nsq_compat.log.group_reader import GroupReader, first_id_of, index_of, is_hole, salvage
from nsq_compat.log.segment import (
    FIRST_GROUP,
    HEADER_SIZE,
    INDEX_STEP,
    LOW_32,
    UNKNOWN_SEQ,
    Group,
    Segment,
    cut_frames,
    decode_header,
    decode_segment_header,
    decode_trailer,
    encode_group,
    encode_segment_header,
    is_of_later_version,
    salted,
)
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.message import make_frames
from nsq_compat.protocol.storage_schema import CHANNEL_CREATED, DEFERRED, MESSAGES, RELEASED_MAGIC, SEGMENT_MAGIC_2
from tests.faults.disk import SimulatedDisk

PATH = "/log"
NOW_NS = 1_700_000_000_000_000_000
MIB = 1 << 20


class CountingDisk(SimulatedDisk):
    """Counts calls, and lets those in `failing` fail."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []
        self.failing: dict[str, int] = {}
        self.writes: list[tuple[int, int]] = []  # offset, size
        self.refuses_zeros = False

    def fail(self, name):
        self.calls.append(name)
        if name in self.failing:
            raise OSError(self.failing[name], f"{name} fails")

    def pwrite(self, fd, data, offset):
        if "pwrite" in self.failing:
            super().pwrite(fd, data[:5], offset)
        self.fail("pwrite")
        if self.refuses_zeros and not any(data):
            raise OSError(errno.ENOSPC, "no zeros")
        self.writes.append((offset, len(data)))
        return super().pwrite(fd, data, offset)

    def fallocate(self, fd, offset, size):
        self.fail("fallocate")
        super().fallocate(fd, offset, size)

    def ftruncate(self, fd, size):
        self.fail("ftruncate")
        super().ftruncate(fd, size)

    def pread(self, fd, size, offset):
        if "pread" in self.failing and offset <= 5000 < offset + size:
            self.fail("pread")
        return super().pread(fd, size, offset)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def segment(disk: CountingDisk) -> Segment:
    return Segment.create(Descriptors(cast("Files", disk), reserve=0), PATH, 1, 7, 100 * MIB)


def found(disk: SimulatedDisk, first_seq: int = 0) -> Segment:
    """The same file in the next run."""
    segment = Segment(Descriptors(cast("Files", disk), reserve=0), PATH, 1, first_seq, disk.size(PATH))
    segment.read_header()
    segment.first_seq = first_seq
    return segment


def frames_of(first: int, count: int, size: int = 100) -> tuple[bytes, ...]:
    return make_frames([b"%016x" % each for each in range(first, first + count)], NOW_NS, [bytes(size)] * count)


def test_the_header_of_a_new_file_has_the_next_message_number(disk, segment):
    header = decode_segment_header(disk.content(PATH))
    assert header is not None
    assert header == (7, segment.salt, False)
    assert 0 < segment.salt <= LOW_32
    assert segment.end == FIRST_GROUP


def test_each_file_has_a_salt_of_its_own(disk):
    descriptors = Descriptors(cast("Files", disk), reserve=0)
    assert len({Segment.create(descriptors, f"{PATH}.{number}", number, 7, MIB).salt for number in range(9)}) == 9


def test_files_of_version_2_have_no_salt():
    assert decode_segment_header(encode_segment_header(7, SEGMENT_MAGIC_2)) == (7, 0, False)


def test_a_damaged_header_is_not_decoded():
    wire = encode_segment_header(7, salted(0x1234))
    for offset in range(len(wire)):
        damaged = bytearray(wire)
        damaged[offset] ^= 4
        assert decode_segment_header(bytes(damaged)) is None
        assert decode_segment_header(wire[:offset]) is None
        assert not is_of_later_version(bytes(damaged))
        assert not is_of_later_version(wire[:offset])


def test_a_file_of_a_later_version_is_refused_and_not_taken_for_a_damaged_one(disk):
    later = encode_segment_header(7, b"nsq\x04" + bytes(4))
    disk.put(PATH, later)
    found = Segment(Descriptors(cast("Files", disk), reserve=0), PATH, 1, UNKNOWN_SEQ, len(later))
    with pytest.raises(LaterVersion) as refused:
        found.read_header()
    assert (reason(refused.value), refused.value.filename) == ("written by a later version of nsq_compat", PATH)


def test_space_is_reserved_in_growing_steps_and_released_on_close(disk, segment):
    for _ in range(300):
        segment.append(bytes(1000), 100 * MIB)
    assert disk.calls.count("fallocate") == 3
    assert len(disk.content(PATH)) > 300_000 + FIRST_GROUP == segment.end
    segment.close()
    assert len(disk.content(PATH)) == segment.end


def test_no_more_than_the_segment_size_is_reserved_unless_a_group_is_larger(disk, segment):
    segment.append(bytes(70_000), 75_000)
    assert len(disk.content(PATH)) <= 75_000
    segment.append(bytes(70_000), 75_000)
    assert len(disk.content(PATH)) == segment.end


def test_if_there_is_no_space_for_a_step_the_data_may_still_fit(disk, segment):
    disk.failing["fallocate"] = errno.ENOSPC
    for _ in range(50):
        segment.append(b"x" * 5000, 100 * MIB)
    assert disk.content(PATH)[FIRST_GROUP:] == b"x" * 250_000
    assert disk.calls.count("fallocate") < 5, "it is not tried for every group"


def test_zeros_are_written_ahead_in_a_large_file(disk, segment):
    bodies = [bytes([number % 255 + 1]) * 1000 for number in range(1000)]
    zeros = []
    for body in bodies:
        before, end = len(disk.writes), segment.end
        segment.append(body, 100 * MIB)
        zeros += [(end, offset, offset + size) for offset, size in disk.writes[before:-1]]
    assert disk.content(PATH)[FIRST_GROUP : segment.end] == b"".join(bodies)
    assert 5 < len(zeros) < 10
    assert all(segment_module._ZERO_AHEAD_FROM <= end <= begin < stop for end, begin, stop in zeros)
    assert [begin for _, begin, _ in zeros[1:]] == [stop for _, _, stop in zeros[:-1]]


@pytest.mark.parametrize("prepares", [False, True])
def test_no_zeros_go_beyond_the_size_of_a_segment(disk, segment, prepares):
    for _ in range(500):
        segment.append(bytes(1000), 500_100)
        if prepares:
            segment.prepare(500_100)
    assert max(offset + size for offset, size in disk.writes) == 500_100


def test_a_big_group_needs_no_zeros(disk, segment):
    for _ in range(10):
        segment.append(b"x" * 200_000, 100 * MIB)
    assert {size for _, size in disk.writes} == {FIRST_GROUP, 200_000}


def test_a_failure_to_write_zeros_is_ignored(disk, segment):
    disk.refuses_zeros = True
    for _ in range(500):
        segment.append(b"x" * 1000, 100 * MIB)
    assert disk.content(PATH)[FIRST_GROUP : segment.end] == b"x" * 500_000
    assert not segment.abandoned


def test_an_append_after_prepare_only_writes(disk, segment):
    segment.prepare(100 * MIB)
    assert disk.writes == [(0, FIRST_GROUP)], "there is not much yet"
    segment.append(bytes(segment_module._ZERO_AHEAD_FROM), 100 * MIB)
    prepared = 0
    for number in range(500):
        if number % 60 == 0:  # every INDEX_STEP or so
            before = len(disk.writes)
            segment.prepare(100 * MIB)
            segment.prepare(100 * MIB)
            prepared += len(disk.writes) - before
        before, calls = len(disk.writes), len(disk.calls)
        segment.append(b"x" * 1000, 100 * MIB)
        assert disk.writes[before:] == [(segment.end - 1000, 1000)]
        assert disk.calls[calls:] == ["pwrite"]
    assert prepared < 8, "not at every call"
    assert disk.content(PATH)[segment.end - 500_000 : segment.end] == b"x" * 500_000


@pytest.mark.parametrize("call", ["pwrite", "fallocate", "open"])
def test_a_failure_to_prepare_is_ignored(call, disk, segment, monkeypatch):
    segment.append(b"x" * 300_000, 100 * MIB)
    if call == "open":
        segment._descriptors.close(segment.file)
        monkeypatch.setattr(disk, "open", lambda *_: disk.fail("open"))
    disk.failing[call] = errno.EMFILE
    segment.prepare(100 * MIB)
    monkeypatch.undo()
    disk.failing.clear()
    segment.append(b"x" * 300_000, 100 * MIB)
    assert disk.content(PATH)[FIRST_GROUP : segment.end] == b"x" * 600_000


def test_an_abandoned_segment_is_not_prepared(disk, segment):
    segment.append(bytes(300_000), 100 * MIB)
    segment.abandoned = True
    before = list(disk.calls)
    segment.prepare(100 * MIB)
    assert disk.calls == before


def test_a_failed_write_is_undone(disk, segment):
    segment.append(b"before", MIB)
    disk.failing["pwrite"] = errno.ENOSPC
    with pytest.raises(OSError, match="pwrite"):
        segment.append(b"half of it", MIB)
    assert disk.content(PATH)[FIRST_GROUP:] == b"before"
    disk.failing.clear()
    segment.append(b" behind", MIB)
    assert disk.content(PATH)[FIRST_GROUP : segment.end] == b"before behind"


def test_a_failed_write_that_cannot_be_undone_ends_the_segment(disk, segment):
    disk.failing.update(pwrite=errno.EIO, ftruncate=errno.EIO)
    with pytest.raises(OSError, match="pwrite"):
        segment.append(b"half of it", MIB)
    assert segment.abandoned
    assert segment.end == FIRST_GROUP


def test_a_file_that_cannot_be_created_completely_is_removed(disk):
    disk.failing["pwrite"] = errno.ENOSPC
    with pytest.raises(OSError, match="pwrite"):
        Segment.create(Descriptors(cast("Files", disk), reserve=0), PATH, 1, 7, MIB)
    assert disk.listdir("/") == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_system_error_is_raised_with_the_file_name(disk, segment, number):
    segment.append(b"x" * 20_000, MIB)
    disk.failing["pread"] = number
    with pytest.raises(OSError, match="pread") as caught:
        segment.pread(20_000, 100)
    assert caught.value.filename == PATH


def test_a_short_read_is_continued(disk, segment):
    segment.append(bytes(range(250)) * 80, MIB)
    whole = segment.pread(20_000, FIRST_GROUP)
    pread = disk.pread
    disk.pread = lambda fd, size, offset: pread(fd, min(size, 777), offset)
    assert segment.pread(20_000, FIRST_GROUP) == whole


def test_the_beginning_and_the_end_of_an_outage_are_logged_once(disk, caplog):
    caplog.set_level("INFO")
    descriptors = Descriptors(cast("Files", disk), reserve=0)
    faults = descriptors.read_faults
    segments = [Segment.create(descriptors, f"{PATH}{number}", number, 7, MIB) for number in range(2)]
    disk.failing["pread"] = errno.EIO
    for _ in range(3):
        for segment in segments:
            with pytest.raises(OSError, match="pread"):
                segment.pread(6000, 0)
    assert (faults.count, faults.problem) == (6, f"cannot read {PATH}0: input/output error")
    disk.failing.clear()
    steps = (lambda: segments[0].pread(6000, 0), lambda: segments[1].pread(1, 0), faults.retry)
    problems = []
    for step in steps:
        step()
        problems.append(faults.problem)
    rest = f"cannot read {PATH}1: input/output error"
    assert problems == [rest, rest, None], "one file is not all, nor is a part of what could not be read"
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_a_deleted_file_is_no_longer_unreadable(disk, segment):
    disk.failing["pread"] = errno.EIO
    with pytest.raises(OSError, match="pread"):
        segment.pread(6000, 0)
    segment.remove()
    assert segment._descriptors.read_faults.problem is None


def test_a_released_file_keeps_only_its_header(disk, segment):
    segment.append(b"x" * 20_000, MIB)
    segment.release()
    assert disk.content(PATH) == encode_segment_header(7, RELEASED_MAGIC)
    assert decode_segment_header(disk.content(PATH)) == (7, 0, True)


def publish(segment: Segment, counts, size: int = 100) -> None:
    seq = number = 0
    for position, count in enumerate(counts):
        kind = (MESSAGES, CHANNEL_CREATED, DEFERRED)[position % 3]
        frames = [b"archive"] if kind == CHANNEL_CREATED else frames_of(number, count, size)
        segment.append(encode_group(kind, seq, 0, frames, segment.end, segment.salt), 100 * MIB)
        number += len(frames)
        seq += count if kind == MESSAGES else 0


def test_an_index_built_later_leads_to_every_message_by_id_and_by_number(disk, segment):
    publish(segment, [1, 1, 300, 900, 1, 20] * 20)
    segment.close()
    later = found(disk)
    assert first_id_of(later, Damage()) == b"%016x" % 0
    index = index_of(later, Damage())
    spans, count = set(), 0
    reader = GroupReader(later, Damage())
    offset = reader.offset
    while groups := reader.read(1):
        (group,) = groups
        if group.kind != CHANNEL_CREATED:
            count += len(group.frames)
            for frame in group.frames:
                begin, end = index.span_of_id(frame[18:34])
                assert begin <= offset < end
                spans.add((begin, end))
        if group.kind == MESSAGES:
            begin, _ = index.seek(group.first_seq)
            assert begin <= offset < begin + 3 * INDEX_STEP
            assert index.seek(group.first_seq + len(group.frames) - 1)[0] <= offset
        offset = reader.offset
    assert index.count == count
    assert len(spans) > segment.end // INDEX_STEP // 4


def test_the_first_id_is_that_of_a_sound_message_in_a_damaged_group(disk, segment):
    publish(segment, [3, 1, 1])
    segment.close()
    content = bytearray(disk.content(PATH))
    content[content.index(b"%016x" % 0)] = ord("f")
    disk.put(PATH, bytes(content))
    later = found(disk)
    assert index_of(later, Damage()).first_id == b"%016x" % 4
    assert first_id_of(later, Damage()) == b"%016x" % 1


def test_a_damaged_id_is_not_indexed(disk, segment):
    publish(segment, [200, 1, 1] * 40)
    segment.close()
    content = bytearray(disk.content(PATH))
    place = content.index(b"%016x" % 0)
    content[place] = ord("f")
    disk.put(PATH, bytes(content))
    later = found(disk)
    message_id = b"%016x" % 5000
    begin, end = index_of(later, Damage()).span_of_id(message_id)
    assert begin <= content.index(message_id) <= end + INDEX_STEP
    assert end - begin < 4 * INDEX_STEP


# --- Groups -----------------------------------------------------------------------------------------------------------

bodies = st.lists(st.binary(max_size=50), min_size=1, max_size=8)
kinds = st.sampled_from(storage_schema.KINDS)
salts = st.integers(0, LOW_32)


def frames_with(*bodies: bytes) -> tuple[bytes, ...]:
    return make_frames([b"%016x" % number for number in range(len(bodies))], NOW_NS, bodies)


@given(bodies, kinds, st.integers(0, 1 << 50), st.integers(0, 1 << 62), st.integers(0, 1 << 40), salts)
def test_a_group_is_what_is_declared(bodies, kind, first_seq, due_ns, offset, salt):
    frames = frames_with(*bodies)
    data = encode_group(kind, first_seq, due_ns, frames, offset, salt)
    if len(frames) == 1:
        parsed = storage_schema.SINGLE_GROUP.parse(data)
        assert parsed.frame == frames[0]
    else:
        parsed = storage_schema.GROUP.parse(data)
        assert parsed.frames == b"".join(frames)
        assert list(parsed.checksums) == [crc32c(frame) for frame in frames]
        assert parsed.trailer.header_crc == parsed.header_crc
        assert data[-HEADER_SIZE + 8 :] == data[8:HEADER_SIZE]
    fields = data[8:HEADER_SIZE]
    assert parsed.magic == storage_schema.GROUP_MAGIC
    assert parsed.header_crc == crc32c(fields) ^ (offset & 0xFFFFFFFF) ^ salt
    payload = data[HEADER_SIZE : len(data) - (HEADER_SIZE if len(frames) > 1 else 0)]
    assert parsed.payload_crc == crc32c(payload)
    assert (parsed.kind, parsed.first_seq, parsed.due_ns) == (kind, first_seq, due_ns)
    assert (parsed.count, parsed.size) == (len(frames), sum(map(len, frames)))


@given(bodies, st.integers(0, 1 << 40), salts, st.binary(max_size=20))
def test_header_and_trailer_are_decoded_at_any_offset_of_a_block(bodies, offset, salt, before):
    frames = frames_with(*bodies)
    data = before + encode_group(storage_schema.MESSAGES, 7, 0, frames, offset, salt) + b"behind"
    header = decode_header(data, len(before), offset, salt)
    assert header is not None
    assert header.end - offset == len(data) - len(before) - len(b"behind")
    begin, end = header.frames_begin - offset + len(before), header.payload_end - offset + len(before)
    assert tuple(cut_frames(data, begin, end, len(frames))) == frames
    if len(frames) > 1:
        assert decode_trailer(data, end, header.payload_end, salt) == header


@given(bodies, kinds, st.integers(0, 1 << 40))
def test_joined_frames_make_the_same_group(bodies, kind, offset):
    frames = frames_with(*bodies)
    assert encode_group(kind, 7, 0, frames, offset, 9, b"".join(frames)) == encode_group(kind, 7, 0, frames, offset, 9)


@pytest.mark.parametrize("sizes", [[4] * 300, [4, 3, 5], [4, 5, 3], [3, 4, 5], [0, 256, 512, 256], [256, 0, 512]])
def test_frames_of_any_sizes_are_cut_at_their_beginnings(sizes):
    frames = frames_with(*(b"x" * size for size in sizes))
    joined = b"".join(frames)
    assert tuple(cut_frames(b"!" + joined, 1, 1 + len(joined), len(frames))) == frames


def test_a_header_is_valid_only_in_the_file_and_at_the_offset_where_it_was_written():
    data = encode_group(storage_schema.MESSAGES, 7, 0, frames_with(b"a", b"b"), 1000, 5)
    end = len(data) - HEADER_SIZE
    assert decode_header(data, 0, 1000, 5)
    assert decode_header(data, 0, 1001, 5) is None
    assert decode_header(data, 0, 1000, 0) is None
    assert decode_trailer(data, end, 1000 + end, 5)
    assert decode_trailer(data, end, 999 + end, 5) is None
    assert decode_trailer(data, end, 1000 + end, 0) is None


@pytest.mark.parametrize("size", [0, 3, HEADER_SIZE - 1])
def test_a_part_of_a_header_is_no_header(size):
    data = encode_group(storage_schema.MESSAGES, 7, 0, frames_with(b"a"), 0, 0)[:size]
    assert decode_header(data, 0, 0, 0) is None
    assert decode_trailer(data, 0, 0, 0) is None


def salvaged(damage) -> list[Group] | None:
    frames = frames_with(b"zero", b"one!", b"two!", b"three", b"four")
    data = bytearray(encode_group(storage_schema.MESSAGES, 10, 0, frames, 20, 0))
    damage(data)
    header = decode_header(bytes(data), 0, 20, 0)
    assert header is not None
    return salvage(header, bytes(data))


def test_the_sound_frames_of_a_damaged_group_keep_their_numbers():
    def damage(data):
        data[data.index(b"one!")] ^= 1
        data[data.index(b"two!")] ^= 1

    frames = frames_with(b"zero", b"one!", b"two!", b"three", b"four")
    assert salvaged(damage) == [
        Group(storage_schema.MESSAGES, 10, 0, [frames[0]]),
        Group(storage_schema.MESSAGES, 13, 0, [frames[3], frames[4]]),
    ]


def test_a_frame_with_a_damaged_size_is_skipped():
    frames = frames_with(b"zero", b"one!", b"two!", b"three", b"four")

    def damage(data):
        data[data.index(frames[1]) + 2] ^= 0x40

    assert [group.first_seq for group in salvaged(damage) or ()] == [10, 12]


def test_a_group_with_a_sector_of_zeros_was_never_written():
    def damage(data):
        begin = 512 - 20
        data[begin : begin + 512] = bytes(min(512, len(data) - begin))

    frames = frames_with(*[b"x" * 200] * 6)
    data = bytearray(encode_group(storage_schema.MESSAGES, 10, 0, frames, 20, 0))
    damage(data)
    header = decode_header(bytes(data), 0, 20, 0)
    assert header is not None
    assert salvage(header, bytes(data)) is None


def test_the_search_for_frames_in_a_crafted_message_ends():
    trap = b"\x00\x00\x00\x30\x00\x00\x00\x02" * 50_000
    data = bytearray(encode_group(storage_schema.MESSAGES, 0, 0, frames_with(trap, b"behind"), 0, 0))
    data[60] ^= 1
    header = decode_header(bytes(data), 0, 0, 0)
    assert header is not None
    assert salvage(header, bytes(data)) is not None


def test_a_hole_extends_to_the_end_of_the_sector():
    assert is_hole(bytes(12) + b"x", 500)
    assert not is_hole(bytes(11) + b"x", 500)
    assert is_hole(b"", 0)
