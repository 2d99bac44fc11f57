"""What only the producer on an event loop has. The duties of producers are tested for both kinds in tests/client."""

import asyncio

import pytest

from nsq_compat.client import aio
from nsq_compat.client.nodes import Outcome, Refused, Unknown
from nsq_compat.protocol.frames import OK, error_frame
from tests.client.aio.waiting import until


async def test_calls_at_the_same_time_share_a_connection_and_are_written_together(fake):
    async with aio.Producer(fake.address) as producer:
        results = await asyncio.gather(*(producer.publish("t", b"%d" % number) for number in range(500)))
    assert {result.nodes for result in results} == {(fake.address,)}
    assert fake.said("MPUB") == ["MPUB t"]
    assert [body for body in fake.peer.bodies if body.isdigit()] == [b"%d" % number for number in range(500)]
    assert len(fake.peers) == 1


async def test_the_messages_of_a_batch_are_limited(fake):
    async with aio.Producer(fake.address, batch_messages=10, batch_bytes=100) as producer:
        await asyncio.gather(*(producer.publish("t", b"%d" % number) for number in range(25)))
        assert len(fake.said("MPUB")) == 3
        await asyncio.gather(*(producer.publish("t", b"x" * 60) for _ in range(4)))
        assert len(fake.said("MPUB")) == 5


async def test_one_refused_message_of_a_batch_fails_alone(nsqd, topic):
    nsqd.create_channel(topic, "c")
    async with aio.Producer(nsqd.tcp_address) as producer:
        bodies = [b"one", b"x" * 1_100_000, b"two"]
        calls = (producer.publish(topic, body) for body in bodies)
        one, refused, two = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(one, aio.Published)
        assert isinstance(two, aio.Published)
        assert isinstance(refused, Refused)
    await until(lambda: nsqd.channel_stats(topic, "c")["depth"] == 2)


async def test_a_wrong_call_fails_at_once_and_affects_no_other(fake):
    async with aio.Producer(fake.address) as producer:
        wrong: list[object] = ["text", None, b""]
        calls = [producer.publish("t", body) for body in (b"one", *wrong, bytearray(b"two"))]  # type: ignore[arg-type]
        outcomes = await asyncio.gather(*calls, producer.publish("no spaces", b"x"), return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Published",
        "TypeError",
        "TypeError",
        "ValueError",
        "Published",
        "ValueError",
    ]
    assert {b"one", b"two"} <= set(fake.peer.bodies)


async def test_a_call_that_is_cancelled_before_its_batch_is_sent_publishes_nothing(fake):
    async with aio.Producer(fake.address) as producer:
        await producer.publish("t", b"first")
        calls = [asyncio.create_task(producer.publish("t", body)) for body in (b"one", b"two", b"three")]
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.wait(calls)
        assert calls[1].cancelled()
    assert fake.peer.bodies[-2:] == [b"one", b"three"]


async def test_a_cancelled_call_does_not_move_the_answers_of_others(make_nsqd):
    fake = make_nsqd({"PUB": None})
    async with aio.Producer(fake.address) as producer:
        calls = [asyncio.create_task(producer.publish("t", b"%d" % number, timeout=60)) for number in range(3)]
        await until(lambda: len(fake.said("PUB")) == 3)
        calls[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        fake.peer.send(OK)  # for the cancelled call
        fake.beat()
        await until(lambda: fake.said("NOP"))
        assert not calls[1].done()
        fake.peer.send(OK)
        assert (await calls[1]).nodes == (fake.address,)
        assert not calls[2].done()
        fake.answers["PUB"] = OK
        fake.peer.send(error_frame(b"E_BAD_MESSAGE PUB message too big"))
        with pytest.raises(Refused, match="too big"):
            await calls[2]


async def test_a_call_that_is_cancelled_while_it_connects_leaves_the_connection_to_others(make_nsqd):
    fake = make_nsqd({"IDENTIFY": None})
    async with aio.Producer(fake.address) as producer:
        first, second = (asyncio.create_task(producer.publish("t", b"body")) for _ in range(2))
        await until(lambda: fake.said("IDENTIFY"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        fake.peer.send(b"\0\0\0\x06\0\0\0\0{}")
        assert (await second).nodes == (fake.address,)
    assert len(fake.peers) == 1


async def test_closing_waits_for_calls_and_refuses_later_ones(make_nsqd):
    fake = make_nsqd({"PUB": None})
    producer = aio.Producer(fake.address)
    call = asyncio.create_task(producer.publish("t", b"body"))
    await until(lambda: fake.said("PUB"))
    closing = asyncio.create_task(producer.close())
    assert not await producer.flush(0.01)
    fake.peer.send(OK)
    assert await closing
    assert (await call).nodes == (fake.address,)
    with pytest.raises(Refused, match="the producer is closed"):
        await producer.publish("t", b"body")


async def test_a_call_without_an_outcome_when_the_producer_closes_is_unknown(make_nsqd):
    fake = make_nsqd({"PUB": None})
    producer = aio.Producer(fake.address)
    call = asyncio.create_task(producer.publish("t", b"body"))
    await until(lambda: fake.said("PUB"))
    fake._on_command = lambda peer, command: None
    assert not await producer.close(timeout=0.01)
    with pytest.raises(Unknown):
        await call


async def test_commands_wait_in_the_session_while_nsqd_does_not_read(make_nsqd):
    stuck = make_nsqd()
    async with aio.Producer(stuck.address, publish_timeout=4) as producer:
        await producer.publish("t", b"body")
        (connection,) = producer.connections
        held = asyncio.Event()
        loop = asyncio.get_running_loop()
        stuck._on_command = lambda *_: asyncio.run_coroutine_threadsafe(held.wait(), loop).result()
        calls = [asyncio.create_task(producer.publish("t", b"x" * 1_000_000)) for _ in range(20)]
        await until(lambda: connection._blocked_at < loop.time())
        late = asyncio.create_task(producer.publish("t", b"late"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert connection._session._out, "it is not given to the transport"
        for call in (*calls, late):
            call.cancel()
        held.set()


async def test_a_timeout_ends_the_connection_and_the_calls_behind_it_try_again(make_nsqd):
    silent = make_nsqd({"PUB": [None, None, OK]})
    async with aio.Producer(silent.address) as producer:
        short = producer.publish("t", b"short", timeout=2)
        long = producer.publish("t", b"long", timeout=600)
        results = await asyncio.gather(short, long)
    assert [[attempt.outcome for attempt in result.attempts] for result in results] == 2 * [
        [Outcome.UNKNOWN, Outcome.SENT]
    ]
    assert len(silent.peers) == 2


async def test_calls_end_when_all_tasks_of_the_event_loop_are_cancelled(make_nsqd):
    silent = make_nsqd({"PUB": None})
    async with aio.Producer(silent.address) as producer:
        call = asyncio.create_task(producer.publish("t", b"body"))
        await until(lambda: silent.said("PUB"))
        for task in asyncio.all_tasks() - {asyncio.current_task(), call}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_an_answer_with_invalid_data_behind_it_leaves_no_call_waiting(make_nsqd):
    fake = make_nsqd({"PUB": OK + OK})
    async with aio.Producer(fake.address) as producer:
        with pytest.raises(Unknown, match="unexpected response"):
            await producer.publish("t", b"body")
