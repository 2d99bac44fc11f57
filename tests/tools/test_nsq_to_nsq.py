"""nsq_to_nsq between real nsqds; which JSON messages pass, and what is left of them, byte for byte as Go writes it."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.client import Consumer, LogReader, Producer
from nsq_compat.protocol.go_json import JsonError
from nsq_compat.tools.nsq_to_nsq import JsonFilter
from nsq_conformance.nsqd_process import installed_nsqd
from tests.client.fake_nsqd import FakeNsqd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd


@pytest.fixture(scope="module")
def destinations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nsqd, Nsqd]]:
    """The second one takes no large messages."""
    with (
        Nsqd(installed_nsqd(), tmp_path_factory.mktemp("one")) as one,
        Nsqd(installed_nsqd(), tmp_path_factory.mktemp("two"), options=("--max-msg-size=100",)) as two,
    ):
        yield one, two


@pytest.fixture
def one(destinations, topic):
    destinations[0].create_channel(topic, "c")
    return destinations[0]


@pytest.fixture
def two(destinations, topic):
    destinations[1].create_channel(topic, "c")
    return destinations[1]


@pytest.fixture
def relay(start, nsqd, topic):
    """Start it, from the shared nsqd to the given addresses."""

    def start_it(*flags, to):
        addresses = [f"--destination-nsqd-tcp-address={each}" for each in to]
        place = (f"--topic={topic}", "--channel=c", f"--nsqd-tcp-address={nsqd.tcp_address}")
        return start("nsq_to_nsq", *place, *addresses, *flags)

    return start_it


def bodies_at(nsqd, topic):
    """What is in its channel, taken from it."""
    count = nsqd.stat(topic, "depth")
    bodies = []
    place = {"nsqd_tcp_addresses": nsqd.tcp_address, "max_in_flight": 200}
    with Consumer(topic, "c", lambda message: bodies.append(message.body), **place):
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


def test_a_new_channel_begins_where_it_should(relay, publish, nsqd, one, topic):
    publish(*[b"%d" % number for number in range(10)])
    flags = ("--channel=new", "--from=6", f"--nsqd-http-address={nsqd.http_address}")
    relay(*flags, to=[one.tcp_address])
    wait_until(lambda: one.stat(topic, "depth") == 4)
    assert sorted(bodies_at(one, topic)) == [b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy"])
def test_a_destination_that_is_down_does_not_affect_others(relay, publish, one, topic, is_idle, stat, mode):
    bodies = [b"%d" % number for number in range(300)]
    publish(*bodies)
    process = relay(f"--mode={mode}", to=["127.0.0.1:1", one.tcp_address])
    wait_until(is_idle)
    assert Counter(bodies_at(one, topic)) == Counter(bodies)
    assert stat("requeue_count") == 0
    process.terminate()
    assert " to 127.0.0.1:1: " in process.communicate(timeout=20)[1]


def test_a_message_that_one_destination_refuses_goes_to_another(relay, publish, one, two, topic, is_idle):
    publish(b"x" * 1000, b"small")
    relay("--mode=round-robin", to=[one.tcp_address, two.tcp_address])
    wait_until(is_idle)
    assert b"x" * 1000 in bodies_at(one, topic)
    bodies_at(two, topic)


def test_no_message_is_finished_before_a_destination_has_it(relay, publish, two, topic, is_idle, stat):
    publish(b"x" * 1000)
    options = ("--consumer-opt=default_requeue_delay,0s", "--consumer-opt=max_backoff_duration,0s")
    relay(*options, to=[two.tcp_address])
    wait_until(lambda: stat("requeue_count") > 10)  # more often than go-nsq's max_attempts
    assert not is_idle()


def test_only_wanted_messages_and_fields_pass(relay, publish, one, topic, is_idle):
    publish(b'{"b":1.0,"a":"x","c":[]}', b'{"a":"y"}', b'{"b":2}', b"null")
    flags = ("--require-json-field=a", "--require-json-value=x", "--whitelist-json-field=a", "--whitelist-json-field=b")
    relay(*flags, to=[one.tcp_address])
    wait_until(is_idle)
    assert bodies_at(one, topic) == [b'{"a":"x","b":1}']


def test_messages_that_are_not_json_are_kept(relay, publish, nsqd, one, topic, stat):
    publish(b"no json", b'{"a":1}')
    process = relay("--require-json-field=a", "--mode=hostpool", to=[one.tcp_address])
    wait_until(lambda: nsqd.stat(topic, "deferred_count") == 1)
    wait_until(lambda: one.stat(topic, "depth") == 1)
    assert stat("requeue_count") == 1
    process.terminate()
    assert "Unable to decode json: b'no json'" in process.communicate(timeout=20)[1]
    assert bodies_at(one, topic) == [b'{"a":1}']


@pytest.mark.parametrize(("flag", "passed"), [("--non-json=drop", []), ("--non-json=pass", [b"no json"])])
def test_messages_that_are_not_json_follow_the_option(relay, publish, one, topic, is_idle, flag, passed):
    publish(b"no json")
    relay("--whitelist-json-field=a", flag, to=[one.tcp_address])
    wait_until(is_idle)
    assert bodies_at(one, topic) == passed


def test_client_options_apply_to_both_ends(relay, nsqd, one, topic):
    relay("--consumer-opt=client_id,reads", "--producer-opt=client_id,writes", to=[one.tcp_address])
    wait_until(lambda: nsqd.channel_stats(topic, "c")["clients"])
    (client,) = nsqd.channel_stats(topic, "c")["clients"]
    assert client["client_id"] == "reads"
    assert client["user_agent"].startswith("nsq_to_nsq/")
    nsqd.publish(topic, b"x")
    # null before the first
    wait_until(lambda: "writes" in {each["client_id"] for each in one.stats_document()["producers"] or ()})


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


def test_a_kill_loses_no_message(relay, publish, one, topic, is_idle):
    bodies = [b"%d" % number for number in range(3000)]
    publish(*bodies)
    first = relay("--max-in-flight=20", "--consumer-opt=msg_timeout,1s", to=[one.tcp_address])
    wait_until(lambda: one.stat(topic, "depth") > 100)
    first.kill()
    first.wait()
    relay(to=[one.tcp_address])
    wait_until(is_idle)
    assert set(bodies_at(one, topic)) == set(bodies)


def test_a_destination_that_restarts_has_all_messages(relay, publish, nsqd, topic, is_idle, tmp_path):
    destination = Nsqd(installed_nsqd(), tmp_path)
    with destination:
        destination.create_channel(topic, "c")
        bodies = [b"%d" % number for number in range(3000)]
        publish(*bodies)
        options = ("--consumer-opt=default_requeue_delay,100ms", "--consumer-opt=backoff_multiplier,100ms")
        relay("--max-in-flight=20", *options, to=[destination.tcp_address])
        wait_until(lambda: destination.stat(topic, "depth") > 100)
        destination.kill()
        wait_until(lambda: nsqd.stat(topic, "requeue_count") > 0)
        destination.start()
        wait_until(is_idle)
        assert set(bodies_at(destination, topic)) == set(bodies)


# --- Filtering JSON ---------------------------------------------------------------------------------------------------


def test_without_conditions_messages_are_not_parsed():
    assert not JsonFilter()
    assert JsonFilter().apply(b"\xff") == b"\xff"


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b'"a"', b"1", b"{} {}", b'{"a":NaN}', b'{"a":1e400}', b"\xef\xbb\xbf{}"]
)
def test_other_values_than_json_objects_are_refused(body):
    with pytest.raises(JsonError):
        JsonFilter("a").apply(body)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"])
def test_deep_nesting_is_refused(body):
    with suppress(JsonError):
        JsonFilter("a", fields=["a"]).apply(body)


@pytest.mark.parametrize(
    ("body", "passes"),
    [(b'{"a":1}', True), (b'{"a":null}', True), (b'{"A":1}', False), (b"{}", False), (b"null", False)],
)
def test_a_required_field_must_be_present(body, passes):
    assert JsonFilter("a").apply(body) == (body if passes else None)


@pytest.mark.parametrize(
    ("wanted", "value", "passes"),
    [
        ("x", '"x"', True),
        ("x", '"y"', False),
        ("5", "5", True),
        ("5.0", "5", True),
        ("5", "5.0", True),
        ("5", '"5"', True),
        ("5.0", '"5"', False),
        ("x", "5", False),
        ("nan", "5", False),
        ("9007199254740993", "9007199254740992", True),
        ("true", "true", True),
        ("true", '"true"', True),
        ("false", "true", False),
        ("1", "true", False),
        ("null", "null", False),
        ("5", "null", False),
        ("5", "[5]", False),
        ("5", '{"a":5}', False),
        ("\ufffd", '"\\ud800"', True),
    ],
)
def test_a_required_value_must_be_equal(wanted, value, passes):
    body = f'{{"a":{value}}}'.encode()
    assert JsonFilter("a", wanted).apply(body) == (body if passes else None)


def test_a_message_without_the_field_does_not_have_the_value():
    assert JsonFilter("a", "x").apply(b"{}") is None


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"b":1, "a":"x", "c":2}', b'{"a":"x","b":1}'),
        (b'{"c":2}', b"{}"),
        (b"null", b"{}"),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":"<&>\\u2028"}', b'{"a":"\\u003c\\u0026\\u003e\\u2028"}'),
        (b'{"a":9007199254740993,"b":1e30}', b'{"a":9007199254740992,"b":1e+30}'),
        (b'{"a":-0.0,"b":1.50}', b'{"a":0,"b":1.5}'),
        (
            b'{"a":4611686018427387904,"b":[4611686018427387904]}',
            b'{"a":4611686018427387904,"b":[4611686018427388000]}',
        ),
        (b'{"a":{"z":-0.0,"b":[true,null,1.0]}}', b'{"a":{"b":[true,null,1],"z":-0}}'),
        (b'{"a":"\xff\\ud800"}', '{"a":"\ufffd\ufffd"}'.encode()),
        ('{"a":"é\\ud83d\\ude00"}'.encode(), '{"a":"é\N{GRINNING FACE}"}'.encode()),
        (b'{"a":1e-7}', b'{"a":1e-7}'),
    ],
)
def test_only_the_listed_fields_pass_as_go_writes_them(body, left):
    assert JsonFilter(fields=["b", "a", "a"]).apply(body) == left


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_filtered_fields_keep_their_values(members):
    left = JsonFilter(fields=list(members)).apply(json.dumps(members).encode())
    assert json.loads(left or b"{}", parse_int=float) == members


@given(st.binary(max_size=40))
def test_any_bytes_pass_or_are_dropped_or_are_not_json(body):
    with suppress(JsonError):
        JsonFilter("a", "1", ["a"]).apply(body)


def test_headers_are_relayed_to_an_nsqd_that_takes_them(nsqd, topic, one, relay):
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"with", headers={"a": "b", "nsq-id": "1"})
    relay(to=[one.tcp_address])
    wait_until(lambda: one.stat(topic, "depth") == 1)
    with LogReader(topic, nsqd_http_addresses=one.http_address) as reader:
        assert [(message.body, dict(message.headers)) for message in reader] == [(b"with", {"a": "b", "nsq-id": "1"})]


def test_an_nsqd_that_does_not_take_headers_gets_bodies(nsqd, topic, relay):
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, [b"1", b"2"], headers=[{"a": "b"}, {}])
    with closing(FakeNsqd()) as other:
        relay(to=[other.address])
        wait_until(lambda: {b"1", b"2"} <= {body for peer in other.peers for body in peer.bodies})
        wait_until(lambda: nsqd.unfinished(topic) == 0)
