"""At --log-level=debug the commands of a client and its deliveries are logged, and the conversation stays the same."""

import logging

import pytest

from tests.v2_client import identify, mpub, pub


@pytest.fixture
def lines(caplog):
    """Remove and return the DEBUG lines, without the client's address."""
    caplog.set_level(logging.DEBUG)

    def taken(client):
        found = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
        caplog.clear()
        return [text.replace(client.session.peer, "C").removeprefix("PROTOCOL(V2): ") for text in found]

    return taken


def test_the_commands_of_a_traced_client_are_logged_without_bodies(nsqd, lines):
    client = nsqd.connect()
    client.session.trace(True)
    client.says(identify(client_id="c")).hears(b"OK")
    client.publishes(b"1", b"2")
    client.says(pub(b"3") + pub(b"4") + mpub([b"5", b"6"])).hears(b"OK", b"OK", b"OK")
    assert lines(client) == ["[C] [IDENTIFY]", *["[C] [PUB t]"] * 4, "[C] [MPUB t]"]


def test_deliveries_are_logged_with_the_state_of_the_consumer(nsqd, lines):
    consumer = nsqd.connect()
    consumer.session.trace(True)
    consumer.subscribes(b"t", b"c", ready=2)
    lines(consumer)
    nsqd.connect().publishes(b"one\xff")
    message_id = consumer.hears(b"one\xff").id_of(b"one\xff")
    consumer.says(b"FIN %b\n" % message_id)
    assert lines(consumer) == [
        "[C] state rdy:    2 inflt:    0",
        f"writing msg({message_id.decode()}) to client(C) - one\\xff",
        f"[C] [FIN {message_id.decode()}]",
    ]


def test_tracing_begins_and_ends_in_the_middle_of_a_conversation(nsqd, lines):
    consumer, producer = nsqd.connect(host="10.0.0.1"), nsqd.connect()
    consumer.subscribes(b"t", b"c", ready=9)
    producer.says(b"PUB t\n\0\0")
    for client in (consumer, producer):
        client.session.trace(True)
        client.session.trace(True)
    producer.says(b"\0\1x").hears(b"OK")
    assert [text for text in lines(producer) if text.startswith("[C]")] == ["[C] [PUB t]"]
    for client in (consumer, producer):
        client.session.trace(False)
    producer.publishes(b"y")
    consumer.hears(b"x", b"y")
    assert lines(producer) == []
