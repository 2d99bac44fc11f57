"""What the utilities' tests stand on: utilities as processes of their own, and HTTP servers to send to."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tools.http_target import HttpTarget


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
    """Start a utility, by name and flags; it is gone at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start_it(name: str, *flags: str) -> "subprocess.Popen[str]":
        command = [str(Path(sys.executable).with_name(name)), *flags]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start_it
    for process in started:
        process.kill()
        process.communicate()
