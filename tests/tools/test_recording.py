"""A message is finished when the file that holds it is synced, never before."""

import os
import time

import pytest

from nsq_compat.client.message import Message
from nsq_compat.tools.file_names import FileNames
from nsq_compat.tools.file_series import FileSeries, Rules
from nsq_compat.tools.recording import Recording, SyncRules

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
    def make(at_most=100, interval=10.0, skip_empty=False, **rules) -> Recording:
        of_files = Rules(output_dir=str(tmp_path), work_dir=str(tmp_path), **rules)
        names = FileNames("<TOPIC><REV>" if of_files.needs_revisions else "<TOPIC>", "", "vm", 1)
        sync = SyncRules(interval=interval, at_most=at_most, skip_empty=skip_empty)
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


def test_before_the_file_is_synced_nothing_is_finished(make, messages, nsqd, monkeypatch):
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


def test_when_syncing_fails_nothing_is_finished_and_all_goes_back(make, messages, nsqd, monkeypatch):
    recording = make()
    recording.write(messages(b"1", b"2"), 1.0, NOW_NS, PATIENCE)

    def fsync(fd):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="the disk is gone"):
            recording.sync()
    assert not nsqd.answers
    recording.give_back()
    assert nsqd.answers == [("REQ", b"1"), ("REQ", b"2")]


def test_as_many_as_may_wait_are_synced_together(make, messages, nsqd):
    recording = make(at_most=2)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert not nsqd.answers
    recording.write(messages(b"2"), 1.0, NOW_NS, PATIENCE)
    assert len(nsqd.answers) == 2


def test_a_file_that_ends_is_synced_before_the_next_begins(make, messages, nsqd, tmp_path):
    recording = make(rotate_size=3)
    recording.write(messages(b"12", b"12", b"12"), 1.0, NOW_NS, PATIENCE)
    assert nsqd.answers == [("FIN", b"12"), ("FIN", b"12")]
    assert sorted(os.listdir(tmp_path)) == ["t-000000", "t-000001"]


def test_the_interval_ends_the_waiting(make, messages, nsqd):
    recording = make(interval=10)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert recording.due() == 10.0
    recording.tick(10.0, NOW_NS)
    assert nsqd.answers
    assert recording.due() == 20.0


def test_nsqd_hears_of_a_message_before_its_patience_ends(make, messages, nsqd):
    recording = make(interval=1000)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    recording.write(messages(b"2"), 20.0, NOW_NS, PATIENCE)
    assert recording.due() == 31.0
    recording.tick(31.0, NOW_NS)
    assert len(nsqd.answers) == 2
    assert recording.due() == 1000.0


def test_with_nothing_to_write_files_begin_and_end_with_the_interval(make, tmp_path):
    recording = make(rotate_interval=5)
    for now in (10.0, 20.0):
        recording.tick(now, NOW_NS)
    assert sorted(os.listdir(tmp_path)) == ["t-000000", "t-000001"]


def test_unless_empty_files_are_not_wanted(make, messages, tmp_path):
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


def test_what_came_over_a_connection_that_is_gone_is_not_written(make, messages, nsqd, tmp_path):
    recording = make()
    nsqd.is_closed = True
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert not os.listdir(tmp_path)
    assert not recording.unsynced
