import errno
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.checkpoint import CHECKPOINT
from nsq_compat.log.control_log import ROW, ControlLog, Requeued, decode_ids, decode_requeued, encode_requeued
from nsq_compat.log.storage import Durability
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.storage_schema import CHANNEL_CREATED, PUBLISH_IDS, TOPIC_PAUSED
from tests.broker import with_consumer


@pytest.fixture
def store(data_path):
    store = data_path.start().topic().store
    assert store is not None
    return store


def kinds(store):
    return [(group.kind, group.frames[0].decode()) for group in store.log.recovered()]


def test_what_comes_and_goes_is_in_the_log(store):
    control_log = ControlLog("orders", store)
    control_log.note_creation("archive", 0)
    control_log.note(TOPIC_PAUSED, "", 0)
    control_log.commit()
    assert kinds(store) == [(CHANNEL_CREATED, "archive"), (TOPIC_PAUSED, "")]


@pytest.mark.interpreted
def test_a_disk_that_takes_nothing_is_said_and_only_a_channel_must_not_come_unwritten(store, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.log, "append", full)
    monkeypatch.setattr(store, "commit", full)
    control_log = ControlLog("orders", store)
    control_log.note(TOPIC_PAUSED, "", 0)
    control_log.commit()
    assert "TOPIC(orders): cannot write to the log - " in caplog.text
    assert "TOPIC(orders): cannot sync the log - " in caplog.text
    with pytest.raises(OSError, match="No space"):
        control_log.note_creation("archive", 0)


def test_without_a_store_nothing_is_written():
    control_log = ControlLog("orders", None)
    control_log.note_creation("archive", 0)
    control_log.commit()


ids = st.binary(min_size=16, max_size=16)
rows = st.tuples(st.integers(0, 1 << 62), ids, st.integers(0, 0xFFFF))


def published_and_requeued(data_path, *bodies, delay=60.0, requeued=b"b", **limits):
    daemon = data_path.start(**limits)
    daemon.channel()
    daemon.publishes(*bodies)
    consumer = daemon.consumer()
    while requeued not in consumer.frames:
        consumer.takes()
    consumer.requeues(requeued, delay)
    return daemon, consumer


def test_a_requeued_message_is_not_early_after_a_crash_without_a_checkpoint(data_path):
    daemon, _ = published_and_requeued(data_path, b"a", b"b", b"c")
    daemon, consumer = with_consumer(data_path.restart(daemon))
    assert consumer.takes_all() == [b"a", b"c"]
    consumer.finishes(b"a", b"c")
    daemon.waits(59)
    assert consumer.takes_all() == []
    daemon.waits(2)
    assert consumer.takes_all() == [b"b"]
    assert consumer.attempts(b"b") == 2
    consumer.finishes(b"b")
    daemon.waits(3600)
    assert consumer.takes_all() == []


@pytest.mark.parametrize("taken_before", [False, True])
def test_it_is_not_early_either_when_a_checkpoint_was_written_before_the_req(data_path, taken_before):
    daemon = data_path.start()
    daemon.channel()
    daemon.publishes(b"a", b"b", b"c")
    consumer = daemon.consumer()
    if taken_before:
        consumer.takes_all()
    data_path.checkpoint(daemon)
    consumer.takes_all()
    consumer.requeues(b"b", 60)
    daemon, consumer = with_consumer(data_path.restart(daemon))
    assert sorted(consumer.takes_all()) == [b"a", b"c"]
    daemon.waits(61)
    assert b"b" in consumer.takes_all()


def test_a_lost_checkpoint_does_not_make_it_early(data_path):
    data_path.segment_size = 200
    daemon, consumer = published_and_requeued(data_path, b"a", b"b", b"c")
    for number in range(20):
        daemon.publishes(b"%020d" % number)
    consumer.takes_all()
    consumer.finishes(b"a", b"c")
    data_path.checkpoint(daemon)
    data_path.kill(daemon)
    os.unlink(os.path.join(data_path.folder(), CHECKPOINT))
    daemon, consumer = with_consumer(data_path.start())
    assert b"b" not in consumer.takes_all()
    daemon.waits(61)
    assert b"b" in consumer.takes_all()


def test_the_last_of_several_requeues_counts(data_path):
    daemon, consumer = published_and_requeued(data_path, b"a", b"b", delay=5)
    daemon.waits(6)
    assert b"b" in consumer.takes_all()
    consumer.requeues(b"b", 60)
    daemon, consumer = with_consumer(data_path.restart(daemon))
    daemon.waits(30)
    assert consumer.takes_all() == [b"a"]
    daemon.waits(31)
    assert b"b" in consumer.takes_all()
    assert consumer.attempts(b"b") == 3


def test_other_channels_are_not_concerned(data_path):
    daemon = data_path.start()
    daemon.channel("other")
    daemon.channel()
    daemon.publishes(b"a", b"b")
    consumer = daemon.consumer()
    consumer.takes_all()
    consumer.requeues(b"b", 60)
    daemon = data_path.restart(daemon)
    assert daemon.consumer("other").takes_all() == [b"a", b"b"]
    assert daemon.consumer().takes_all() == [b"a"]


@pytest.mark.parametrize("act", ["empty_channel", "delete_channel"])
def test_what_was_emptied_or_deleted_does_not_come_back(data_path, act):
    daemon, _ = published_and_requeued(data_path, b"a", b"b")
    getattr(daemon.topic(), act)("archive")
    daemon, consumer = with_consumer(data_path.restart(daemon))
    daemon.waits(61)
    assert consumer.takes_all() == []
    assert daemon.channel().deferred_count == 0


def test_a_deferred_message_that_was_requeued_has_the_later_time(data_path):
    daemon = data_path.start()
    daemon.channel()
    daemon.publishes(b"a", defer=5.0)
    daemon.waits(6)
    consumer = daemon.consumer()
    assert consumer.takes_all() == [b"a"]
    consumer.requeues(b"a", 60)
    daemon, consumer = with_consumer(data_path.restart(daemon))
    assert consumer.takes_all() == []
    daemon.waits(61)
    assert consumer.takes_all() == [b"a"]


@pytest.mark.interpreted
def test_a_disk_that_takes_nothing_does_not_stop_a_requeue(data_path, disk, caplog):
    daemon = data_path.start()
    daemon.channel()
    daemon.publishes(b"a")
    consumer = daemon.consumer()
    consumer.takes_all()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.write = full
    consumer.requeues(b"a", 5)
    assert "TOPIC(orders): cannot write REQ delays to the log - " in caplog.text
    disk.write = os.pwrite
    daemon.waits(6)
    assert consumer.takes_all() == [b"a"]


def test_at_level_memory_and_without_a_delay_nothing_is_written(data_path):
    for durability, delay in ((Durability.MEMORY, 60.0), (Durability.OS, 0.0)):
        daemon = data_path.start(durability)
        daemon.channel()
        daemon.publishes(b"a")
        consumer = daemon.consumer()
        consumer.takes_all()
        before = daemon.topic().store.log.end
        consumer.requeues(b"a", delay)
        assert daemon.topic().store.log.end == before
        data_path.kill(daemon)


def test_pipelined_requeues_are_one_group(data_path):
    daemon = data_path.start()
    storage = daemon.broker._storage
    calls: list[Any] = []
    storage.at_end_of_iteration = calls.append
    daemon.channel()
    daemon.publishes(b"a", b"b", b"c")
    consumer = daemon.consumer()
    consumer.takes_all()
    before = daemon.topic().store.log.end
    for body in (b"a", b"b", b"c"):
        consumer.requeues(body, 60)
    assert len(calls) == 1
    assert daemon.topic().store.log.end == before
    calls[0]()
    daemon = data_path.restart(daemon)
    assert daemon.consumer().takes_all() == []
    assert daemon.channel().deferred_count == 3
    assert daemon.channel().depth == 0


@given(st.from_regex(r"[a-z]{1,64}", fullmatch=True), st.lists(rows, max_size=5))
def test_the_codec_is_what_is_declared(name, values):
    frame = encode_requeued(name, [ROW.pack(*value) for value in values])
    assert decode_requeued(frame) == (name, values)
    declared = storage_schema.REQUEUED_MESSAGES.parse(frame)
    assert declared.name.decode() == name
    assert [(each.due_ns, each.id, each.attempts) for each in declared.messages] == values


def test_of_a_channel_that_is_not_there_nothing_is_done():
    requeued = Requeued()
    requeued.add(encode_requeued("gone", [ROW.pack(1, b"0" * 16, 1)]))
    requeued.apply({}, 0.0, None)  # type: ignore[arg-type]
    assert list(requeued.channels) == ["gone"]


@given(st.integers(0, 1 << 62), st.lists(st.binary(min_size=16, max_size=16), max_size=5))
def test_adopted_ids_are_as_declared(time_ns, digests):
    frame = storage_schema.ADOPTED_IDS.build({"time_ns": time_ns, "digests": digests})
    assert decode_ids(frame) == (time_ns, digests)


def test_adopted_ids_are_in_the_log(store):
    ControlLog("orders", store).note_ids([b"a" * 16, b"b" * 16], 5, 0)
    (group,) = store.log.recovered()
    assert (group.kind, decode_ids(group.frames[0])) == (PUBLISH_IDS, (5, [b"a" * 16, b"b" * 16]))
