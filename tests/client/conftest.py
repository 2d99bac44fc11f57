"""Fixtures: a real nsqd, and fake servers on real sockets that misbehave on demand."""

import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from pymemcache.client.base import PooledClient

from nsq_compat.client.consumer import Consumer
from nsq_compat.client.message import Handler
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.client.fake_lookupd import FakeLookupd
from tests.client.fake_nsqd import FakeNsqd, MakeNsqd
from tests.client.on_loop import LoopConsumer, end_loops
from tests.client.waiting import wait_until

_topic_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    """One nsqd for all tests; each test has its own topic."""
    with NsqdProcess(installed_nsqd(), tmp_path_factory.mktemp("nsqd")) as process:
        yield process


@pytest.fixture
def topic() -> str:
    return f"topic.{next(_topic_numbers)}"


@pytest.fixture
def make_nsqd() -> Iterator[MakeNsqd]:
    made: list[FakeNsqd] = []

    def make(*arguments: object, **features: object) -> FakeNsqd:
        made.append(FakeNsqd(*arguments, **features))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def fake(make_nsqd: MakeNsqd) -> FakeNsqd:
    return make_nsqd()


@pytest.fixture
def lookupd() -> Iterator[FakeLookupd]:
    server = FakeLookupd()
    yield server
    server.close()


StartConsumer = Callable[..., Consumer]


@pytest.fixture(params=[Consumer, LoopConsumer], ids=["threads", "asyncio"])
def start_consumer(request: pytest.FixtureRequest) -> Iterator[StartConsumer]:
    """Start a consumer, by default of topic `t` and channel `c`; it is stopped at the end of the test."""
    started: list[Consumer] = []

    def start(handler: Handler, topic: str = "t", channel: str = "c", **options: object) -> Consumer:
        started.append(request.param(topic, channel, handler, **options))
        return started[-1].start()

    yield start
    for consumer in started:
        consumer.stop(timeout=0.5)
    end_loops()


def _accepts_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0  # the file is there before it does


@pytest.fixture(scope="session")
def memcached_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A private memcached on a Unix socket."""
    path = tmp_path_factory.mktemp("memcached") / "socket"
    as_user = ["-u", "root"] if os.getuid() == 0 else []
    process = subprocess.Popen(["memcached", *as_user, "-s", str(path), "-m", "16"])
    wait_until(partial(_accepts_connections, path))
    yield path
    process.terminate()
    process.wait()


@pytest.fixture
def memcached(memcached_socket: Path) -> Iterator[PooledClient]:
    """A client of an empty memcached."""
    with closing(PooledClient(str(memcached_socket), timeout=5, connect_timeout=5)) as client:
        client.flush_all(noreply=False)
        yield client
