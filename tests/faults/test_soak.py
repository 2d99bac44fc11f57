"""F18: a long test of everything at once: no message is lost, and resource use does not grow.

First many short lives of nsqd, killed or stopped during traffic and disturbances. Then one long life with repeated
traffic, disturbances and idle periods; in each idle period, descriptors, greenlets and memory are measured.
FAULT_SOAK_MINUTES sets the length of the long test (default: 30).
"""

import json
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple, Self

import pytest

from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_until
from tests.faults.test_kill import settings
from tests.faults.traffic import Traffic
from tests.v2_client import GONE, Client, Refused, pub

SOAK_SECONDS = 60 * float(os.environ.get("FAULT_SOAK_MINUTES") or 30)
PATIENCE = 300.0
"""Longest wait for messages to be finished, in seconds."""
_ROUNDS_APART = 1000
_SPARE_DESCRIPTORS = 10
_SPARE_GREENLETS = 3
_SPARE_MB = 25
"""Tolerance, because memory that a busier round needed stays with the process."""
_INCOMPLETE_COMMANDS = (
    b"",
    b"  V",
    b"  V2PUB or",
    b"  V2PUB orders\n\0\0",
    b"  V2" + pub(b"half", topic=b"orders")[:-2],
)


class Trouble(threading.Thread):
    """A context manager that causes disturbances one after the other, in an order drawn from the seed.

    It does not use the topics of ``Traffic``, except for commands without effect.
    """

    def __init__(self, daemon: Daemon, seed: int) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._daemon = daemon
        self._random = Random(seed)
        self._over = threading.Event()
        self._troubles: tuple[Callable[[], None], ...] = (
            self._incomplete_commands,
            self._garbage,
            self._unread_deliveries,
            self._create_and_delete_topics,
            self._dead_letters,
            self._hang,
            self._read_requests,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(0.0, 0.1)):
            with suppress(*GONE, HTTPException, Refused):  # nsqd may have ended
                self._random.choice(self._troubles)()
                self.count += 1

    def _incomplete_commands(self) -> None:
        with ExitStack() as clients:
            for _ in range(20):
                clients.enter_context(self._daemon.client(self._random.choice(_INCOMPLETE_COMMANDS)))
            self._over.wait(0.2)

    def _garbage(self) -> None:
        for address in (self._daemon.tcp_address, self._daemon.http_address):
            Client(address, self._random.randbytes(1000)).close()

    def _unread_deliveries(self) -> None:
        """Subscribe to a separate channel, read nothing, and close with a reset."""
        with self._daemon.client(b"  V2SUB orders deaf#ephemeral\nRDY 2500\n") as client:
            self._over.wait(0.2)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _create_and_delete_topics(self) -> None:
        name = f"passing{self._random.randrange(5)}"
        self._daemon.create_channel(name, "c")
        with self._daemon.client() as client:
            client.publishes_together([b"x" * 1000] * 100, name.encode()).defers(b"late", 100, name.encode())
        self._daemon.control("delete", name)

    def _dead_letters(self) -> None:
        """Set a policy, use it, and remove it."""
        self._put_policies([{"topic": "failing", "max_attempts": 1, "dead_letter_topic": "dead", "max_rate": 1000}])
        with self._daemon.client() as client:
            client.publishes_together([b"bad"] * 20, b"failing").subscribes(b"failing", ready=20)
            for message in client.takes(20, within=5):
                client.requeues(message)
        self._put_policies([])
        for name in ("failing", "dead"):
            self._daemon.http("topic/delete", b"", topic=name)

    def _put_policies(self, policies: object) -> None:
        self._daemon.asks("PUT", "/config/policies", json.dumps(policies).encode())

    def _hang(self) -> None:
        self._daemon.send_signal(signal.SIGHUP)
        self._daemon.hang()
        try:
            self._over.wait(self._random.uniform(0.0, 0.3))
        finally:
            self._daemon.go_on()

    def _read_requests(self) -> None:
        for path in ("stats", "metrics", "ping", "info", "topic/recent?topic=orders", "nothing"):
            self._daemon.http(path)


class Rest(NamedTuple):
    """The resources of an idle nsqd."""

    descriptors: int
    greenlets: int
    resident_mb: float


class Soak:
    def __init__(self, start: StartDaemon, seed: int, data_path: Path) -> None:
        self.acknowledged = 0
        self.troubles = 0
        self.lives = 0
        self.rests: list[Rest] = []
        self._start = start
        self._random = Random(seed)
        self._data_path = data_path
        self._epochs = 0

    def many_lives(self, lives: int, seconds: float) -> None:
        """Run lives that end during traffic and disturbances; then drain, and check the ledgers."""
        traffic: Traffic | None = None
        for _ in range(lives):
            daemon = self._start(*settings(self._random, "os", "fsync"))
            traffic = traffic or self._new_traffic(daemon)
            self._one_round(daemon, traffic, seconds, kill=self._random.random() < 0.7)
        assert traffic is not None
        traffic.drain(self._start(*settings(self._random, "os", "fsync")), within=PATIENCE)
        self._check(traffic)

    def one_life(self, seconds: float, daemon: Daemon) -> None:
        """Run traffic and disturbances in one life, finishing all messages in between."""
        traffic = self._new_traffic(daemon)
        with Trouble(daemon, self._random.getrandbits(32)) as trouble:
            traffic.run(daemon, seconds, lambda _: None)
        self.troubles += trouble.count
        traffic.finish(daemon, within=PATIENCE)
        self._check(traffic)
        self.rests.append(rest(daemon))

    def _new_traffic(self, daemon: Daemon) -> Traffic:
        self._epochs += 1
        traffic = Traffic(self._random.getrandbits(32), self._data_path, first_round=self._epochs * _ROUNDS_APART)
        for name in "abc":
            traffic.add_channel(daemon, traffic.orders, name)
        traffic.add_channel(daemon, traffic.bare, "last")
        return traffic

    def _one_round(self, daemon: Daemon, traffic: Traffic, seconds: float, kill: bool) -> None:
        with Trouble(daemon, self._random.getrandbits(32)) as trouble:
            traffic.run(daemon, seconds, Daemon.kill if kill else Daemon.stop, clean=not kill)
        self.troubles += trouble.count
        self.lives += 1

    def _check(self, traffic: Traffic) -> None:
        assert traffic.check() == []
        assert traffic.refusals == []
        self.acknowledged += sum(len(ledger.acknowledged) for ledger in traffic.ledgers)
        print(f"{self.lives} lives, {self.troubles} troubles, {self.acknowledged} messages", *self.rests[-1:])


def rest(daemon: Daemon) -> Rest:
    """Wait until all clients are disconnected, and measure the resources."""
    wait_until(lambda: b"\nnsqd_connections 0.0\n" in daemon.http("metrics")[1], within=PATIENCE)
    greenlets = re.findall(rb'\+--- <Greenlet "', daemon.http("debug/pprof/goroutine")[1])
    return Rest(daemon.descriptors, len(greenlets), daemon.resident_mb)


def assert_no_growth(rests: Sequence[Rest]) -> None:
    """Check that the last third needs no more than the second; the first third is the warm-up."""
    third = len(rests) // 3
    then, now = rests[third : 2 * third], rests[2 * third :]
    for name, spare in zip(Rest._fields, (_SPARE_DESCRIPTORS, _SPARE_GREENLETS, _SPARE_MB), strict=True):
        before, after = (median(getattr(each, name) for each in some) for some in (then, now))
        assert after <= before + spare, f"{name}: {[getattr(each, name) for each in rests]}"


def soak(start: StartDaemon, seed: int, data_path: Path, seconds: float, lives: int, life_seconds: float) -> None:
    it = Soak(start, seed, data_path)
    middle = time.monotonic() + seconds / 2
    while not it.lives or time.monotonic() < middle:
        it.many_lives(lives, life_seconds)
    daemon = start("--sync-timeout=200ms")
    end = time.monotonic() + seconds / 2
    while len(it.rests) < 3 or time.monotonic() < end:
        it.one_life(life_seconds, daemon)
    assert_no_growth(it.rests)
    assert it.troubles > it.lives
    assert daemon.stop() == 0


@pytest.mark.timeout(600)
def test_a_short_soak_loses_nothing_and_grows_nothing(start, seed, tmp_path):
    soak(start, seed, tmp_path, seconds=0.0, lives=2, life_seconds=0.5)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_long_soak_loses_nothing_and_grows_nothing(start, seed, tmp_path):
    soak(start, seed, tmp_path, SOAK_SECONDS, lives=4, life_seconds=4.0)


def test_growth_is_detected():
    steady = [Rest(20, 8, 50.0)] * 9
    assert_no_growth(steady)
    for grown in (Rest(200, 8, 50.0), Rest(20, 80, 50.0), Rest(20, 8, 500.0)):
        with pytest.raises(AssertionError):
            assert_no_growth([*steady[:6], grown, grown, grown])
