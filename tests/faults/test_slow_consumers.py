"""F8: consumers that do not read, read slowly or never answer; others are not delayed, and memory does not grow."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

from tests.faults.client import Client, Gone
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon

BODY = b"x" * 20_000
MESSAGES = 2000  # 40 MB, more than all socket buffers
MAX_GROWTH_MB = 40
MAX_LATENCY = 2.0
"""Longest delivery to a fast consumer, in seconds."""


@pytest.fixture
def daemon(start: StartDaemon) -> Daemon:
    daemon = start("--mem-queue-size=100", "--msg-timeout=3s")
    for channel in ("slow", "quick"):
        daemon.create_channel("t", channel)
    return daemon


class FastConsumer(Thread):
    """A consumer that reads at once and records latencies."""

    def __init__(self, daemon: Daemon, channel: str) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self.slowest = 0.0
        self._client = Client(daemon.address(), heartbeat_interval=1000)
        self._client.subscribe("t", channel, 50)
        self.start()

    def run(self) -> None:
        with self._client, suppress(Gone):  # nsqd has ended
            while True:
                for message in self._client.messages(1.0):
                    self.seen.add(message.body[:12])
                    if message.attempts == 1:
                        self.slowest = max(self.slowest, time.time() - message.timestamp_ns / 1e9)
                    self._client.finish([message.id])


def publish_steadily(daemon: Daemon) -> set[bytes]:
    with Client(daemon.address()) as producer:
        for number in range(MESSAGES):
            producer.publish("t", b"%012d" % number + BODY)
            time.sleep(0.001)
    return {b"%012d" % number for number in range(MESSAGES)}


def wait_for(fast: FastConsumer, expected: set[bytes], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not expected <= fast.seen:
        assert time.monotonic() < deadline, f"{len(expected - fast.seen)} messages did not arrive"
        time.sleep(0.05)


def wait_until_drained(daemon: Daemon) -> None:
    deadline = time.monotonic() + 10
    while any((left := daemon.unfinished("t")).values()):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def subscribed(daemon: Daemon) -> Client:
    client = Client(daemon.address(), heartbeat_interval=1000)
    client.subscribe("t", "slow", 2500)
    return client


def never_reads(daemon: Daemon) -> Iterator[None]:
    with subscribed(daemon):
        yield


def reads_a_byte_a_second(daemon: Daemon) -> Iterator[None]:
    with subscribed(daemon) as client:

        def read() -> None:
            try:
                while client.socket.recv(1):
                    time.sleep(1)
            except OSError:
                pass

        Thread(target=read, daemon=True).start()
        yield


def is_stopped(daemon: Daemon) -> Iterator[None]:
    """A consumer process that is suspended with SIGSTOP."""
    program = f"""
from tests.faults.client import Client
client = Client({daemon.address()!r}, heartbeat_interval=1000)
client.subscribe("t", "slow", 2500)
print("ready", flush=True)
while True:
    client.messages(10)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("slow", [never_reads, reads_a_byte_a_second, is_stopped])
def test_a_consumer_that_does_not_read_is_closed_and_its_messages_are_requeued(daemon: Daemon, slow):
    fast = FastConsumer(daemon, "quick")
    for _ in slow(daemon):
        resident = daemon.resident_mb
        expected = publish_steadily(daemon)
        wait_for(fast, expected)
        assert fast.slowest < MAX_LATENCY
        deadline = time.monotonic() + 10
        while '"client_count":1' in (stats := daemon.http("stats", format="json", channel="slow")[1].decode()):
            assert time.monotonic() < deadline, "the write deadline should have closed it"
            time.sleep(0.1)
        assert '"client_count":0' in stats
        assert daemon.resident_mb - resident < MAX_GROWTH_MB
        successor = FastConsumer(daemon, "slow")
        wait_for(successor, expected)
        wait_until_drained(daemon)


def test_a_consumer_that_never_answers_holds_its_own_messages_only(daemon: Daemon):
    with Client(daemon.address(), msg_timeout=1000) as silent:
        silent.subscribe("t", "slow", 100)
        fellow, fast = FastConsumer(daemon, "slow"), FastConsumer(daemon, "quick")
        resident = daemon.resident_mb
        expected = publish_steadily(daemon)
        wait_for(fast, expected)
        assert fast.slowest < MAX_LATENCY
        assert len(expected - fellow.seen) <= 100, "it holds at most its RDY count"
        assert silent.take(101), "its messages timed out, so that it got others"
        silent.close()
        wait_for(fellow, expected)
        assert daemon.resident_mb - resident < MAX_GROWTH_MB
