import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import nsq_compat.client as nsq
from nsq_compat.client import event_loop
from nsq_compat.protocol.frames import error_frame

NOWHERE = "127.0.0.1:1"


def drive(conversation: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on its own event loop, then shut its writers down."""
    asyncio.run(conversation)
    for client in list(event_loop._clients):
        client.shut_down(1)


def test_the_callback_and_the_future_get_ok_from_the_connection_that_took_it(fake):
    answers: list[tuple[Any, Any]] = []

    async def talk() -> None:
        writer = nsq.Writer([fake.address])

        def answered(connection: Any, data: Any) -> None:
            answers.append((connection.id, data))

        assert writer.name == fake.address
        assert await writer.pub("t", b"one", answered) == b"OK"
        assert await writer.mpub("t", [b"two", b"three"]) == b"OK"
        assert await writer.mpub("t", b"four") == b"OK"
        assert await writer.dpub("t", 1500, b"five") == b"OK"
        assert list(writer.conns) == [fake.address]

    drive(talk())
    assert answers == [(fake.address, b"OK")]
    assert fake.peer.bodies[1:] == [b"one", b"two", b"three", b"four", b"five"]
    assert fake.peer.said("DPUB") == ["DPUB t 1500"]


def test_an_error_goes_to_the_callback_and_to_the_future(make_nsqd):
    fake = make_nsqd({"PUB": error_frame(b"E_BAD_MESSAGE PUB message too big")})
    answers: list[tuple[Any, Any]] = []

    async def talk() -> None:
        writer = nsq.Writer(fake.address)
        with pytest.raises(nsq.Error, match="too big"):
            await writer.pub("t", b"x", lambda connection, data: answers.append((connection, data)))

    drive(talk())
    ((connection, error),) = answers
    assert connection is None
    assert isinstance(error, nsq.Refused)


def test_without_a_callback_an_error_is_logged(caplog):
    async def talk() -> None:
        writer = nsq.Writer(NOWHERE, publish_timeout=0.5)
        with pytest.raises(nsq.Error):
            await writer.pub("t", b"x")

    drive(talk())
    assert "failed to publish to t" in caplog.text


def test_messages_published_before_the_loop_ended_are_sent(fake):
    async def talk() -> None:
        nsq.Writer(fake.address).pub("t", b"last words")

    drive(talk())
    assert b"last words" in fake.peer.bodies
