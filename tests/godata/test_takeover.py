"""An import of a data path of Go: each channel receives the messages of its queue, whenever the process is killed."""

import os
import shutil
from contextlib import suppress
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq_compat.godata.export import write_queue
from nsq_compat.godata.format import GoMessage, encode_record, frame_of, queue_name, queues_among
from nsq_compat.godata.reader import read_queue
from nsq_compat.godata.runs import QueueRuns
from nsq_compat.godata.takeover import RECEIPT, find_go_topics, read_empty, take_over
from nsq_compat.log.checkpoint import CHECKPOINT, ENTRY, ChannelState, TopicState
from nsq_compat.log.data_path import make_our_folder, topic_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, save_metadata
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.protocol import message
from nsq_compat.protocol.message import MessageIds
from tests.faults.disk import Crash, DyingFiles

NOW_NS = 1_700_000_000_000_000_000
IDS = list(map(MessageIds(7).take_one, repeat(NOW_NS, 1000)))


def stored(number, attempts=0):
    return GoMessage(NOW_NS, attempts, IDS[number], b"%d" % number)


class DataPath:
    """Go's queues named by what they hold: `go_has("t", "c", 1, 2)`."""

    def __init__(self, folder):
        self.folder = folder
        make_our_folder(OsFiles(), str(folder))

    def go_has(self, topic, channel, *numbers, attempts=0):
        messages = [stored(number, attempts) for number in numbers]
        write_queue(OsFiles(), str(self.folder), queue_name(topic, channel), messages, 300)

    def knows(self, topic, *channels, paused=False):
        rows = tuple(ChannelMetadata(channel) for channel in channels)
        save_metadata(OsFiles(), str(self.folder), [TopicMetadata(topic, paused, rows)])

    def taken_over(self, files=None):
        take_over(files or OsFiles(), str(self.folder), 1 << 20)
        return self

    def ours(self, topic="t"):
        """Numbers by channel."""
        with StoredTopic(OsFiles(), topic_folder(str(self.folder), topic)) as opened:
            return {name: [int(message.body(each)) for each in frames] for name, frames in opened.backlogs()}

    def sorted_ours(self, topic="t"):
        return {name: sorted(numbers) for name, numbers in self.ours(topic).items()}

    def topics(self):
        return find_go_topics(OsFiles(), str(self.folder))

    def gos(self):
        """Numbers that are still in Go's queues."""
        queues = [queue for topic in self.topics().values() for queue in topic.values()]
        return [int(each.body) for queue in queues for each in read_queue(OsFiles(), str(self.folder), queue.name)]

    def files(self, *folders):
        return sorted(os.listdir(self.folder.joinpath(*folders)))


@pytest.fixture
def data_path(tmp_path):
    return DataPath(tmp_path)


def test_topics_and_channels_are_found_by_their_files(data_path):
    data_path.go_has("b", "c", 1)
    data_path.go_has("b", None, 2)
    data_path.go_has("a", "x")
    found = data_path.topics()
    assert {name: list(topic) for name, topic in found.items()} == {"a": ["x"], "b": [None, "c"]}
    empty = {name: read_empty(OsFiles(), str(data_path.folder), topic) for name, topic in found.items()}
    assert [[report.name for report in reports or ()] for reports in empty.values()] == [["a:x"], []]


def test_queues_that_are_ephemeral_or_have_invalid_names_or_only_bad_files_are_left_alone(data_path, caplog):
    data_path.go_has("t#ephemeral", "c", 1)
    data_path.go_has("t", "not legal", 1)
    (data_path.folder / "t.diskqueue.000000.dat.bad").touch()
    assert data_path.topics() == {}
    assert len(caplog.messages) == 2


def test_an_import_moves_the_files_and_leaves_no_temporary_ones(data_path):
    data_path.go_has("t", None, 1, 2)
    data_path.go_has("t", "c", 3)
    data_path.go_has("u", None, 4)
    (data_path.folder / "nsqd.dat").write_bytes(b"null")
    (data_path.folder / "t.diskqueue.000000.dat.bad").touch()
    data_path.taken_over()
    assert (data_path.ours("t"), data_path.ours("u"), data_path.gos()) == ({"c": [1, 2, 3]}, {None: [4]}, [])
    assert data_path.files() == ["nsq_compat", "nsqd.dat", "t.diskqueue.000000.dat.bad"]
    assert data_path.files("nsq_compat") == ["imported", "t.topic", "u.topic"]
    assert not {RECEIPT, "checkpoint.tmp"} & set(data_path.files("nsq_compat", "t.topic"))
    assert len(data_path.files("nsq_compat", "imported", "1")) == 6


IMPORTS: dict[str, tuple[dict[str | None, list[int]], list[str], bool, dict[str | None, list[int]]]] = {
    "every channel gets the messages of its queue": (
        {None: [], "a": [5, 6, 7, 8, 9], "b": [2, 8, 9], "c": []}, [], False,
        {"a": [5, 6, 7, 8, 9], "b": [2, 8, 9], "c": []},
    ),
    "messages in the topic's queue are for all channels": (
        {None: [8, 9], "a": [1, 2, 3], "b": [2]}, ["a", "b", "idle"], False,
        {"a": [1, 2, 3, 8, 9], "b": [2, 8, 9], "idle": [8, 9]},
    ),
    # Go's positions of the topic are older than its channels' files.
    "a message in a topic's and a channel's queue is delivered once": (
        {None: [5, 6, 7, 8, 9], "a": [1, 2, 3, 5, 6, 7], "b": [6, 7, 8]}, [], False,
        {"a": [1, 2, 3, 5, 6, 7, 8, 9], "b": [5, 6, 7, 8, 9]},
    ),
    "a message twice in a channel's queue is delivered once": (
        {"a": [1, 2, 3, 1, 4, 2, 5], "b": [1, 2, 1]}, [], False, {"a": [1, 2, 3, 4, 5], "b": [1, 2]},
    ),
    "without channels the topic holds the messages": ({None: [1, 2]}, [], False, {None: [1, 2]}),
    "a paused topic holds the messages back": ({None: [8], "a": [1]}, ["a"], True, {None: [8], "a": [1]}),
}  # fmt: skip


@pytest.mark.parametrize(("gos", "known", "paused", "expected"), IMPORTS.values(), ids=IMPORTS)
def test_what_the_channels_get(data_path, gos, known, paused, expected):
    for channel, numbers in gos.items():
        data_path.go_has("t", channel, *numbers)
    if known:
        data_path.knows("t", *known, paused=paused)
    assert data_path.taken_over().ours() == expected


def test_attempts_times_and_ids_are_kept(data_path):
    data_path.go_has("t", "a", 1, 2, attempts=4)
    data_path.go_has("t", "b", 1, attempts=7)
    data_path.taken_over()
    with StoredTopic(OsFiles(), topic_folder(str(data_path.folder), "t")) as topic:
        frames = {name: list(frames) for name, frames in topic.backlogs()}
    assert [message.attempts(frame) for frame in frames["a"]] == [5, 5]
    assert [message.attempts(frame) for frame in frames["b"]] == [8]
    assert message.message_ids(frames["a"]) == [IDS[1], IDS[2]]
    assert {message.timestamp_ns(frame) for frame in frames["a"] + frames["b"]} == {NOW_NS}


def test_messages_out_of_order_are_not_lost(data_path):
    data_path.go_has("t", "a", 5, 3, 9, 4)
    assert sorted(data_path.taken_over().ours()["a"]) == [3, 4, 5, 9]


def test_queues_with_a_few_interleaved_runs_are_in_the_stream_and_take_no_memory(data_path):
    older, newer = range(0, 300, 2), range(500, 800, 2)
    data_path.go_has("t", "a", *(number for pair in zip(older, newer, strict=True) for number in pair))
    data_path.go_has("t", "b", *older[100:], *newer)
    data_path.go_has("t", None, *range(401, 421), *range(820, 830))
    data_path.taken_over()
    later = [*range(401, 421), *newer, *range(820, 830)]
    assert data_path.ours() == {"a": [*older, *later], "b": [*older[100:], *later]}
    with StoredTopic(OsFiles(), topic_folder(str(data_path.folder), "t")) as topic:
        assert {name: (state.entries, state.gaps) for name, state in topic.state.channels.items()} == {
            "a": ([], []),
            "b": ([], []),
        }


def test_a_channel_has_gaps_in_the_stream_for_messages_of_others(data_path):
    data_path.go_has("t", "a", 1, 2, 3, 4, 5)
    data_path.go_has("t", "b", 2, 5)
    data_path.knows("t", "a", "b", "idle")
    data_path.taken_over()
    with StoredTopic(OsFiles(), topic_folder(str(data_path.folder), "t")) as topic:
        states = {name: (state.position, state.gaps, state.entries) for name, state in topic.state.channels.items()}
    assert states == {"a": (0, [], []), "b": (1, [(2, 4)], []), "idle": (5, [], [])}


def test_of_many_channels_the_largest_are_merged_and_none_loses_a_message(data_path):
    names = [f"c{number:02}" for number in range(20)]
    for number, name in enumerate(names):
        data_path.go_has("t", name, *range(number, 21))
    data_path.go_has("t", None, 19, 20, 30)
    expected = {name: [*range(number, 21), 30] for number, name in enumerate(names)}
    assert data_path.taken_over().sorted_ours() == expected


def test_an_import_ends_with_an_error_if_a_queue_changes_while_it_is_read(data_path):
    data_path.go_has("t", "a", 1, 2, 3)
    queue = queues_among(data_path.files())["t:a"]
    runs = QueueRuns(OsFiles(), str(data_path.folder), queue)
    (first,) = runs.runs()
    with open(data_path.folder / "t:a.diskqueue.000000.dat", "ab") as file:
        file.write(encode_record(stored(4)))
    with pytest.raises(OSError, match="changed while they were read"):
        list(first)


def test_a_topic_that_held_only_deferred_messages_keeps_them(data_path):
    folder = topic_folder(str(data_path.folder), "t")
    data_path.go_has("t", None, 1)
    data_path.taken_over()
    deferred = ENTRY.pack(5.0, 0, IDS[1], 2)
    with StoredTopic(OsFiles(), folder) as topic:
        topic.log.keep([frame_of(stored(1))])
        topic.log.sync()
        end = topic.log.end._replace(seq=0)
        state = TopicState(end, 0.0, IDS[1], {}, ChannelState(0, [deferred]))
        (data_path.folder / "nsq_compat" / "t.topic" / CHECKPOINT).write_bytes(state.encode())
    data_path.go_has("t", "a", 2)
    assert data_path.taken_over().sorted_ours() == {"a": [1, 2]}


@pytest.mark.parametrize("number", [b"f" * 16, b"?" * 16])
def test_an_id_that_does_not_match_its_timestamp_is_not_in_the_way(data_path, number):
    messages = [stored(1)._replace(id=number), stored(2), stored(3)]
    write_queue(OsFiles(), str(data_path.folder), "t", messages, 1 << 20)
    data_path.taken_over()
    with StoredTopic(OsFiles(), topic_folder(str(data_path.folder), "t")) as topic:
        assert sorted(int(message.body(each)) for _, frames in topic.backlogs() for each in frames) == [1, 2, 3]
        ids = MessageIds(3)
        ids.start_after(topic.state.last_id)
        assert IDS[3] < ids.take_one(NOW_NS) < b"f"


def test_new_ids_exceed_old_ones_of_any_node(data_path):
    data_path.go_has("t", None, 1, 2, 3)
    data_path.taken_over()
    with StoredTopic(OsFiles(), topic_folder(str(data_path.folder), "t")) as topic:
        ids = MessageIds(0)
        ids.start_after(topic.state.last_id)
        assert ids.take_one(0) > IDS[3]


def test_an_existing_topic_gets_more_messages(data_path):
    data_path.go_has("t", None, 1)
    data_path.go_has("t", "a", 2)
    data_path.taken_over()
    data_path.go_has("t", "a", 3)
    data_path.go_has("t", "b", 4)
    data_path.go_has("t", None, 9)
    data_path.taken_over()
    assert data_path.sorted_ours() == {"a": [1, 2, 3, 9], "b": [4, 9]}
    assert data_path.files("nsq_compat", "imported") == ["1", "2"]


def test_a_topic_that_held_messages_gives_them_to_the_channels_that_go_created(data_path):
    data_path.go_has("t", None, 1)
    data_path.taken_over()
    data_path.go_has("t", "a", 2)
    assert data_path.taken_over().sorted_ours() == {"a": [1, 2]}


def test_a_topic_that_was_unpaused_in_go_is_unpaused(data_path):
    data_path.go_has("t", None, 8)
    data_path.go_has("t", "a", 1)
    data_path.knows("t", "a", paused=True)
    data_path.taken_over()
    data_path.knows("t", "a")
    data_path.go_has("t", "a", 2)
    assert data_path.taken_over().sorted_ours() == {"a": [1, 2, 8]}


def test_queues_without_messages_are_only_moved(data_path):
    data_path.go_has("t", None)
    data_path.go_has("t", "a")
    data_path.taken_over()
    assert (data_path.files(), data_path.files("nsq_compat")) == (["nsq_compat"], ["imported"])


def test_imports_and_damage_are_logged(data_path, caplog):
    caplog.set_level("INFO")
    data_path.go_has("t", None, 1, 2)
    with open(data_path.folder / "t.diskqueue.000000.dat", "ab") as file:
        file.write(b"garbage")
    data_path.taken_over()
    size = data_path.folder.joinpath("nsq_compat", "imported", "1", "t.diskqueue.000000.dat").stat().st_size
    positions = data_path.folder.joinpath("nsq_compat", "imported", "1", "t.diskqueue.meta.dat").stat().st_size
    assert f"TOPIC(t): importing disk queues of Go's nsqd, {size + positions} bytes" in caplog.messages
    assert "DISKQUEUE(t): imported 2 messages" in caplog.messages
    assert "DISKQUEUE(t): 1 damaged parts, 7 bytes could not be read" in caplog.messages


def test_a_large_queue_is_imported_in_batches(data_path):
    messages = [stored(number)._replace(body=b"%d" % number + b" " * 20_000) for number in range(300)]
    write_queue(OsFiles(), str(data_path.folder), "t:a", messages, 1 << 20)
    assert data_path.taken_over().ours() == {"a": list(range(300))}


queues = st.lists(st.integers(0, 60), max_size=30)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), queues), queues, st.sampled_from([0, 50, 100]))
@settings(max_examples=60)
def test_all_messages_of_go_are_imported_once(tmp_path_factory, channels, topic_queue, shift):
    data_path = DataPath(tmp_path_factory.mktemp("data"))
    common = [number + shift for number in topic_queue]
    data_path.go_has("t", None, *common)
    for channel, numbers in channels.items():
        data_path.go_has("t", channel, *numbers)
    data_path.taken_over()
    if common or any(channels.values()):
        expected = {channel: sorted({*numbers, *common}) for channel, numbers in channels.items()} or {
            None: sorted(set(common))
        }
        assert data_path.sorted_ours() == expected


def a_new_topic(data_path):
    data_path.go_has("t", None, 7, 8)
    data_path.go_has("t", "a", 1, 2)
    data_path.go_has("t", "b", 1)
    data_path.go_has("u", "c", 4)
    return {"t": {"a": [1, 2, 7, 8], "b": [1, 7, 8]}, "u": {"c": [4]}}


def a_topic_of_ours(data_path):
    data_path.go_has("t", None, 1, 2)
    data_path.taken_over()
    data_path.go_has("t", "c", 3)
    data_path.go_has("u", "c", 4)
    return {"t": {"c": [1, 2, 3]}, "u": {"c": [4]}}


@pytest.mark.parametrize("prepare", [a_new_topic, a_topic_of_ours])
@pytest.mark.parametrize(("step", "again"), [(1, ()), (5, range(1, 25, 3))], ids=["once", "again while it recovers"])
def test_every_message_is_delivered_once_at_whatever_step_the_process_is_killed(prepare, step, again, tmp_path):
    for number in range(1, 1000, step):
        folder = tmp_path / str(number)
        folder.mkdir()
        data_path = DataPath(folder)
        expected = prepare(data_path)
        try:
            data_path.taken_over(DyingFiles(number))
        except Crash:
            for each in again:
                with suppress(Crash):
                    data_path.taken_over(DyingFiles(each))
            data_path.taken_over()
        else:
            break
        assert {topic: data_path.sorted_ours(topic) for topic in expected} == expected, number
        assert data_path.gos() == []
        left = {*data_path.files("nsq_compat"), *data_path.files("nsq_compat", "t.topic")}
        assert not [name for name in left if name.endswith((".importing", ".replaced", ".tmp", RECEIPT))]
        shutil.rmtree(folder)
    assert number > 40


@pytest.fixture
def interrupted(data_path):
    """The message is ours, the receipt is there, and Go's files are not moved yet."""

    class DyingThere(OsFiles):
        @staticmethod
        def mkdir(path, mode=0o700):
            if path.endswith("/imported"):
                raise Crash
            os.mkdir(path, mode)

    data_path.go_has("t", None, 1)
    with pytest.raises(Crash):
        data_path.taken_over(DyingThere())
    assert (data_path.ours(), data_path.gos()) == ({None: [1]}, [1])
    return data_path


def test_unused_files_are_moved_by_the_next_start(interrupted):
    interrupted.taken_over()
    assert (interrupted.ours(), interrupted.gos()) == ({None: [1]}, [])


@pytest.mark.parametrize("used", ["positions", "size", "new file"])
def test_files_that_another_nsqd_has_used_are_imported_again(interrupted, caplog, used):
    data = encode_record(stored(2))
    if used == "positions":
        (interrupted.folder / "t.diskqueue.meta.dat").write_bytes(b"1\n0,0\n0,0\n")
    elif used == "size":
        with open(interrupted.folder / "t.diskqueue.000000.dat", "ab") as file:
            file.write(data)
    else:
        (interrupted.folder / "t.diskqueue.000001.dat").write_bytes(data)
    interrupted.taken_over()
    assert interrupted.sorted_ours() == {None: [1, 1] if used == "positions" else [1, 1, 2]}
    assert "another nsqd has used the files" in caplog.text


@pytest.mark.parametrize(
    "receipt",
    [b"", b"{}", b"\xff", b"[" * 10_000, b'{"folder":"../..","sizes":{},"positions":{}}',
     b'{"folder":"1","sizes":{"../x":1},"positions":{}}', b'{"folder":"1","sizes":{},"positions":{"x":""}}'],
)  # fmt: skip
def test_a_damaged_receipt_causes_another_import(interrupted, caplog, receipt):
    (interrupted.folder / "nsq_compat" / "t.topic" / RECEIPT).write_bytes(receipt)
    interrupted.taken_over()
    assert (interrupted.ours(), interrupted.gos()) == ({None: [1, 1]}, [])
    assert "receipt of an import is damaged" in caplog.text
