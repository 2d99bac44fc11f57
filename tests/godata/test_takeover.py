"""An import of a data path of Go: each channel receives the messages that its queue held."""

import os
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq_compat.godata.export import write_queue
from nsq_compat.godata.format import GoMessage, queue_name
from nsq_compat.godata.takeover import take_over
from nsq_compat.log.data_path import make_our_folder, topic_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, save_metadata
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.protocol import message
from nsq_compat.queue.ids import MessageIds
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


@pytest.fixture
def data_path(tmp_path):
    return DataPath(tmp_path)


def test_every_channel_gets_the_messages_of_its_queue(data_path):
    data_path.go_has("t", None)
    data_path.go_has("t", "a", 5, 6, 7, 8, 9)
    data_path.go_has("t", "b", 2, 8, 9)
    data_path.go_has("t", "c")
    assert data_path.taken_over().ours() == {"a": [5, 6, 7, 8, 9], "b": [2, 8, 9], "c": []}


def test_messages_in_the_topics_queue_are_for_all_channels(data_path):
    data_path.go_has("t", None, 8, 9)
    data_path.go_has("t", "a", 1, 2, 3)
    data_path.go_has("t", "b", 2)
    data_path.knows("t", "a", "b", "idle")
    assert data_path.taken_over().ours() == {"a": [1, 2, 3, 8, 9], "b": [2, 8, 9], "idle": [8, 9]}


def test_a_message_in_a_topics_and_a_channels_queue_is_delivered_once(data_path):
    """Go's positions of the topic are older than its channels' files."""
    data_path.go_has("t", None, 5, 6, 7, 8, 9)
    data_path.go_has("t", "a", 1, 2, 3, 5, 6, 7)
    data_path.go_has("t", "b", 6, 7, 8)
    assert data_path.taken_over().ours() == {"a": [1, 2, 3, 5, 6, 7, 8, 9], "b": [5, 6, 7, 8, 9]}


def test_a_message_twice_in_a_channels_queue_is_delivered_once(data_path):
    data_path.go_has("t", "a", 1, 2, 3, 1, 4, 2, 5)
    data_path.go_has("t", "b", 1, 2, 1)
    assert data_path.taken_over().ours() == {"a": [1, 2, 3, 4, 5], "b": [2, 1]}


def test_without_channels_the_topic_holds_the_messages(data_path):
    data_path.go_has("t", None, 1, 2)
    assert data_path.taken_over().ours() == {None: [1, 2]}


def test_a_paused_topic_holds_the_messages_back(data_path):
    data_path.go_has("t", None, 8)
    data_path.go_has("t", "a", 1)
    data_path.knows("t", "a", paused=True)
    assert data_path.taken_over().ours() == {None: [8], "a": [1]}


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
    assert {name: sorted(numbers) for name, numbers in data_path.ours().items()} == {"a": [1, 2, 3, 9], "b": [4, 9]}


def test_a_topic_that_held_messages_gives_them_to_the_channels_that_go_created(data_path):
    data_path.go_has("t", None, 1)
    data_path.taken_over()
    data_path.go_has("t", "a", 2)
    assert {name: sorted(numbers) for name, numbers in data_path.taken_over().ours().items()} == {"a": [1, 2]}


def test_a_topic_that_was_unpaused_in_go_is_unpaused(data_path):
    data_path.go_has("t", None, 8)
    data_path.go_has("t", "a", 1)
    data_path.knows("t", "a", paused=True)
    data_path.taken_over()
    data_path.knows("t", "a")
    data_path.go_has("t", "a", 2)
    assert {name: sorted(numbers) for name, numbers in data_path.taken_over().ours().items()} == {"a": [1, 2, 8]}


def test_queues_without_messages_are_only_moved(data_path):
    data_path.go_has("t", None)
    data_path.go_has("t", "a")
    data_path.taken_over()
    assert os.listdir(data_path.folder / "nsq_compat") == ["imported"]


def test_imports_and_damage_are_logged(data_path, caplog):
    caplog.set_level("INFO")
    data_path.go_has("t", None, 1, 2)
    with open(data_path.folder / "t.diskqueue.000000.dat", "ab") as file:
        file.write(b"garbage")
    data_path.taken_over()
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
        assert {name: sorted(numbers) for name, numbers in data_path.ours().items()} == expected


def test_every_message_is_delivered_once_at_whatever_step_the_process_is_killed(tmp_path):
    for number in range(1, 1000):
        (tmp_path / str(number)).mkdir()
        data_path = DataPath(tmp_path / str(number))
        data_path.go_has("t", None, 7, 8)
        data_path.go_has("t", "a", 1, 2)
        data_path.go_has("t", "b", 1)
        try:
            data_path.taken_over(DyingFiles(number))
        except Crash:
            data_path.taken_over()
        else:
            break
        assert data_path.ours() == {"a": [1, 2, 7, 8], "b": [1, 7, 8]}, number
    assert number > 40
