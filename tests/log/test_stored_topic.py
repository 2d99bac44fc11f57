"""A topic's folder read without a daemon: what each channel would be given."""

import os

import pytest

from nsq_compat.log.checkpoint import ChannelState, TopicState, entries_at_once
from nsq_compat.log.files import OsFiles
from nsq_compat.log.group import CHANNEL_CREATED, DEFERRED
from nsq_compat.log.stored_topic import StoredTopic
from nsq_compat.log.topic_log import LogEnd, TopicLog
from nsq_compat.protocol import message


def frame(number):
    (made,) = message.make_frames([b"%016x" % number], 5, [b"%d" % number])
    return made


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "t.topic")


@pytest.fixture
def topic_log(folder):
    opened = TopicLog.open(OsFiles(), folder)
    yield opened
    opened.close()


def save(folder, end, channels, held=None):
    with open(os.path.join(folder, "checkpoint"), "wb") as file:
        file.write(TopicState(end, 0.0, b"0" * 16, channels, held).encode())


def backlogs(folder):
    with StoredTopic(OsFiles(), folder) as topic:
        found = {
            name: [(message.body(each), message.attempts(each)) for each in frames] for name, frames in topic.backlogs()
        }
        assert topic.depths() == {name: len(frames) for name, frames in found.items()}
        return found


def test_without_a_channel_everything_is_the_topics(folder, topic_log):
    topic_log.append([frame(1), frame(2)], 0)
    assert backlogs(folder) == {None: [(b"1", 1), (b"2", 1)]}


def test_a_channel_gets_what_it_has_not_finished_and_what_follows(folder, topic_log):
    topic_log.append([frame(number) for number in range(1, 7)], 0)
    save(folder, topic_log.end, {"c": ChannelState(4, entries_at_once([(b"%016x" % 2, 3)])), "d": ChannelState(6)})
    assert backlogs(folder) == {"c": [(b"2", 3), (b"5", 1), (b"6", 1)], "d": []}


def test_what_was_logged_after_the_checkpoint_counts(folder, topic_log):
    save(folder, topic_log.end, {"c": ChannelState(0)})
    topic_log.append([frame(1)], 0)
    topic_log.append([b"d"], 1, kind=CHANNEL_CREATED)
    topic_log.append([frame(2)], 1)
    topic_log.append([frame(3)], 2, due_ns=9, kind=DEFERRED)
    assert backlogs(folder) == {"c": [(b"3", 1), (b"1", 1), (b"2", 1)], "d": [(b"3", 1), (b"2", 1)]}


def test_a_paused_topic_holds_back_what_follows(folder, topic_log):
    topic_log.append([frame(1), frame(2), frame(3)], 0)
    save(folder, topic_log.end, {"c": ChannelState(1)}, held=ChannelState(2))
    assert backlogs(folder) == {None: [(b"3", 1)], "c": [(b"2", 1)]}


def test_a_damaged_checkpoint_is_said_and_everything_comes(folder, topic_log):
    topic_log.append([frame(1)], 0)
    with open(os.path.join(folder, "checkpoint"), "wb") as file:
        file.write(b"garbage")
    assert backlogs(folder) == {None: [(b"1", 1)]}
    with StoredTopic(OsFiles(), folder) as topic:
        assert topic.checkpoint_error


def test_reading_what_is_needed_counts_what_is_damaged_of_it(folder, topic_log):
    topic_log.append([frame(1)], 0)
    save(folder, topic_log.end, {"c": ChannelState(0, entries_at_once([(b"%016x" % 99, 1)]))})
    with StoredTopic(OsFiles(), folder) as topic:
        topic.read_needed()
        assert topic.log.damaged_records == 1


def test_a_segment_that_is_gone_is_damage(folder):
    os.mkdir(folder)
    save(folder, LogEnd(1, 400, 7), {"c": ChannelState(0)})
    with StoredTopic(OsFiles(), folder) as topic:
        topic.read_needed()
        assert list(dict(topic.backlogs())["c"]) == []
