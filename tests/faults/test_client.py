"""F9: our client while nsqd and consumers are killed, nsqlookupd is stopped, and networks are cut.

A publish ends within its timeout, if necessary at another nsqd; no acknowledged message is lost; consumers reconnect.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from nsq_compat.client import Consumer, Message, Producer, PublishError
from nsq_conformance.daemon_process import own_host
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.directory import Directory
from tests.faults.network import Cable
from tests.faults.waiting import wait_until

PATIENCE = 3.0
"""Timeout of a publish in seconds."""


class Publishing:
    """A producer that publishes numbers until it is stopped, and records acknowledged ones."""

    def __init__(self, addresses: list[str], topic: str) -> None:
        self.acknowledged: set[bytes] = set()
        self.slowest = 0.0
        self.failures: list[PublishError] = []
        self._addresses = addresses
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> "Publishing":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _publish(self) -> None:
        with Producer(self._addresses, publish_timeout=PATIENCE) as producer:
            number = 0
            while not self._over.wait(0.001):
                bodies = [b"%d" % each for each in range(number, number + 5)]
                number += 5
                began = time.monotonic()
                try:
                    producer.publish_many(self._topic, bodies)
                    self.acknowledged.update(bodies)
                except PublishError as error:
                    self.failures.append(error)
                self.slowest = max(self.slowest, time.monotonic() - began)


class Node:
    """An nsqd that restarts on the same address."""

    def __init__(self, start: StartDaemon, data_path: Path, *options: str) -> None:
        data_path.mkdir()
        self.host = own_host()
        self.address = f"{self.host}:4150"
        self._start = lambda: start(f"--tcp-address={self.address}", *options, data_path=data_path)
        self.daemon: Daemon = self._start()

    def kill(self) -> None:
        self.daemon.kill()

    def restart(self) -> None:
        self.daemon = self._start()


@pytest.fixture
def pair(start: StartDaemon, tmp_path: Path) -> tuple[Node, Node]:
    return Node(start, tmp_path / "one"), Node(start, tmp_path / "two")


def test_repeated_kills_of_nsqd_lose_no_acknowledged_message(pair: tuple[Node, Node], seed: int):
    random, seen = Random(seed), set[bytes]()
    addresses = [node.address for node in pair]
    for node in pair:
        node.daemon.create_channel("t", "c")
    consumer = Consumer(
        "t",
        "c",
        lambda message: seen.add(message.body),
        nsqd_tcp_addresses=addresses,
        max_in_flight=50,
        reconnect_delay=0.1,
        max_reconnect_delay=0.2,
        msg_timeout=1,
    )
    with consumer:
        with Publishing(addresses, "t") as publishing:
            for _ in range(4):
                node = random.choice(pair)
                enough = len(publishing.acknowledged) + 100
                wait_until(lambda enough=enough: len(publishing.acknowledged) > enough, 40)  # type: ignore[misc]
                node.kill()
                # Meanwhile, the other nsqd gets all messages.
                enough = len(publishing.acknowledged) + 100
                wait_until(lambda enough=enough: len(publishing.acknowledged) > enough, 40)  # type: ignore[misc]
                node.restart()
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

    with Publishing([daemon.tcp_address], "t") as publishing:
        for _ in range(4):
            consumer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
            enough = lines() + random.randrange(1, 200)
            wait_until(lambda enough=enough: lines() > enough, 40)  # type: ignore[misc]
            consumer.kill()
            consumer.wait()
    # Messages of killed consumers are redelivered after their timeout, and take one consumer more than a second.
    consumer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    wait_until(lambda: daemon.unfinished("t") == {"c": 0}, 50)
    consumer.kill()
    consumer.wait()
    assert publishing.acknowledged <= set(handled.read_bytes().split(b"\n"))


@pytest.fixture
def directory() -> Iterator[Directory]:
    directory = Directory()
    directory.start()
    yield directory
    directory.end()


def test_consumers_survive_a_kill_of_nsqlookupd_and_find_new_nsqd_after_its_restart(
    start: StartDaemon, tmp_path: Path, directory: Directory
):
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


NSQD = """
import sys
from nsq_compat.nsqd.main import main
sys.argv = ["nsqd", "--tcp-address={far}:4150", "--http-address={far}:4151", "--data-path={data_path}"]
sys.exit(main())
"""


@pytest.fixture
def far_nsqd(tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """An nsqd on a simulated host: its address, and a function that cuts the network."""
    (tmp_path / "far").mkdir()
    with Cable() as cable, cable.run(NSQD.format(far=cable.far, data_path=tmp_path / "far")):
        yield f"{cable.far}:4150", cable.cut


@pytest.mark.privileged
def test_a_publish_into_a_cut_network_fails_in_time_and_goes_elsewhere(
    start: StartDaemon, far_nsqd: tuple[str, Callable[[], None]]
):
    address, cut = far_nsqd
    daemon, seen = start(), list[str]()
    consumer = Consumer(
        "t",
        "c",
        lambda message: seen.append(message.nsqd),
        nsqd_tcp_addresses=[address, daemon.tcp_address],
        max_in_flight=10,
        heartbeat_interval=1,
        timeout=1,
        reconnect_delay=0.1,
        max_reconnect_delay=0.1,
    )
    with consumer, Producer([address, daemon.tcp_address], timeout=PATIENCE, publish_timeout=PATIENCE) as producer:
        wait_until(lambda: len(consumer.connections) == 2, 40)
        wait_until(lambda: publish_to_all(producer) == {address, daemon.tcp_address}, 40)
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
    first = Consumer("t", "c", hold, nsqd_tcp_addresses=daemon.tcp_address, msg_timeout=1).start()
    held.wait()
    for connection in first.connections:
        connection.close()
    with Consumer("t", "c", taken.append, nsqd_tcp_addresses=daemon.tcp_address, msg_timeout=1):
        wait_until(lambda: len(taken) == 1, 40)
        assert taken[0].attempts == 2
    release.set()
    first.stop(1)
