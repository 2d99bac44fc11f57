"""A thousand of each command, of which each has its effect and its reply once: what happens seldom shows here."""

import random
import time
from collections.abc import Iterator

from nsq_conformance.behaviours.limits import Connect
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import PATIENCE_SECONDS, Message, RawClient, batch, sized, soon

COUNT = 1000
MOST_READY = 50
OK = b"OK"
TIMEOUT_MS = 4000


def numbered(count: int = COUNT) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def random_bodies() -> list[bytes]:
    """Bodies of random bytes, always the same."""
    source = random.Random(1)
    return [b"%d " % number + source.randbytes(source.randrange(1900)) for number in range(COUNT)]


def finished(consumer: RawClient, count: int) -> Iterator[Message]:
    """Receive so many messages, each of which is finished when the next is asked for. There must not be another."""
    for _ in range(count):
        message = consumer.message()
        yield message
        consumer.finishes(message)
    consumer.has_been_heard()


def drain(consumer: RawClient, topic: str, count: int, channel: str = "ch") -> list[Message]:
    return list(finished(consumer.subscribes(topic, channel, ready=MOST_READY), count))


def counts(nsqd: NsqdProcess, topic: str) -> dict[str, int]:
    names = ("depth", "in_flight_count", "deferred_count", "message_count", "requeue_count", "timeout_count")
    channel = nsqd.channel_stats(topic, "ch")
    return {name: channel[name] for name in names if channel[name]}


def test_each_publish_is_answered_and_arrives_once_in_order(client: RawClient, consumer: RawClient, topic: str) -> None:
    before = time.time_ns()
    client.publishes(topic, *numbered())
    after = time.time_ns()
    assert client.hears_nothing()
    messages = drain(consumer, topic, COUNT)
    assert [message.body for message in messages] == numbered()
    assert {message.attempts for message in messages} == {1}
    ids, times = [message.id for message in messages], [message.timestamp for message in messages]
    assert ids == sorted(set(ids))
    assert [before, *times, after] == sorted([before, *times, after])


def test_each_pipelined_publish_is_answered_and_arrives_once(
    client: RawClient, consumer: RawClient, topic: str
) -> None:
    bodies = random_bodies()
    for start in range(0, COUNT, 100):
        commands = (b"PUB %b\n" % topic.encode() + sized(body) for body in bodies[start : start + 100])
        client.sends(b"".join(commands))
        assert [client.response() for _ in range(100)] == [OK] * 100
    assert client.hears_nothing()
    assert [message.body for message in drain(consumer, topic, COUNT)] == bodies


def test_each_message_of_each_mpub_arrives_once(client: RawClient, consumer: RawClient, topic: str) -> None:
    bodies = numbered()
    for start in range(0, COUNT, 10):
        client.sends(b"MPUB %b\n" % topic.encode() + sized(batch(*bodies[start : start + 10])))
        assert client.response() == OK
    assert client.hears_nothing()
    assert [message.body for message in drain(consumer, topic, COUNT)] == bodies


def test_each_request_over_http_is_answered_and_its_messages_arrive_once(
    client: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    bodies = numbered(600)
    for start in range(0, len(bodies), 6):
        one, two, *three_and_four, five, six = bodies[start : start + 6]
        for target, body in (
            (f"/pub?topic={topic}", one),
            (f"/pub?topic={topic}&defer=0", two),
            (f"/mpub?topic={topic}", b"\n".join(three_and_four)),
            (f"/mpub?topic={topic}&binary=true", batch(five, six)),
        ):
            answer = nsqd.asks("POST", target, body)
            assert (answer.status, answer.body) == (200, OK)
    assert [message.body for message in drain(client, topic, len(bodies))] == bodies


def test_each_finish_counts(client: RawClient, consumer: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, *numbered())
    consumer.subscribes(topic)
    source = random.Random(1)
    left = COUNT
    while left:
        run = min(left, source.randint(1, MOST_READY))
        messages = consumer.is_ready(run).messages(run)
        consumer.is_ready(0).finishes(*source.sample(messages, run))
        left -= run
    consumer.has_been_heard()
    assert counts(nsqd, topic) == {"message_count": COUNT}
    (stats,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert (stats["message_count"], stats["finish_count"], stats["in_flight_count"]) == (COUNT, COUNT, 0)


def test_each_requeue_counts_and_each_message_comes_back_unchanged(
    client: RawClient, consumer: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    client.publishes(topic, *numbered())
    consumer.subscribes(topic, ready=MOST_READY)
    first: dict[bytes, Message] = {}
    again: dict[bytes, Message] = {}
    while len(again) < COUNT:
        message = consumer.message()
        if message.id in first:
            assert message.id not in again
            again[message.id] = message
            consumer.finishes(message)
        else:
            first[message.id] = message
            consumer.requeues(message)
    consumer.has_been_heard()
    assert again == {each.id: each._replace(attempts=2) for each in first.values()}
    assert sorted(each.body for each in again.values()) == sorted(numbered())
    assert counts(nsqd, topic) == {"message_count": COUNT, "requeue_count": COUNT}


def test_each_touch_counts(connect: Connect, awake_topics: list[str]) -> None:
    clients = [connect() for _ in range(2)]
    messages = []
    for client in clients:
        client.identifies(msg_timeout=TIMEOUT_MS)
        topic = awake_topics.pop()
        client.publishes(topic, *numbered(MOST_READY)).subscribes(topic, ready=MOST_READY)
        messages.append(client.messages(MOST_READY))
    time.sleep(0.6)  # Touches are seen to count if they come later than the deliveries.
    touched = time.monotonic()
    for client, its_messages in zip(clients, messages, strict=True):
        client.touches(*its_messages)
    for client, its_messages in zip(clients, messages, strict=True):
        again = set()
        for _ in its_messages:
            again.add(Message.of(client.reply(PATIENCE_SECONDS + TIMEOUT_MS / 1000).data).id)
            assert time.monotonic() - touched >= TIMEOUT_MS / 1000 - 0.01
        assert again == {message.id for message in its_messages}


def test_each_answer_to_no_message_in_flight_is_refused_in_order(client: RawClient, topic: str) -> None:
    client.subscribes(topic)
    verbs = (b"FIN", b"REQ", b"TOUCH")
    answers = [(verbs[number % 3], b"%016x" % number) for number in range(COUNT)]
    for start in range(0, COUNT, 100):
        some = answers[start : start + 100]
        client.sends(b"".join(b"%b %b 0\n" % answer for answer in some))
        expected = [b"E_%b_FAILED %b %b failed ID not in flight" % (verb, verb, each) for verb, each in some]
        assert [client.error() for _ in some] == expected
    assert client.hears_nothing()


def test_each_message_is_the_same_in_both_channels(
    client: RawClient, consumer: RawClient, connect: Connect, nsqd: NsqdProcess, topic: str
) -> None:
    for channel in ("one", "other"):
        nsqd.create_channel(topic, channel)
    bodies = random_bodies()
    client.publishes(topic, *bodies)
    one, other = drain(consumer, topic, COUNT, "one"), drain(connect(), topic, COUNT, "other")
    assert one == other
    assert [message.body for message in one] == bodies


def test_each_rdy_takes_effect(client: RawClient, consumer: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, *numbered(300))
    consumer.subscribes(topic)
    for body in numbered(300):
        message = consumer.is_ready(1).message()
        assert message.body == body
        consumer.is_ready(0).finishes(message).has_been_heard()
        # Not seen from here: a message that RDY 1 let through may come after the answer, and is then the expected one.
        assert nsqd.channel_stats(topic, "ch")["clients"][0]["ready_count"] == 0


def test_consumers_that_come_and_go_leave_nothing_behind(
    client: RawClient, connect: Connect, nsqd: NsqdProcess, topic: str
) -> None:
    client.publishes(topic, *numbered(100))
    for body in numbered(100):
        consumer = connect().subscribes(topic, ready=1)
        message = consumer.message()
        assert message.body == body
        assert consumer.is_ready(0).finishes(message).sends(b"CLS\n").response() == b"CLOSE_WAIT"
        consumer.close()
        assert soon(lambda: nsqd.channel_stats(topic, "ch")["client_count"] == 0)
    assert counts(nsqd, topic) == {"message_count": 100}
