"""Spans of OpenTelemetry, for both forms of the client."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

from nsq_compat.client import aio, publishing
from nsq_compat.client.batching import Closed
from nsq_compat.client.consumer import Consumer as ThreadedConsumer
from nsq_compat.client.message import Message
from nsq_compat.client.nodes import Refused
from nsq_compat.client.producer import Producer as ThreadedProducer
from nsq_compat.protocol.frames import error_frame
from tests.client.on_loop import LoopConsumer, LoopProducer, end_loops
from tests.client.spans import Spans, context_of, links_of, parent_of, traceparent
from tests.client.waiting import Keeping, wait_until

Consumer, Producer = ThreadedConsumer, ThreadedProducer
"""The kinds that are tested."""

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN_CONTEXT = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.fixture(
    params=[(ThreadedConsumer, ThreadedProducer), (LoopConsumer, LoopProducer)],
    ids=["threads", "asyncio"],
    autouse=True,
)
def _kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, kind in zip(("Consumer", "Producer"), request.param, strict=True):
        monkeypatch.setattr(sys.modules[__name__], name, kind)
    yield
    end_loops()


@pytest.fixture
def spans() -> Spans:
    return Spans()


def consuming(topic, handler, address, spans, channel="c", **options):
    options = {"max_in_flight": 10, "requeue_delay": 0, "backoff": False, **options}
    return Consumer(topic, channel, handler, nsqd_tcp_addresses=address, tracing=spans.provider, **options)


def producing(address, spans, **options):
    return Producer(address, tracing=spans.provider, **options)


# --- From a producer to consumers -------------------------------------------------------------------------------------


def test_a_message_takes_its_trace_from_the_producer_to_each_channel(nsqd, topic, spans):
    for channel in ("c", "d"):
        nsqd.create_channel(topic, channel)
    messages: list[Message] = []
    with producing(nsqd.tcp_address, spans) as producer:
        producer.publish(topic, b"body")
    (sent,) = spans.wait_for("publish")
    for channel in ("c", "d"):
        with consuming(topic, messages.append, nsqd.tcp_address, spans, channel):
            spans.wait_for("process", "cd".index(channel) + 1)
    handled = spans.wait_for("process", 2)
    host, port = nsqd.tcp_address.rsplit(":", 1)
    common = {"messaging.system": "nsq", "messaging.destination.name": topic, "messaging.message.body.size": 4}
    common |= {"server.address": host, "server.port": int(port)}
    assert (sent.name, sent.kind) == (f"publish {topic}", SpanKind.PRODUCER)
    assert sent.attributes == common | {"messaging.operation.name": "publish", "messaging.operation.type": "send"}
    for span, channel, message in zip(handled, ("c", "d"), messages, strict=True):
        assert (span.name, span.kind) == (f"process {topic}", SpanKind.CONSUMER)
        assert span.attributes == common | {
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": channel,
            "messaging.message.id": message.id.decode(),
            "messaging.nsq.message.attempts": 1,
        }
        assert (parent_of(span), links_of(span)) == (context_of(sent), [context_of(sent)])
        assert dict(message.headers) == {"traceparent": traceparent(sent)}
        assert span.status.status_code is StatusCode.UNSET


def test_messages_that_are_published_together_have_one_span(nsqd, topic, spans):
    messages: list[Message] = []
    with (
        consuming(topic, messages.append, nsqd.tcp_address, spans),
        producing(nsqd.tcp_address, spans) as producer,
    ):
        producer.publish_many(topic, [b"one", b"three"], headers=[{}, {"key": "v"}])
        (sent,) = spans.wait_for("publish")
        handled = spans.wait_for("process", 2)
    assert sent.attributes is not None
    assert (sent.attributes["messaging.batch.message_count"], sent.attributes["messaging.message.body.size"]) == (2, 8)
    assert [parent_of(span) for span in handled] == [context_of(sent)] * 2
    context = {"traceparent": traceparent(sent)}
    assert [dict(message.headers) for message in messages] == [context, context | {"key": "v"}]


def test_a_context_that_the_program_gives_is_kept_and_linked(nsqd, topic, spans):
    messages: list[Message] = []
    with (
        consuming(topic, messages.append, nsqd.tcp_address, spans),
        producing(nsqd.tcp_address, spans) as producer,
    ):
        producer.publish(topic, b"body", headers={"Traceparent": OWN, "key": "v"})
        producer.publish(topic, b"body", headers={"traceparent": OWN})
        second = spans.wait_for("publish", 2)[1]
        handled = spans.wait_for("process", 2)
    assert [dict(message.headers) for message in messages] == [{"traceparent": OWN, "key": "v"}, {"traceparent": OWN}]
    assert links_of(second) == [OWN_CONTEXT]
    assert [parent_of(span) for span in handled] == [OWN_CONTEXT] * 2


def test_baggage_travels_with_the_message_unless_it_is_too_large(nsqd, topic, spans):
    received = []
    # A context that is not valid as headers is left out; the message is published.
    values = ["small", *(f"{number}" + "x" * 4000 for number in range(4))]
    publish = ThreadedProducer(nsqd.tcp_address, tracing=spans.provider)
    with consuming(topic, lambda message: received.append(dict(message.headers)), nsqd.tcp_address, spans), publish:
        for values_given in (values[:1], values):
            carried = context.get_current()
            for number, value in enumerate(values_given):
                carried = baggage.set_baggage(f"key{number}", value, carried)
            token = context.attach(carried)
            publish.publish(topic, b"body", headers={"large": "y" * 8192})
            context.detach(token)
        wait_until(lambda: len(received) == 2)
    assert received[0]["baggage"] == "key0=small"
    assert "large" in received[1]


def test_messages_of_an_idempotent_producer_have_an_id_and_a_context(nsqd, topic, spans):
    messages: list[Message] = []
    with (
        consuming(topic, messages.append, nsqd.tcp_address, spans),
        producing(nsqd.tcp_address, spans, idempotent=True) as producer,
    ):
        producer.publish(topic, b"one")
        producer.publish(topic, b"two", headers={"key": "v"})
        spans.wait_for("process", 2)
    sent = [traceparent(span) for span in spans("publish")]
    assert [message.headers["traceparent"] for message in messages] == sent
    assert [sorted(message.headers) for message in messages] == [
        ["nsq-id", "traceparent"],
        ["key", "nsq-id", "traceparent"],
    ]


def test_what_is_not_sampled_is_propagated_and_has_no_span(nsqd, topic):
    spans = Spans(ALWAYS_OFF)
    messages: list[Message] = []
    with (
        consuming(topic, messages.append, nsqd.tcp_address, spans),
        producing(nsqd.tcp_address, spans) as producer,
    ):
        producer.publish(topic, b"body")
        wait_until(lambda: messages)
    flags = int(messages[0].headers["traceparent"].rpartition("-")[2], 16)
    assert not flags & TraceFlags.SAMPLED
    assert spans() == []


def test_an_ephemeral_topic_is_not_in_the_names_of_spans(nsqd, topic, spans):
    messages: list[Message] = []
    name = f"{topic}#ephemeral"
    with (
        consuming(name, messages.append, nsqd.tcp_address, spans),
        producing(nsqd.tcp_address, spans) as producer,
    ):
        producer.publish(name, b"body")
        found = [*spans.wait_for("publish"), *spans.wait_for("process")]
    assert [span.name for span in found] == ["publish", "process"]
    assert all((span.attributes or {})["messaging.destination.temporary"] for span in found)


# --- Without headers --------------------------------------------------------------------------------------------------


def test_an_nsqd_without_headers_gets_messages_without_the_context(fake, spans, caplog):
    publishing._note_lost_contexts.cache_clear()
    with producing(fake.address, spans) as producer:
        for _ in range(3):
            assert producer.publish("t", b"one", timeout=20).nodes == (fake.address,)
        producer.publish_many("t", [b"two", b"three"], headers=None)
        producer.publish("t", b"four", defer=1)
        with pytest.raises(Refused, match="does not take messages with headers"):
            producer.publish("t", b"five", headers={"key": "v"})
        lines = [line for line in fake.peer.lines if not line.startswith(("IDENTIFY", "NOP"))]
    assert lines == ["PUB t", "PUB t", "PUB t", "MPUB t", "DPUB t 1000"]
    assert [body for body in fake.peer.bodies if body and not body.startswith(b"{")][:5] == [
        b"one", b"one", b"one", b"two", b"three",
    ]  # fmt: skip
    assert [line for line in caplog.messages if "without the context of their traces" in line] == [
        f"[{fake.address}] takes no headers: messages are published there without the context of their traces"
    ]
    assert len(spans("publish")) == 6


def test_a_message_without_a_context_begins_a_trace(fake, spans):
    with consuming("t", lambda message: None, fake.address, spans):
        fake.send_messages([b"one"])
        (span,) = spans.wait_for("process")
    assert (parent_of(span), links_of(span)) == (None, [])


# --- What becomes of a message ----------------------------------------------------------------------------------------


def test_a_failed_attempt_has_an_error_and_the_next_one_a_span_of_its_own(nsqd, topic, spans):
    def handle(message):
        if message.attempts == 1:
            raise LookupError("on purpose")
        return message.attempts == 3

    with (
        consuming(topic, handle, nsqd.tcp_address, spans),
        producing(nsqd.tcp_address, spans) as producer,
    ):
        producer.publish(topic, b"body")
        raised, refused, succeeded = spans.wait_for("process", 3)
        (sent,) = spans("publish")
    attributes = [span.attributes or {} for span in (raised, refused, succeeded)]
    assert [each["messaging.nsq.message.attempts"] for each in attributes] == [1, 2, 3]
    assert [each.get("error.type") for each in attributes] == ["LookupError", "returned_false", None]
    assert (raised.status.status_code, raised.status.description) == (StatusCode.ERROR, "on purpose")
    assert refused.status.status_code is StatusCode.ERROR
    assert succeeded.status.status_code is StatusCode.UNSET
    assert [[event.name for event in span.events] for span in (raised, refused, succeeded)] == [
        ["exception", "requeue"],
        ["requeue"],
        [],
    ]
    assert {parent_of(span) for span in (raised, refused, succeeded)} == {context_of(sent)}


def test_a_message_that_is_answered_later_has_a_span_until_then(fake, spans):
    messages = Keeping()
    with consuming("t", messages, fake.address, spans):
        fake.send_messages([b"one"])
        wait_until(lambda: len(messages) == 1)
        messages[0].touch()
        assert spans() == []
        messages[0].finish()
        (span,) = spans.wait_for("process")
    assert [event.name for event in span.events] == ["touch"]


def test_the_span_of_a_message_that_is_answered_later_is_current_in_its_block(fake, spans):
    messages = Keeping()
    with consuming("t", messages, fake.address, spans):
        fake.send_messages([b"one"])
        wait_until(lambda: messages)
        with messages[0].in_span():
            messages[0].finish()
            assert spans("process") == []  # it has not ended before the block
            with spans.provider.get_tracer("test").start_as_current_span("inside"):
                pass
    (inside,), (process,) = spans("inside"), spans.wait_for("process")
    assert parent_of(inside) == context_of(process)


def test_an_error_that_leaves_a_block_in_a_handler_is_recorded_once(fake, spans):
    def handle(message):
        with message.in_span():
            raise ValueError("bad order")

    with consuming("t", handle, fake.address, spans):
        fake.send_messages([b"one"])
        (span,) = spans.wait_for("process")
    assert [event.name for event in span.events] == ["exception", "requeue"]


def test_a_message_that_is_requeued_on_purpose_has_not_failed(fake, spans):
    with consuming("t", lambda message: message.requeue(delay=5, backoff=False), fake.address, spans):
        fake.send_messages([b"one"])
        (span,) = spans.wait_for("process")
    assert [event.name for event in span.events] == ["requeue"]
    assert span.status.status_code is StatusCode.UNSET


def test_giving_up_is_an_error(fake, spans):
    given_up: list[Message] = []
    with consuming("t", lambda message: None, fake.address, spans, giving_up=given_up.append, max_tries=2):
        fake.send_messages([b"one"], attempts=3)
        (span,) = spans.wait_for("process")
    assert len(given_up) == 1
    assert (span.attributes or {})["error.type"] == "max_tries"
    assert [event.name for event in span.events] == ["giving up"]


def test_an_answer_after_the_connection_was_lost_is_an_event(fake, spans):
    messages = Keeping()
    with consuming("t", messages, fake.address, spans):
        fake.send_messages([b"one"])
        wait_until(lambda: len(messages) == 1)
        fake.peer.close()
        wait_until(lambda: messages[0].is_lost)
        messages[0].finish()
        (span,) = spans.wait_for("process")
    assert [event.name for event in span.events] == ["connection lost"]


def test_a_refused_publish_has_an_error_and_each_attempt(make_nsqd, spans):
    fake = make_nsqd({"PUB": error_frame(b"E_PUB_FAILED PUB failed exiting")})
    with producing(fake.address, spans) as producer, pytest.raises(Refused):
        producer.publish("t", b"body", timeout=20)
    (span,) = spans("publish")
    assert (span.attributes or {})["error.type"] == "nsq_compat.client.nodes.Refused"
    assert span.status.status_code is StatusCode.ERROR
    *attempts, exception = span.events
    assert {event.name for event in attempts} == {"attempt failed"}
    assert (attempts[0].attributes or {})["messaging.nsq.outcome"] == "refused"
    assert exception.name == "exception"


def test_a_wrong_call_has_no_span(fake, spans):
    with producing(fake.address, spans) as producer, pytest.raises(ValueError, match="cannot be empty"):
        producer.publish("t", b"")
    assert spans() == []


# --- In the background ------------------------------------------------------------------------------------------------


def test_publishes_in_the_background_have_their_own_contexts(nsqd, topic, spans):
    messages: list[Message] = []
    with ThreadedProducer(nsqd.tcp_address, tracing=spans.provider, batch_linger=3600) as producer:
        futures = [producer.publish_async(topic, b"%d" % number) for number in range(5)]
        futures.append(producer.publish_many_async(topic, [b"5", b"6"]))
        assert spans() == []
        assert producer.flush(30)
        assert all(future.exception() is None for future in futures)
    by_context = {traceparent(span) for span in spans.wait_for("publish", 6)}
    with consuming(topic, messages.append, nsqd.tcp_address, spans):
        spans.wait_for("process", 7)
    assert {message.headers["traceparent"] for message in messages} == by_context


def test_a_publish_in_the_background_that_is_refused_has_an_error(fake, spans):
    producer = ThreadedProducer(fake.address, tracing=spans.provider, batch_linger=3600)
    cancelled, refused = producer.publish_async("t", b"one"), producer.publish_async("t", b"two", headers={"k": "v"})
    cancelled.cancel()
    producer.close()
    assert isinstance(refused.exception(), Refused)
    with pytest.raises(Closed):
        producer.publish_async("t", b"three")
    found = spans.wait_for("publish", 3)
    assert sorted(str((span.attributes or {}).get("error.type")).rpartition(".")[2] for span in found) == [
        "Closed", "None", "Refused",
    ]  # fmt: skip


# --- Turned on and off ------------------------------------------------------------------------------------------------


def test_the_global_provider_is_used_if_tracing_is_true(fake, spans, monkeypatch):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
    with Producer(fake.address, tracing=True) as producer:
        producer.publish("t", b"body")
    spans.wait_for("publish")


def test_without_a_provider_nothing_is_added_to_messages(nsqd, topic):
    messages: list[Message] = []
    with (
        Consumer(topic, "c", messages.append, nsqd_tcp_addresses=nsqd.tcp_address, tracing=True),
        Producer(nsqd.tcp_address, tracing=True) as producer,
    ):
        producer.publish(topic, b"body")
        wait_until(lambda: messages)
    assert dict(messages[0].headers) == {}


PROGRAM = """
import asyncio, sys
import nsq_compat.client as nsq
from nsq_compat.client import aio

async def publish():
    async with aio.Producer({address!r}) as producer:
        await producer.publish("t", b"body")

with nsq.Producer({address!r}) as producer, nsq.Consumer("t", "c", print, nsqd_tcp_addresses={address!r}):
    producer.publish("t", b"body")
asyncio.run(publish())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_nothing_is_imported_without_tracing(fake):
    program = [sys.executable, "-c", PROGRAM.format(address=fake.address)]
    said = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.splitlines()[-1] == "[]"


@pytest.mark.parametrize("kind", [ThreadedProducer, aio.Producer])
def test_without_the_api_the_error_says_what_to_install(kind, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "nsq_compat.client.tracing", raising=False)
    monkeypatch.delattr("nsq_compat.client.tracing", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'nsq_compat\[tracing\]'"):
        kind("127.0.0.1:4150", tracing=True)
