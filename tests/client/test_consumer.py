import sys
import threading
import time
from collections import Counter

import pytest

from nsq_compat.client.consumer import Consumer
from nsq_compat.client.message import Message
from nsq_compat.client.producer import Producer
from tests.client.conftest import StartConsumer
from tests.client.fake_nsqd import FakeNsqd, MakeNsqd
from tests.client.waiting import Holding, Keeping, wait_until


@pytest.fixture
def bodies() -> list[bytes]:
    return []


# --- With a real nsqd -------------------------------------------------------------------------------------------------


def test_every_message_is_handled_and_finished(nsqd, topic, start_consumer, bodies):
    sent = [b"%d" % number for number in range(2000)]
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, sent)
    consumer = start_consumer(
        lambda message: bodies.append(message.body), topic, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=100
    )
    wait_until(lambda: len(bodies) == 2000)
    consumer.stop()
    assert sorted(bodies) == sorted(sent)
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)


def test_a_failed_message_is_redelivered_with_one_more_attempt(nsqd, topic, start_consumer):
    attempts = []

    def handle(message: Message) -> bool:
        attempts.append(message.attempts)
        return message.attempts == 3

    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"body")
    start_consumer(handle, topic, nsqd_tcp_addresses=nsqd.tcp_address, requeue_delay=0, backoff=False)
    wait_until(lambda: len(attempts) == 3)
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("options", [{"snappy": True}, {"deflate": True, "deflate_level": 3}])
def test_messages_are_handled_with_and_without_compression(nsqd, topic, start_consumer, bodies, options):
    with Producer(nsqd.tcp_address, **options) as producer:
        producer.publish_many(topic, [b"x" * 5000, b"y"])
    start_consumer(lambda message: bodies.append(message.body), topic, nsqd_tcp_addresses=nsqd.tcp_address, **options)
    wait_until(lambda: len(bodies) == 2)
    assert sorted(bodies) == [b"x" * 5000, b"y"]


# --- What a handler's outcome becomes ---------------------------------------------------------------------------------


def test_success_is_fin_and_failure_req_with_a_delay_that_grows_with_the_attempts(fake, start_consumer):
    def handle(message: Message) -> bool | None:
        if message.body == b"raise":
            raise RuntimeError("on purpose")
        return {b"none": None, b"true": True, b"false": False}[message.body]

    start_consumer(handle, nsqd_tcp_addresses=fake.address, max_in_flight=9, requeue_delay=10, backoff=False)
    none, true = fake.send_messages([b"none", b"true"])
    (false,) = fake.send_messages([b"false"])
    (raised,) = fake.send_messages([b"raise"], attempts=3)
    wait_until(lambda: len(fake.peer.said("REQ")) == 2)
    assert fake.peer.finished == [none, true]
    assert fake.peer.said("REQ") == [f"REQ {false.decode()} 10000", f"REQ {raised.decode()} 30000"]


def test_a_handler_that_raises_system_exit_has_failed_and_others_continue(fake, start_consumer, bodies):
    def handle(message: Message) -> None:
        if message.body == b"exit":
            sys.exit("on purpose")
        bodies.append(message.body)

    start_consumer(handle, nsqd_tcp_addresses=fake.address, max_in_flight=5, backoff=False)
    fake.send_messages([b"exit", b"next"])
    wait_until(lambda: fake.said("REQ") and bodies == [b"next"])


def test_the_delay_of_a_requeue_is_limited(fake, start_consumer):
    start_consumer(
        lambda message: False,
        nsqd_tcp_addresses=fake.address,
        max_tries=0,
        requeue_delay=10,
        max_requeue_delay=25,
        backoff=False,
    )
    (sent,) = fake.send_messages([b"body"], attempts=1000)
    wait_until(lambda: fake.peer.said("REQ"))
    assert fake.peer.said("REQ") == [f"REQ {sent.decode()} 25000"]


def test_a_message_with_too_many_attempts_is_given_up_and_finished(fake, start_consumer, bodies):
    given_up: list[bytes] = []
    start_consumer(
        lambda message: bodies.append(message.body),
        nsqd_tcp_addresses=fake.address,
        max_tries=5,
        giving_up=lambda message: given_up.append(message.body),
    )
    fake.send_messages([b"fifth"], attempts=5)
    fake.send_messages([b"sixth"], attempts=6)
    wait_until(lambda: len(fake.peer.finished) == 2)
    assert (bodies, given_up) == ([b"fifth"], [b"sixth"])


def test_a_handler_may_answer_the_message_itself(fake, start_consumer):
    def handle(message: Message) -> None:
        message.touch()
        message.requeue(delay=1.5)

    start_consumer(handle, nsqd_tcp_addresses=fake.address, backoff=False)
    (sent,) = fake.send_messages([b"body"])
    wait_until(lambda: fake.peer.said("REQ"))
    assert fake.peer.said("TOUCH") == [f"TOUCH {sent.decode()}"]
    assert fake.peer.said("REQ") == [f"REQ {sent.decode()} 1500"]
    assert fake.peer.finished == []


def test_messages_are_touched_only_by_the_handler(fake, start_consumer):
    start_consumer(lambda message: None, nsqd_tcp_addresses=fake.address)
    fake.send_messages([b"body"])
    wait_until(lambda: fake.peer.finished)
    assert not fake.peer.said("TOUCH")


def test_an_answer_may_come_later_from_another_thread(fake, start_consumer):
    kept = Keeping()
    consumer = start_consumer(kept, nsqd_tcp_addresses=fake.address)
    (sent,) = fake.send_messages([b"body"])
    wait_until(lambda: kept)
    assert consumer.in_flight == 1
    assert fake.peer.finished == []
    kept[0].finish()
    wait_until(lambda: fake.peer.finished == [sent])
    assert consumer.in_flight == 0


def test_a_late_answer_that_nsqd_refuses_does_not_end_the_connection(nsqd, topic, start_consumer, bodies):
    first = Keeping()

    def handle(message: Message) -> None:
        if message.attempts == 1:
            first(message)
        else:
            bodies.append(message.body)

    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"body")
        consumer = start_consumer(handle, topic, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=2, msg_timeout=1)
        wait_until(lambda: bodies)
        (connection,) = consumer.connections
        first[0].finish()
        wait_until(lambda: connection.rejected_count == 1)
        producer.publish(topic, b"next")
    wait_until(lambda: len(first) == 2)
    assert consumer.connections == [connection]
    first[1].finish()


# --- How many at once -------------------------------------------------------------------------------------------------


class AtOnce:
    """A handler that counts its concurrent calls."""

    def __init__(self) -> None:
        self.now = self.most = self.count = 0
        self.lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.002)
        with self.lock:
            self.now -= 1
            self.count += 1


@pytest.mark.parametrize(("concurrency", "max_in_flight", "most"), [(1, 50, 1), (4, 50, 4), (50, 3, 3)])
def test_the_number_of_concurrent_handlers_is_limited(nsqd, topic, start_consumer, concurrency, max_in_flight, most):
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, [b"x"] * 100)
    handler = AtOnce()
    start_consumer(
        handler, topic, nsqd_tcp_addresses=nsqd.tcp_address, concurrency=concurrency, max_in_flight=max_in_flight
    )
    wait_until(lambda: handler.count == 100)
    assert handler.most <= most
    assert (handler.most > 1) == (most > 1)


def test_the_limit_of_concurrent_handlers_holds_if_nsqd_sends_more_than_rdy(fake, start_consumer):
    handler = AtOnce()
    start_consumer(handler, nsqd_tcp_addresses=fake.address, concurrency=10, max_in_flight=2)
    fake.send_messages([b"x"] * 50)
    wait_until(lambda: len(fake.peer.finished) == 50)
    assert handler.most <= 2


def test_a_long_handler_does_not_delay_the_fins_of_others(fake, start_consumer):
    holding = Holding()

    def handle(message: Message) -> None:
        if message.body == b"long":
            holding(message)

    start_consumer(handle, nsqd_tcp_addresses=fake.address, max_in_flight=10)
    short, long = fake.send_messages([b"short", b"long"])
    holding.begun.wait()
    wait_until(lambda: fake.peer.finished == [short])
    fake.beat()
    wait_until(lambda: fake.peer.said("NOP"))
    holding.released.set()
    wait_until(lambda: fake.peer.finished == [short, long])


def test_messages_of_a_broken_connection_are_not_handled(fake, start_consumer):
    holding = Holding()
    consumer = start_consumer(holding, nsqd_tcp_addresses=fake.address, max_in_flight=10, reconnect_delay=0.01)
    fake.send_messages([b"begun", b"waiting"])
    holding.begun.wait()
    fake.peer.close()
    wait_until(lambda: len(fake.peers) == 2 and fake.said("RDY"))
    fake.send_messages([b"again"])
    holding.released.set()
    wait_until(lambda: len(holding.bodies) == 2 and consumer.in_flight == 0)
    assert holding.bodies == [b"begun", b"again"]


# --- Stopping ---------------------------------------------------------------------------------------------------------


def test_stopping_sends_cls_and_finishes_messages_in_flight(fake, start_consumer):
    holding = Holding()
    consumer = start_consumer(holding, nsqd_tcp_addresses=fake.address, max_in_flight=10)
    sent = fake.send_messages([b"one", b"two", b"three"])
    holding.begun.wait()
    consumer.stop_soon()
    wait_until(lambda: fake.peer.said("CLS"))
    assert fake.peer.lines[-2:] == ["RDY 0", "CLS"]  # no message is sent in between
    holding.released.set()
    assert consumer.wait(20)
    assert fake.peer.finished == sent
    assert holding.bodies == [b"one", b"two", b"three"]


def test_a_stop_that_waits_for_a_handler_says_so(fake, start_consumer, caplog):
    handling, may_end = threading.Event(), threading.Event()

    def handle(message):
        handling.set()
        may_end.wait(30)

    consumer = start_consumer(handle, nsqd_tcp_addresses=fake.address, max_in_flight=2)
    fake.send_messages([b"one", b"two"])
    assert handling.wait(30)
    wait_until(lambda: len(consumer.waiting) == 1)
    consumer.stop_soon(60)
    rule = "[t/c] stopping: waiting for 1 messages that are being handled and 1 after them, at most 59 s"
    wait_until(lambda: rule in caplog.text)
    may_end.set()
    wait_until(lambda: len(fake.peer.finished) == 2)


def test_a_consumer_is_started_once(fake, start_consumer):
    consumer = start_consumer(lambda message: None, nsqd_tcp_addresses=fake.address)
    with pytest.raises(RuntimeError, match="a consumer is started once, by start.*; it is running"):
        consumer.start()


def test_stopping_requeues_messages_that_no_handler_has_begun(fake, start_consumer):
    holding = Holding()
    consumer = start_consumer(holding, nsqd_tcp_addresses=fake.address, max_in_flight=10)
    _, *others = fake.send_messages([b"one", b"two", b"three"])
    holding.begun.wait()
    consumer.stop_soon(timeout=0.05)
    # On an event loop, the handler is cancelled, and its message requeued too.
    wait_until(lambda: {f"REQ {each.decode()} 0" for each in others} <= set(fake.peer.said("REQ")))
    holding.released.set()
    assert consumer.wait(20)
    assert fake.peer.finished == []


def test_a_handler_may_stop_its_consumer(nsqd, topic, start_consumer):
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"last")
    consumers: list[Consumer] = []

    def handle(message: Message) -> None:
        wait_until(lambda: consumers)
        consumers[0].stop_soon()

    consumers.append(start_consumer(handle, topic, nsqd_tcp_addresses=nsqd.tcp_address))
    assert consumers[0].wait(20)
    assert nsqd.channel_stats(topic, "c")["in_flight_count"] == 0


def test_it_can_be_stopped_twice_and_before_it_is_connected(start_consumer):
    consumer = start_consumer(lambda message: None, nsqd_tcp_addresses="127.0.0.1:1")
    consumer.stop(timeout=1)
    consumer.stop(timeout=1)
    assert consumer.wait(0)


def test_stopping_under_load_loses_nothing(nsqd, topic, start_consumer):
    seen: Counter[bytes] = Counter()
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, [b"%d" % number for number in range(3000)])
    for _ in range(3):
        consumer = start_consumer(
            lambda message: seen.update([message.body]), topic, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=200
        )
        wait_until(lambda: len(seen) == 3000 or len(seen) % 7 == 3)
        consumer.stop()
        assert nsqd.channel_stats(topic, "c")["in_flight_count"] == 0
    start_consumer(
        lambda message: seen.update([message.body]), topic, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=200
    )
    wait_until(lambda: len(seen) == 3000)
    assert set(seen.values()) == {1}


# --- Wrong use --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topic": "no spaces"}, "topic"),
        ({"channel": ""}, "channel"),
        ({"nsqd_tcp_addresses": []}, "is required"),
        ({"nsqd_tcp_addresses": ["localhost"]}, "host:port"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"concurrency": 0}, "concurrency"),
        ({"snappy": True, "deflate": True}, "snappy"),
        ({"lookupd_poll_jitter": 2.0, "lookupd_http_addresses": ["h:1"]}, "jitter"),
    ],
)
def test_wrong_options_are_refused_at_once(start_consumer, options, error):
    with pytest.raises(ValueError, match=error):
        start_consumer(lambda message: None, **{"nsqd_tcp_addresses": "127.0.0.1:1", **options})


def test_an_unknown_option_is_a_type_error(start_consumer):
    with pytest.raises(TypeError, match="max_inflight"):
        start_consumer(lambda message: None, nsqd_tcp_addresses="127.0.0.1:1", max_inflight=3)


def test_a_consumer_is_starved_if_it_gets_no_more_before_it_answers(fake: FakeNsqd, start_consumer: StartConsumer):
    kept = Keeping()
    consumer = start_consumer(kept, nsqd_tcp_addresses=fake.address, max_in_flight=20)
    fake.send_messages([b"x"])
    wait_until(lambda: fake.peer.said("RDY")[-1] == "RDY 20")
    fake.send_messages([b"x"] * 15)
    wait_until(lambda: len(kept) == 16)
    assert not consumer.is_starved()
    fake.send_messages([b"x"])
    wait_until(lambda: len(kept) == 17)
    assert consumer.is_starved()
    for message in kept:
        message.finish()
    assert not consumer.is_starved()


def test_max_in_flight_can_change_and_zero_pauses(make_nsqd: MakeNsqd, start_consumer: StartConsumer):
    fake = make_nsqd()
    consumer = start_consumer(lambda message: None, nsqd_tcp_addresses=fake.address, max_in_flight=20)
    fake.send_messages([b"x"])
    wait_until(lambda: fake.peer.said("RDY") == ["RDY 1", "RDY 20"])
    consumer.set_max_in_flight(0)
    wait_until(lambda: fake.peer.said("RDY")[-1] == "RDY 0")
    consumer.set_max_in_flight(7)
    wait_until(lambda: fake.peer.said("RDY")[-1] == "RDY 7")


# --- Waiting for the subscription -------------------------------------------------------------------------------------


def test_after_waiting_for_the_subscription_the_channel_gets_what_is_published(nsqd, topic, start_consumer, bodies):
    nsqd.create_channel(topic, "first")
    consumer = start_consumer(lambda message: bodies.append(message.body), topic, nsqd_tcp_addresses=nsqd.tcp_address)
    consumer.wait_until_subscribed(timeout=20)
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"one")
    wait_until(lambda: bodies == [b"one"])
    consumer.wait_until_subscribed(timeout=0.1)


def test_a_consumer_that_is_not_subscribed_in_time_says_why(make_nsqd, start_consumer):
    consumer = start_consumer(Keeping(), nsqd_tcp_addresses="127.0.0.1:1", reconnect_delay=0.01)
    with pytest.raises(TimeoutError, match=r"\[t/c\] not subscribed after 0.2 s: 127.0.0.1:1: connection refused"):
        consumer.wait_until_subscribed(timeout=0.2)
    fake = make_nsqd({"SUB": None})
    consumer = start_consumer(Keeping(), nsqd_tcp_addresses=fake.address)
    with pytest.raises(TimeoutError, match=f"{fake.address}: no answer yet"):
        consumer.wait_until_subscribed(timeout=0.2)


def test_stopping_ends_the_wait_for_a_subscription(make_nsqd, start_consumer):
    fake = make_nsqd({"SUB": None})
    consumer = start_consumer(Keeping(), nsqd_tcp_addresses=fake.address)
    wait_until(lambda: fake.said("SUB"))
    consumer.stop_soon(timeout=0.1)
    with pytest.raises(RuntimeError, match="stopped before it was subscribed"):
        consumer.wait_until_subscribed(timeout=60)


def test_a_coroutine_function_is_for_the_consumer_on_asyncio():
    async def handle(message: Message) -> None: ...

    with pytest.raises(TypeError, match=r"nsq_compat\.client\.aio"):
        Consumer("t", "c", handle, nsqd_tcp_addresses="127.0.0.1:1")
    with pytest.raises(TypeError, match="handler must be a function"):
        Consumer("t", "c", None, nsqd_tcp_addresses="127.0.0.1:1")  # type: ignore[arg-type]
