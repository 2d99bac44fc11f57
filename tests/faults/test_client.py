"""F9: our client while nsqd and consumers are killed, nsqlookupd is stopped, and networks are cut.

A publish ends within its timeout, if necessary at another nsqd; no acknowledged message is lost; consumers reconnect.
While nsq_to_file is killed and stopped, every finished message is in a readable file.
"""

import gzip
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nsq_compat.client import Consumer, Message, Producer, PublishError
from nsq_conformance.daemon_process import installed, own_host
from nsq_conformance.nsqd_process import installed_nsqd
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_for_more, wait_until
from tests.faults.network import Cable

PATIENCE = 3.0
"""Timeout of a publish in seconds."""


class Publishing:
    """A producer that publishes numbers to topic `t` until it is stopped, and records acknowledged ones."""

    def __init__(self, addresses: list[str]) -> None:
        self.acknowledged: set[bytes] = set()
        self.slowest = 0.0
        self.failures: list[PublishError] = []
        self._addresses = addresses
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> "Publishing":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def count(self) -> int:
        return len(self.acknowledged)

    def _publish(self) -> None:
        with Producer(self._addresses, publish_timeout=PATIENCE) as producer:
            number = 0
            while not self._over.wait(0.001):
                bodies = [b"%d" % each for each in range(number, number + 5)]
                number += 5
                began = time.monotonic()
                try:
                    producer.publish_many("t", bodies)
                    self.acknowledged.update(bodies)
                except PublishError as error:
                    self.failures.append(error)
                self.slowest = max(self.slowest, time.monotonic() - began)


def consuming(handle: Callable[[Message], object], addresses: list[str], **options: Any) -> Consumer:
    quickly: dict[str, Any] = {"reconnect_delay": 0.1, "max_reconnect_delay": 0.2, "msg_timeout": 1}
    return Consumer("t", "c", handle, nsqd_tcp_addresses=addresses, **(quickly | options))


@pytest.fixture
def pair(start: StartDaemon, tmp_path: Path) -> list[Daemon]:
    """Two nsqds on their own addresses, so that their ports stay free for a restart."""
    both: list[Daemon] = []
    for host in (own_host(), own_host()):
        (tmp_path / host).mkdir()
        both.append(start(f"--tcp-address={host}:0", f"--http-address={host}:0", data_path=tmp_path / host))
    return both


def test_repeated_kills_of_nsqd_lose_no_acknowledged_message(pair: list[Daemon], seed: int):
    random, seen = Random(seed), set[bytes]()
    addresses = [node.tcp_address for node in pair]
    for node in pair:
        node.create_channel("t", "c")
    with consuming(lambda message: seen.add(message.body), addresses, max_in_flight=50) as consumer:
        with Publishing(addresses) as publishing:
            for _ in range(4):
                node = random.choice(pair)
                wait_for_more(publishing.count, 100)
                node.kill()
                # Meanwhile, the other nsqd gets all messages.
                wait_for_more(publishing.count, 100)
                node.start()
        wait_until(lambda: publishing.acknowledged <= seen, 40)
        wait_until(lambda: len(consumer.connections) == 2, 40)
    print(f"{len(publishing.acknowledged)} acknowledged, {len(publishing.failures)} failures")
    assert publishing.slowest < PATIENCE + 10, "a call did not end within its timeout"


CONSUMER = """
import sys
from nsq_compat.client import Consumer
def handle(message):
    with open({path!r}, "ab", buffering=0) as file:
        file.write(message.body + b"\\n")
consumer = Consumer("t", "c", handle, nsqd_tcp_addresses={address!r}, max_in_flight=20, msg_timeout=1)
print("ready", flush=True)
consumer.run()
"""


def test_repeated_kills_of_a_consumer_lose_no_message(start: StartDaemon, tmp_path: Path, seed: int):
    random = Random(seed)
    daemon = start()
    daemon.create_channel("t", "c")
    handled = tmp_path / "handled"
    handled.touch()
    program = CONSUMER.format(path=str(handled), address=daemon.tcp_address)

    def lines() -> int:
        return handled.read_bytes().count(b"\n")

    with Publishing([daemon.tcp_address]) as publishing:
        for _ in range(4):
            consumer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
            wait_for_more(lines, random.randrange(1, 200))
            consumer.kill()
            consumer.wait()
    # Messages of killed consumers are redelivered after their timeout, and take one consumer more than a second.
    consumer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    wait_until(lambda: daemon.unfinished("t") == {"c": 0}, 50)
    consumer.kill()
    consumer.wait()
    assert publishing.acknowledged <= set(handled.read_bytes().split(b"\n"))


def test_consumers_survive_a_kill_of_nsqlookupd_and_find_new_nsqd_after_its_restart(start, tmp_path, directories):
    directory, _ = directories
    options = (directory.flag, "--broadcast-address=127.0.0.1")
    first, seen = start(*options), set[bytes]()
    first.create_channel("t", "c")
    wait_until(lambda: directory.topics() == {"t"}, 40)
    with Consumer(
        "t",
        "c",
        lambda message: seen.add(message.body),
        lookupd_http_addresses=[directory.http_address, "127.0.0.1:1"],
        lookupd_poll_interval=0.2,
        max_in_flight=10,
    ) as consumer:
        wait_until(lambda: len(consumer.connections) == 1, 40)
        directory.kill()
        with Producer(first.tcp_address) as producer:
            producer.publish("t", b"during the outage")
        wait_until(lambda: b"during the outage" in seen, 40)
        directory.start()
        (tmp_path / "second").mkdir()
        second = start(*options, data_path=tmp_path / "second")
        with Producer(second.tcp_address) as producer:
            producer.publish("t", b"from a new nsqd")
        wait_until(lambda: b"from a new nsqd" in seen, 40)


@pytest.fixture
def far_nsqd(tmp_path: Path, cable: Cable) -> Iterator[tuple[str, Callable[[], None]]]:
    """An nsqd on a simulated host: its address, and a function that cuts the network."""
    (tmp_path / "far").mkdir()
    addresses = (f"--tcp-address={cable.far}:4150", f"--http-address={cable.far}:4151")
    with cable.run(installed_nsqd(), *addresses, f"--data-path={tmp_path / 'far'}"):
        yield f"{cable.far}:4150", cable.cut


@pytest.mark.privileged
def test_a_publish_into_a_cut_network_fails_in_time_and_goes_elsewhere(start, far_nsqd):
    address, cut = far_nsqd
    daemon, seen = start(), list[str]()
    both = [address, daemon.tcp_address]
    consumer = consuming(lambda message: seen.append(message.nsqd), both, heartbeat_interval=1, timeout=1)
    with consumer, Producer(both, timeout=PATIENCE, publish_timeout=PATIENCE) as producer:
        wait_until(lambda: len(consumer.connections) == 2, 40)
        wait_until(lambda: publish_to_all(producer) == set(both), 40)
        cut()
        published = [producer.publish("t", b"into the cable") for _ in range(3)]
        assert {node for each in published for node in each.nodes} == {daemon.tcp_address}
        assert address in {node for each in published for node in each.doubtful}
        # A cut network sends no EOF; the client detects it by two missing heartbeats.
        wait_until(lambda: [each.address for each in consumer.connections] == [daemon.tcp_address], 40)
        before = seen.count(daemon.tcp_address)
        producer.publish("t", b"life goes on")
        wait_until(lambda: seen.count(daemon.tcp_address) > before, 40)


def publish_to_all(producer: Producer) -> set[str]:
    return {node for _ in range(2) for node in producer.publish("t", b"hello").nodes}


def test_the_next_consumer_gets_the_messages_of_a_vanished_one(start: StartDaemon):
    daemon = start()
    held, taken = threading.Event(), list[Message]()
    release = threading.Event()

    def hold(message: Message) -> None:
        held.set()
        release.wait()

    with Producer(daemon.tcp_address) as producer:
        producer.publish("t", b"body")
    first = consuming(hold, [daemon.tcp_address]).start()
    held.wait()
    for connection in first.connections:
        connection.close()
    with consuming(taken.append, [daemon.tcp_address]):
        wait_until(lambda: len(taken) == 1, 40)
        assert taken[0].attempts > 1  # the first consumer connects again, and may have had it twice
    release.set()
    first.stop(1)


# --- nsq_to_file ------------------------------------------------------------------------------------------------------

ROUNDS = 5
# Without the date, so that every run of the program finds the files of earlier runs.
NAMES = ("--filename-format=<TOPIC><REV>", "--datetime-format=")


def lines_in(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--rotate-size=5000",),
        ("--gzip",),
        ("--gzip", "--rotate-size=5000", "--work-dir={folder}/work", "--skip-empty-files"),
    ],
    ids=["plain", "rotated", "compressed", "moved"],
)
def test_every_finished_message_is_in_a_readable_file(start, tmp_path, seed, flags):
    random = Random(seed)
    daemon: Daemon = start("--msg-timeout=1s")
    daemon.create_channel("t", "nsq_to_file")
    output, work = tmp_path / "output", tmp_path / "work"
    command = [
        installed("nsq_to_file"),
        "--topic=t",
        f"--nsqd-tcp-address={daemon.tcp_address}",
        f"--output-dir={output}",
        f"--max-in-flight={random.randrange(1, 300)}",
        *NAMES,
        *(flag.format(folder=tmp_path) for flag in flags),
    ]

    def finished() -> int:
        return publishing.count() - daemon.unfinished("t")["nsq_to_file"]

    with Publishing([daemon.tcp_address]) as publishing:
        for _ in range(ROUNDS):
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            wait_for_more(finished, random.randrange(1, 500))
            ending = random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            process.send_signal(ending)
            assert process.wait(40) == (0 if ending == signal.SIGTERM else -signal.SIGKILL)
    # The last run finds the files of the earlier ones and ends cleanly.
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: daemon.unfinished("t") == {"nsq_to_file": 0}, 40)
    process.terminate()
    assert process.wait(40) == 0
    written = [line for path in output.rglob("*") for line in lines_in(path)]
    assert publishing.acknowledged <= set(written)
    assert not [path for path in work.rglob("*") if path.is_file()]
