"""The last messages of a topic, wherever they are and finished or not; they are dropped after the last request."""

import pytest

from nsq_compat.log.storage import Durability
from nsq_compat.protocol.message import body
from nsq_compat.queue.recent_messages import MAX_BYTES, MAX_MESSAGES, WATCHED_SECONDS


def recent(daemon, count=10, topic="orders"):
    return [body(frame) for frame, _ in daemon.topic(topic).recent(count, daemon.now, daemon.now_ns)]


def deferrals(daemon):
    """By body, for how many seconds from now; 0 for those that never were."""
    published = daemon.topic().recent(MAX_MESSAGES, daemon.now, daemon.now_ns)
    return {body(frame): round((due_ns - daemon.now_ns) / 1e9) if due_ns else 0 for frame, due_ns in published}


@pytest.fixture(params=[Durability.MEMORY, Durability.OS, None])
def any_daemon(request, data_path, daemon):
    """One that keeps messages in memory while it has room, one that writes all down, one without a disk."""
    return daemon if request.param is None else data_path.start(request.param, mem_queue_size=1000)


def test_the_first_request_finds_messages_that_wait_anywhere(any_daemon):
    daemon = any_daemon
    consumer = daemon.consumer()
    daemon.publishes(b"in flight")
    consumer.takes()
    daemon.publishes(b"one", b"two")
    daemon.publishes(b"put off", defer=30.0)
    assert recent(daemon) == [b"in flight", b"one", b"two", b"put off"]
    assert deferrals(daemon) == {b"in flight": 0, b"one": 0, b"two": 0, b"put off": 30}


def test_the_first_request_finds_the_last_messages_of_many(any_daemon):
    daemon = any_daemon
    daemon.channel()
    daemon.publishes(*(b"deferred %d" % number for number in range(150)), defer=60.0)
    daemon.publishes(*(b"waiting %d" % number for number in range(3)))
    wanted = [*(b"deferred %d" % number for number in range(150)), *(b"waiting %d" % number for number in range(3))]
    assert recent(daemon, MAX_MESSAGES) == wanted[-MAX_MESSAGES:]


def test_messages_in_flight_are_found(daemon):
    consumer = daemon.consumer()
    daemon.publishes(*(b"%d" % number for number in range(150)))
    consumer.takes(room=150)
    assert recent(daemon, 2) == [b"148", b"149"]


def test_messages_that_the_topic_holds_are_found(any_daemon):
    any_daemon.publishes(b"one")
    any_daemon.publishes(b"later", defer=5.0)
    assert recent(any_daemon) == [b"one", b"later"]


@pytest.mark.parametrize("topic", ["orders", "orders#ephemeral"])
def test_later_requests_show_published_messages_though_they_are_finished(any_daemon, topic):
    daemon = any_daemon
    consumer = daemon.consumer(topic=topic)
    assert recent(daemon, topic=topic) == []
    for number in range(3):
        daemon.publishes(b"%d" % number, topic=topic)
        consumer.finishes(*consumer.takes())
    daemon.publishes(b"later", topic=topic, defer=10.0)
    assert recent(daemon, topic=topic) == [b"0", b"1", b"2", b"later"]
    assert recent(daemon, 2, topic=topic) == [b"2", b"later"]


def test_requests_change_nothing_for_consumers(any_daemon):
    consumer = any_daemon.consumer()
    recent(any_daemon)
    any_daemon.publishes(b"a", b"b")
    recent(any_daemon)
    assert consumer.takes() == [b"a", b"b"]
    assert consumer.attempts(b"a") == 1


def test_a_bounded_number_of_messages_is_kept(daemon):
    consumer = daemon.consumer()
    recent(daemon)
    daemon.publishes(*(b"%d" % number for number in range(3 * MAX_MESSAGES)))
    daemon.publishes(b"last")
    consumer.takes()
    assert recent(daemon, MAX_MESSAGES) == [
        b"%d" % number for number in range(2 * MAX_MESSAGES + 1, 3 * MAX_MESSAGES)
    ] + [b"last"]


def test_a_bounded_number_of_bytes_is_kept(daemon):
    recent(daemon)
    big = bytes(MAX_BYTES // 3)
    for _ in range(5):
        daemon.publishes(big)
    assert len(recent(daemon)) == 2
    daemon.publishes(bytes(2 * MAX_BYTES))
    assert len(recent(daemon)) == 1


def test_messages_are_dropped_after_the_last_request(daemon):
    consumer = daemon.consumer()
    recent(daemon)
    daemon.publishes(b"a")
    consumer.finishes(*consumer.takes())
    daemon.waits(WATCHED_SECONDS - 1)
    assert recent(daemon) == [b"a"]
    daemon.waits(WATCHED_SECONDS - 1)
    daemon.waits(0.5)
    assert recent(daemon) == [b"a"]
    daemon.waits(WATCHED_SECONDS)
    assert recent(daemon) == []


def test_a_log_that_cannot_be_read_is_an_error_and_nothing_is_kept(data_path, disk):
    daemon = data_path.start()
    daemon.publishes(b"a")
    disk.unreadable = True
    with pytest.raises(OSError, match="memory"):
        recent(daemon)
    disk.unreadable = False
    assert recent(daemon) == [b"a"]
