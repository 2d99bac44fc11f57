"""PUB, MPUB and DPUB: their replies, and the messages that arrive."""

import pytest

from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import QueueLimits
from tests.broker import SlowDisk


def test_every_pub_of_a_run_has_its_own_answer(nsqd, producer, consumer):
    consumer.says(b"RDY 10\n")
    producer.says(b"PUB t\n\0\0\0\3onePUB t\n\0\0\0\3twoPUB t\n\0\0\0\5three").hears(b"OK", b"OK", b"OK")
    consumer.hears(b"one", b"two", b"three")


def test_pubs_to_several_topics_keep_their_order(nsqd, producer):
    producer.says(b"PUB a\n\0\0\0\1xPUB b\n\0\0\0\1yPUB a\n\0\0\0\1z").hears(b"OK", b"OK", b"OK")
    assert nsqd.broker.topics["a"].message_count == 2
    assert nsqd.broker.topics["b"].message_count == 1


def test_a_body_may_hold_any_bytes(producer, consumer, build):
    body = bytes(range(256)) + b"\nPUB t\n\0\0\0\1x"
    consumer.says(b"RDY 10\n")
    producer.publishes(body)
    consumer.hears(body)


def test_an_mpub_has_one_answer_and_many_messages(producer, consumer, build):
    consumer.says(b"RDY 10\n")
    producer.says(build.mpub([b"one", b"two", b"three"])).hears(b"OK")
    consumer.hears(b"one", b"two", b"three")


def test_the_count_of_an_mpub_decides_where_it_ends_whatever_its_size_says(producer, consumer, build):
    consumer.says(b"RDY 10\n")
    messages = b"\0\0\0\2" + build.sized(b"one") + build.sized(b"two")
    producer.says(b"MPUB t\n\0\0\0\1" + messages + b"NOP\n" + b"MPUB t\n\0\1\0\0" + messages + b"NOP\n").hears(
        b"OK", b"OK"
    )
    consumer.hears(b"one", b"two", b"one", b"two")


def test_messages_of_the_greatest_size_pass(make_nsqd, build):
    nsqd = make_nsqd(max_msg_size=10, max_body_size=4 + 2 * (4 + 10))
    producer, consumer = nsqd.connect(), nsqd.connect().subscribes(ready=10)
    producer.publishes(b"x" * 10)
    producer.says(build.mpub([b"y" * 10, b"z" * 10])).hears(b"OK")
    producer.says_with_body(b"DPUB t 0", b"w" * 10).hears(b"OK")
    consumer.hears(b"x" * 10, b"y" * 10, b"z" * 10, b"w" * 10)


def test_an_mpub_that_holds_more_than_its_limit_whatever_it_says_is_refused(make_nsqd, build):
    # A deliberate difference: nsqd forgets the size once it is checked and takes count times max-msg-size.
    producer = make_nsqd(max_msg_size=10, max_body_size=40).connect()
    messages = b"".join([build.sized(b"x" * 10)] * 3)
    producer.says(b"MPUB t\n\0\0\0\1\0\0\0\3" + messages).hears(b"E_BAD_BODY MPUB body too big 46 > 40").and_is_closed()


def test_an_mpub_with_a_mistake_in_its_last_message_publishes_none(nsqd, producer, consumer):
    consumer.says(b"RDY 10\n")
    producer.says(b"MPUB t\n\0\0\0\x20\0\0\0\2\0\0\0\1a\0\0\0\0").hears(
        b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"
    )
    consumer.hears()
    assert nsqd.broker.topics["t"].message_count == 0


def test_an_mpub_makes_its_topic_before_its_body_is_looked_at(nsqd, producer):
    producer.says(b"MPUB early\n")
    assert "early" in nsqd.broker.topics


@pytest.mark.parametrize("line", [b"PUB late\n", b"DPUB late 1\n"])
def test_a_pub_makes_its_topic_when_its_body_is_there(nsqd, producer, line):
    producer.says(line + b"\0\0\0\2a")
    assert "late" not in nsqd.broker.topics
    producer.says(b"b").hears(b"OK")
    assert "late" in nsqd.broker.topics


@pytest.mark.parametrize(
    "name", [b".", b"..", b"-", b"_", b"a.b-c_D9", b"n" * 64, b"x#ephemeral", b"n" * 54 + b"#ephemeral"]
)
def test_names_may_be_odd_within_the_rule(producer, name):
    producer.publishes(b"x", topic=name)


# --- Later ------------------------------------------------------------------------------------------------------------


def test_a_deferred_message_is_delivered_after_its_delay(nsqd, producer, consumer):
    consumer.says(b"RDY 10\n")
    producer.says(b"DPUB t 1500\n\0\0\0\5later").hears(b"OK")
    nsqd.waits(1.499)
    consumer.hears()
    nsqd.waits(0.002)
    consumer.hears(b"later")
    assert consumer.received[0].attempts == 1


@pytest.mark.parametrize("delay", [b"0", b"", b"000"])
def test_a_message_deferred_by_nothing_comes_at_once(producer, consumer, delay):
    consumer.says(b"RDY 10\n")
    producer.says(b"DPUB t %b\n\0\0\0\3now" % delay).hears(b"OK")
    consumer.hears(b"now")


def test_the_longest_delay_is_the_limit_itself(make_nsqd):
    nsqd = make_nsqd(max_defer_timeout_ms=2000)
    consumer, producer = nsqd.connect().subscribes(ready=1), nsqd.connect()
    producer.says(b"DPUB t 2000\n\0\0\0\1a").hears(b"OK")
    producer.says(b"DPUB t 2001\n\0\0\0\1a").hears(b"E_INVALID DPUB timeout 2001 out of range 0-2000").and_is_closed()
    nsqd.waits(2)
    consumer.hears(b"a")


def test_deferred_messages_come_in_the_order_of_their_times(nsqd, producer, consumer):
    consumer.says(b"RDY 10\n")
    producer.says(b"DPUB t 300\n\0\0\0\1cDPUB t 100\n\0\0\0\1aDPUB t 200\n\0\0\0\1b").hears(b"OK", b"OK", b"OK")
    nsqd.waits(1)
    consumer.hears(b"a", b"b", b"c")


# --- In any state -----------------------------------------------------------------------------------------------------


def test_a_consumer_may_publish_and_get_its_own_message(client):
    client.subscribes(ready=10)
    client.says(b"PUB t\n\0\0\0\3one").hears(b"OK", b"one")


def test_a_closing_consumer_may_publish(client):
    client.subscribes().says(b"CLS\n").hears(b"CLOSE_WAIT").publishes(b"one")
    client.says(b"DPUB t 1\n\0\0\0\1a").hears(b"OK")


def test_published_messages_are_counted_by_topic(producer, build):
    assert not producer.session.has_published
    producer.publishes(b"1", b"2", topic=b"b")
    producer.says(build.mpub([b"3", b"4", b"5"], b"a")).hears(b"OK")
    producer.says(b"DPUB b 1\n\0\0\0\1a").hears(b"OK")
    assert producer.session.has_published
    assert producer.stats.pub_counts == (("a", 3), ("b", 3))


def test_counts_of_thousands_of_topics_that_are_gone_are_forgotten(nsqd, producer):
    producer.publishes(b"1", topic=b"lasts")
    for number in range(5000):
        producer.publishes(b"1", topic=b"t%d" % number)
        nsqd.broker.delete_topic(f"t{number}")
    counts = dict(producer.stats.pub_counts)
    assert counts["lasts"] == 1
    assert len(counts) <= 1001


def test_refused_messages_are_not_counted(producer):
    producer.says(b"PUB t\n\0\0\0\0")
    assert not producer.session.has_published


def test_messages_without_a_channel_wait_for_the_first_one(nsqd, producer):
    producer.publishes(b"one", b"two")
    nsqd.connect().subscribes(channel=b"first", ready=10).hears(b"one", b"two")
    nsqd.connect().subscribes(channel=b"second", ready=10).hears()


def test_a_message_says_when_it_was_published_and_has_one_id_in_every_channel(nsqd, producer):
    first = nsqd.connect().subscribes(channel=b"first", ready=10)
    second = nsqd.connect().subscribes(channel=b"second", ready=10)
    published_ns = nsqd.now_ns
    producer.publishes(b"one")
    assert first.received == second.received
    (message,) = first.received
    assert message.timestamp_ns == published_ns
    assert len(message.id) == 16
    assert int(message.id, 16) >= 0


# --- Several producers in one turn ------------------------------------------------------------------------------------


@pytest.fixture
def two_known(nsqd, producer):
    """Two producers that have published to the topic before, so that their next PUB or MPUB comes alone."""
    other = nsqd.connect()
    return producer.publishes(b"before"), other.publishes(b"before")


def test_producers_in_one_iteration_get_their_replies_at_its_end(nsqd, two_known, build):
    one, two = two_known
    one.says_at_once(b"PUB t\n" + build.sized(b"one"))
    two.says_at_once(b"PUB t\n" + build.sized(b"two"))
    assert nsqd.broker.topics["t"].message_count == 2
    nsqd.turns()
    one.hears(b"OK")
    two.hears(b"OK")
    assert nsqd.broker.topics["t"].message_count == 4
    assert [each.stats.pub_counts for each in two_known] == [(("t", 2),)] * 2


def test_an_mpub_that_was_posted_has_one_answer(nsqd, two_known, build, consumer):
    one, two = two_known
    two.says(build.mpub([b"any"])).hears(b"OK")
    consumer.says(b"RDY 10\n").hears_anything()
    one.says_at_once(b"PUB t\n" + build.sized(b"one"))
    two.says_at_once(build.mpub([b"two", b"six"]))
    nsqd.turns()
    one.hears(b"OK")
    two.hears(b"OK")
    consumer.hears(b"one", b"two", b"six")


def test_commands_after_a_post_take_effect_after_it(nsqd, two_known, build):
    one, two = two_known
    two.says_at_once(b"PUB t\n" + build.sized(b"two"))
    one.says_at_once(b"PUB t\n" + build.sized(b"one"), b"PUB other\n" + build.sized(b"x"), b"PUB bad!\n")
    nsqd.turns()
    one.hears(b"OK", b"OK", b'E_BAD_TOPIC PUB topic name "bad!" is not valid').and_is_closed()
    two.hears(b"OK")
    assert nsqd.broker.topics["t"].message_count == 4


def test_the_post_of_a_producer_that_leaves_is_published(nsqd, two_known, build):
    one, two = two_known
    two.says_at_once(b"PUB t\n" + build.sized(b"two"))
    one.says_at_once(b"PUB t\n" + build.sized(b"one"))
    one.stops_sending().hears(b"OK").and_is_closed()
    two.says_at_once(b"PUB t\n" + build.sized(b"two"))
    one.disconnects()
    nsqd.turns()
    assert nsqd.broker.topics["t"].message_count == 5


def test_a_post_to_a_topic_that_ends_meanwhile_fails_as_a_pub_does(nsqd, two_known, build):
    one, two = two_known
    one.says_at_once(b"PUB t\n" + build.sized(b"one"))
    two.says_at_once(b"PUB t\n" + build.sized(b"two"))
    nsqd.broker.refuse_publishing()
    nsqd.turns()
    one.hears(b"E_PUB_FAILED PUB failed exiting").and_is_closed()
    two.hears(b"E_PUB_FAILED PUB failed exiting").and_is_closed()


def test_commands_after_a_failed_post_do_not_take_effect(nsqd, two_known, build):
    one, two = two_known
    two.says_at_once(b"PUB t\n" + build.sized(b"two"))
    one.says_at_once(b"PUB t\n" + build.sized(b"one"))
    nsqd.broker.delete_topic("t")
    one.says_at_once(b"PUB other\n" + build.sized(b"x"))
    nsqd.turns()
    one.hears(b"E_PUB_FAILED PUB failed exiting").and_is_closed()
    assert "other" not in nsqd.broker.topics


# --- Behind a PUB that is published at once and answered with the next bytes sent -------------------------------------


@pytest.fixture
def alone(producer):
    """A producer that was the last to publish, so that its next PUB is published at once."""
    return producer.publishes(b"before", b"again")


def test_pubs_that_come_before_the_answer_are_answered_one_by_one(nsqd, alone, build):
    alone.says_at_once(*[b"PUB t\n" + build.sized(body) for body in (b"one", b"two", b"six")])
    nsqd.turns()
    alone.hears(b"OK", b"OK", b"OK")
    assert nsqd.broker.topics["t"].message_count == 5
    assert alone.stats.pub_counts == (("t", 5),)


def test_an_error_comes_behind_the_answer(nsqd, alone, build):
    alone.says_at_once(b"PUB t\n" + build.sized(b"one"), b"PUB bad!\n")
    nsqd.turns()
    alone.hears(b"OK", b'E_BAD_TOPIC PUB topic name "bad!" is not valid').and_is_closed()


def test_another_answer_comes_behind_it(nsqd, alone, build):
    alone.says_at_once(b"PUB t\n" + build.sized(b"one"), b"SUB t c\n", b"CLS\n")
    nsqd.turns()
    alone.hears(b"OK", b"OK", b"CLOSE_WAIT")


def test_what_follows_a_publish_waits_until_that_is_durable(nsqd, tmp_path, build):
    slow_disk = SlowDisk(tmp_path)
    nsqd.broker = Broker(QueueLimits(), slow_disk.storage)
    producer = nsqd.connect().says(b"PUB t\n" + build.sized(b"zero")).hears(b"OK")
    producer.says(b"PUB t\n" + build.sized(b"one")).hears()
    assert nsqd.broker.topics["t"].message_count == 2
    producer.says(b"PUB t\n" + build.sized(b"two")).hears(b"OK")
    assert nsqd.broker.topics["t"].message_count == 3
    slow_disk.syncs()
    nsqd.turns()
    producer.hears(b"OK")


def test_a_batch_that_came_alone_is_answered_when_it_is_durable(nsqd, tmp_path, build):
    slow_disk = SlowDisk(tmp_path)
    nsqd.broker = Broker(QueueLimits(), slow_disk.storage)
    batch = b"MPUB t\n" + build.sized(b"\0\0\0\2" + build.sized(b"a") + build.sized(b"b"))
    producer = nsqd.connect().says(batch).hears(b"OK")
    producer.says(batch).hears()
    assert nsqd.broker.topics["t"].message_count == 4
    slow_disk.syncs(OSError(5, "Input/output error"))
    nsqd.turns()
    producer.hears(b"E_MPUB_FAILED MPUB failed input/output error").and_is_closed()


def at_once(client, nsqd, data: bytes) -> bool:
    """Feed a connection as its event loop does, in which nothing may wait."""
    is_done: bool = client.session.receive_at_once(data, nsqd.now, nsqd.now_ns)
    client.woken = True
    nsqd.turns()
    return is_done


def test_a_producer_of_a_known_topic_is_read_in_the_event_loop(nsqd, tmp_path, build):
    slow_disk = SlowDisk(tmp_path)
    nsqd.broker = Broker(QueueLimits(), slow_disk.storage)
    one, two, other = (b"PUB %s\n" % topic + build.sized(b"x") for topic in (b"t", b"t", b"other"))
    producer = nsqd.connect()
    assert not at_once(producer, nsqd, one)  # makes a topic, which waits
    producer.says(one).hears(b"OK")
    assert at_once(producer, nsqd, two)
    assert nsqd.broker.topics["t"].message_count == 2
    assert not at_once(producer, nsqd, two)  # the one before has no answer yet
    slow_disk.syncs()
    nsqd.turns()
    producer.hears(b"OK")
    for data in (two + two, two[:-1], other, b"NOP\n"):
        assert not at_once(producer, nsqd, data)
    assert nsqd.broker.topics["t"].message_count == 2
    producer.says(two + other).hears(b"OK", b"OK")
    nsqd.broker.delete_topic("other")
    assert not at_once(producer, nsqd, other)
    assert "other" not in nsqd.broker.topics


def test_a_producer_that_has_to_ask_for_permission_is_not_read_in_the_event_loop(nsqd, build):
    producer = nsqd.connect().says(b"PUB t\n" + build.sized(b"x")).hears(b"OK")
    assert at_once(producer, nsqd, b"PUB t\n" + build.sized(b"x"))
    producer.hears(b"OK")
    producer.session._publisher._require = lambda spec, topic: None
    assert not at_once(producer, nsqd, b"PUB t\n" + build.sized(b"x"))


def test_an_error_of_a_publish_that_is_read_in_the_event_loop_ends_the_connection(nsqd, build):
    producer = nsqd.connect().says(b"PUB t\n" + build.sized(b"x")).hears(b"OK")
    nsqd.publish_batch = None
    nsqd.broker.refuse_publishing()
    assert at_once(producer, nsqd, b"PUB t\n" + build.sized(b"x"))
    producer.hears(b"E_PUB_FAILED PUB failed exiting").and_is_closed()


def test_a_producer_that_stops_sending_gets_its_reply(alone, build):
    alone.says_at_once(b"PUB t\n" + build.sized(b"one"))
    alone.stops_sending().hears(b"OK").and_is_closed()


def test_a_topic_that_was_deleted_is_made_anew(nsqd, alone):
    old = nsqd.broker.topics["t"]
    nsqd.broker.delete_topic("t")
    alone.publishes(b"one")
    assert nsqd.broker.topics["t"] is not old
    assert nsqd.broker.topics["t"].message_count == 1
