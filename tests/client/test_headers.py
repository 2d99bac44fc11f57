"""Messages with headers: published, consumed, read by offset, and not sent to an nsqd that does not take them."""

import queue
import sys
from collections.abc import Iterator

import pytest

import nsq_compat.client as nsq
from nsq_compat.client.consumer import Consumer as ThreadedConsumer
from nsq_compat.client.log_reader import LogReader as ThreadedLogReader
from nsq_compat.client.nodes import Refused
from nsq_compat.client.producer import Producer as ThreadedProducer
from tests.client.on_loop import LoopConsumer, LoopLogReader, LoopProducer, end_loops

Consumer, LogReader, Producer = ThreadedConsumer, ThreadedLogReader, ThreadedProducer
"""The kinds that are tested."""

HEADERS = {"traceparent": "00-1-2-01", "key": "välue"}


@pytest.fixture(
    params=[(ThreadedConsumer, ThreadedLogReader, ThreadedProducer), (LoopConsumer, LoopLogReader, LoopProducer)],
    ids=["threads", "asyncio"],
    autouse=True,
)
def _kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, kind in zip(("Consumer", "LogReader", "Producer"), request.param, strict=True):
        monkeypatch.setattr(sys.modules[__name__], name, kind)
    yield
    end_loops()


def consumed(nsqd, topic, count, **options):
    found: queue.Queue[nsq.Message] = queue.Queue()
    with Consumer(topic, "c", found.put, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=100, **options):
        return [(message.body, dict(message.headers)) for message in (found.get(timeout=30) for _ in range(count))]


def test_headers_are_published_and_consumed(nsqd, topic):
    nsqd.create_channel(topic, "c")
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"one", headers={"Key": "v"})
        producer.publish_many(topic, [b"two", b"three"], headers=[HEADERS, {}])
        producer.publish(topic, b"plain")
        producer.publish(topic, b"later", headers={"a": ""}, defer=0.01)
    expected = [(b"one", {"key": "v"}), (b"two", HEADERS), (b"three", {}), (b"plain", {}), (b"later", {"a": ""})]
    assert sorted(consumed(nsqd, topic, 5)) == sorted(expected)
    with LogReader(topic, nsqd_http_addresses=nsqd.http_address) as reader:
        assert [(message.body, dict(message.headers)) for message in reader] == expected


def test_a_consumer_that_does_not_ask_gets_bodies(nsqd, topic):
    nsqd.create_channel(topic, "c")
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"one", headers=HEADERS)
    assert consumed(nsqd, topic, 1, message_headers=False) == [(b"one", {})]


def test_messages_with_and_without_headers_keep_their_order_in_the_background(nsqd, topic):
    nsqd.create_channel(topic, "c")
    messages = [(b"%d" % number, {"n": str(number)} if number % 3 else {}) for number in range(300)]
    with ThreadedProducer(nsqd.tcp_address) as producer:
        futures = [producer.publish_async(topic, body, headers=headers) for body, headers in messages]
        futures.append(producer.publish_many_async(topic, [b"x", b"y"], headers=[{}, HEADERS]))
        assert producer.flush(30)
        assert all(future.exception() is None for future in futures)
    with LogReader(topic, nsqd_http_addresses=nsqd.http_address) as reader:
        found = [(message.body, dict(message.headers)) for message in reader]
    assert found == [*messages, (b"x", {}), (b"y", HEADERS)]


def test_nothing_is_sent_to_an_nsqd_that_does_not_take_headers(fake):
    with Producer(fake.address) as producer:
        with pytest.raises(
            Refused, match="it does not take messages with headers or ids, which only an nsqd of nsq_compat"
        ):
            producer.publish("t", b"one", headers=HEADERS)
        with pytest.raises(Refused, match="it does not take messages with headers"):
            producer.publish_many("t", [b"one", b"two"], headers=[{}, HEADERS])
        assert producer.publish("t", b"plain").nodes == (fake.address,)
        (peer,) = fake.peers
        assert [line for line in peer.lines if not line.startswith(("IDENTIFY", "NOP"))] == ["PUB t"]


def test_another_node_takes_them(nsqd, topic, fake):
    with Producer([fake.address, nsqd.tcp_address]) as producer:
        for _ in range(4):
            assert producer.publish(topic, b"one", headers=HEADERS).nodes == (nsqd.tcp_address,)
        assert {producer.publish(topic, b"plain").nodes for _ in range(4)} == {(fake.address,), (nsqd.tcp_address,)}


def test_messages_that_were_batched_with_one_that_is_refused_are_published(fake):
    with ThreadedProducer(fake.address, batch_linger=3600) as producer:
        plain, refused = producer.publish_async("t", b"plain"), producer.publish_async("t", b"one", headers=HEADERS)
        assert producer.flush(30)
        assert plain.result().nodes == (fake.address,)
        assert isinstance(refused.exception(), Refused)


@pytest.mark.parametrize("headers", [{"": "v"}, {"a b": "v"}, {"a": "\n"}, {"a": "x" * 8193}, {"a": "1", "A": "2"}])
def test_invalid_headers_raise_at_once(fake, headers):
    with Producer(fake.address) as producer, pytest.raises(ValueError, match="header"):
        producer.publish("t", b"one", headers=headers)
    assert not fake.peers


def test_each_of_several_messages_needs_its_headers(fake):
    with (
        Producer(fake.address) as producer,
        pytest.raises(ValueError, match="2 messages cannot have 1 sets of headers"),
    ):
        producer.publish_many("t", [b"one", b"two"], headers=[HEADERS])
