"""Clients ask for as much as the limits allow; ``start`` fails a test in which that held the loop for 50 ms of CPU."""

import zlib
from contextlib import ExitStack

import pytest

from tests.faults.client import Client, Refused, sized
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.waiting import wait_until

LINES = 600_000
TINY = 500_000
NOPS = 1_000_000
FINS = 3_000
BAD_FIN = b"FIN 0123456789abcdef\n"


def received(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    """What a consumer gets of so many messages, in order."""
    with Client(daemon.address()) as consumer:
        consumer.subscribe(topic, "c", ready=2500)
        bodies: list[bytes] = []
        while len(bodies) < count and (messages := consumer.messages(30.0)):
            bodies += [message.body for message in messages]
            consumer.finish(message.id for message in messages)
    return bodies


def test_an_mpub_of_many_lines_over_http(start: StartDaemon) -> None:
    daemon = start()
    assert daemon.http("mpub", b"x\n" * LINES, topic="t") == (200, b"OK")
    assert daemon.stats("t")[0]["message_count"] == LINES


def test_an_mpub_of_many_tiny_messages(start: StartDaemon) -> None:
    daemon = start()
    bodies = [b"%05d" % (number % 100_000) for number in range(TINY)]
    with Client(daemon.address()) as producer:
        producer.publish_together("t", bodies)
    assert received(daemon, "t", TINY) == bodies


def test_deflated_floods_of_nops(start: StartDaemon) -> None:
    daemon = start()
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    flood = deflate.compress(b"NOP\n" * NOPS + b"PUB t\n" + sized(b"x")) + deflate.flush(zlib.Z_SYNC_FLUSH)
    with ExitStack() as clients:
        connected = [clients.enter_context(daemon.connect()) for _ in range(5)]
        for client in connected:
            client.sendall(b"  V2IDENTIFY\n" + sized(b'{"feature_negotiation": true, "deflate": true}'))
            assert client.recv(1 << 16)
        for client in connected:
            client.sendall(flood)
        wait_until(lambda: sum(topic["message_count"] for topic in daemon.stats()) == len(connected))


def test_reads_full_of_fins_that_are_refused(start: StartDaemon) -> None:
    daemon = start()
    clients = [Client(daemon.address()) for _ in range(8)]
    for client in clients:
        client.subscribe("t", "c")
    for client in clients:
        client.send(BAD_FIN * FINS)
    for client in clients:
        for _ in range(FINS):
            with pytest.raises(Refused, match="E_FIN_FAILED"):
                client.answer()
        client.close()
