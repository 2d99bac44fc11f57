"""A message is finished when the file that holds it is synced, never before."""

import os
import time

import pytest

from nsq_compat.client.message import Message
from nsq_compat.tools.nsq_to_file.file_names import FileNames
from nsq_compat.tools.nsq_to_file.file_series import FileSeries, Rules
from nsq_compat.tools.nsq_to_file.recorder import Recording, SyncRules

NOW_NS = time.time_ns()
PATIENCE = 30.0


class Nsqd:
    """Where answers go."""

    is_closed = False

    def __init__(self):
        self.answers: list[tuple[str, bytes]] = []

    def finish(self, message):
        self.answers.append(("FIN", message.body))

    def requeue(self, message, delay, backoff):
        assert (delay, backoff) == (0, False)
        self.answers.append(("REQ", message.body))

    def touch(self, message):
        raise AssertionError("nothing is touched")


@pytest.fixture
def nsqd():
    return Nsqd()


@pytest.fixture
def messages(nsqd):
    return lambda *bodies: [Message(b"%016d" % number, body, 0, 1, nsqd) for number, body in enumerate(bodies)]


@pytest.fixture
def make(tmp_path):
    def make(max_unsynced=100, interval=10.0, skip_empty=False, **rules) -> Recording:
        of_files = Rules(output_dir=str(tmp_path), work_dir=str(tmp_path), **rules)
        names = FileNames("<TOPIC><REV>" if of_files.needs_revisions else "<TOPIC>", "", "vm", 1)
        sync = SyncRules(interval=interval, max_unsynced=max_unsynced, skip_empty=skip_empty)
        return Recording("t/c", FileSeries("t", names, of_files), sync, now=0.0)

    return make


def test_messages_are_written_at_once_and_finished_with_the_next_sync(make, messages, nsqd, tmp_path):
    recording = make()
    recording.write(messages(b"1", b"2"), 1.0, NOW_NS, PATIENCE)
    assert (tmp_path / "t").read_bytes() == b"1\n2\n"
    assert not nsqd.answers
    recording.sync()
    assert nsqd.answers == [("FIN", b"1"), ("FIN", b"2")]
    assert recording.recorded == 2


def test_no_message_is_finished_before_the_file_is_synced(make, messages, nsqd, monkeypatch):
    recording = make()
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    synced = []

    def fsync(fd):
        assert not nsqd.answers
        synced.append(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    recording.sync()
    assert synced
    assert nsqd.answers


def test_when_a_sync_fails_all_messages_are_requeued(make, messages, nsqd, monkeypatch):
    recording = make()
    recording.write(messages(b"1", b"2"), 1.0, NOW_NS, PATIENCE)

    def fsync(fd):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="the disk is gone"):
            recording.sync()
    assert not nsqd.answers
    recording.requeue_unsynced()
    assert nsqd.answers == [("REQ", b"1"), ("REQ", b"2")]


def test_the_maximum_of_unsynced_messages_causes_a_sync(make, messages, nsqd):
    recording = make(max_unsynced=2)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert not nsqd.answers
    recording.write(messages(b"2"), 1.0, NOW_NS, PATIENCE)
    assert len(nsqd.answers) == 2


def test_a_file_that_ends_is_synced_before_the_next_begins(make, messages, nsqd, tmp_path):
    recording = make(rotate_size=3)
    recording.write(messages(b"12", b"12", b"12"), 1.0, NOW_NS, PATIENCE)
    assert nsqd.answers == [("FIN", b"12"), ("FIN", b"12")]
    assert sorted(os.listdir(tmp_path)) == ["t-000000", "t-000001"]


def test_the_interval_causes_a_sync(make, messages, nsqd):
    recording = make(interval=10)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert recording.due() == 10.0
    recording.tick(10.0, NOW_NS)
    assert nsqd.answers
    assert recording.due() == 20.0


def test_messages_are_finished_before_their_timeout(make, messages, nsqd):
    recording = make(interval=1000)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    recording.write(messages(b"2"), 20.0, NOW_NS, PATIENCE)
    assert recording.due() == 31.0
    recording.tick(31.0, NOW_NS)
    assert len(nsqd.answers) == 2
    assert recording.due() == 1000.0


def test_without_messages_files_begin_and_end_with_the_interval(make, tmp_path):
    recording = make(rotate_interval=5)
    for now in (10.0, 20.0):
        recording.tick(now, NOW_NS)
    assert sorted(os.listdir(tmp_path)) == ["t-000000", "t-000001"]


def test_with_skip_empty_there_are_no_empty_files(make, messages, tmp_path):
    recording = make(rotate_interval=5, skip_empty=True)
    recording.tick(10.0, NOW_NS)
    assert not os.listdir(tmp_path)
    recording.write(messages(b"1"), 11.0, NOW_NS, PATIENCE)
    for now in (20.0, 30.0, 40.0):
        recording.tick(now, NOW_NS)
    assert os.listdir(tmp_path) == ["t-000000"]
    recording.write(messages(b"2"), 41.0, NOW_NS, PATIENCE)
    assert sorted(os.listdir(tmp_path)) == ["t-000000", "t-000001"]


def test_closing_finishes_everything_and_can_be_done_again(make, messages, nsqd):
    recording = make()
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    recording.close()
    recording.close()
    assert nsqd.answers == [("FIN", b"1")]


def test_messages_of_a_closed_connection_are_not_written(make, messages, nsqd, tmp_path):
    recording = make()
    nsqd.is_closed = True
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert not os.listdir(tmp_path)
    assert not recording.unsynced
