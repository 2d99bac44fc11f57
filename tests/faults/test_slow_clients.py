"""F10: 500 sockets that send a byte now and then and never complete a command; deadlines close all of them."""

import itertools
import json
import time
from collections.abc import Generator
from contextlib import ExitStack
from socket import socket

import pytest

from tests.faults.client import Client, sized
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon

SOCKETS = 500
MAX_GROWTH_MB = 60
IDENTIFY = b"  V2IDENTIFY\n" + sized(json.dumps({"heartbeat_interval": 1000}).encode())
HALF_A_BODY = sized(b"x" * 1000)[:500]

WITHOUT_MAGIC = [b"", b"  V"]
WITH_HEARTBEATS = {
    "a line": IDENTIFY + b"PUB some_top",
    "a size": IDENTIFY + b"PUB t\n\0\0",
    "a body": IDENTIFY + b"PUB t\n" + HALF_A_BODY,
    "a batch": IDENTIFY + b"MPUB t\n" + (2004).to_bytes(4, "big") + (2).to_bytes(4, "big") + HALF_A_BODY,
}
"""The incomplete command of each."""


@pytest.fixture
def daemon(start: StartDaemon) -> Daemon:
    daemon = start()
    daemon.create_channel("t", "c")
    return daemon


def connect(daemon: Daemon, openings: list[bytes], stack: ExitStack) -> list[socket]:
    sockets = []
    for opening in itertools.islice(itertools.cycle(openings), SOCKETS):
        each = stack.enter_context(daemon.connect())
        each.sendall(opening)
        each.setblocking(False)
        sockets.append(each)
    return sockets


def drip(sockets: list[socket], byte: bytes) -> list[socket]:
    """Send a byte on each socket; returns those that nsqd has not closed."""
    open_ones = []
    for each in sockets:
        try:
            while each.recv(4096):  # read answers and error frames
                pass
        except BlockingIOError:
            try:
                each.send(byte)
            except OSError:
                continue
            open_ones.append(each)
        except OSError:
            continue
    return open_ones


def measure_others(daemon: Daemon) -> Generator[float, None, None]:
    """Publish and consume a message at each step, and yield the time in seconds."""
    with Client(daemon.address()) as producer, Client(daemon.address()) as consumer:
        consumer.subscribe("t", "c", 1)
        for number in itertools.count():
            began = time.monotonic()
            producer.publish("t", b"%d" % number)
            (message,) = consumer.take(1)
            assert message.body == b"%d" % number, "incomplete commands publish nothing"
            consumer.finish([message.id])
            yield time.monotonic() - began


def expect_all_closed(daemon: Daemon, openings: list[bytes], byte: bytes, within: float) -> None:
    steps = measure_others(daemon)
    next(steps)
    resident = daemon.resident_mb
    with ExitStack() as stack:
        sockets = connect(daemon, openings, stack)
        deadline = time.monotonic() + within
        slowest = 0.0
        while sockets:
            assert time.monotonic() < deadline, f"{len(sockets)} are still open"
            sockets = drip(sockets, byte)
            slowest = max(slowest, next(steps))
            time.sleep(0.2)
        assert slowest < within / 4
        assert daemon.resident_mb - resident < MAX_GROWTH_MB
    steps.close()


@pytest.mark.parametrize("said", WITH_HEARTBEATS)
def test_a_client_that_never_completes_a_command_is_closed_after_two_heartbeats(daemon: Daemon, said: str):
    expect_all_closed(daemon, [WITH_HEARTBEATS[said]], b"x", within=20)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_client_that_never_completes_the_magic_is_closed_after_a_minute(daemon: Daemon):
    expect_all_closed(daemon, WITHOUT_MAGIC, b"", within=120)
