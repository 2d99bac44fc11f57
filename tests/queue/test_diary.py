import errno
import os

import pytest

from nsq_compat.queue.diary import Diary
from nsq_compat.queue.group import CHANNEL_CREATED, TOPIC_PAUSED


@pytest.fixture
def store(data_path):
    store = data_path.start().topic().store
    assert store is not None
    return store


def kinds(store):
    return [(group.kind, group.frames[0].decode()) for group in store.log.recovered()]


def test_what_comes_and_goes_is_in_the_log(store):
    diary = Diary("orders", store)
    diary.note_creation("archive", 0)
    diary.note(TOPIC_PAUSED, "", 0)
    diary.settle()
    assert kinds(store) == [(CHANNEL_CREATED, "archive"), (TOPIC_PAUSED, "")]


@pytest.mark.interpreted
def test_a_disk_that_takes_nothing_is_said_and_only_a_channel_must_not_come_unwritten(store, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.log, "append", full)
    monkeypatch.setattr(store, "commit", full)
    diary = Diary("orders", store)
    diary.note(TOPIC_PAUSED, "", 0)
    diary.settle()
    assert "TOPIC(orders): cannot write to the log - " in caplog.text
    assert "TOPIC(orders): cannot sync the log - " in caplog.text
    with pytest.raises(OSError, match="No space"):
        diary.note_creation("archive", 0)


def test_without_a_store_nothing_is_written():
    diary = Diary("orders", None)
    diary.note_creation("archive", 0)
    diary.settle()
