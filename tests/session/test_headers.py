"""Messages with headers: negotiated, published, delivered, and taken off for clients that did not ask."""

import json

import pytest

from nsq_compat.log.data_path import NotMirrored
from nsq_compat.protocol import schema
from nsq_compat.protocol.commands import COMMANDS
from nsq_compat.session.client_roles import failed
from tests.v2_client import ERROR, MESSAGE, hmpub, hpub, mpub, payload, pub, sized, split_frames

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "content-type": "text/plain"}


@pytest.fixture
def producer(nsqd):
    return nsqd.connect().asks_for_headers()


def received(client):
    return [(message.body, message.headers) for message in client.received]


# --- Negotiation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"nsq_compat": {}},
        {"nsq_compat": {"headers": False}},
        {"nsq_compat": {"headers": "yes"}},
        {"nsq_compat": {"other": True}},
        {"nsq_compat": {"ids": True}},
        {"nsq_compat": True},
        {"nsq_compat": None},
        {"headers": True},
    ],
)
def test_a_client_that_does_not_ask_is_answered_as_ever(nsqd, asked):
    before, client = nsqd.connect(), nsqd.connect()
    before.identifies(feature_negotiation=True)
    client.identifies(feature_negotiation=True, **asked)
    assert client.bytes_heard == before.bytes_heard
    assert b"nsq_compat" not in client.bytes_heard


def test_a_client_that_asks_is_told(client):
    client.identifies(feature_negotiation=True, nsq_compat={"headers": True})
    assert json.loads(client.hears_anything()[0].data)["nsq_compat"] == {"headers": True}


def test_headers_are_not_granted_to_a_client_that_cannot_be_told(client):
    client.identifies(nsq_compat={"headers": True}).hears(b"OK")
    client.says(b"HPUB t\n").hears(b"E_INVALID invalid command HPUB").and_is_closed()


def test_another_identify_ends_headers(client):
    client.asks_for_headers().identifies(feature_negotiation=True).hears_anything()
    client.says(b"HMPUB t\n").hears(b"E_INVALID invalid command HMPUB").and_is_closed()


@pytest.mark.parametrize("line", [b"HPUB t\n", b"HPUB\n", b"HPUB bad!\n", b"HPUB t x\n", b"HMPUB t\n", b"HMPUB\n"])
def test_without_headers_the_commands_do_not_exist(client, line):
    name = line.split()[0]
    client.says(line).hears(b"E_INVALID invalid command " + name).and_is_closed()


# --- Publishing and delivery ------------------------------------------------------------------------------------------


def test_headers_reach_a_consumer_that_asked_and_only_the_body_others(nsqd, producer):
    asked = nsqd.connect().asks_for_headers().subscribes(channel=b"asked", ready=10)
    other = nsqd.connect().subscribes(channel=b"other", ready=10)
    producer.says(hpub(b"body", HEADERS)).hears(b"OK")
    assert received(asked) == [(b"body", HEADERS)]
    assert received(other) == [(b"body", None)]
    assert asked.received[0][:3] == other.received[0][:3]  # time, attempts and id


def test_both_kinds_of_consumers_share_a_channel(nsqd, producer):
    asked, other = nsqd.connect().asks_for_headers().subscribes(ready=1), nsqd.connect().subscribes(ready=1)
    producer.says(hpub(b"1", HEADERS), hpub(b"2", HEADERS)).hears(b"OK", b"OK")
    assert {message.headers is None for client in (asked, other) for message in client.received} == {True, False}
    assert received(other)[0][1] is None


def test_a_message_without_headers_is_the_same_to_all(nsqd, producer):
    asked, other = nsqd.connect().asks_for_headers().subscribes(ready=9), nsqd.connect().subscribes(ready=9)
    producer.says(hpub(b"with", HEADERS), hpub(b"none", {}), pub(b"ordinary")).hears(b"OK", b"OK", b"OK")
    assert sorted(received(asked) + received(other)) in (
        [(b"none", None), (b"ordinary", None), (b"with", HEADERS)],
        [(b"none", None), (b"ordinary", None), (b"with", None)],
    )


def test_hmpub_publishes_each_message_with_its_own_headers(nsqd, producer):
    consumer = nsqd.connect().asks_for_headers().subscribes(ready=10)
    producer.says(hmpub([(b"1", {"a": "x"}), (b"2", {}), (b"3", {"b": "\tÄ ", "c": ""})])).hears(b"OK")
    assert received(consumer) == [(b"1", {"a": "x"}), (b"2", None), (b"3", {"b": "\tÄ ", "c": ""})]


def test_a_large_hmpub_is_published_in_steps(nsqd, producer):
    consumer = nsqd.connect().asks_for_headers().subscribes(ready=2500)
    messages = [(b"%d" % number, {"n": str(number)} if number % 2 else {}) for number in range(5000)]
    producer.says(hmpub(messages) + pub(b"behind")).hears(b"OK", b"OK")
    assert consumer.bodies() == [body for body, _ in messages[:2500]]
    assert [message.headers or {} for message in consumer.received] == [headers for _, headers in messages[:2500]]
    assert nsqd.broker.topics["t"].message_count == 5001


def test_a_large_hmpub_with_a_mistake_publishes_nothing(nsqd, producer):
    messages = [(b"%d" % number, {"n": "1"}) for number in range(5000)]
    messages[4999] = (b"last", {"n m": "1"})
    producer.says(hmpub(messages)).hears(
        b'E_BAD_MESSAGE HMPUB invalid header name "n m", 1 to 128 token characters'
    ).and_is_closed()
    assert nsqd.broker.topics["t"].message_count == 0


def test_names_become_lower_case(nsqd, producer):
    consumer = nsqd.connect().asks_for_headers().subscribes(ready=10)
    producer.says(hpub(b"m", {"TraceParent": "V", "X~y": "2"})).hears(b"OK")
    assert received(consumer) == [(b"m", {"traceparent": "V", "x~y": "2"})]


def test_a_deferred_message_keeps_its_headers(nsqd, producer):
    consumer = nsqd.connect().asks_for_headers().subscribes(ready=10)
    producer.says(hpub(b"later", HEADERS, b"t", b"5000")).hears(b"OK")
    nsqd.waits(4.9)
    consumer.hears()
    nsqd.waits(0.2)
    assert received(consumer) == [(b"later", HEADERS)]


def test_a_requeued_message_keeps_its_headers(nsqd, producer):
    consumer = nsqd.connect().asks_for_headers().subscribes(ready=1)
    producer.says(hpub(b"m", HEADERS)).hears(b"OK")
    consumer.says(b"REQ %b 0\n" % consumer.id_of(b"m"))
    for _ in range(3):  # and a timeout
        nsqd.waits(25)
        consumer.says(b"NOP\n")
    assert [(each.attempts, each.headers) for each in consumer.received] == [(n, HEADERS) for n in (1, 2, 3)]


def test_a_consumer_that_was_there_before_the_first_header_is_spared_it(nsqd, producer):
    consumer = nsqd.connect().subscribes(ready=10)
    producer.says(pub(b"before")).hears(b"OK")
    assert not consumer.session.subscription._is_examined
    producer.says(hpub(b"m", HEADERS)).hears(b"OK")
    assert received(consumer) == [(b"before", None), (b"m", None)]


@pytest.mark.parametrize("setting", [{"sample_rate": 99}, {}])
def test_sampling_and_tracing_do_not_bring_headers_back(nsqd, producer, setting):
    consumer = nsqd.connect().identifies(**setting)
    consumer.hears_anything()
    consumer.subscribes(ready=200)
    consumer.session.trace(True)
    producer.says(hmpub([(b"%d" % number, HEADERS) for number in range(150)])).hears(b"OK")
    consumer.session.trace(False)
    producer.says(hpub(b"last", HEADERS)).hears(b"OK")
    assert consumer.received
    assert {message.headers for message in consumer.received} == {None}


def test_an_ephemeral_topic_has_headers(nsqd, producer):
    asked = nsqd.connect().asks_for_headers().subscribes(b"t#ephemeral", b"a#ephemeral", ready=1)
    other = nsqd.connect().subscribes(b"t#ephemeral", b"b#ephemeral", ready=1)
    producer.says(hpub(b"m", HEADERS, b"t#ephemeral")).hears(b"OK")
    assert received(asked) + received(other) == [(b"m", HEADERS), (b"m", None)]


def test_messages_count_with_their_headers_in_bytes(nsqd, producer):
    producer.says(hpub(b"body", {"a": "b"}), hpub(b"body", {})).hears(b"OK", b"OK")
    assert nsqd.broker.topics["t"].message_bytes == len(payload(b"body", {"a": "b"})) + 4


# --- A client that does not ask hears the same bytes as without headers -----------------------------------------------


def conversation(make_nsqd, with_headers):
    """The bytes that ordinary clients hear of a topic, some of the messages of which may have headers."""
    nsqd = make_nsqd()
    producer, consumer = nsqd.connect(), nsqd.connect().subscribes(ready=3)
    publisher = nsqd.connect().asks_for_headers()
    for number in range(12):
        body = b"%d" % number * (number * 7 + 1)
        publisher.says(hpub(body, HEADERS) if with_headers else pub(body)).hears(b"OK")
        producer.says(pub(body), mpub([body] * 5), mpub([body, b"x" + body])).hears(b"OK", b"OK", b"OK")
        while consumer.received and nsqd.broker.topics["t"].channels["c"].depth:
            message = consumer.received.pop(0)
            consumer.says(b"FIN %b\n" % message.id if len(message.body) % 3 else b"REQ %b 0\n" % message.id)
            if len(consumer.bytes_heard) > 1 << 16:
                break
    nsqd.waits(200)
    return producer.bytes_heard, consumer.bytes_heard


def test_a_client_that_does_not_ask_hears_what_it_would_hear_without_headers(make_nsqd):
    assert conversation(make_nsqd, True) == conversation(make_nsqd, False)


# --- Refusals ---------------------------------------------------------------------------------------------------------


def block(*pairs):
    joined = b"".join(bytes([len(name)]) + name + len(value).to_bytes(2, "big") + value for name, value in pairs)
    return len(joined).to_bytes(2, "big") + joined


TOO_MANY = [(b"n%d" % number, b"") for number in range(schema.MAX_HEADERS + 1)]
MISTAKES = {
    b"": b"HPUB invalid message body size 0",
    b"\0": b"HPUB the message is shorter than the size of its header block",
    b"\0\0": b"HPUB invalid message body size 0",
    block((b"a", b"b")): b"HPUB invalid message body size 0",
    b"\0\5ab": b"HPUB the header block of 5 bytes is longer than the message",
    b"\0\1\0body": b"HPUB the header block ends within a header",
    b"\0\3\1a\0body": b"HPUB the header block ends within a header",
    b"\0\4\1a\0\1body": b"HPUB the header block ends within a header",
    b"\0\4\2a\0\0body": b"HPUB the header block ends within a header",
    block((b"", b"b")) + b"m": b'HPUB invalid header name "", 1 to 128 token characters',
    block((b"a:", b"b")) + b"m": b'HPUB invalid header name "a:", 1 to 128 token characters',
    block((b"\xc3\xa4", b"b")) + b"m": 'HPUB invalid header name "ä", 1 to 128 token characters'.encode(),
    block((b"n" * 129, b"b")) + b"m": b'HPUB invalid header name "%b", 1 to 128 token characters' % (b"n" * 40),
    block((b"a", b"b"), (b"A", b"c")) + b"m": b"HPUB the header a is there twice",
    block((b"a", b"\xff")) + b"m": b"HPUB the value of header a is not UTF-8",
    block((b"a", b"\n")) + b"m": b"HPUB the value of header a has a control character",
    block((b"a", b"\xc2\x85")) + b"m": b"HPUB the value of header a has a control character",
    block((b"a", b"x" * 8193)) + b"m": b"HPUB the value of header a has 8193 bytes, 8192 are allowed",
    block((b"a", b"x" * 8192), (b"b", b"x" * 8192)) + b"m": (
        b"HPUB a header block of 16392 bytes is too long, 16384 are allowed"
    ),
    block(*TOO_MANY) + b"m": b"HPUB a message may have at most 64 headers",
}


@pytest.mark.parametrize("body", MISTAKES)
def test_invalid_headers_are_refused(nsqd, producer, body):
    producer.says(b"HPUB t\n" + sized(body)).hears(b"E_BAD_MESSAGE " + MISTAKES[body]).and_is_closed()
    assert "t" not in nsqd.broker.topics or nsqd.broker.topics["t"].message_count == 0


def test_the_largest_headers_pass(nsqd, producer):
    consumer = nsqd.connect().asks_for_headers().subscribes(ready=10)
    largest = {"n" * 128: "x" * 8192, **{f"n{number}": "" for number in range(63)}}
    producer.says(hpub(b"m", largest)).hears(b"OK")
    assert received(consumer) == [(b"m", largest)]


def test_the_size_of_a_message_includes_its_headers(make_nsqd):
    producer = make_nsqd(max_msg_size=100).connect().asks_for_headers()
    fits = {"a": "x" * (100 - len(payload(b"body", {"a": ""})))}
    producer.says(hpub(b"body", fits), hmpub([(b"body", fits)])).hears(b"OK", b"OK")
    producer.says(hpub(b"body!", fits)).hears(b"E_BAD_MESSAGE HPUB message too big 101 > 100").and_is_closed()


BATCH_MISTAKES = {
    b"\0\0\0": b"E_BAD_BODY HMPUB invalid message count 0",
    b"\0\0\0\0": b"E_BAD_BODY HMPUB invalid message count 0",
    b"\xff\xff\xff\xff": b"E_BAD_BODY HMPUB invalid message count -1",
    b"\0\0\0\1": b"E_BAD_BODY HMPUB invalid message(0) body size 0",
    b"\0\0\0\1" + sized(b""): b"E_BAD_BODY HMPUB invalid message(0) body size 0",
    b"\0\0\0\2" + sized(payload(b"m", {})): b"E_BAD_BODY HMPUB invalid message(1) body size 0",
    b"\0\0\0\1" + sized(payload(b"m", {})) + b"x": b"E_BAD_BODY HMPUB has 1 bytes after its last message",
    b"\0\0\0\1" + sized(b"x" * 101): b"E_BAD_BODY HMPUB message too big 101 > 100",
    b"\0\0\0\1" + sized(b"\0\0"): b"E_BAD_MESSAGE HMPUB invalid message body size 0",
}


@pytest.mark.parametrize("body", BATCH_MISTAKES)
def test_an_invalid_batch_is_refused(make_nsqd, body):
    producer = make_nsqd(max_msg_size=100).connect().asks_for_headers()
    producer.says(b"HMPUB t\n" + sized(body)).hears(BATCH_MISTAKES[body]).and_is_closed()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"HPUB\n", b"E_INVALID HPUB insufficient number of parameters"),
        (b"HPUB bad!\n", b'E_BAD_TOPIC HPUB topic name "bad!" is not valid'),
        (b"HPUB t x\n", b"E_INVALID HPUB could not parse timeout x"),
        (b"HPUB t 3600001\n", b"E_INVALID HPUB timeout 3600001 out of range 0-3600000"),
        (b"HMPUB bad!\n", b'E_BAD_TOPIC HMPUB topic name "bad!" is not valid'),
        (b"HMPUB t\n" + b"\x7f\xff\xff\xff", b"E_BAD_BODY HMPUB body too big 2147483647 > 5242880"),
    ],
)
def test_the_errors_of_a_line_are_in_nsqs_words(producer, line, error):
    producer.says(line).hears(error).and_is_closed()


def test_the_frames_are_the_declared_ones(nsqd, producer):
    consumer = nsqd.connect().asks_for_headers().subscribes(ready=1)
    producer.says(hpub(b"body", {"a": "b"})).hears(b"OK")
    (frame,) = (frame for frame in split_frames(consumer.bytes_heard)[0] if frame.type not in (0, ERROR, MESSAGE))
    parsed = schema.MESSAGE_FRAME_WITH_HEADERS.parse(sized(frame.type.to_bytes(4, "big") + frame.data))
    assert [(each.name, each.value) for each in parsed.payload.headers] == [(b"a", b"b")]
    assert (parsed.payload.body, parsed.attempts) == (b"body", 1)


def test_a_message_that_the_standby_does_not_have_is_refused_with_a_code_of_its_own():
    error = NotMirrored("the standby s:1 is not in sync")
    texts = [failed(COMMANDS[name], error).data for name in (b"HPUB", b"HMPUB", b"PUB")]
    assert texts == [
        b"E_NOT_MIRRORED HPUB failed the standby s:1 is not in sync",
        b"E_NOT_MIRRORED HMPUB failed the standby s:1 is not in sync",
        b"E_PUB_FAILED PUB failed the standby s:1 is not in sync",
    ]
