"""Reading disk queues of Go: written by hand, and then damaged. Messages are identified by their bodies."""

import errno
import os
import struct
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nsq_compat.godata.format import GoMessage, encode_record
from nsq_compat.godata.reader import MAX_DAMAGES_LISTED, QueueReport, read_queue
from nsq_compat.log.files import OsFiles

NOW_NS = 1_700_000_000_000_000_000
FIRST_ID = 0x0DD4C9F8E1A00000


def stored(number, body, attempts=0):
    return GoMessage(NOW_NS + number, attempts, b"%016x" % (FIRST_ID + number), body)


def records(*bodies):
    return b"".join(encode_record(stored(number, body)) for number, body in enumerate(bodies))


class Queue:
    """The files of the queue `q` in a folder."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.report = QueueReport()

    def has(self, positions=None, *, bad=(), **data):
        """Files: `positions` as text, and data files as f0=b"...", f1=..."""
        if positions is not None:
            self.write("meta.dat", positions.encode())
        for name, content in data.items():
            self.write(f"{int(name[1:]):06d}.dat", content)
        for number in bad:
            self.write(f"{number:06d}.dat.bad", records(b"bad"))

    def write(self, rest, content):
        with open(os.path.join(self.folder, f"q.diskqueue.{rest}"), "wb") as file:
            file.write(content)

    def read(self, files=None):
        self.report = QueueReport()
        return [each.body for each in read_queue(files or OsFiles(), self.folder, "q", self.report)]


@pytest.fixture
def queue(tmp_path):
    return Queue(tmp_path)


# --- Undamaged --------------------------------------------------------------------------------------------------------


def test_a_message_keeps_time_attempts_and_id(queue):
    by_hand = bytes.fromhex("0000001f17979cfe362a00000002") + b"0123456789abcdef" + b"hello"
    queue.has("1\n0,0\n0,35\n", f0=by_hand)
    (found,) = read_queue(OsFiles(), queue.folder, "q")
    assert found == GoMessage(NOW_NS, 2, b"0123456789abcdef", b"hello")


A, B, AB = records(b"a"), records(b"b"), records(b"a", b"b")
FOREIGN = b"".join(encode_record(GoMessage(1, 0, b"?" * 16, body)) for body in (b"a", b"b"))
OLD = records(b"old one", b"old two", b"old three")

UNDAMAGED = {
    "reading begins at the read position": (f"1\n7,{len(A)}\n7,{len(AB)}\n", {7: AB}, b"b"),
    "a queue goes on in the next file": (f"3\n8,0\n10,{len(B)}\n", {8: A, 9: A, 10: B}, b"aab"),
    "a queue that was never used is empty": ("0\n0,0\n0,0\n", {}, b""),
    "a queue without files is empty": (None, {}, b""),
    "ids of other programs are read": (f"2\n0,0\n0,{len(FOREIGN)}\n", {0: FOREIGN}, b"ab"),
    "without positions every data file is read": (None, {2: AB, 3: A}, b"aba"),
    "a read position after the write position reads the rest": (f"-1\n0,{len(A)}\n0,0\n", {0: AB}, b"b"),
}


@pytest.mark.parametrize(("positions", "files", "bodies"), UNDAMAGED.values(), ids=UNDAMAGED)
def test_an_undamaged_queue_is_read(queue, positions, files, bodies):
    queue.has(positions, **{f"f{number}": data for number, data in files.items()})
    assert b"".join(queue.read()) == bodies
    assert queue.report.claimed_depth == (None if positions is None else int(positions.split("\n")[0]))
    assert (queue.report.messages, queue.report.bytes) == (len(bodies), len(bodies))
    assert (queue.report.damaged_parts, queue.report.ignored) == (0, [])


def test_files_before_the_read_position_and_bad_ones_are_ignored(queue):
    queue.has(f"1\n5,0\n5,{len(B)}\n", f4=A, f5=B, bad=[3])
    assert queue.read() == [b"b"]
    assert queue.report.ignored == ["q.diskqueue.000004.dat", "q.diskqueue.000003.dat.bad"]


UNSYNCED = {
    "data after the write position": ({"f0": records(b"a", b"b", b"c")}, [b"a", b"b", b"c"], 0),
    # nsqd: after such a start it writes to the next file, and only later says so.
    "files after the write position": ({"f0": AB, "f1": B}, [b"a", b"b", b"b"], 0),
    "the rest of overwritten messages": ({"f0": A + OLD[len(A) :]}, [b"a", b"old two", b"old three"], 1),
}


@pytest.mark.parametrize(("files", "bodies", "damaged"), UNSYNCED.values(), ids=UNSYNCED)
def test_what_is_behind_the_write_position_is_read(queue, files, bodies, damaged):
    queue.has(f"1\n0,0\n0,{len(A)}\n", **files)
    assert queue.read() == bodies
    assert (queue.report.unsynced, queue.report.damaged_parts) == (2, damaged)


@pytest.mark.parametrize(
    ("positions", "bodies", "reason"),
    [
        ("garbage", [b"a"], "not the positions of a queue"),
        ("1\n0,500\n1,0\n", [], "shorter than the reading position"),
    ],
)
def test_positions_that_do_not_match_the_files_are_only_damage(queue, positions, bodies, reason):
    queue.has(positions, f0=A)
    assert queue.read() == bodies
    assert [damage.reason for damage in queue.report.damages] == [reason]


def test_other_queues_are_not_read(queue):
    queue.has("1\n0,0\n0,31\n", f0=records(b"a"))
    assert list(read_queue(OsFiles(), queue.folder, "q:c")) == []


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 400))
def test_any_messages_in_any_files_are_read_in_order(tmp_path_factory, bodies, size):
    queue = Queue(tmp_path_factory.mktemp("queue"))
    content: dict[int, bytes] = {}
    for number, body in enumerate(bodies):
        record = encode_record(stored(number, body))
        last = max(content, default=0)
        target = last + 1 if len(content.get(last, b"")) + len(record) > size else last
        content[target] = content.get(target, b"") + record
    queue.has(f"0\n0,0\n{max(content, default=0)},0\n", **{f"f{number}": data for number, data in content.items()})
    assert queue.read() == bodies


# --- After a crash ----------------------------------------------------------------------------------------------------


def test_a_truncated_file_is_damage(queue):
    data = records(b"a", b"b")
    queue.has(f"2\n0,0\n0,{len(data)}\n", f0=data[:-1])
    assert queue.read() == [b"a"]
    assert [damage.offset for damage in queue.report.damages] == [len(data) - 1, len(records(b"a"))]


@pytest.mark.parametrize(
    ("positions", "missing"),
    [
        ("9\n0,0\n3,5\n", ["q.diskqueue.000000.dat", "q.diskqueue.000002 to 000003.dat"]),
        ("9\n1,0\n2,0\n", []),
        ("9\n1,0\n2,5\n", ["q.diskqueue.000002.dat"]),
        ("9\n1,0\n999999999999,0\n", ["q.diskqueue.000002 to 999999999998.dat"]),
    ],
)
def test_missing_files_are_damage(queue, positions, missing):
    queue.has(positions, f1=records(b"a"))
    assert queue.read() == [b"a"]
    assert [damage.file for damage in queue.report.damages] == missing


# --- Damage -----------------------------------------------------------------------------------------------------------

BODIES = [b"first", b"", b"x" * 300, b"0123456789abcdef" * 5, b"\0\0\0\x1f" * 20, b"last"]
WHOLE = records(*BODIES)
STARTS = [len(records(*BODIES[:count])) for count in range(len(BODIES) + 1)]


@pytest.mark.parametrize("size", [-1, 0, 25, 0x7FFFFFFF, 0x20202020, 4000])
@pytest.mark.parametrize("victim", range(len(BODIES)))
def test_a_wrong_size_costs_one_message(queue, victim, size):
    at = STARTS[victim]
    queue.has(f"6\n0,0\n0,{len(WHOLE)}\n", f0=WHOLE[:at] + struct.pack(">i", size) + WHOLE[at + 4 :])
    assert queue.read() == BODIES[:victim] + BODIES[victim + 1 :]
    assert (queue.report.damaged_parts, queue.report.damaged_bytes) == (1, STARTS[victim + 1] - at)


def test_a_record_that_covers_others_is_dropped_in_their_favour(queue):
    at, size = STARTS[1], STARTS[4] - STARTS[1]
    queue.has(f"6\n0,0\n0,{len(WHOLE)}\n", f0=WHOLE[:at] + struct.pack(">i", size) + WHOLE[at + 4 :])
    assert queue.read() == [BODIES[0], *BODIES[2:]]


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
@settings(max_examples=60)
def test_a_changed_byte_costs_at_most_its_own_message(tmp_path_factory, offset, change):
    queue = Queue(tmp_path_factory.mktemp("queue"))
    damaged = bytearray(WHOLE)
    damaged[offset] ^= change
    queue.has(f"6\n0,0\n0,{len(WHOLE)}\n", f0=bytes(damaged))
    victim = max(number for number in range(len(BODIES)) if STARTS[number] <= offset)
    size = int.from_bytes(damaged[STARTS[victim] : STARTS[victim] + 4], "big")
    assume(STARTS[victim] + 4 + size not in STARTS[victim + 2 :])  # ends where another record does: not detectable
    found = queue.read()
    assert not Counter(BODIES[:victim] + BODIES[victim + 1 :]) - Counter(found)
    assert len(found) <= len(BODIES) + 1  # a body that looks like records may be cut into one


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_truncated_tail_costs_only_the_messages_in_it(queue, cut):
    queue.has(f0=WHOLE[:cut])
    assert queue.read() == [body for body, end in zip(BODIES, STARTS[1:], strict=True) if end <= cut]
    assert queue.report.damaged_parts == (cut not in STARTS)


def test_a_page_of_zeros_costs_only_the_messages_on_it(queue):
    bodies = [b"%04d" % number + bytes(60) for number in range(200)]
    data = records(*bodies)
    queue.has(f0=data[:4096] + bytes(4096) + data[8192:])
    size = len(data) // len(bodies)
    found = queue.read()
    # The record the zeros begin in still has its size: it is delivered with a body that ends in zeros.
    kept = [body for number, body in enumerate(bodies) if (number + 1) * size <= 4096 or number * size >= 8192]
    assert [body for body in found if body in kept] == kept
    assert len(found) - len(kept) <= 1
    assert queue.report.damaged_parts == 1


def test_a_file_of_garbage_is_one_damaged_part(queue):
    queue.has(f0=os.urandom(3 << 20), f1=records(b"a"))
    assert queue.read()[-1:] == [b"a"]
    assert 1 <= queue.report.damaged_parts < 5


def test_a_message_found_across_the_edge_of_a_block_is_whole(queue):
    for shift in range(-40, 40, 7):
        garbage = b"\xff" * ((1 << 20) + shift)
        queue.has(f0=garbage + records(b"a", b"b"))
        assert queue.read() == [b"a", b"b"]


def test_a_message_larger_than_a_block_is_whole(queue):
    large = os.urandom(5 << 20)
    queue.has(f0=records(b"a", large, b"b"))
    assert queue.read() == [b"a", large, b"b"]


def test_only_the_first_damages_are_listed_and_all_are_counted(queue):
    count = MAX_DAMAGES_LISTED + 20
    queue.has(f0=b"".join(b"\xff\xff\xff" + records(b"a", b"b") for _ in range(count)))
    assert len(queue.read()) == 2 * count
    assert (queue.report.damaged_parts, len(queue.report.damages)) == (count, MAX_DAMAGES_LISTED)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(tmp_path_factory, data):
    queue = Queue(tmp_path_factory.mktemp("queue"))
    queue.has(f0=data)
    queue.write("meta.dat", data[:20])
    queue.read()


# --- What the system says ---------------------------------------------------------------------------------------------


def failing(number):
    """Files of which none can be read, with this error number."""

    class Failing(OsFiles):
        @staticmethod
        def pread(fd, size, offset):
            raise OSError(number, os.strerror(number))

    return Failing()


def test_a_broken_disk_is_damage(queue):
    queue.has(f0=records(b"a"))
    assert queue.read(failing(errno.EIO)) == []
    assert queue.report.damages[0].reason == "Input/output error"


def test_a_temporary_error_is_not_damage(queue):
    queue.has(f0=records(b"a"))
    with pytest.raises(OSError, match="memory"):
        queue.read(failing(errno.ENOMEM))


def test_a_folder_or_a_pipe_in_place_of_a_file_is_damage(queue):
    os.mkdir(os.path.join(queue.folder, "q.diskqueue.000000.dat"))
    os.mkfifo(os.path.join(queue.folder, "q.diskqueue.000001.dat"))
    os.mkdir(os.path.join(queue.folder, "q.diskqueue.meta.dat"))
    queue.has(f2=records(b"a"))
    assert queue.read() == [b"a"]


class ShortReads(OsFiles):
    """Gives seven bytes at a time."""

    @staticmethod
    def pread(fd, size, offset):
        return os.pread(fd, min(size, 7), offset)


def test_short_reads_are_continued(queue):
    queue.has(f0=records(b"a", b"b" * 40))
    assert queue.read(ShortReads()) == [b"a", b"b" * 40]
