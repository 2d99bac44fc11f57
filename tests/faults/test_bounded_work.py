"""Clients ask for as much as the limits allow; ``start`` fails a test in which that held the loop for 100 ms of CPU.

FAULT_HELD_MS=10 lists every piece of work that takes longer than 10 ms.
"""

import json
import random
import resource
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import gevent
import pytest

from nsq_compat.log.data_path import make_our_folder
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, save_metadata
from nsq_conformance.auth_server import AuthServer
from tests.broker import DataPath
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.faults.watched_nsqd import LoopWatchdog, watched_nsqd
from tests.v2_client import Refused, dpub, identify, pub, sized

FILES = cast(Files, OsFiles())
LINES = 500_000
TINY = 500_000
NOPS = 60_000
FINS = 3_000
BAD_FIN = b"FIN 0123456789abcdef\n"
DEFERRED = 60_000
STORED = 60_000
BURST = 500
DUE_WITHIN_MS = 4_000
CONNECTIONS = 6_000
TOPICS = 4_000
SPARE_DESCRIPTORS = 300


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
    with daemon.client() as producer:
        producer.publishes_together(bodies)
    assert daemon.consumes(TINY) == bodies


def test_deflated_floods_of_nops(start: StartDaemon) -> None:
    daemon = start()
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    flood = deflate.compress(b"NOP\n" * NOPS + pub(b"x")) + deflate.flush(zlib.Z_SYNC_FLUSH)
    with ExitStack() as clients:
        connected = [clients.enter_context(daemon.client()) for _ in range(10)]
        for client in connected:
            client.says(identify(feature_negotiation=True, deflate=True))
            assert client.socket.recv(1 << 16)
        for client in connected:
            client.says(flood)
        wait_until(lambda: sum(topic["message_count"] for topic in daemon.stats()) == len(connected), within=30)


def test_deferred_messages_that_are_due_at_random_moments(start: StartDaemon, seed: int) -> None:
    daemon = start()
    daemon.create_channel("t", "c")
    due: dict[bytes, float] = {}
    with daemon.client() as producer:
        for commands in deferred_publishes(random.Random(seed), due):
            producer.pipelines(commands)
    early: list[float] = []
    with daemon.client() as consumer:
        consumer.subscribes(ready=2500)
        while due and (messages := consumer.messages(30.0)):
            now = time.time()
            early += [due[message.body] - now for message in messages if due.pop(message.body) > now]
            consumer.finishes(messages)
    assert not due, "every message is delivered, once"
    assert not early, "none is early"


def deferred_publishes(random: random.Random, due: dict[bytes, float]) -> Iterator[list[bytes]]:
    """Bursts of DPUB commands; `due` gets the earliest time at which each message may be delivered."""
    for first in range(0, DEFERRED, BURST):
        now = time.time()
        delays = {b"%0100d" % number: random.randrange(DUE_WITHIN_MS) for number in range(first, first + BURST)}
        due.update((body, now + delay_ms / 1000) for body, delay_ms in delays.items())
        yield [dpub(body, delay_ms) for body, delay_ms in delays.items()]


# --- Logs -------------------------------------------------------------------------------------------------------------


def test_messages_of_an_earlier_run_that_were_deferred_or_in_flight(start: StartDaemon) -> None:
    daemon = start()
    daemon.create_channel("t", "c")
    bodies = [b"%0100d" % number for number in range(STORED)]
    with daemon.client() as producer, daemon.client() as consumer:
        producer.pipelines([*map(pub, bodies), *(dpub(body, 2000) for body in bodies)], BURST)
        consumer.subscribes(ready=1000)
        assert consumer.messages(30.0), "they stay in flight"
        daemon.stop()
    daemon = start()
    assert sorted(daemon.consumes(2 * STORED)) == sorted(2 * bodies)
    assert daemon.http("ping") == (200, b"OK")


def test_messages_behind_many_deferred_ones(start: StartDaemon) -> None:
    daemon = start("--mem-queue-size=0")
    daemon.create_channel("t", "c")
    with daemon.client() as producer:
        producer.publishes(b"first")
        producer.pipelines([dpub(b"deferred", 3_600_000)] * 2 * STORED, BURST)
        producer.publishes(b"last")
    assert daemon.consumes(2) == [b"first", b"last"]
    assert daemon.http("ping") == (200, b"OK")


# --- Connections ------------------------------------------------------------------------------------------------------


def test_reads_full_of_fins_that_are_refused(start: StartDaemon) -> None:
    daemon = start()
    clients = [daemon.client().subscribes() for _ in range(8)]
    for client in clients:
        client.says(BAD_FIN * FINS)
    for client in clients:
        assert all(client.frame().data.startswith(b"E_FIN_FAILED") for _ in range(FINS))
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
    clients = [daemon.client(b"  V2SUB t c\nRDY 1\n") for _ in range(CONNECTIONS)]
    for client in clients:
        client.hears(b"OK")
    daemon.hang()
    for client in clients:
        client.close()
    daemon.go_on()
    wait_until(lambda: next(daemon.channels("t"))["client_count"] == 0, within=30)


@pytest.mark.parametrize(("patterns", "is_granted"), [(1_990, True), (50_000, False)])
def test_an_auth_server_that_answers_with_many_patterns(start: StartDaemon, patterns: int, is_granted: bool) -> None:
    channels = [f"^channel{number:05}$" for number in range(patterns - 1)]
    grant = {"topic": "^t$", "channels": [*channels, ".*"], "permissions": ["publish", "subscribe"]}
    with AuthServer({"many": [grant]}) as server:
        daemon = start(f"--auth-http-address={server.address}")
        for _ in range(3):
            with daemon.client(b"  V2AUTH\n" + sized(b"many")) as client:
                if is_granted:
                    assert json.loads(client.answer())["permission_count"] == 1
                    client.publishes(b"x")
                else:
                    with pytest.raises(Refused, match="E_AUTH_FAILED"):
                        client.answer()
    assert sum(topic["message_count"] for topic in daemon.stats()) == (3 if is_granted else 0)


# --- Many topics ------------------------------------------------------------------------------------------------------

TOPIC_NAMES = [f"topic{number:05}" for number in range(TOPICS)]


def write_topics(data_path: Path, names: Sequence[str], channels: int) -> None:
    """Make a data path that has these topics, with so many channels each and no messages."""
    same = [{"name": f"channel{number}", "paused": False} for number in range(channels)]
    topics = [{"name": name, "paused": False, "channels": same} for name in names]
    (data_path / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))


def to_each(names: Sequence[str], body: bytes) -> list[bytes]:
    return [pub(body, topic=name.encode()) for name in names]


def test_messages_for_topics_that_are_not_there_yet(start: StartDaemon) -> None:
    daemon = start()
    with daemon.client() as producer:
        producer.pipelines(to_each(TOPIC_NAMES, b"x"), TOPICS)
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
    with daemon.client() as producer:
        producer.pipelines(to_each(names, b"first") + to_each(names, b"second"), TOPICS // 2)
    wait_until(lambda: all(daemon.checkpoint_written_at(name) for name in names), within=30)
    began = time.monotonic()
    assert daemon.stop() == 0
    print(f"{len(names)} topics that have changed: stopped within {time.monotonic() - began:.2f} s")
    daemon = start("--sync-timeout=1h")
    assert sum(topic["channels"][0]["depth"] for topic in daemon.stats()) == 2 * len(names)
    written = [daemon.checkpoint_written_at(name) for name in names]
    assert daemon.stop() == 0
    assert [daemon.checkpoint_written_at(name) for name in names] == written, "they were current"


# --- Taking over ------------------------------------------------------------------------------------------------------

PRIMARY = "1" * 32
TAKES_OVER = ("--mirror-accept", "--mirror-takeover-after=manual")
MESSAGES = 200_000


def write_copy(data_path: Path, topics: Sequence[str], messages: int, defer: float) -> None:
    """A standby's copy of a primary with these topics, each with a paused channel and this many messages."""
    folder = data_path / "nsq_compat" / "mirrors" / PRIMARY
    folder.mkdir(parents=True)
    for path in (data_path, folder):
        make_our_folder(FILES, str(path))
    primary = DataPath(FILES, str(folder))
    primary.now, primary.segment_size = time.monotonic(), 100 << 20
    primary.clock = time.time() - primary.now
    daemon = primary.start()
    for name in topics:
        daemon.channel("c", name)
        for _ in range(0, messages, BURST):
            daemon.publishes(*[b"x"] * min(BURST, messages), topic=name, defer=defer)
    primary.stop(daemon)
    primary.close()
    channels = (ChannelMetadata("c", paused=True),)
    save_metadata(FILES, str(folder), [TopicMetadata(name, channels=channels) for name in topics])
    (folder / "mirror.json").write_text(json.dumps({"identity": PRIMARY, "is_complete": True}))


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize(
    ("topics", "messages", "defer"), [(2000, 2, 0.0), (1, MESSAGES, 0.0), (1, MESSAGES, 3600.0)], ids=str
)
def test_a_take_over(
    start: StartDaemon, tmp_path: Path, topics: int, messages: int, defer: float, is_merged: bool
) -> None:
    names = TOPIC_NAMES[: min(topics, 200) if is_merged else topics]
    write_copy(tmp_path, names, messages, defer)
    daemon = start(*TAKES_OVER, command=f"env FAULT_HELD_MS=10 {watched_nsqd()}")
    if is_merged:
        with daemon.client() as producer:
            producer.pipelines(to_each(names, b"own"), len(names))
    status, answer = daemon.http("mirror/adopt", b"", identity=PRIMARY)
    assert (status, json.loads(answer)["topics"]) == (200, sorted(names))
    for topic in daemon.stats():
        (channel,) = topic["channels"]
        assert channel["depth"] + channel["deferred_count"] == messages + is_merged


# --- The watchdog -----------------------------------------------------------------------------------------------------


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_one_long_piece_of_work_is_reported_with_its_place():
    reports: list[tuple[float, str]] = []
    watchdog = LoopWatchdog(lambda held, stack: reports.append((held, stack)), limit=0.02)
    watchdog.start()
    gevent.sleep(0.01)
    spin(0.5)
    gevent.sleep(0.01)
    watchdog.stop()
    [(held, stack)] = reports
    assert held >= 0.5
    assert "spin" in stack


def test_as_much_work_in_pieces_is_not_reported_nor_is_waiting():
    reports: list[float] = []
    watchdog = LoopWatchdog(lambda held, stack: reports.append(held), limit=0.1)
    watchdog.start()
    for _ in range(30):
        spin(0.01)
        gevent.sleep(0.001)
    time.sleep(0.3)
    gevent.sleep(0.01)
    watchdog.stop()
    assert reports == []
    assert watchdog.iterations >= 30
    assert 0.01 <= watchdog.longest < 0.1


def test_a_live_nsqd_that_is_held_says_so(tmp_path):
    script = (
        "import gevent; from tests.faults import test_bounded_work, watched_nsqd;"
        "gevent.spawn_later(1, test_bounded_work.spin, 2); watched_nsqd.run()"
    )
    with Daemon(tmp_path, command=watched_nsqd("-c", script)) as daemon:
        wait_until(lambda: bool(daemon.held), within=30)
        assert "spin" in daemon.held[0]
