"""One client asks for as much as the limits allow: no iteration of a live nsqd's event loop takes over 50 ms of CPU."""

import shlex
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.client import Client, Refused, sized
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.waiting import wait_until

HELD_SECONDS = 0.05
LINES = 600_000
TINY = 500_000
NOPS = 1_000_000
FINS = 3_000
BAD_FIN = b"FIN 0123456789abcdef\n"

Measured = tuple[Daemon, Callable[[], float]]


@pytest.fixture
def measured(start: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """A running nsqd, and what gives the CPU time of the longest iteration of its event loop since then."""
    path = tmp_path / "held"
    monkeypatch.setenv("LOOP_HELD_FILE", str(path))
    daemon = start(command=shlex.join((sys.executable, "-m", "tests.faults.measured_nsqd")))
    daemon.signal(signal.SIGUSR2)
    wait_until(path.exists)
    return daemon, lambda: float(path.read_text("ascii"))


def received(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    """What a consumer gets of so many messages, in order."""
    with Client(daemon.address()) as consumer:
        consumer.subscribe(topic, "c", ready=2500)
        bodies: list[bytes] = []
        while len(bodies) < count and (messages := consumer.messages(30.0)):
            bodies += [message.body for message in messages]
            consumer.finish(message.id for message in messages)
    return bodies


def test_an_mpub_of_many_lines_over_http(measured: Measured) -> None:
    daemon, held = measured
    assert daemon.http("mpub", b"x\n" * LINES, topic="t") == (200, b"OK")
    assert daemon.stats("t")[0]["message_count"] == LINES
    assert held() < HELD_SECONDS


def test_an_mpub_of_many_tiny_messages(measured: Measured) -> None:
    daemon, held = measured
    bodies = [b"%05d" % (number % 100_000) for number in range(TINY)]
    with Client(daemon.address()) as producer:
        producer.publish_together("t", bodies)
    longest = held()
    assert received(daemon, "t", TINY) == bodies
    assert longest < HELD_SECONDS


def test_a_deflated_flood_of_nops(measured: Measured) -> None:
    daemon, held = measured
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    commands = b"NOP\n" * NOPS + b"PUB t\n" + sized(b"x")
    with daemon.connect() as client:
        client.sendall(b"  V2IDENTIFY\n" + sized(b'{"feature_negotiation": true, "deflate": true}'))
        assert client.recv(1 << 16)
        client.sendall(deflate.compress(commands) + deflate.flush(zlib.Z_SYNC_FLUSH))
        wait_until(lambda: any(topic["message_count"] for topic in daemon.stats()))
    assert held() < HELD_SECONDS


def test_reads_full_of_fins_that_are_refused(measured: Measured) -> None:
    daemon, held = measured
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
    assert held() < HELD_SECONDS
