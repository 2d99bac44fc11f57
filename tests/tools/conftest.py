"""Fixtures of the utilities' tests: a real nsqd, utilities as processes, HTTP servers to send to."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_conformance.daemon_process import installed
from nsq_conformance.http_consumer_process import HttpConsumerProcess
from nsq_conformance.nsqd_process import installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.tools.http_target import HttpTarget
from tests.tools.nsqd import Nsqd

StartConsumer = Callable[..., HttpConsumerProcess]

_topic_numbers = itertools.count(1)


@pytest.fixture
def make_target() -> Iterator[Callable[[], HttpTarget]]:
    made: list[HttpTarget] = []

    def make() -> HttpTarget:
        made.append(HttpTarget())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def target(make_target: Callable[[], HttpTarget]) -> HttpTarget:
    return make_target()


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a utility by name and flags; it is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start_it(name: str, *flags: str) -> "subprocess.Popen[str]":
        command = [str(Path(sys.executable).with_name(name)), *flags]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start_it
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def run() -> Callable[..., "subprocess.CompletedProcess[bytes]"]:
    """Run a utility, by name and flags, to its end."""

    def run_it(name: str, *flags: str, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [str(Path(sys.executable).with_name(name)), *flags]
        return subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)

    return run_it


@pytest.fixture
def refusal(run) -> Callable[..., str]:
    """Run a utility that refuses its flags, and return its error text."""

    def refusal_of(name: str, *flags: str) -> str:
        done = run(name, *flags)
        log: str = done.stderr.decode()
        assert (done.returncode in (1, 2), done.stdout) == (True, b""), log
        assert (done.returncode == 2) == (f"Usage of {name}:" in log)
        assert "Traceback" not in log
        return log

    return refusal_of


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """One nsqd for all tests, each of which has a topic of its own."""
    with Nsqd(installed_nsqd(), tmp_path_factory.mktemp("nsqd")) as process:
        yield process


@pytest.fixture
def topic(nsqd: Nsqd) -> str:
    """A topic with a channel, `c`."""
    name = f"topic.{next(_topic_numbers)}"
    nsqd.create_channel(name, "c")
    return name


@pytest.fixture
def lookupd() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


@pytest.fixture
def announced_nsqd(lookupd: NsqlookupdProcess, tmp_path: Path) -> Iterator[Nsqd]:
    """An nsqd that `lookupd` knows."""
    (tmp_path / "announced").mkdir()
    options = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
    with Nsqd(installed_nsqd(), tmp_path / "announced", options=options) as process:
        yield process


@pytest.fixture
def start_consumer(nsqd: Nsqd) -> Iterator[StartConsumer]:
    """Start a program with these flags beside nsqd; it is stopped at the end of the test."""
    with ExitStack() as running:

        def start(program: str, *flags: str) -> HttpConsumerProcess:
            options = [f"--nsqd-tcp-address={nsqd.tcp_address}", *flags]
            return running.enter_context(HttpConsumerProcess(installed(program), options=options))

        yield start
