import pytest

from nsq_compat.log.data_path import NotMirrored
from nsq_compat.policy.dead_letters import REDRIVE_CHANNEL
from nsq_compat.protocol import message
from nsq_compat.protocol.headers import encode
from nsq_compat.protocol.schema import MAX_HEADERS
from nsq_compat.queue.values import Exiting

TWICE = {"topic": "orders", "max_attempts": 2}
DEAD = "orders.archive.dead"


@pytest.fixture
def consumer(daemon):
    daemon.follows(TWICE)
    return daemon.consumer(timeout=60.0)


def fails(consumer, body, times):
    for _ in range(times):
        assert body in consumer.takes()
        consumer.requeues(body)


def test_a_message_without_attempts_left_goes_to_the_dead_letter_topic_with_the_same_body(daemon, consumer):
    daemon.publishes(b"good", b"bad")
    assert consumer.takes() == [b"good", b"bad"]
    consumer.finishes(b"good")
    consumer.requeues(b"bad")
    assert consumer.takes() == [b"bad"]
    consumer.requeues(b"bad")
    assert consumer.takes() == []
    channel = daemon.channel()
    assert (channel.depth, channel.in_flight_count, channel.dead_letter_count) == (0, 1, 0)  # on its way
    assert daemon.sends_dead_letters()
    assert (channel.depth, channel.in_flight_count, channel.dead_letter_count) == (0, 0, 1)
    assert channel.requeue_count == 2
    assert list(daemon.topic(DEAD).channels) == [REDRIVE_CHANNEL]
    reader = daemon.consumer(REDRIVE_CHANNEL, DEAD)
    assert reader.takes() == [b"bad"]
    assert reader.attempts(b"bad") == 1


@pytest.mark.parametrize(("topic", "channel"), [("orders", "c{}#ephemeral"), ("t{}#ephemeral", "c")])
def test_ephemeral_names_do_not_leave_more_dead_letter_topics_than_clients_may_create(daemon, topic, channel):
    daemon.follows({"topic": r".*\.dead", "max_topics": 2}, {"topic": ".*", "max_attempts": 1})
    for number in range(5):
        consumer = daemon.consumer(channel.format(number), topic.format(number), timeout=60.0)
        daemon.publishes(b"m", topic=topic.format(number))
        fails(consumer, b"m", 1)
        assert daemon.sends_dead_letters() == (number < 2)
        assert daemon.channel(channel.format(number), topic.format(number)).in_flight_count == (number >= 2)
        daemon.topic(topic.format(number)).delete_channel(channel.format(number))
    assert sum(name.endswith(".dead") for name in daemon.broker.topics) == 2
    consumer = daemon.consumer("archive", timeout=60.0)  # one that lasts has its dead letters
    daemon.publishes(b"m")
    fails(consumer, b"m", 1)
    assert daemon.sends_dead_letters()


def headers_of(reader, body):
    return dict(message.headers(reader.frames[body]))


def test_headers_tell_where_a_dead_letter_comes_from_beside_its_own(daemon, consumer):
    published = daemon.now_ns
    daemon.topic().publish_with_headers([encode([("key", "v")]) + b"own"], daemon.now, published)
    fails(consumer, b"own", 2)
    daemon.publishes(b"none")
    daemon.waits(5)
    fails(consumer, b"none", 1)
    consumer.takes()
    daemon.waits(60)
    assert daemon.sends_dead_letters()
    reader = daemon.consumer(REDRIVE_CHANNEL, DEAD)
    assert reader.takes() == [b"own", b"none"]
    origin = {"nsq-origin-topic": "orders", "nsq-origin-channel": "archive", "nsq-attempts": "2"}
    origin["nsq-dead-letter-reason"] = "attempts"
    ids = {body: message.message_id(consumer.frames[body]).decode() for body in (b"own", b"none")}
    assert headers_of(reader, b"own") == {
        "key": "v",
        "nsq-first-published": str(published),
        "nsq-origin-message-id": ids[b"own"],
        **origin,
    }
    assert headers_of(reader, b"none") == {
        "nsq-first-published": str(published),
        "nsq-origin-message-id": ids[b"none"],
        **origin,
    }


def test_an_operators_dead_letter_says_so_and_how_often_it_was_delivered(daemon, consumer):
    daemon.publishes(b"a")
    consumer.takes()
    (frame,) = consumer.frames.values()
    daemon.channel().finish(consumer, [message.message_id(frame)])
    with daemon.enforcer.dead_letters.transfer(daemon.channel()) as transfer:
        transfer.add([frame])
        assert daemon.sends_dead_letters()
    reader = daemon.consumer(REDRIVE_CHANNEL, DEAD)
    assert reader.takes() == [b"a"]
    assert headers_of(reader, b"a")["nsq-dead-letter-reason"] == "operator"
    assert headers_of(reader, b"a")["nsq-attempts"] == "0"


def test_a_message_that_fails_again_keeps_the_time_when_it_was_published_first(daemon, consumer):
    first = str(daemon.now_ns)
    daemon.publishes(b"a")
    fails(consumer, b"a", 2)
    daemon.sends_dead_letters()
    reader = daemon.consumer(REDRIVE_CHANNEL, DEAD)
    reader.takes()
    daemon.waits(10)
    daemon.topic().republish(list(reader.frames.values()), daemon.now, daemon.now_ns)
    reader.finishes(b"a")
    fails(consumer, b"a", 2)
    daemon.sends_dead_letters()
    assert reader.takes() == [b"a"]
    assert headers_of(reader, b"a")["nsq-first-published"] == first


def test_a_message_without_room_for_more_headers_keeps_its_own(daemon, consumer):
    full = {f"n{number}": "" for number in range(MAX_HEADERS)}
    daemon.topic().publish_with_headers([encode(full.items()) + b"a"], daemon.now, daemon.now_ns)
    fails(consumer, b"a", 2)
    assert daemon.sends_dead_letters()
    reader = daemon.consumer(REDRIVE_CHANNEL, DEAD)
    assert reader.takes() == [b"a"]
    assert headers_of(reader, b"a") == full


@pytest.mark.parametrize("others", [0, MAX_HEADERS - 1])
def test_a_dead_letter_is_redriven_although_the_topic_knows_its_id(daemon, consumer, others):
    daemon.follows(TWICE, {"dedup_window": "1h"})
    own = {"nsq-id": "7", **{f"n{number}": "" for number in range(others)}}
    daemon.topic().publish_with_headers([encode(own.items()) + b"a"], daemon.now, daemon.now_ns)
    fails(consumer, b"a", 2)
    assert daemon.sends_dead_letters()
    reader = daemon.consumer(REDRIVE_CHANNEL, DEAD)
    assert reader.takes() == [b"a"]
    assert headers_of(reader, b"a")["nsq-origin-id"] == "7"
    assert "nsq-id" not in headers_of(reader, b"a")
    daemon.topic().republish(list(reader.frames.values()), daemon.now, daemon.now_ns)
    assert consumer.takes() == [b"a"]


def test_timeouts_count_and_so_do_those_of_a_consumer_that_left(daemon, consumer):
    daemon.publishes(b"a")
    consumer.takes()
    daemon.waits(60)
    assert consumer.takes() == [b"a"]
    consumer.leaves()
    daemon.waits(60)
    assert daemon.sends_dead_letters()
    assert daemon.channel(REDRIVE_CHANNEL, DEAD).depth == 1
    assert daemon.channel().timeout_count == 2


def test_a_delay_applies_only_to_messages_that_are_delivered_again(daemon, consumer):
    daemon.publishes(b"a")
    fails(consumer, b"a", 1)
    consumer.takes()
    consumer.requeues(b"a", delay=10.0)
    assert daemon.channel().deferred_count == 0
    assert daemon.enforcer.dead_letters.is_waiting


def test_wake_is_called_when_there_is_something_to_send(daemon, consumer):
    calls = []
    daemon.enforcer.dead_letters.wake = lambda: calls.append(daemon.channel(REDRIVE_CHANNEL, DEAD).depth)
    daemon.publishes(b"a")
    fails(consumer, b"a", 2)
    assert calls == [0]


def test_messages_in_a_dead_letter_topic_have_unlimited_attempts(daemon, consumer):
    daemon.follows({"max_attempts": 1, "dead_letter_topic": "dead"})
    daemon.publishes(b"a")
    fails(consumer, b"a", 1)
    assert daemon.sends_dead_letters()
    reader = daemon.consumer(REDRIVE_CHANNEL, "dead")
    fails(reader, b"a", 5)
    assert reader.takes() == [b"a"]


def test_a_dead_letter_topic_with_channels_gets_no_redrive_channel(daemon, consumer):
    daemon.channel("mine", DEAD)
    daemon.publishes(b"a")
    fails(consumer, b"a", 2)
    assert daemon.sends_dead_letters()
    assert list(daemon.topic(DEAD).channels) == ["mine"]


def test_when_a_policy_ends_queued_dead_letters_are_sent_and_no_more_are_queued(daemon, consumer):
    daemon.publishes(b"a", b"b")
    consumer.takes()
    daemon.follows({"max_attempts": 1})
    consumer.requeues(b"a")
    daemon.follows()
    consumer.requeues(b"b")
    assert consumer.takes() == [b"b"]
    assert daemon.sends_dead_letters()
    assert daemon.channel(REDRIVE_CHANNEL, DEAD).depth == 1


def test_a_name_that_is_too_long_is_logged_and_messages_are_delivered_again(daemon, caplog):
    daemon.follows({"max_attempts": 1})
    consumer = daemon.consumer("c" * 64)
    assert f"no dead-letter topic, orders.{'c' * 64}.dead is not a valid name" in caplog.text
    daemon.publishes(b"a")
    fails(consumer, b"a", 3)


def test_more_than_one_batch_is_sent_batch_by_batch(daemon, consumer):
    bodies = [b"%d" % number for number in range(300)]
    daemon.follows({"max_attempts": 1})
    daemon.publishes(*bodies)
    while taken := consumer.takes():
        for body in taken:
            consumer.requeues(body)
    rounds = 0
    while daemon.enforcer.dead_letters.is_waiting:
        assert daemon.sends_dead_letters()
        rounds += 1
    assert rounds == 2
    assert daemon.channel(REDRIVE_CHANNEL, DEAD).depth == 300


def test_while_nsqd_drains_dead_letters_are_delivered_again(daemon, consumer):
    daemon.publishes(b"a")
    fails(consumer, b"a", 2)
    daemon.broker.refuse_publishing()
    assert daemon.sends_dead_letters()
    assert consumer.takes() == [b"a"]
    assert consumer.attempts(b"a") == 3
    with pytest.raises(Exiting):
        daemon.topic(DEAD)


def test_queued_dead_letters_are_deleted_with_their_channel(daemon, consumer):
    daemon.publishes(b"a", b"b")
    fails(consumer, b"a", 2)
    daemon.topic().delete_channel("archive")
    assert not daemon.enforcer.dead_letters.is_waiting
    assert daemon.sends_dead_letters()
    assert DEAD not in daemon.broker.topics


def test_emptying_the_channel_empties_the_dead_letter_queue(daemon, consumer):
    daemon.publishes(b"a")
    fails(consumer, b"a", 2)
    daemon.topic().empty_channel("archive")
    assert daemon.sends_dead_letters()
    assert not daemon.enforcer.dead_letters.is_waiting
    assert daemon.channel().dead_letter_count == 0


def test_a_full_disk_keeps_dead_letters_queued(data_path, disk, caplog):
    daemon = data_path.start()
    daemon.follows(TWICE)
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    fails(consumer, b"a", 2)
    disk.full = True
    assert not daemon.sends_dead_letters()
    disk.full = False
    assert "cannot move dead letters to " in caplog.text
    assert daemon.channel().in_flight_count == 1
    assert daemon.sends_dead_letters()
    assert daemon.channel().in_flight_count == 0
    assert daemon.channel(REDRIVE_CHANNEL, DEAD).depth == 1


def refusing(daemon):
    """A consumer of a channel with 1000 messages, after its dead-letter topic has refused one because it is full."""
    daemon.follows({"topic": r".*\.dead", "max_depth": 1}, {"topic": "orders", "max_attempts": 1})
    daemon.publishes(b"full", topic=DEAD)
    daemon.channel(REDRIVE_CHANNEL, DEAD)
    consumer = daemon.consumer(timeout=60.0)
    daemon.publishes(b"first")
    fails(consumer, b"first", 1)
    assert not daemon.sends_dead_letters()
    daemon.publishes(*[b"%d" % number for number in range(1000)])
    return consumer


def test_a_channel_keeps_what_its_dead_letter_topic_refuses(daemon):
    consumer, channel = refusing(daemon), daemon.channel()
    for body in consumer.takes_all():
        consumer.requeues(body)
    assert len(channel.dead_letters.in_flight) == 256
    again = consumer.takes_all()
    assert len(again) == 1001 - 256
    assert {consumer.attempts(body) for body in again} == {2}
    daemon.topic(DEAD).channels[REDRIVE_CHANNEL].empty()
    daemon.follows({"topic": "orders", "max_attempts": 1})
    assert daemon.sends_dead_letters()
    for body in again:
        consumer.requeues(body)
    while daemon.enforcer.dead_letters.is_waiting:
        assert daemon.sends_dead_letters()
    assert (channel.dead_letter_count, channel.depth, channel.in_flight_count) == (1001, 0, 0)


def test_a_topic_is_one_of_dead_letters_as_long_as_a_channel_names_it(daemon):
    daemon.follows({"channel": "archive", "max_attempts": 1, "dead_letter_topic": "{topic}.dead"})
    targets = daemon.enforcer.dead_letters.targets
    for topic in ("orders", "bills"):
        daemon.channel(topic=topic)
    assert set(targets) == {"orders.dead", "bills.dead"}
    daemon.follows({"channel": "archive", "max_attempts": 1, "dead_letter_topic": "dead"})
    assert set(targets) == {"dead"}
    daemon.broker.delete_topic("bills")
    assert set(targets) == {"dead"}
    daemon.topic().delete_channel("archive")
    assert not targets


def test_the_dead_letters_of_many_channels_are_sent_with_pauses(daemon):
    daemon.follows({"topic": "orders", "max_attempts": 1})
    names = [f"c{number}" for number in range(9)]
    consumers = [daemon.consumer(name) for name in names]
    daemon.publishes(b"bad")
    for consumer in consumers:
        fails(consumer, b"bad", 1)
    sent = []

    def pause():
        sent.append(sum(name.endswith(".dead") for name in daemon.broker.topics))
        if "c8" in daemon.topic().channels:
            daemon.topic().delete_channel("c8")

    assert daemon.enforcer.dead_letters.send(daemon.now, daemon.now_ns, pause)
    assert sent == [4, 8]
    assert "orders.c8.dead" not in daemon.broker.topics


@pytest.mark.parametrize("steps", ["checkpoint", "checkpoint, send", "send, checkpoint"])
def test_a_crash_while_sending_loses_no_message(data_path, steps):
    first = data_path.start()
    first.follows(TWICE)
    consumer = first.consumer()
    first.publishes(b"a")
    fails(consumer, b"a", 2)
    for step in steps.split(", "):
        if step == "send":
            assert first.sends_dead_letters()
        else:
            data_path.checkpoint(first)
    data_path.kill(first)
    second = data_path.start()
    again = second.consumer()
    if steps == "send, checkpoint":  # only the dead-letter topic has the message
        assert again.takes() == []
    else:
        assert again.takes() == [b"a"]
        assert again.attempts(b"a") == 3
    assert (DEAD in second.broker.topics) == ("send" in steps)
    if "send" in steps:
        assert second.channel(REDRIVE_CHANNEL, DEAD).depth == 1


def test_while_the_standby_is_away_a_dead_letter_is_published_only_once(daemon, consumer, monkeypatch):
    daemon.publishes(b"a")
    fails(consumer, b"a", 2)

    def fail():
        raise NotMirrored("the standby is not in sync")

    monkeypatch.setattr(daemon.broker.topic(DEAD), "commit", fail)
    assert not daemon.sends_dead_letters()
    daemon.publishes(b"b")
    fails(consumer, b"b", 2)
    assert not daemon.sends_dead_letters()
    assert not daemon.sends_dead_letters()
    assert daemon.channel().in_flight_count == 2
    monkeypatch.undo()
    assert daemon.sends_dead_letters()
    assert daemon.channel().in_flight_count == 0
    assert daemon.consumer(REDRIVE_CHANNEL, DEAD).takes() == [b"a", b"b"]
