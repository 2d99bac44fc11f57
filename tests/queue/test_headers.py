"""What a topic knows of its messages' headers: noted before the first one is written, and never forgotten."""

import errno
import os

import pytest

from nsq_compat.log.checkpoint import decode
from nsq_compat.log.storage import Durability
from nsq_compat.protocol import message
from nsq_compat.protocol.headers import encode, with_no_headers
from nsq_compat.queue.publish_batch import LargeBatch

PAYLOAD = encode([("a", "b")]) + b"body"


def publish(daemon, *payloads, topic="orders"):
    daemon.topic(topic).publish_with_headers(payloads or (PAYLOAD,), daemon.now, daemon.now_ns)


def headers_of(daemon):
    consumer = daemon.consumer()
    consumer.takes_all()
    return [dict(message.headers(frame)) for frame in consumer.frames.values()]


def test_a_topic_has_headers_from_the_first_message_that_has_some(daemon):
    daemon.publishes(b"m")
    publish(daemon, with_no_headers(b"m"))
    assert not daemon.topic().has_headers
    publish(daemon)
    assert daemon.topic().has_headers
    assert daemon.channel("later").has_headers


def test_consumers_are_told_once(daemon):
    told = []
    consumer = daemon.consumer()
    consumer.begin_headers = lambda: told.append(1)
    publish(daemon)
    publish(daemon)
    assert told == [1]


@pytest.mark.parametrize("checkpoint", ["none", "before", "after"])
def test_headers_survive_the_end_of_the_process(data_path, checkpoint):
    daemon = data_path.start()
    daemon.channel()
    if checkpoint == "before":
        data_path.checkpoint(daemon)
    publish(daemon)
    if checkpoint == "after":
        data_path.checkpoint(daemon)
    daemon = data_path.restart(daemon)
    assert daemon.topic().has_headers
    assert daemon.channel().has_headers
    assert headers_of(daemon) == [{"a": "b"}]
    data_path.checkpoint(daemon)
    assert data_path.restart(daemon).topic().has_headers


def test_headers_survive_a_clean_stop_at_level_memory(data_path):
    daemon = data_path.start(Durability.MEMORY)
    daemon.channel()
    publish(daemon)
    data_path.stop(daemon)
    daemon = data_path.start(Durability.MEMORY)
    assert daemon.topic().has_headers
    assert headers_of(daemon) == [{"a": "b"}]


def test_without_checkpoint_and_the_first_segments_a_topic_may_have_headers(data_path):
    data_path.segment_size = 500
    daemon = data_path.start()
    publish(daemon)
    consumer = daemon.consumer()
    for number in range(20):
        daemon.publishes(b"%d" % number * 50)
        while bodies := consumer.takes():
            consumer.finishes(*bodies)
    publish(daemon)
    data_path.checkpoint(daemon)
    folder = data_path.folder()
    assert f"log.{1:020d}" not in os.listdir(folder), "the record that says so is gone"
    os.unlink(os.path.join(folder, "checkpoint"))
    daemon = data_path.restart(daemon)
    assert daemon.topic().has_headers
    assert {"a": "b"} in headers_of(daemon)


def test_a_topic_has_headers_when_the_record_that_says_so_is_damaged(data_path):
    daemon = data_path.start()
    daemon.channel()
    publish(daemon)
    daemon.publishes(b"behind")
    data_path.kill(daemon)
    path = os.path.join(data_path.folder(), f"log.{1:020d}")
    with open(path, "r+b") as file:
        content = file.read()
        at = content.index(b"\0\0\0\x0d\xabNg\xd5")  # the kind is the last field, and the record is empty
        file.seek(at + 3)
        file.write(b"\xff")
    daemon = data_path.start()
    assert daemon.topic().store.log.damage.records
    assert daemon.topic().has_headers


def test_a_topic_without_headers_stays_so(data_path):
    daemon = data_path.start()
    daemon.channel()
    daemon.publishes(b"m")
    data_path.checkpoint(daemon)
    daemon = data_path.restart(daemon)
    assert not daemon.topic().has_headers
    with open(os.path.join(data_path.folder(), "checkpoint"), "rb") as file:
        assert not decode(file.read()).has_headers


def test_nothing_is_published_if_the_record_cannot_be_written(data_path, disk):
    daemon = data_path.start()
    daemon.channel()
    disk.full = True
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        publish(daemon)
    assert not daemon.topic().has_headers
    assert daemon.topic().message_count == 0
    disk.full = False
    publish(daemon)
    assert data_path.restart(daemon).topic().has_headers


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
def test_a_publish_in_steps_notes_headers_before_it_is_complete(data_path, durability):
    daemon = data_path.start(durability, mem_queue_size=100)
    daemon.channel()
    payloads = [encode([("n", str(number))]) + b"%d" % number for number in range(3000)]
    batch = LargeBatch(daemon.topic(), list(payloads), daemon.now, daemon.now_ns, with_headers=True)
    while not batch.step():
        pass
    daemon = data_path.restart(daemon, durability, mem_queue_size=100)
    assert daemon.topic().has_headers
    assert headers_of(daemon) == [{"n": str(number)} for number in range(3000)]


def test_messages_that_are_taken_in_have_headers(data_path):
    daemon = data_path.start()
    daemon.channel()
    frame = message.make_frame_of_payload(b"0" * 15 + b"1", 5, PAYLOAD)
    daemon.topic().take_in(["archive"], [(0, frame)], daemon.now, daemon.now_ns)
    assert headers_of(daemon) == [{"a": "b"}]
    assert data_path.restart(daemon).topic().has_headers


def test_a_rewound_channel_delivers_headers(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    publish(daemon)
    consumer.finishes(*consumer.takes())
    data_path.checkpoint(daemon)
    daemon = data_path.restart(daemon)
    daemon.topic().move_channel("archive", 0, daemon.now_ns)
    assert headers_of(daemon) == [{"a": "b"}]


def test_frames_with_headers_are_found_in_a_damaged_group(data_path):
    daemon = data_path.start()
    daemon.channel()
    publish(daemon, *(encode([("n", str(number))]) + b"%d" % number * 9 for number in range(6)), with_no_headers(b"m"))
    data_path.kill(daemon)
    path = os.path.join(data_path.folder(), f"log.{1:020d}")
    with open(path, "r+b") as file:
        file.seek(file.read().index(b"2" * 9) - 20)
        file.write(b"\xff" * 25)
    daemon = data_path.start()
    consumer = daemon.consumer()
    for _ in range(3):  # damage is passed in steps
        consumer.takes()
        daemon.waits(0.1)
    found = [dict(message.headers(frame)).get("n") for frame in consumer.frames.values()]
    assert found == ["0", "1", "3", "4", "5", None]


def test_messages_of_another_topic_are_published_with_their_headers(daemon):
    publish(daemon)
    daemon.publishes(b"plain")
    consumer = daemon.consumer()
    consumer.takes_all()
    copies = daemon.consumer("copies", "other")
    daemon.topic("other").republish(list(consumer.frames.values()), daemon.now, daemon.now_ns)
    assert copies.takes_all() == [b"body", b"plain"]
    assert [dict(message.headers(frame)) for frame in copies.frames.values()] == [{"a": "b"}, {}]
