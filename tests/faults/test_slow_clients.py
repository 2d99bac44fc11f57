"""F8, F10: consumers that do not read, read slowly or never answer, and clients that send a byte now and then and never
complete a command. Deadlines close them, others are not delayed, and memory does not grow.
"""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from socket import socket
from threading import Thread

import pytest

from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.v2_client import GONE, Client, identify, sized

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

    def __init__(self, daemon: Daemon, channel: bytes) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self.slowest = 0.0
        self._client = daemon.client(heartbeat_interval=1000).subscribes(channel=channel, ready=50)
        self.start()

    def run(self) -> None:
        with self._client, suppress(*GONE):  # nsqd has ended
            while True:
                for message in self._client.takes(1, within=1.0, finishing=True):
                    self.seen.add(message.body[:12])
                    if message.attempts == 1:
                        self.slowest = max(self.slowest, time.time() - message.timestamp_ns / 1e9)


def publish_steadily(daemon: Daemon) -> set[bytes]:
    with daemon.client() as producer:
        for number in range(MESSAGES):
            producer.publishes(b"%012d" % number + BODY)
            time.sleep(0.001)
    return {b"%012d" % number for number in range(MESSAGES)}


def subscribed(daemon: Daemon) -> Client:
    return daemon.client(heartbeat_interval=1000).subscribes(channel=b"slow", ready=2500)


@contextmanager
def never_reads(daemon: Daemon) -> Iterator[None]:
    with subscribed(daemon):
        yield


@contextmanager
def reads_a_byte_a_second(daemon: Daemon) -> Iterator[None]:
    with subscribed(daemon) as client:

        def read() -> None:
            with suppress(OSError):
                while client.socket.recv(1):
                    time.sleep(1)

        Thread(target=read, daemon=True).start()
        yield


@contextmanager
def is_stopped(daemon: Daemon) -> Iterator[None]:
    """A consumer process that is suspended with SIGSTOP."""
    program = f"""
from tests.v2_client import Client
client = Client({daemon.tcp_address!r}, heartbeat_interval=1000).subscribes(channel=b"slow", ready=2500)
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
    fast = FastConsumer(daemon, b"quick")
    with slow(daemon):
        resident = daemon.resident_mb
        expected = publish_steadily(daemon)
        wait_until(lambda: expected <= fast.seen, 20)
        assert fast.slowest < MAX_LATENCY
        # The write deadline closes it.
        wait_until(lambda: daemon.channel_stats("t", "slow")["client_count"] == 0)
        assert daemon.resident_mb - resident < MAX_GROWTH_MB
        successor = FastConsumer(daemon, b"slow")
        wait_until(lambda: expected <= successor.seen, 20)
        wait_until(lambda: not any(daemon.unfinished("t").values()))


def test_a_consumer_that_never_answers_holds_its_own_messages_only(daemon: Daemon):
    with daemon.client(msg_timeout=1000).subscribes(channel=b"slow", ready=100) as silent:
        fellow, fast = FastConsumer(daemon, b"slow"), FastConsumer(daemon, b"quick")
        resident = daemon.resident_mb
        expected = publish_steadily(daemon)
        wait_until(lambda: expected <= fast.seen, 20)
        assert fast.slowest < MAX_LATENCY
        assert len(expected - fellow.seen) <= 100, "it holds at most its RDY count"
        assert silent.takes(101), "its messages timed out, so that it got others"
        silent.close()
        wait_until(lambda: expected <= fellow.seen, 20)
        assert daemon.resident_mb - resident < MAX_GROWTH_MB


# --- Incomplete commands ----------------------------------------------------------------------------------------------

SOCKETS = 500
MAX_SOCKETS_MB = 60
IDENTIFY = b"  V2" + identify(heartbeat_interval=1000)
HALF_A_BODY = sized(b"x" * 1000)[:500]

WITHOUT_MAGIC = [b"", b"  V"]
WITH_HEARTBEATS = {
    "a line": IDENTIFY + b"PUB some_top",
    "a size": IDENTIFY + b"PUB t\n\0\0",
    "a body": IDENTIFY + b"PUB t\n" + HALF_A_BODY,
    "a batch": IDENTIFY + b"MPUB t\n" + (2004).to_bytes(4, "big") + (2).to_bytes(4, "big") + HALF_A_BODY,
}
"""The incomplete command of each."""


def connect(daemon: Daemon, openings: list[bytes], stack: ExitStack) -> list[socket]:
    clients = [stack.enter_context(daemon.client(openings[number % len(openings)])) for number in range(SOCKETS)]
    for client in clients:
        client.socket.setblocking(False)
    return [client.socket for client in clients]


def is_open_after(connection: socket, byte: bytes) -> bool:
    """Send a byte, unless nsqd has closed the connection."""
    try:
        while connection.recv(4096):  # read answers and error frames
            pass
    except BlockingIOError:
        with suppress(OSError):
            connection.send(byte)
            return True
    except OSError:
        pass
    return False


def measure_others(daemon: Daemon) -> Generator[float, None, None]:
    """Publish and consume a message at each step, and yield the time in seconds."""
    with daemon.client() as producer, daemon.client() as consumer:
        consumer.subscribes(ready=1)
        for number in itertools.count():
            began = time.monotonic()
            producer.publishes(b"%d" % number)
            (message,) = consumer.takes(1, finishing=True)
            assert message.body == b"%d" % number, "incomplete commands publish nothing"
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
            sockets = [each for each in sockets if is_open_after(each, byte)]
            slowest = max(slowest, next(steps))
            time.sleep(0.2)
        assert slowest < within / 4
        assert daemon.resident_mb - resident < MAX_SOCKETS_MB
    steps.close()


@pytest.mark.parametrize("said", WITH_HEARTBEATS)
def test_a_client_that_never_completes_a_command_is_closed_after_two_heartbeats(daemon: Daemon, said: str):
    expect_all_closed(daemon, [WITH_HEARTBEATS[said]], b"x", within=20)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_client_that_never_completes_the_magic_is_closed_after_a_minute(daemon: Daemon):
    expect_all_closed(daemon, WITHOUT_MAGIC, b"", within=120)
