"""F16: nsqlookupd is killed, restarts, hangs, sends invalid answers or loses its network. nsqd registers again within
seconds; consumers and publishers are not affected.
"""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from urllib.request import urlopen

import pytest

from nsq_conformance.nsqlookupd_process import installed_nsqlookupd
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, Directory, wait_until
from tests.faults.traffic import ChannelLedger, Traffic
from tests.v2_client import sized

WITHIN = 40.0
"""Longest wait in seconds; on an idle machine a few are enough."""
BROADCAST = "--broadcast-address=127.0.0.1"


def started(start: StartDaemon, directories: list[Directory], *options: str) -> Daemon:
    """Start nsqd and wait until its topic is registered at all nsqlookupds."""
    daemon = start(BROADCAST, *(each.flag for each in directories), *options)
    daemon.create_channel("before", "c")
    wait_until(lambda: all(each.topics() == {"before"} for each in directories), WITHIN)
    return daemon


def registered_again(directory: Directory, topics: set[str]) -> None:
    began = time.monotonic()
    wait_until(lambda: directory.topics() == topics, WITHIN)
    print(f"registered again after {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restarted_nsqlookupd_knows_all_registrations_within_seconds(start, directories, number):
    ended, other = directories
    daemon = started(start, directories)
    with daemon.client() as consumer, daemon.client() as producer:
        consumer.subscribes(b"before", ready=10)
        ended.send_signal(number)
        ended.end()
        producer.publishes(b"x", topic=b"during").publishes(b"x", topic=b"before")
        assert consumer.takes(1, finishing=True)
        wait_until(lambda: other.topics() == {"before", "during"}, WITHIN)
        ended.start()
        registered_again(ended, {"before", "during"})
        assert ended.get("/channels", topic="before") == {"channels": ["c"]}
        producer.publishes(b"x", topic=b"before")
        assert consumer.takes(1)


def test_a_hanging_nsqlookupd_delays_neither_the_other_nor_publishers(start: StartDaemon, directories: list[Directory]):
    hung, other = directories
    daemon = started(start, directories, "--http-client-request-timeout=2s")
    hung.hang()
    names = {f"topic{number}" for number in range(20)}
    with daemon.client() as client:
        for name in names:
            client.publishes(b"x", topic=name.encode())
            daemon.create_channel(name, "c")
        wait_until(lambda: other.topics() == {"before", *names}, WITHIN)
        wait_until(lambda: all(each["depth"] == 0 for each in daemon.stats()), WITHIN)
        assert client.subscribes(b"topic7", ready=1).takes(1)
    hung.go_on()
    registered_again(hung, {"before", *names})


def test_a_message_published_during_the_lookup_of_channels_reaches_them_after_a_kill(start, directories):
    asked, _ = directories
    daemon = started(start, directories, "--http-client-request-timeout=300s")
    asked.create_channel("new", "elsewhere")
    asked.hang()
    with daemon.client() as producer:
        producer.publishes(b"acknowledged", topic=b"new").defers(b"and deferred", 1, b"new")
    assert daemon.stats("new")[0]["depth"] == 2
    daemon.kill()
    asked.go_on()
    daemon = start(BROADCAST, *(each.flag for each in directories))
    wait_until(lambda: daemon.unfinished("new") == {"elsewhere": 2}, WITHIN)
    assert set(daemon.consumes(2, b"new", b"elsewhere")) == {b"acknowledged", b"and deferred"}


def test_repeated_kills_during_lookups_of_channels_lose_no_message(start, directories, seed, tmp_path):
    hung, _ = directories
    traffic = Traffic(seed, tmp_path)
    for each in directories:
        each.create_channel(traffic.orders.topic, "elsewhere")

    def live(end: Callable[[Daemon], object]) -> Daemon:
        level = traffic.random.choice(("os", "fsync"))
        memory = traffic.random.choice((0, 20, 10_000))
        flags = [each.flag for each in directories]
        patience = "--http-client-request-timeout=300s"
        daemon: Daemon = start(BROADCAST, *flags, patience, f"--durability={level}", f"--mem-queue-size={memory}")
        if not traffic.orders.channels:
            wait_until(lambda: daemon.log.count("peer info") == 2, WITHIN)
            hung.hang()
            traffic.add_channel(daemon, traffic.orders, "own")
        traffic.run(daemon, traffic.random.uniform(0.2, 0.8), end)
        return daemon

    for _ in range(3):
        live(Daemon.kill)
    print(f"{len(traffic.orders.channels['own'].seen)} messages were delivered before the channels were known")
    hung.go_on()
    for _ in range(2):
        live(Daemon.kill)
    # Created when its name was known, and without a consumer so far.
    traffic.orders.channels["elsewhere"] = ChannelLedger("elsewhere", 0.0)
    last = start(BROADCAST, *(each.flag for each in directories))
    wait_until(lambda: "elsewhere" in last.unfinished(traffic.orders.topic), WITHIN)
    traffic.drain(last)
    assert traffic.check() == []
    assert traffic.orders.acknowledged


def test_a_clean_stop_does_not_wait_for_a_hanging_nsqlookupd(start: StartDaemon, directories: list[Directory]):
    hung, other = directories
    daemon = started(start, directories, "--http-client-request-timeout=300s")
    hung.hang()
    daemon.publishes(b"x", topic=b"new")
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait_for_end(WITHIN) == 0
    wait_until(lambda: other.topics() == set(), WITHIN)


# --- Invalid answers --------------------------------------------------------------------------------------------------


def with_greeting(random: Random) -> bytes:
    host = random.choice(["", "127.0.0.1", "::1", "no such host"])
    about = {"broadcast_address": host, "http_port": random.choice([0, 1, -1])}
    return sized(json.dumps(about).encode())


INVALID_ANSWERS: list[Callable[[Random], bytes]] = [
    lambda random: random.randbytes(random.randint(1, 100)),
    lambda random: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    lambda random: b"\xff\xff\xff\xff",
    lambda random: b"\x7f\xff\xff\xff" + random.randbytes(1000),
    lambda random: sized(b"[" * 5000),
    lambda random: sized(b'{"tcp_port":1e400}'),
    lambda random: with_greeting(random) + sized(b"E_INVALID"),
    lambda random: with_greeting(random) + sized(random.randbytes(50)),
    lambda random: with_greeting(random) + sized(b"OK") * random.randint(0, 5000),
    lambda random: with_greeting(random)[: random.randint(0, 30)],
    lambda random: b"",
]


class InvalidLookupd(threading.Thread):
    """A server on the address of an nsqlookupd that gives an invalid answer to each connection."""

    def __init__(self, random: Random) -> None:
        super().__init__(daemon=True)
        self.heard = 0
        self._random = random
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.flag = f"--lookupd-tcp-address=127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, suppress(OSError):
                    client.settimeout(5)
                    client.sendall(self._random.choice(INVALID_ANSWERS)(self._random))
                    client.recv(1000)
                    self.heard += 1

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join()


def test_invalid_answers_of_an_nsqlookupd_have_no_effect(start: StartDaemon, directories: list[Directory], seed: int):
    babblers = [InvalidLookupd(Random(seed + number)) for number in range(5)]
    try:
        daemon = started(start, directories, *(each.flag for each in babblers))
        with daemon.client() as client:
            deadline = time.monotonic() + WITHIN
            topics = {"before"}
            while sum(each.heard for each in babblers) < 20 and time.monotonic() < deadline:
                topics.add(name := f"topic{len(topics)}")
                client.publishes(b"x", topic=name.encode())
                time.sleep(0.1)
            wait_until(lambda: all(each.topics() == topics for each in directories), WITHIN)
            wait_until(lambda: daemon.unfinished("topic1") == {}, WITHIN)
            assert client.subscribes(b"topic1", ready=1).takes(1)
    finally:
        for babbler in babblers:
            babbler.stop()


# --- Network cuts -----------------------------------------------------------------------------------------------------


def _lost(host: str, daemon: Daemon) -> bool:
    said = [line for line in daemon.log.splitlines() if f"LOOKUPD({host}:4160): " in line]
    return any(line.endswith("no answer within 5s") for line in said)


def topics_at(host: str) -> set[str]:
    """The topics registered at an nsqlookupd; empty if it cannot be reached."""
    with suppress(OSError), urlopen(f"http://{host}:4161/nodes", timeout=5) as response:
        return {topic for node in json.load(response)["producers"] for topic in node["topics"]}
    return set()


@pytest.mark.privileged
def test_registrations_are_complete_soon_after_a_network_cut(start, directories, cable):
    near, _ = directories
    addresses = (f"--tcp-address={cable.far}:4160", f"--http-address={cable.far}:4161")
    with cable.run(installed_nsqlookupd(), "--log-level=fatal", f"--broadcast-address={cable.far}", *addresses):
        daemon = started(start, directories, f"--lookupd-tcp-address={cable.far}:4160")
        wait_until(lambda: topics_at(cable.far) == {"before"}, WITHIN)
        cable.cut()
        with daemon.client() as client:
            client.publishes(b"x", topic=b"during")
            wait_until(lambda: near.topics() == {"before", "during"}, WITHIN)
            wait_until(lambda: _lost(cable.far, daemon), WITHIN)
            daemon.create_channel("during", "c")
            assert client.subscribes(b"during", ready=1).takes(1)
        cable.mend()
        wait_until(lambda: topics_at(cable.far) == {"before", "during"}, WITHIN)
