"""A message is finished when the file that holds it is synced, never before."""

import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nsq_compat.client import Consumer
from nsq_compat.client.message import Message
from nsq_compat.protocol.durations import SECOND
from nsq_compat.tools.nsq_to_file.file_series import FileNames, FileOptions, FileSeries
from nsq_compat.tools.nsq_to_file.recorder import Recording, TopicRecorder, json_line
from tests.client.waiting import wait_until

NOW_NS = time.time_ns()
PATIENCE = 30.0


class Delivery:
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
def delivery():
    return Delivery()


@pytest.fixture
def messages(delivery):
    return lambda *bodies: [Message(b"%016d" % number, body, 0, 1, delivery) for number, body in enumerate(bodies)]


def test_an_id_of_any_bytes_has_a_line(delivery):
    line = json.loads(json_line(Message(b"\xff\0" * 8, b"\xff", 0, 1, delivery)))
    assert (line["id"], line["body_base64"]) == ("\\xff\0" * 8, "/w==")


def recording_in(folder: Path, now: float = 0.0, **settings: Any) -> Recording:
    options = FileOptions(output_dir=str(folder), filename_format="<TOPIC><REV>", **settings)
    return Recording("t/c", FileSeries("t", FileNames(options, "vm"), options), options, now)


@pytest.fixture
def make(tmp_path):
    return lambda interval=10, **settings: recording_in(tmp_path, sync_interval=interval * SECOND, **settings)


def test_messages_are_written_at_once_and_finished_with_the_next_sync(make, messages, delivery, tmp_path):
    recording = make()
    recording.write(messages(b"1", b"2"), 1.0, NOW_NS, PATIENCE)
    assert (tmp_path / "t").read_bytes() == b"1\n2\n"
    assert not delivery.answers
    recording.sync()
    assert delivery.answers == [("FIN", b"1"), ("FIN", b"2")]
    assert recording.recorded == 2


def test_no_message_is_finished_before_the_file_is_synced(make, messages, delivery, monkeypatch):
    recording = make()
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    synced = []

    def fsync(fd):
        assert not delivery.answers
        synced.append(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    recording.sync()
    assert synced
    assert delivery.answers


def test_when_a_sync_fails_all_messages_are_requeued(make, messages, delivery, monkeypatch):
    recording = make()
    recording.write(messages(b"1", b"2"), 1.0, NOW_NS, PATIENCE)

    def fsync(fd):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="the disk is gone"):
            recording.sync()
    assert not delivery.answers
    recording.requeue([])
    assert delivery.answers == [("REQ", b"1"), ("REQ", b"2")]


def test_the_maximum_of_unsynced_messages_causes_a_sync(make, messages, delivery):
    recording = make(max_in_flight=2)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert not delivery.answers
    recording.write(messages(b"2"), 1.0, NOW_NS, PATIENCE)
    assert len(delivery.answers) == 2


def test_a_file_that_ends_is_synced_before_the_next_begins(make, messages, delivery, tmp_path):
    recording = make(rotate_size=3)
    recording.write(messages(b"12", b"12", b"12"), 1.0, NOW_NS, PATIENCE)
    assert delivery.answers == [("FIN", b"12"), ("FIN", b"12")]
    assert sorted(os.listdir(tmp_path)) == ["t-000000", "t-000001"]


def test_the_interval_causes_a_sync(make, messages, delivery):
    recording = make(interval=10)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert recording.due() == 10.0
    recording.tick(10.0, NOW_NS)
    assert delivery.answers
    assert recording.due() == 20.0


def test_messages_are_finished_before_their_timeout(make, messages, delivery):
    recording = make(interval=1000)
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    recording.write(messages(b"2"), 20.0, NOW_NS, PATIENCE)
    assert recording.due() == 31.0
    recording.tick(31.0, NOW_NS)
    assert len(delivery.answers) == 2
    assert recording.due() == 1000.0


def test_without_messages_files_begin_and_end_with_the_interval(make, tmp_path):
    recording = make(rotate_interval=5 * SECOND)
    for now in (10.0, 20.0):
        recording.tick(now, NOW_NS)
    assert sorted(os.listdir(tmp_path)) == ["t-000000", "t-000001"]


def test_with_skip_empty_there_are_no_empty_files(make, messages, tmp_path):
    recording = make(rotate_interval=5 * SECOND, skip_empty_files=True)
    recording.tick(10.0, NOW_NS)
    assert not os.listdir(tmp_path)
    recording.write(messages(b"1"), 11.0, NOW_NS, PATIENCE)
    for now in (20.0, 30.0, 40.0):
        recording.tick(now, NOW_NS)
    assert os.listdir(tmp_path) == ["t-000000"]
    recording.write(messages(b"2"), 41.0, NOW_NS, PATIENCE)
    assert sorted(os.listdir(tmp_path)) == ["t-000000", "t-000001"]


def test_closing_finishes_everything_and_can_be_done_again(make, messages, delivery):
    recording = make()
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    recording.close()
    recording.close()
    assert delivery.answers == [("FIN", b"1")]


def test_messages_of_a_closed_connection_are_not_written(make, messages, delivery, tmp_path):
    recording = make()
    delivery.is_closed = True
    recording.write(messages(b"1"), 1.0, NOW_NS, PATIENCE)
    assert not os.listdir(tmp_path)
    assert not recording.unsynced


# --- In threads, from a real nsqd ------------------------------------------------------------------------------------


@pytest.fixture
def record(nsqd, topic, tmp_path) -> Iterator[Callable[..., TopicRecorder]]:
    recorders: list[TopicRecorder] = []

    def start(max_in_flight: int = 100, **options: Any) -> TopicRecorder:
        output = tmp_path / "output"
        recording = recording_in(output, time.monotonic(), sync_interval=1000 * SECOND, max_in_flight=max_in_flight)
        options = {"nsqd_tcp_addresses": nsqd.tcp_address, "max_in_flight": max_in_flight, "max_tries": 0, **options}
        recorders.append(TopicRecorder(recording, partial(Consumer, topic, "c", **options), print))
        recorders[-1].start()
        return recorders[-1]

    yield start
    for recorder in recorders:
        recorder.stop(5)


def lines(tmp_path: Path) -> list[bytes]:
    file = tmp_path / "output" / "t"
    return sorted(file.read_bytes().splitlines()) if file.exists() else []


def test_more_messages_than_max_in_flight_do_not_wait_for_the_interval(record, tmp_path, is_idle, publish):
    bodies = [b"%04d" % number for number in range(2000)]
    publish(*bodies)
    recorder = record(max_in_flight=50)
    wait_until(is_idle)
    assert lines(tmp_path) == bodies
    assert recorder.recording.recorded == 2000


def test_few_messages_are_finished_before_their_timeout(record, nsqd, topic, tmp_path, is_idle, publish):
    record(msg_timeout=4)
    publish(b"1", b"2", b"3")
    wait_until(lambda: lines(tmp_path) == [b"1", b"2", b"3"])
    wait_until(is_idle)
    assert (nsqd.stat(topic, "timeout_count"), nsqd.stat(topic, "requeue_count")) == (0, 0)


def test_after_a_stop_all_received_messages_are_written_and_finished(record, tmp_path, is_idle, publish):
    recorder = record()
    publish(b"1", b"2", b"3")
    wait_until(lambda: len(recorder.recording.unsynced) == 3)
    recorder.stop(20)
    assert lines(tmp_path) == [b"1", b"2", b"3"]
    wait_until(is_idle)


def test_a_file_that_was_moved_away_is_opened_again_on_request(record, tmp_path, publish):
    recorder = record()
    publish(b"before")
    wait_until(lambda: lines(tmp_path) == [b"before"])
    os.rename(tmp_path / "output" / "t", tmp_path / "output" / "moved")
    recorder.reopen()
    wait_until(lambda: recorder.recording.recorded == 1)
    publish(b"behind")
    wait_until(lambda: lines(tmp_path) == [b"behind"])
