import logging

import pytest

from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import Exiting


class ControlLog:
    """An observer that writes down what it is told, and whether the maps agreed with it."""

    def __init__(self, daemon) -> None:
        self.daemon = daemon
        self.entries: list[str] = []
        daemon.broker.observers.append(self)

    def topic_created(self, topic: Topic) -> None:
        assert self.daemon.broker.topics[topic.name] is topic
        self.entries.append(f"+{topic.name}")

    def topic_deleted(self, topic: Topic) -> None:
        assert topic.name not in self.daemon.broker.topics
        self.entries.append(f"-{topic.name}")

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        assert topic.channels[channel.name] is channel
        self.entries.append(f"+{topic.name}:{channel.name}")

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        assert channel.name not in topic.channels
        self.entries.append(f"-{topic.name}:{channel.name}")


@pytest.fixture
def control_log(daemon) -> ControlLog:
    return ControlLog(daemon)


def test_a_topic_is_made_once(daemon, caplog):
    with caplog.at_level(logging.INFO):
        topic = daemon.broker.topic("orders")
        assert daemon.broker.topic("orders") is topic
    assert [record.message for record in caplog.records] == ["TOPIC(orders): created"]
    assert daemon.broker.topics == {"orders": topic}


def test_observers_are_notified_of_every_creation_and_deletion(daemon, control_log):
    daemon.channel("archive")
    daemon.channel("archive")
    daemon.topic().delete_channel("archive")
    daemon.broker.delete_topic("orders")
    assert control_log.entries == ["+orders", "+orders:archive", "-orders:archive", "-orders"]


def test_a_deleted_topic_takes_its_channels_and_consumers_along(daemon, control_log, caplog):
    consumer = daemon.consumer()
    channel = daemon.channel()
    daemon.publishes(b"a")
    with caplog.at_level(logging.INFO):
        daemon.broker.delete_topic("orders")
    assert [record.message for record in caplog.records] == ["TOPIC(orders): deleting"]
    assert (consumer.closed, channel.exiting, channel.depth) == (True, True, 0)
    assert control_log.entries[-1] == "-orders"


def test_a_topic_published_to_after_its_deletion_is_a_new_one(daemon):
    daemon.consumer()
    before = daemon.topic()
    daemon.broker.delete_topic("orders")
    daemon.publishes(b"a")
    assert daemon.topic() is not before
    assert daemon.topic().message_count == 1
    assert daemon.topic().channels == {}


def test_deleting_a_topic_that_is_not_there_is_an_error(daemon):
    with pytest.raises(KeyError):
        daemon.broker.delete_topic("nowhere")


def test_an_ephemeral_topic_ends_with_its_last_channel(daemon, control_log):
    tail = daemon.consumer("tail#ephemeral", "live#ephemeral")
    daemon.channel("kept", "live#ephemeral")
    tail.leaves()
    assert "live#ephemeral" in daemon.broker.topics
    daemon.topic("live#ephemeral").delete_channel("kept")
    assert daemon.broker.topics == {}
    assert control_log.entries[-2:] == ["-live#ephemeral:kept", "-live#ephemeral"]


def test_an_ephemeral_topic_that_never_had_a_channel_lives_on(daemon):
    daemon.publishes(b"a", topic="live#ephemeral")
    daemon.waits(3600)
    assert daemon.topic("live#ephemeral").depth == 1


def test_an_ephemeral_channel_of_any_other_topic_ends_alone(daemon):
    daemon.consumer("tail#ephemeral").leaves()
    assert list(daemon.broker.topics) == ["orders"]


def test_consumers_that_leave_a_deleted_ephemeral_topic_delete_nothing_twice(daemon, control_log):
    tail = daemon.consumer("tail#ephemeral", "live#ephemeral")
    daemon.broker.delete_topic("live#ephemeral")
    again = daemon.channel("tail#ephemeral", "live#ephemeral")
    tail.leaves()
    assert daemon.topic("live#ephemeral").channels == {"tail#ephemeral": again}
    assert control_log.entries.count("-live#ephemeral") == 1


def test_a_closed_broker_accepts_no_messages_and_creates_no_topics(daemon):
    consumer = daemon.consumer()
    daemon.broker.close()
    assert consumer.closed
    with pytest.raises(Exiting):
        daemon.publishes(b"a")
    with pytest.raises(Exiting):
        daemon.broker.topic("new")
    with pytest.raises(Exiting):
        daemon.topic().channel("new")


def test_ids_are_those_of_a_topic_and_may_be_equal_in_two(daemon):
    orders, returns = daemon.consumer(), daemon.consumer(topic="returns")
    daemon.publishes(b"a")
    daemon.publishes(b"a", topic="returns")
    orders.takes()
    returns.takes()
    assert orders.id_of(b"a") == returns.id_of(b"a")


# --- With a storage ---------------------------------------------------------------------------------------------------


def test_a_topic_is_restored_with_its_channels_and_those_named(data_path):
    daemon = data_path.start()
    daemon.channel("known")
    daemon.publishes(b"a")
    data_path.kill(daemon)
    daemon = data_path.start(named=["named", "tail#ephemeral"])
    assert sorted(daemon.topic().channels) == ["known", "named"]
    assert daemon.channel("known").depth == 1


def test_observers_are_not_notified_of_restored_topics(data_path):
    daemon = data_path.start()
    daemon.channel()
    data_path.kill(daemon)
    later = data_path.start()
    control_log = ControlLog(later)
    later.broker.restore("orders", [], later.now, later.now_ns)
    assert control_log.entries == []


def test_a_topic_is_among_the_changed_once_until_it_was_checkpointed(logging_daemon):
    broker = logging_daemon.broker
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(b"a", b"b", b"c")
    consumer.takes()
    topic = logging_daemon.topic()
    assert broker.take_changed() == [topic]
    consumer.finishes(b"a")
    assert broker.take_changed() == []
    topic.checkpoint(logging_daemon.now, logging_daemon.now_ns)
    assert broker.take_changed() == []
    consumer.finishes(b"b")
    consumer.finishes(b"c")
    assert broker.take_changed() == [topic]


def test_a_deleted_topic_is_not_among_the_changed(logging_daemon):
    logging_daemon.publishes(b"a", defer=1.0)
    logging_daemon.broker.delete_topic("orders")
    assert logging_daemon.broker.take_changed() == []


def test_ephemeral_topics_need_no_checkpoint(logging_daemon):
    consumer = logging_daemon.consumer("archive", "live#ephemeral")
    logging_daemon.publishes(b"a", topic="live#ephemeral")
    consumer.takes()
    consumer.finishes(b"a")
    assert logging_daemon.broker.take_changed() == []


def test_a_broker_that_refuses_publishes_still_delivers(daemon):
    consumer = daemon.consumer()
    daemon.channel()
    daemon.publishes(b"a")
    daemon.broker.refuse_publishing()
    with pytest.raises(Exiting):
        daemon.topic().publish([b"b"], 0.0, 1)
    with pytest.raises(Exiting):
        daemon.broker.topic("new")
    assert daemon.topic().channel("late") is daemon.topic().channels["late"]
    assert consumer is not None
