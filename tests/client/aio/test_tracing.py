"""What only the spans of the client on an event loop have. The others are tested for both kinds in tests/client."""

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from nsq_compat.client import aio
from tests.client.aio.waiting import send_messages, until
from tests.client.spans import Spans, context_of, links_of, parent_of, traceparent


async def test_calls_at_the_same_time_are_written_together_and_have_their_own_contexts(nsqd, topic):
    spans = Spans()
    async with aio.Producer(nsqd.tcp_address, tracing=spans.provider) as producer:
        await producer.publish(topic, b"first")
        (connection,) = producer.connections
        asked: list[bytes] = []
        ask = connection.ask

        def recording(command: bytes, deadline: float = 0.0) -> "asyncio.Future[bytes]":
            asked.append(command)
            return ask(command, deadline)

        connection.ask = recording  # type: ignore[method-assign]
        await asyncio.gather(*(producer.publish(topic, b"%d" % number) for number in range(50)))
    assert [command.partition(b" ")[0] for command in asked] == [b"HMPUB"]
    received: list[aio.Message] = []
    async with aio.Consumer(topic, "c", received.append, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=99):
        await until(lambda: len(received) == 51)
    assert {message.headers["traceparent"] for message in received} == {traceparent(span) for span in spans("publish")}
    assert len(spans("publish")) == 51


async def test_the_span_of_a_handler_is_current_in_it(fake):
    spans = Spans()
    tracer = spans.provider.get_tracer("test")

    async def handle(message: aio.Message) -> None:
        await asyncio.sleep(0)
        with tracer.start_as_current_span("inside"):
            await asyncio.sleep(0)

    with tracer.start_as_current_span("outside"):
        consumer = aio.Consumer("t", "c", handle, nsqd_tcp_addresses=fake.address, tracing=spans.provider)
        consumer.start()
    await send_messages(fake, [b"one"])
    await until(lambda: spans("process"))
    await consumer.stop()
    (inside,), (process,) = spans("inside"), spans("process")
    assert parent_of(inside) == context_of(process)
    # The span in which the consumer was started is over.
    assert parent_of(process) is None


async def test_a_message_of_an_iteration_has_a_span_until_it_is_answered(nsqd, topic):
    spans = Spans()
    async with aio.Producer(nsqd.tcp_address, tracing=spans.provider) as producer:
        await producer.publish_many(topic, [b"one", b"two"])
    (sent,) = spans("publish")
    options = {"nsqd_tcp_addresses": nsqd.tcp_address, "max_in_flight": 2, "tracing": spans.provider}
    async with aio.Consumer(topic, "c", **options) as consumer:
        message = await anext(consumer)
        assert not trace.get_current_span().get_span_context().is_valid
        assert spans("process") == []
        message.finish()
        (alone,) = spans("process")
        with spans.provider.get_tracer("test").start_as_current_span("outside") as outside:
            message = await anext(consumer)
            message.requeue(delay=9, backoff=False)
    assert (parent_of(alone), links_of(alone)) == (context_of(sent), [context_of(sent)])
    within = spans("process")[1]
    context = outside.get_span_context()
    assert (parent_of(within), links_of(within)) == ((context.trace_id, context.span_id), [context_of(sent)])
    assert [event.name for event in within.events] == ["requeue"]


async def test_the_span_of_a_message_of_an_iteration_is_current_in_its_block_only(nsqd, topic):
    spans = Spans()
    tracer = spans.provider.get_tracer("test")
    async with aio.Producer(nsqd.tcp_address, tracing=spans.provider) as producer:
        await producer.publish_many(topic, [b"one", b"two"])
    options = {"nsqd_tcp_addresses": nsqd.tcp_address, "max_in_flight": 2, "tracing": spans.provider}
    async with aio.Consumer(topic, "c", **options) as consumer:

        async def handle_one() -> None:
            async for message in consumer:
                with message.in_span():
                    await asyncio.sleep(0)
                    message.finish()
                    with tracer.start_as_current_span("inside"):
                        await asyncio.sleep(0)
                break
            assert not trace.get_current_span().get_span_context().is_valid

        await asyncio.gather(handle_one(), handle_one())
    assert {parent_of(span) for span in spans("inside")} == {context_of(span) for span in spans("process")}
    assert len(spans("process")) == len(spans("inside")) == 2


async def test_an_error_that_leaves_the_block_is_in_the_span_that_ends_with_the_answer(fake):
    spans = Spans()
    async with aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address, tracing=spans.provider) as consumer:
        await send_messages(fake, [b"one"])
        message = await anext(consumer)
        with pytest.raises(ValueError, match="bad order"), message.in_span():
            raise ValueError("bad order")
        assert spans("process") == []
        message.requeue(delay=9, backoff=False)
    (span,) = spans("process")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "bad order")
    assert [event.name for event in span.events] == ["exception", "requeue"]


async def test_without_tracing_the_block_of_a_message_has_no_span_of_its_own(fake):
    async with aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address) as consumer:
        await send_messages(fake, [b"one"])
        message = await anext(consumer)
        with message.in_span():
            assert not trace.get_current_span().get_span_context().is_valid
            message.finish()


async def test_a_cancelled_handler_has_an_error(fake):
    spans = Spans()
    begun = asyncio.Event()

    async def handle(message: aio.Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with aio.Consumer("t", "c", handle, nsqd_tcp_addresses=fake.address, tracing=spans.provider) as consumer:
        await send_messages(fake, [b"one"])
        await begun.wait()
        await consumer.stop(timeout=0)
    (span,) = spans("process")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "asyncio.exceptions.CancelledError"
    assert [event.name for event in span.events] == ["exception", "requeue"]
