"""nsq_to_nsq between real nsqds."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.request import urlopen

import pytest

from nsq_compat.client import Consumer, Producer
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.client.waiting import wait_until

_numbers = itertools.count()


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NsqdProcess]]:
    """A source and two destinations, the second of which takes no large messages."""
    folders = [tmp_path_factory.mktemp("nsqd") for _ in range(3)]
    with (
        NsqdProcess(installed_nsqd(), folders[0]) as source,
        NsqdProcess(installed_nsqd(), folders[1]) as one,
        NsqdProcess(installed_nsqd(), folders[2], options=("--max-msg-size=100",)) as two,
    ):
        yield [source, one, two]


@pytest.fixture
def source(nsqds: list[NsqdProcess]) -> NsqdProcess:
    return nsqds[0]


@pytest.fixture
def one(nsqds: list[NsqdProcess]) -> NsqdProcess:
    return nsqds[1]


@pytest.fixture
def two(nsqds: list[NsqdProcess]) -> NsqdProcess:
    return nsqds[2]


@pytest.fixture
def topic(nsqds: list[NsqdProcess]) -> str:
    name = f"t{next(_numbers)}"
    for each in nsqds:
        each.create_channel(name, "c")
    return name


@pytest.fixture
def publish(source: NsqdProcess, topic: str) -> Callable[..., None]:
    def publish_all(*bodies: bytes) -> None:
        with Producer(source.tcp_address) as producer:
            producer.publish_many(topic, bodies)

    return publish_all


@pytest.fixture
def relay(start, source, topic):
    """Start it, from the source to the given nsqds."""

    def start_it(*flags, to):
        destinations = [f"--destination-nsqd-tcp-address={each}" for each in to]
        place = (f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={source.tcp_address}")
        return start("nsq_to_nsq", *place, *destinations, *flags)

    return start_it


@pytest.fixture
def is_idle(source, topic):
    def ask():
        stats = source.channel_stats(topic, "c")
        return stats["depth"] == stats["in_flight_count"] == stats["deferred_count"] == 0

    return ask


@pytest.fixture
def requeues(source, topic):
    return lambda: source.channel_stats(topic, "c")["requeue_count"]


def bodies_at(nsqd, topic):
    """What is in its channel, taken from it."""
    count = nsqd.channel_stats(topic, "c")["depth"]
    bodies = []
    with Consumer(topic, "c", lambda message: bodies.append(message.body), nsqd_tcp_addresses=nsqd.tcp_address):
        wait_until(lambda: len(bodies) == count)
    return bodies


def test_every_message_goes_to_one_destination_and_is_finished(relay, publish, one, two, topic, is_idle):
    bodies = [b"%d" % number for number in range(2000)]
    publish(*bodies)
    relay("--mode=round-robin", to=[one.tcp_address, two.tcp_address])
    wait_until(is_idle)
    at_one, at_two = bodies_at(one, topic), bodies_at(two, topic)
    assert Counter(at_one + at_two) == Counter(bodies)
    assert len(at_one) == len(at_two) == 1000


def test_messages_can_go_to_another_topic(relay, publish, one, topic, is_idle):
    one.create_channel(f"{topic}.copy", "c")
    publish(b"\xff\0")
    relay(f"--destination-topic={topic}.copy", to=[one.tcp_address])
    wait_until(is_idle)
    assert bodies_at(one, f"{topic}.copy") == [b"\xff\0"]


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy"])
def test_a_destination_that_is_down_does_not_affect_others(relay, publish, one, topic, is_idle, requeues, mode):
    bodies = [b"%d" % number for number in range(300)]
    publish(*bodies)
    process = relay(f"--mode={mode}", to=["127.0.0.1:1", one.tcp_address])
    wait_until(is_idle)
    assert Counter(bodies_at(one, topic)) == Counter(bodies)
    assert requeues() == 0
    process.terminate()
    assert " to 127.0.0.1:1: " in process.communicate(timeout=20)[1]


def test_a_message_that_one_destination_refuses_goes_to_another(relay, publish, one, two, topic, is_idle):
    publish(b"x" * 1000, b"small")
    relay("--mode=round-robin", to=[one.tcp_address, two.tcp_address])
    wait_until(is_idle)
    assert b"x" * 1000 in bodies_at(one, topic)
    bodies_at(two, topic)


def test_no_message_is_finished_before_a_destination_has_it(relay, publish, two, topic, is_idle, requeues):
    publish(b"x" * 1000)
    options = ("--consumer-opt=default_requeue_delay,0s", "--consumer-opt=max_backoff_duration,0s")
    relay(*options, to=[two.tcp_address])
    wait_until(lambda: requeues() > 10)  # more often than go-nsq's max_attempts
    assert not is_idle()


def test_only_wanted_messages_and_fields_pass(relay, publish, one, topic, is_idle):
    publish(b'{"b":1.0,"a":"x","c":[]}', b'{"a":"y"}', b'{"b":2}', b"null")
    flags = ("--require-json-field=a", "--require-json-value=x", "--whitelist-json-field=a", "--whitelist-json-field=b")
    relay(*flags, to=[one.tcp_address])
    wait_until(is_idle)
    assert bodies_at(one, topic) == [b'{"a":"x","b":1}']


def test_messages_that_are_not_json_are_kept(relay, publish, source, one, topic, requeues):
    publish(b"no json", b'{"a":1}')
    process = relay("--require-json-field=a", "--mode=hostpool", to=[one.tcp_address])
    wait_until(lambda: source.channel_stats(topic, "c")["deferred_count"] == 1)
    wait_until(lambda: one.channel_stats(topic, "c")["depth"] == 1)
    assert requeues() == 1
    process.terminate()
    assert "Unable to decode json: b'no json'" in process.communicate(timeout=20)[1]
    assert bodies_at(one, topic) == [b'{"a":1}']


@pytest.mark.parametrize(("flag", "passed"), [("--non-json=drop", []), ("--non-json=pass", [b"no json"])])
def test_messages_that_are_not_json_follow_the_option(relay, publish, one, topic, is_idle, flag, passed):
    publish(b"no json")
    relay("--whitelist-json-field=a", flag, to=[one.tcp_address])
    wait_until(is_idle)
    assert bodies_at(one, topic) == passed


def test_client_options_apply_to_both_ends(relay, source, one, topic):
    relay("--consumer-opt=client_id,reads", "--producer-opt=client_id,writes", to=[one.tcp_address])
    wait_until(lambda: source.channel_stats(topic, "c")["clients"])
    (client,) = source.channel_stats(topic, "c")["clients"]
    assert client["client_id"] == "reads"
    assert client["user_agent"].startswith("nsq_to_nsq/")
    with Producer(source.tcp_address) as producer:
        producer.publish(topic, b"x")
    wait_until(lambda: "writes" in {each["client_id"] for each in producers_of(one)})


def producers_of(nsqd):
    with urlopen(f"http://{nsqd.http_address}/stats?format=json", timeout=10) as response:
        return json.load(response)["producers"] or []  # null before the first


def test_timings_are_printed_and_a_signal_ends_it(relay, publish, one, two, is_idle):
    publish(*[b"x"] * 202)
    process = relay("--mode=round-robin", "--status-every=100", to=[one.tcp_address, two.tcp_address])
    wait_until(is_idle)
    process.terminate()
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert log.count("[aggregate]: finished 100 - 99th: ") == 2
    assert log.count(f"[{two.tcp_address}]: finished 100 - 99th: ") == 1
    assert "\r" not in log


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "--topic and --channel are required"),
        (["--topic=a b"], "--topic is invalid"),
        (["--topic=t", "--destination-topic=a b"], "--destination-topic is invalid"),
        (["--topic=t", "--channel=a b"], "--channel is invalid"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        (["--topic=t", "--nsqd-tcp-address=h:1"], "--destination-nsqd-tcp-address required"),
        (["--topic=t", "--nsqd-tcp-address=h:1", "--destination-nsqd-tcp-address=h"], "h"),
        (["--topic=t", "--mode=all"], "must be one of round-robin, hostpool, epsilon-greedy"),
        (["--topic=t", "--non-json=lose"], "must be one of requeue, pass, drop"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(start, flags, complaint):
    process = start("nsq_to_nsq", *flags)
    _, log = process.communicate(timeout=20)
    assert complaint in log
    assert "Traceback" not in log
    assert process.returncode in (1, 2)


def test_a_kill_loses_no_message(relay, publish, one, topic, is_idle):
    bodies = [b"%d" % number for number in range(3000)]
    publish(*bodies)
    first = relay("--max-in-flight=20", "--consumer-opt=msg_timeout,1s", to=[one.tcp_address])
    wait_until(lambda: one.channel_stats(topic, "c")["depth"] > 100)
    first.kill()
    first.wait()
    relay(to=[one.tcp_address])
    wait_until(is_idle)
    assert set(bodies_at(one, topic)) == set(bodies)


def test_a_destination_that_restarts_has_all_messages(relay, publish, source, topic, is_idle, tmp_path):
    destination = NsqdProcess(installed_nsqd(), tmp_path)
    with destination:
        destination.create_channel(topic, "c")
        bodies = [b"%d" % number for number in range(3000)]
        publish(*bodies)
        options = ("--consumer-opt=default_requeue_delay,100ms", "--consumer-opt=backoff_multiplier,100ms")
        relay("--max-in-flight=20", *options, to=[destination.tcp_address])
        wait_until(lambda: destination.channel_stats(topic, "c")["depth"] > 100)
        destination.kill()
        wait_until(lambda: source.channel_stats(topic, "c")["requeue_count"] > 0)
        destination.start()
        wait_until(is_idle)
        assert set(bodies_at(destination, topic)) == set(bodies)
