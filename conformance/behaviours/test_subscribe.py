"""SUB, RDY and CLS: distribution of messages to consumers."""

import pytest

from nsq_conformance.behaviours.limits import Connect
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient


def post(nsqd: NsqdProcess, path: str, topic: str, channel: str = "") -> None:
    query = f"topic={topic}&channel={channel}" if channel else f"topic={topic}"
    assert nsqd.asks("POST", f"/{path}?{query}").status == 200


def channels(nsqd: NsqdProcess, topic: str) -> list[str]:
    stats = nsqd.topic_stats(topic)
    return [channel["channel_name"] for channel in stats["channels"]] if stats else []


def test_subscribing_creates_topic_and_channel(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic, "new")
    assert nsqd.channel_stats(topic, "new")["client_count"] == 1


def test_nothing_is_delivered_before_rdy(client: RawClient, topic: str) -> None:
    assert client.publishes(topic, b"x").subscribes(topic).hears_nothing()


def test_rdy_without_a_number_is_rdy_1(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"x", b"y").subscribes(topic).sends(b"RDY\n")
    assert client.message().body == b"x"
    assert client.hears_nothing()


def test_rdy_with_an_empty_number_is_rdy_0(client: RawClient, topic: str) -> None:
    assert client.publishes(topic, b"x").subscribes(topic).sends(b"RDY \n").hears_nothing()


def test_rdy_may_have_leading_zeros(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"x").subscribes(topic).sends(b"RDY 001\n")
    assert client.message().body == b"x"


@pytest.mark.difference("numbers")
def test_rdy_beyond_64_bits_is_refused(client: RawClient, topic: str) -> None:
    client.subscribes(topic).sends(b"RDY 18446744073709551617\nFIN 0123456789abcdef\n")
    assert client.error().startswith(b"E_INVALID RDY count ")


@pytest.mark.parametrize("ready", [1, 2, 5, 49])
def test_rdy_is_how_many_messages_may_be_in_flight(client: RawClient, topic: str, ready: int) -> None:
    bodies = [b"%d" % number for number in range(ready + 1)]
    client.publishes(topic, *bodies).subscribes(topic).is_ready(ready)
    assert client.bodies(ready) == bodies[:ready]
    assert client.hears_nothing()


def test_rdy_may_equal_the_limit(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"x").subscribes(topic).is_ready(50)
    assert client.message().body == b"x"


def test_rdy_does_not_count_down(client: RawClient, topic: str) -> None:
    client.publishes(topic, *[b"%d" % number for number in range(6)]).subscribes(topic).is_ready(2)
    for number in range(4):
        message = client.message()
        assert message.body == b"%d" % number
        client.finishes(message)


def test_finishing_one_makes_room_for_one(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"a", b"b", b"c", b"d").subscribes(topic).is_ready(2)
    first, _ = client.messages(2)
    assert client.finishes(first).message().body == b"c"
    assert client.hears_nothing()


def test_requeueing_makes_room_too(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"a", b"b").subscribes(topic).is_ready(1)
    client.requeues(client.message(), 30_000)
    assert client.message().body == b"b"


def test_rdy_0_stops_deliveries(client: RawClient, topic: str) -> None:
    client.subscribes(topic).is_ready(1).is_ready(0).has_been_heard()
    assert client.publishes(topic, b"x").hears_nothing()


def test_a_higher_rdy_delivers_additional_messages(client: RawClient, topic: str) -> None:
    client.publishes(topic, *[b"%d" % number for number in range(6)]).subscribes(topic).is_ready(2)
    assert client.bodies(2) == [b"0", b"1"]
    assert client.is_ready(5).bodies(3) == [b"2", b"3", b"4"]
    assert client.hears_nothing()


def test_an_rdy_below_the_messages_in_flight_stops_deliveries(client: RawClient, topic: str) -> None:
    client.publishes(topic, *[b"%d" % number for number in range(4)]).subscribes(topic).is_ready(3)
    messages = client.messages(3)
    client.is_ready(1).finishes(*messages[:2]).has_been_heard()
    assert client.hears_nothing()
    assert client.finishes(messages[2]).message().body == b"3"


def test_stats_show_rdy_and_in_flight(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"a", b"b").subscribes(topic).is_ready(7).messages(2)
    channel = nsqd.channel_stats(topic, "ch")
    (consumer,) = channel["clients"]
    assert (consumer["ready_count"], consumer["in_flight_count"], channel["in_flight_count"]) == (7, 2, 2)


def test_cls_is_answered_and_ends_deliveries(client: RawClient, topic: str) -> None:
    client.subscribes(topic).is_ready(5).sends(b"CLS\n")
    assert client.response() == b"CLOSE_WAIT"
    assert client.publishes(topic, b"x").hears_nothing()


def test_after_cls_messages_may_still_be_finished(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"x").subscribes(topic).is_ready(1)
    message = client.message()
    assert client.sends(b"CLS\n").response() == b"CLOSE_WAIT"
    client.finishes(message).has_been_heard()
    assert nsqd.channel_stats(topic, "ch")["in_flight_count"] == 0


def test_after_cls_messages_may_still_be_requeued(client: RawClient, consumer: RawClient, topic: str) -> None:
    client.publishes(topic, b"x").subscribes(topic).is_ready(1)
    message = client.message()
    assert client.sends(b"CLS\n").response() == b"CLOSE_WAIT"
    client.requeues(message)
    assert consumer.subscribes(topic, ready=1).message().id == message.id


@pytest.mark.parametrize("count", [b"1", b"x", b"51"])
def test_after_cls_rdy_is_ignored(client: RawClient, topic: str, count: bytes) -> None:
    assert client.subscribes(topic).sends(b"CLS\n").response() == b"CLOSE_WAIT"
    client.sends(b"RDY %b\n" % count).has_been_heard()


def test_after_cls_the_client_is_still_counted(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    assert client.subscribes(topic).sends(b"CLS\n").response() == b"CLOSE_WAIT"
    (consumer,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (consumer["state"], consumer["ready_count"]) == (4, 0)


def test_a_client_that_subscribed_is_in_state_3(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic)
    (consumer,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert consumer["state"] == 3


def test_a_client_without_heartbeats_may_not_subscribe(client: RawClient, topic: str) -> None:
    client.identifies(heartbeat_interval=-1)
    client.sends(f"SUB {topic} ch\n".encode())
    assert client.error() == b"E_INVALID cannot SUB with heartbeats disabled"
    assert client.is_closed()


def test_a_paused_channel_delivers_nothing_until_it_is_unpaused(
    client: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    client.subscribes(topic)
    post(nsqd, "channel/pause", topic, "ch")
    assert client.is_ready(1).publishes(topic, b"x").hears_nothing()
    assert nsqd.channel_stats(topic, "ch")["paused"] is True
    post(nsqd, "channel/unpause", topic, "ch")
    assert client.message().body == b"x"


def test_a_paused_topic_keeps_its_messages_until_it_is_unpaused(
    client: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    client.subscribes(topic)
    post(nsqd, "topic/pause", topic)
    assert client.is_ready(1).publishes(topic, b"x").hears_nothing()
    stats = nsqd.topic_stats(topic)
    assert stats is not None
    assert (stats["paused"], stats["depth"], stats["channels"][0]["depth"]) == (True, 1, 0)
    post(nsqd, "topic/unpause", topic)
    assert client.message().body == b"x"


def test_channels_of_a_paused_topic_deliver_their_messages(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic).publishes(topic, b"x")
    eventually(lambda: nsqd.channel_stats(topic, "ch")["depth"] == 1)
    post(nsqd, "topic/pause", topic)
    assert client.is_ready(1).message().body == b"x"


def test_an_emptied_channel_delivers_nothing(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic).publishes(topic, b"x", b"y")
    eventually(lambda: nsqd.channel_stats(topic, "ch")["depth"] == 2)
    post(nsqd, "channel/empty", topic, "ch")
    assert client.is_ready(1).hears_nothing()


def test_emptying_a_channel_drops_messages_in_flight(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    message = client.subscribes(topic, ready=1).publishes(topic, b"x").message()
    post(nsqd, "channel/empty", topic, "ch")
    assert client.finishes(message).error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id
    client.publishes(topic, b"y")
    assert client.message().body == b"y"


def test_deleting_a_channel_closes_its_consumers_without_an_error(
    client: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    client.subscribes(topic)
    post(nsqd, "channel/delete", topic, "ch")
    assert client.is_closed()


def test_deleting_a_topic_closes_its_consumers_without_an_error(
    client: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    client.subscribes(topic)
    post(nsqd, "topic/delete", topic)
    assert client.is_closed()
    assert nsqd.topic_stats(topic) is None


def test_a_publisher_survives_the_deletion_of_its_topic_and_creates_it_again(
    client: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    client.publishes(topic, b"x")
    post(nsqd, "topic/delete", topic)
    client.publishes(topic, b"y").subscribes(topic, ready=2)
    assert client.message().body == b"y"
    assert client.hears_nothing()


def test_a_third_consumer_of_two_is_refused(client: RawClient, connect: Connect, topic: str) -> None:
    _consumers = [connect().subscribes(topic) for _ in range(2)]
    client.sends(f"SUB {topic} ch\n".encode())
    assert client.error() == f"E_SUB_FAILED SUB failed consumers for {topic}:ch exceeds limit of 2".encode()
    assert client.is_closed()


def test_the_limit_of_consumers_is_per_channel(client: RawClient, connect: Connect, topic: str) -> None:
    _consumers = [connect().subscribes(topic) for _ in range(2)]
    client.subscribes(topic, "another")


def test_an_ephemeral_channel_is_deleted_with_its_last_consumer(
    client: RawClient, consumer: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    consumer.subscribes(topic, "ch#ephemeral").close()
    eventually(lambda: channels(nsqd, topic) == [])
    client.publishes(topic, b"x")


def test_an_ephemeral_topic_is_deleted_with_its_last_channel(
    consumer: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    name = topic + "#ephemeral"
    consumer.subscribes(name, "ch#ephemeral").close()
    eventually(lambda: nsqd.topic_stats(name) is None)


def test_an_ephemeral_topic_stays_while_it_has_a_channel(
    client: RawClient, consumer: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    name = topic + "#ephemeral"
    client.subscribes(name, "stays")
    consumer.subscribes(name, "ch#ephemeral").close()
    eventually(lambda: channels(nsqd, name) == ["stays"])


def test_an_ephemeral_channel_that_was_never_used_stays(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel(topic, "ch#ephemeral")
    assert channels(nsqd, topic) == ["ch#ephemeral"]
