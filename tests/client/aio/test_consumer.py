"""What only the consumer on an event loop has. The duties of consumers are tested for both kinds in tests/client."""

import asyncio
import time
from collections import Counter

import pytest

from nsq_compat.client import aio
from nsq_compat.client.dedupe import Deduplicated, SlotFilter
from nsq_compat.client.message import AlreadyAnswered
from nsq_compat.protocol.frames import error_frame
from tests.client.aio.waiting import send_messages, until


async def test_start_is_not_awaited(fake):
    consumer = aio.Consumer("t", "c", lambda message: None, nsqd_tcp_addresses=fake.address)
    with pytest.raises(TypeError, match="start.. returns at once and is not awaited; to wait, await wait_until_subsc"):
        await consumer.start()
    await consumer.stop()


# --- Iterating --------------------------------------------------------------------------------------------------------


async def test_a_program_iterates_over_the_messages_and_answers_them(nsqd, topic):
    sent = [b"%d" % number for number in range(500)]
    async with aio.Producer(nsqd.tcp_address) as producer:
        await producer.publish_many(topic, sent)
    seen: list[bytes] = []
    async with aio.Consumer(topic, "c", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=100) as consumer:
        async for message in consumer:
            seen.append(message.body)
            message.finish()
            if len(seen) == len(sent):
                break
    assert sorted(seen) == sorted(sent)
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)


async def test_leaving_the_block_requeues_what_is_not_answered_at_once(nsqd, topic):
    async with aio.Producer(nsqd.tcp_address) as producer:
        await producer.publish_many(topic, [b"one", b"two", b"three"])
    async with aio.Consumer(topic, "c", nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=10) as consumer:
        message = await anext(consumer)
        await until(lambda: len(consumer.waiting) == 2)
    await until(lambda: nsqd.channel_stats(topic, "c")["depth"] == 3)
    with pytest.raises(AlreadyAnswered):
        message.finish()


async def test_stopping_ends_the_iteration_after_the_messages_that_have_arrived(fake):
    async with aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address, max_in_flight=10) as consumer:
        sent = await send_messages(fake, [b"one", b"two", b"three"])
        seen: list[bytes] = []
        async for message in consumer:
            if not seen:
                await until(lambda: consumer.in_flight == 3)
            seen.append(message.body)
            message.finish()
            consumer.stop_soon()
    assert seen == [b"one", b"two", b"three"]
    assert fake.peer.finished == sent


async def test_stopping_ends_an_iteration_that_waits(fake):
    async with aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address) as consumer:
        asyncio.get_running_loop().call_later(0.05, consumer.stop_soon)
        assert [message async for message in consumer] == []


async def test_several_tasks_may_iterate_and_each_message_goes_to_one(fake):
    seen: Counter[bytes] = Counter()
    most = now = 0

    async def iterate(consumer: aio.Consumer) -> None:
        nonlocal most, now
        async for message in consumer:
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            seen[message.body] += 1
            now -= 1
            message.finish()

    async with (
        aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address, max_in_flight=50) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(5):
            tasks.create_task(iterate(consumer))
        await send_messages(fake, [b"%d" % number for number in range(50)])
        await until(lambda: len(seen) == 50)
        consumer.stop_soon()
    assert set(seen.values()) == {1}
    assert most > 1


@pytest.mark.parametrize("order", ["woken, then cancelled", "cancelled, then passed over"])
async def test_a_cancelled_iteration_takes_no_message(fake, order):
    async with aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address, max_in_flight=10) as consumer:
        first, second = (asyncio.create_task(consumer.__anext__()) for _ in range(2))
        received = consumer.received

        def receive_and_cancel(connection, messages):
            # The first task does not run in between.
            if order == "woken, then cancelled":
                received(connection, messages)
                first.cancel()
            else:
                first.cancel()
                received(connection, messages)

        consumer.received = receive_and_cancel  # type: ignore[method-assign]
        await send_messages(fake, [b"one"])
        message = await second
        assert message.body == b"one"
        with pytest.raises(asyncio.CancelledError):
            await first
        message.finish()


async def test_messages_with_too_many_attempts_are_given_up_and_not_returned(fake):
    given_up = []

    async def giving_up(message: aio.Message) -> None:
        await asyncio.sleep(0)
        given_up.append(message.body)

    options = {"nsqd_tcp_addresses": fake.address, "max_tries": 2, "max_in_flight": 10}
    async with aio.Consumer("t", "c", giving_up=giving_up, **options) as consumer:
        (third,) = await send_messages(fake, [b"third"], attempts=3)
        await send_messages(fake, [b"second"], attempts=2)
        assert (await anext(consumer)).body == b"second"
        await until(lambda: fake.peer.finished == [third])
    assert given_up == [b"third"]


async def test_a_consumer_with_a_handler_is_not_iterated(fake):
    async def handle(message: aio.Message) -> None: ...

    with pytest.raises(TypeError, match="handler"):
        aiter(aio.Consumer("t", "c", handle, nsqd_tcp_addresses=fake.address))


async def test_a_consumer_is_iterated_after_its_start_and_changed_before(fake):
    consumer = aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address)
    with pytest.raises(RuntimeError, match="async with"):
        aiter(consumer)
    consumer.set_max_in_flight(20)
    async with consumer:
        await send_messages(fake, [b"x"])
        await until(lambda: fake.said("RDY") == ["RDY 1", "RDY 20"])


async def test_other_tasks_run_while_many_messages_are_handled_without_waiting(fake):
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def handle(message: aio.Message) -> None:
        time.sleep(0.001)

    ticking = asyncio.create_task(tick())
    async with aio.Consumer("t", "c", handle, nsqd_tcp_addresses=fake.address, max_in_flight=200):
        await send_messages(fake, [b"x"] * 200)
        await until(lambda: fake.peer.finished)
        before, done = turns, len(fake.peer.finished)
        await until(lambda: len(fake.peer.finished) == 200)
        assert done == 200 or turns > before + 3
    ticking.cancel()


# --- Handlers ---------------------------------------------------------------------------------------------------------


async def test_a_cancelled_handlers_message_is_requeued_at_once(fake):
    begun = asyncio.Event()

    async def handle(message: aio.Message) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with aio.Consumer("t", "c", handle, nsqd_tcp_addresses=fake.address, max_in_flight=10) as consumer:
        one, two = await send_messages(fake, [b"one", b"two"])
        await begun.wait()
        await consumer.stop(timeout=0.01)
    await until(lambda: len(fake.peer.said("REQ")) == 2)
    assert sorted(fake.peer.said("REQ")) == sorted(f"REQ {each.decode()} 0" for each in (one, two))


async def test_a_handler_that_answers_before_it_is_cancelled_is_not_answered_for_twice(fake):
    begun = asyncio.Event()

    async def handle(message: aio.Message) -> None:
        message.finish()
        begun.set()
        await asyncio.sleep(3600)

    async with aio.Consumer("t", "c", handle, nsqd_tcp_addresses=fake.address) as consumer:
        sent = await send_messages(fake, [b"one"])
        await begun.wait()
        await consumer.stop(timeout=0.01)
    assert fake.peer.finished == sent
    assert fake.peer.said("REQ") == []


async def test_a_handler_in_which_something_was_cancelled_has_failed_and_others_go_on(fake):
    seen: list[bytes] = []

    async def handle(message: aio.Message) -> None:
        if message.body == b"cancels":
            inner = asyncio.create_task(asyncio.sleep(3600))
            inner.cancel()
            await inner
        seen.append(message.body)

    options = {"nsqd_tcp_addresses": fake.address, "max_in_flight": 10, "backoff": False}
    async with aio.Consumer("t", "c", handle, **options):
        first, second = await send_messages(fake, [b"cancels", b"next"])
        await until(lambda: fake.peer.finished == [second])
        assert fake.peer.said("REQ") == [f"REQ {first.decode()} 90000"]


async def test_a_handler_may_be_a_function_or_return_any_awaitable(fake):
    def handle(message: aio.Message) -> object:
        future = asyncio.get_running_loop().create_future()
        future.set_result(message.body != b"false")
        return {b"none": None, b"false": future, b"future": future}[message.body]

    options = {"nsqd_tcp_addresses": fake.address, "max_in_flight": 10, "backoff": False}
    async with aio.Consumer("t", "c", handle, **options):
        await send_messages(fake, [b"x"])
        none, false, future = await send_messages(fake, [b"none", b"false", b"future"])
        await until(lambda: len(fake.peer.finished) == 2)
        assert fake.peer.finished == [none, future]
        await until(lambda: f"REQ {false.decode()} 90000" in fake.peer.said("REQ"))


async def test_messages_are_de_duplicated_by_the_same_wrapper(fake):
    handled = []

    async def handle(message: aio.Message) -> None:
        await asyncio.sleep(0)
        handled.append(message.body)

    once = Deduplicated(handle, SlotFilter(1000))
    async with aio.Consumer("t", "c", once, nsqd_tcp_addresses=fake.address, max_in_flight=10):
        await send_messages(fake, [b"one", b"two", b"one"])
        await until(lambda: len(fake.peer.finished) == 3)
    assert handled == [b"one", b"two"]


async def test_an_answer_is_given_once(fake):
    async with aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address) as consumer:
        await send_messages(fake, [b"one"])
        message = await anext(consumer)
        message.touch()
        message.finish()
        with pytest.raises(AlreadyAnswered):
            message.requeue()


# --- Running ----------------------------------------------------------------------------------------------------------


async def test_running_ends_when_the_consumer_is_stopped(fake):
    async def handle(message: aio.Message) -> None:
        consumer.stop_soon()

    consumer = aio.Consumer("t", "c", handle, nsqd_tcp_addresses=fake.address)
    running = asyncio.create_task(consumer.run())
    sent = await send_messages(fake, [b"last"])
    await running
    assert fake.peer.finished == sent


async def test_a_cancelled_run_stops_the_consumer_first(fake):
    async def handle(message: aio.Message) -> None: ...

    consumer = aio.Consumer("t", "c", handle, nsqd_tcp_addresses=fake.address)
    running = asyncio.create_task(consumer.run())
    await until(lambda: fake.said("RDY"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert fake.peer.lines[-2:] == ["RDY 0", "CLS"]
    assert consumer.connections == []


async def test_an_unreachable_node_is_reported_to_the_program(make_nsqd):
    fake = make_nsqd({"SUB": error_frame(b"E_UNAUTHORIZED AUTH failed for SUB")})
    reported = []
    async with aio.Consumer(
        "t",
        "c",
        nsqd_tcp_addresses=fake.address,
        unreachable=lambda address, error: reported.append((address, str(error))),
    ):
        await until(lambda: reported)
    assert reported == [(fake.address, f"{fake.address}: E_UNAUTHORIZED AUTH failed for SUB")]


async def test_answers_are_written_together(fake):
    async with aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address, max_in_flight=100) as consumer:
        await send_messages(fake, [b"x"] * 100)
        await until(lambda: consumer.in_flight == 100)
        (connection,) = consumer.connections
        written: list[bytes] = []
        transport = connection._transport
        connection._transport = Recording(transport, written)  # type: ignore[assignment]
        for _ in range(100):
            (await anext(consumer)).finish()
        await until(lambda: len(fake.peer.finished) == 100)
        connection._transport = transport
    assert len(written) < 10


async def test_wrong_use_is_an_error_and_not_a_wait(fake):
    consumer = aio.Consumer("t", "c", nsqd_tcp_addresses=fake.address)
    with pytest.raises(TypeError, match=r"run\(\) needs a consumer with a handler"):
        await consumer.run()
    with pytest.raises(RuntimeError, match="not started; use `async with`"):
        await anext(consumer)
    with pytest.raises(RuntimeError, match="not started; use `async with`"):
        [message async for message in consumer]
    with pytest.raises(TypeError, match="handler must be a function that is called with each message, not 'x'"):
        aio.Consumer("t", "c", "x", nsqd_tcp_addresses=fake.address)  # type: ignore[arg-type]
    assert fake.peers == []


class Recording:
    """A transport that records what is written."""

    def __init__(self, transport, written):
        self._transport = transport
        self._written = written

    def write(self, data):
        self._written.append(data)
        self._transport.write(data)

    def __getattr__(self, name):
        return getattr(self._transport, name)
