"""A topic recorded from a real nsqd, in threads."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nsq_compat.client import Consumer, Producer
from nsq_compat.tools.nsq_to_file.file_names import FileNames
from nsq_compat.tools.nsq_to_file.file_series import FileSeries, Rules
from nsq_compat.tools.nsq_to_file.recorder import Recording, SyncRules, TopicRecorder
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.client.waiting import wait_until


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    (tmp_path / "nsqd").mkdir()
    with NsqdProcess(installed_nsqd(), tmp_path / "nsqd") as process:
        process.create_channel("t", "c")
        yield process


@pytest.fixture
def publish(nsqd) -> Callable[..., None]:
    def publish_bodies(*bodies: bytes) -> None:
        with Producer(nsqd.tcp_address) as producer:
            producer.publish_many("t", list(bodies))

    return publish_bodies


@pytest.fixture
def failed() -> threading.Event:
    return threading.Event()


@pytest.fixture
def record(nsqd, tmp_path, failed) -> Iterator[Callable[..., TopicRecorder]]:
    recorders: list[TopicRecorder] = []

    def start(max_in_flight: int = 100, interval: float = 1000, **options: Any) -> TopicRecorder:
        rules = Rules(output_dir=str(tmp_path / "output"), work_dir=str(tmp_path / "output"))
        series = FileSeries("t", FileNames("<TOPIC>", "", "vm", 1), rules)
        sync = SyncRules(interval=interval, max_unsynced=max_in_flight)
        recording = Recording("t/c", series, sync, time.monotonic())
        subscribe = partial(
            Consumer, "t", "c", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=max_in_flight, max_tries=0, **options
        )
        recorders.append(TopicRecorder("t/c", recording, subscribe, failed.set))
        recorders[-1].start()
        return recorders[-1]

    yield start
    for recorder in recorders:
        recorder.stop(5)


def lines(tmp_path: Path) -> list[bytes]:
    file = tmp_path / "output" / "t"
    return sorted(file.read_bytes().splitlines()) if file.exists() else []


def has_nothing_left(nsqd: NsqdProcess) -> bool:
    stats = nsqd.channel_stats("t", "c")
    return (stats["depth"], stats["in_flight_count"], stats["deferred_count"]) == (0, 0, 0)


def test_more_messages_than_max_in_flight_do_not_wait_for_the_interval(record, publish, nsqd, tmp_path):
    bodies = [b"%04d" % number for number in range(2000)]
    publish(*bodies)
    recorder = record(max_in_flight=50)
    wait_until(lambda: has_nothing_left(nsqd))
    assert lines(tmp_path) == bodies
    assert recorder.recording.recorded == 2000


def test_few_messages_are_finished_before_their_timeout(record, publish, nsqd, tmp_path):
    record(msg_timeout=4)
    publish(b"1", b"2", b"3")
    wait_until(lambda: lines(tmp_path) == [b"1", b"2", b"3"])
    wait_until(lambda: has_nothing_left(nsqd))
    stats = nsqd.channel_stats("t", "c")
    assert (stats["timeout_count"], stats["requeue_count"]) == (0, 0)


def test_after_a_stop_all_received_messages_are_written_and_finished(record, publish, nsqd, tmp_path):
    recorder = record()
    publish(b"1", b"2", b"3")
    wait_until(lambda: len(recorder.recording.unsynced) == 3)
    recorder.stop(20)
    assert lines(tmp_path) == [b"1", b"2", b"3"]
    wait_until(lambda: has_nothing_left(nsqd))


def test_a_file_that_was_moved_away_is_opened_again_on_request(record, publish, nsqd, tmp_path):
    recorder = record()
    publish(b"before")
    wait_until(lambda: lines(tmp_path) == [b"before"])
    os.rename(tmp_path / "output" / "t", tmp_path / "output" / "moved")
    recorder.reopen()
    wait_until(lambda: recorder.recording.recorded == 1)
    publish(b"behind")
    wait_until(lambda: lines(tmp_path) == [b"behind"])


def test_when_the_disk_fails_all_messages_are_requeued(record, publish, nsqd, tmp_path, failed):
    (tmp_path / "output").write_bytes(b"a file where a folder should be")
    recorder = record()
    publish(b"1", b"2", b"3")
    assert failed.wait(20)
    recorder.stop(20)
    wait_until(lambda: nsqd.channel_stats("t", "c")["depth"] == 3)
    assert nsqd.channel_stats("t", "c")["in_flight_count"] == 0
