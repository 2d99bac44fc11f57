"""Clients ask for as much as the limits allow; ``start`` fails a test in which that held the loop for 50 ms of CPU.

FAULT_HELD_MS=10 lists every piece of work that takes longer than 10 ms.
"""

import json
import random
import resource
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_conformance.auth_server import AuthServer
from tests.faults.client import Client, Refused, sized
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.waiting import wait_until

LINES = 500_000
TINY = 500_000
NOPS = 60_000
FINS = 3_000
BAD_FIN = b"FIN 0123456789abcdef\n"
DEFERRED = 60_000
DEFERRED_BURST = 500
STORED = 60_000
BURST = 500
DUE_WITHIN_MS = 4_000
CONNECTIONS = 6_000
TOPICS = 4_000
SPARE_DESCRIPTORS = 300


def received(daemon: Daemon, topic: str, count: int) -> list[bytes]:
    """The bodies that a consumer gets until there are `count`, in order."""
    with Client(daemon.address()) as consumer:
        consumer.subscribe(topic, "c", ready=2500)
        bodies: list[bytes] = []
        while len(bodies) < count and (messages := consumer.messages(30.0)):
            bodies += [message.body for message in messages]
            consumer.finish(message.id for message in messages)
    return bodies


# --- Publishing -------------------------------------------------------------------------------------------------------


def test_four_mpubs_of_many_lines_over_http(start: StartDaemon) -> None:
    daemon = start()
    replies: list[tuple[int, bytes]] = []
    body = b"x\n" * LINES

    def publish() -> None:
        replies.append(daemon.http("mpub", body, topic="t"))

    publishers = [threading.Thread(target=publish) for _ in range(4)]
    for each in publishers:
        each.start()
    for each in publishers:
        each.join()
    assert replies == [(200, b"OK")] * 4
    assert daemon.stats("t")[0]["message_count"] == 4 * LINES


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
        connected = [clients.enter_context(daemon.connect()) for _ in range(10)]
        for client in connected:
            client.sendall(b"  V2IDENTIFY\n" + sized(b'{"feature_negotiation": true, "deflate": true}'))
            assert client.recv(1 << 16)
        for client in connected:
            client.sendall(flood)
        wait_until(lambda: sum(topic["message_count"] for topic in daemon.stats()) == len(connected), within=30)


def test_deferred_messages_that_are_due_at_random_moments(start: StartDaemon, seed: int) -> None:
    daemon = start()
    daemon.create_channel("t", "c")
    due: dict[bytes, float] = {}
    with Client(daemon.address()) as producer:
        for commands in deferred_publishes(random.Random(seed), due, DUE_WITHIN_MS):
            producer.send(commands)
            for _ in range(DEFERRED_BURST):
                producer.expect_ok()
    early: list[float] = []
    with Client(daemon.address()) as consumer:
        consumer.subscribe("t", "c", ready=2500)
        while due and (messages := consumer.messages(30.0)):
            now = time.time()
            early += [due[message.body] - now for message in messages if due.pop(message.body) > now]
            consumer.finish(message.id for message in messages)
    assert not due, "every message is delivered, once"
    assert not early, "none is early"


def deferred_publishes(random: random.Random, due: dict[bytes, float], within_ms: int) -> Iterator[bytes]:
    """Bursts of DPUB commands; `due` gets the earliest time at which each message may be delivered."""
    for first in range(0, DEFERRED, DEFERRED_BURST):
        commands: list[bytes] = []
        now = time.time()
        for number in range(first, first + DEFERRED_BURST):
            delay_ms = random.randrange(within_ms)
            body = b"%0100d" % number
            due[body] = now + delay_ms / 1000
            commands.append(b"DPUB t %d\n" % delay_ms + sized(body))
        yield b"".join(commands)


# --- Logs -------------------------------------------------------------------------------------------------------------


def publish_one_by_one(producer: Client, command: bytes, bodies: Sequence[bytes]) -> None:
    """Each message in a group of its own."""
    for first in range(0, len(bodies), BURST):
        burst = bodies[first : first + BURST]
        producer.send(b"".join(command + sized(body) for body in burst))
        for _ in burst:
            producer.expect_ok()


def test_messages_of_an_earlier_run_that_were_deferred_or_in_flight(start: StartDaemon) -> None:
    daemon = start()
    daemon.create_channel("t", "c")
    bodies = [b"%0100d" % number for number in range(STORED)]
    with Client(daemon.address()) as producer, Client(daemon.address()) as consumer:
        publish_one_by_one(producer, b"PUB t\n", bodies)
        publish_one_by_one(producer, b"DPUB t 2000\n", bodies)
        consumer.subscribe("t", "c", ready=1000)
        assert consumer.messages(30.0), "they stay in flight"
        daemon.stop()
    daemon = start()
    assert sorted(received(daemon, "t", 2 * STORED)) == sorted(2 * bodies)
    assert daemon.http("ping") == (200, b"OK")


def test_messages_behind_many_deferred_ones(start: StartDaemon) -> None:
    daemon = start("--mem-queue-size=0")
    daemon.create_channel("t", "c")
    with Client(daemon.address()) as producer:
        producer.publish("t", b"first")
        publish_one_by_one(producer, b"DPUB t 3600000\n", [b"deferred"] * 2 * STORED)
        producer.publish("t", b"last")
    assert received(daemon, "t", 2) == [b"first", b"last"]
    assert daemon.http("ping") == (200, b"OK")


# --- Connections ------------------------------------------------------------------------------------------------------


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


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Room for `CONNECTIONS` in this process, and in nsqd, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CONNECTIONS + SPARE_DESCRIPTORS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_thousands_of_connections_that_are_closed_at_once(start: StartDaemon) -> None:
    daemon = start()
    daemon.create_channel("t", "c")
    clients: list[socket.socket] = []
    for _ in range(CONNECTIONS):
        client = daemon.connect()
        client.sendall(b"  V2SUB t c\nRDY 1\n")
        clients.append(client)
    for client in clients:
        assert client.recv(100) == b"\0\0\0\6\0\0\0\0OK"
    daemon.signal(signal.SIGSTOP)
    for client in clients:
        client.close()
    daemon.signal(signal.SIGCONT)
    wait_until(lambda: next(daemon.channels("t"))["client_count"] == 0, within=30)


@pytest.mark.parametrize(("patterns", "is_granted"), [(1_990, True), (50_000, False)])
def test_an_auth_server_that_answers_with_many_patterns(start: StartDaemon, patterns: int, is_granted: bool) -> None:
    channels = [f"^channel{number:05}$" for number in range(patterns - 1)]
    grant = {"topic": "^t$", "channels": [*channels, ".*"], "permissions": ["publish", "subscribe"]}
    with AuthServer({"many": [grant]}) as server:
        daemon = start(f"--auth-http-address={server.address}")
        for _ in range(3):
            with Client(daemon.address()) as client:
                if is_granted:
                    assert json.loads(client.ask(b"AUTH\n" + sized(b"many")))["permission_count"] == 1
                    client.publish("t", b"x")
                else:
                    with pytest.raises(Refused, match="E_AUTH_FAILED"):
                        client.ask(b"AUTH\n" + sized(b"many"))
    assert sum(topic["message_count"] for topic in daemon.stats()) == (3 if is_granted else 0)


# --- Many topics ------------------------------------------------------------------------------------------------------

TOPIC_NAMES = [f"topic{number:05}" for number in range(TOPICS)]


def write_topics(data_path: Path, names: Sequence[str], channels: int) -> None:
    """Make a data path that has these topics, with so many channels each and no messages."""
    same = [{"name": f"channel{number}", "paused": False} for number in range(channels)]
    topics = [{"name": name, "paused": False, "channels": same} for name in names]
    (data_path / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))


def publish_to_topics(daemon: Daemon, names: Sequence[str], body: bytes) -> None:
    """One message to each of the topics, in one write."""
    with Client(daemon.address()) as producer:
        producer.send(b"".join(b"PUB %s\n" % name.encode() + sized(body) for name in names))
        for _ in names:
            producer.expect_ok()


def test_messages_for_topics_that_are_not_there_yet(start: StartDaemon) -> None:
    daemon = start()
    publish_to_topics(daemon, TOPIC_NAMES, b"x")
    assert sum(topic["depth"] for topic in daemon.stats()) == TOPICS


def test_statistics_metrics_and_statsd_lines_of_many_topics(start: StartDaemon, tmp_path: Path) -> None:
    write_topics(tmp_path, TOPIC_NAMES, channels=10)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.settimeout(30)
        host, port = statsd.getsockname()
        daemon = start(f"--statsd-address={host}:{port}", "--statsd-interval=2s")
        assert len(daemon.stats()) == TOPICS
        assert daemon.http("stats")[1].count(b"[topic") == TOPICS
        assert daemon.http("metrics")[0] == 200
        # All lines are made before the first packet is sent.
        assert f"topic.{TOPIC_NAMES[0]}.".encode() in statsd.recv(1 << 16)


def test_checkpoints_of_many_topics_and_a_stop(start: StartDaemon, tmp_path: Path) -> None:
    names = TOPIC_NAMES[: TOPICS // 2]
    write_topics(tmp_path, names, channels=1)
    daemon = start("--sync-timeout=200ms")
    publish_to_topics(daemon, names, b"first")
    publish_to_topics(daemon, names, b"second")
    wait_until(lambda: all(daemon.checkpoint_written_at(name) for name in names), within=30)
    began = time.monotonic()
    assert daemon.stop() == 0
    print(f"{len(names)} topics that have changed: stopped within {time.monotonic() - began:.2f} s")
    daemon = start("--sync-timeout=1h")
    assert sum(topic["channels"][0]["depth"] for topic in daemon.stats()) == 2 * len(names)
    written = [daemon.checkpoint_written_at(name) for name in names]
    assert daemon.stop() == 0
    assert [daemon.checkpoint_written_at(name) for name in names] == written, "they were current"
