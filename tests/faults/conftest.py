"""Fixtures of the fault tests: a printed seed, and an nsqd with its own data path.

FAULT_SEED repeats a run, FAULT_ROUNDS sets the rounds of the long tests (``make faults SEED=... ROUNDS=...``).
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from nsq_compat.log import segment
from tests.faults.daemon import Daemon, Directory
from tests.faults.network import Cable

StartDaemon = Callable[..., Daemon]

LONG_ROUNDS = int(os.environ.get("FAULT_ROUNDS") or 200)


@pytest.fixture
def seed() -> int:
    """The seed, printed so that a failure can be repeated with FAULT_SEED."""
    number = int(os.environ.get("FAULT_SEED") or Random().getrandbits(32))
    print(f"FAULT_SEED={number}")
    return number


@pytest.fixture(params=[False, True], ids=["no zeros ahead", "zeros ahead"])
def zeros_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a small log, too, writes zeros where the next groups will be, as a big one does."""
    if request.param:
        monkeypatch.setattr(segment, "_ZERO_AHEAD_FROM", 0)
        monkeypatch.setattr(segment, "_ZERO_AHEAD", 512)
        monkeypatch.setattr(segment, "_ZEROS", bytes(512))


@pytest.fixture
def cable() -> Iterator[Cable]:
    with Cable() as cable:
        yield cable


@pytest.fixture
def directories() -> Iterator[list[Directory]]:
    """Two nsqlookupds."""
    both = [Directory().start() for _ in range(2)]
    yield both
    for each in both:
        each.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartDaemon]:
    """Start nsqd with options, by default on the test's own data path.

    At the end of the test, its log must not contain a traceback or a blocked event loop.
    """
    daemons: list[Daemon] = []

    def start_daemon(*options: str, data_path: Path = tmp_path, command: str | None = None) -> Daemon:
        daemon = Daemon(data_path, options, command)
        daemons.append(daemon)
        daemon.start()
        return daemon

    yield start_daemon
    for daemon in daemons:
        daemon.end()
    for daemon in daemons:
        assert "Traceback" not in daemon.log, daemon.log[daemon.log.index("Traceback") - 500 :][:5000]
        assert not daemon.held, "\n".join(daemon.held)[:5000]
