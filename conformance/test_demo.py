"""The demonstration behind ``scripts/run``: it must tell right from wrong, and leave nothing running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


_FREE_PORTS = [f"--{name}-port=0" for name in ("tcp", "http", "lookupd-tcp", "lookupd-http", "admin")]


@pytest.fixture
def daemons(nsqd_command: str, nsqlookupd_command: str) -> list[str]:
    """Which to run, as options."""
    return [f"--nsqd={nsqd_command}", f"--nsqlookupd={nsqlookupd_command}"]


def start_demo(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "conformance.demo", *_FREE_PORTS, *options],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_sends_a_file_compares_and_stops(daemons: list[str]) -> None:
    demo = start_demo(*daemons, "--once", f"--file={__file__}")
    output, errors = demo.communicate(timeout=50)
    assert demo.returncode == 0, errors
    assert "came back exactly once" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_stays_until_a_signal_and_takes_the_daemons_with_it(daemons: list[str], number: int, tmp_path: Path) -> None:
    demo = start_demo(*daemons, f"--file={__file__}", f"--data-path={tmp_path}")
    assert demo.stdout is not None
    assert any("Ctrl-C stops all three" in line for line in demo.stdout)
    demo.send_signal(number)
    output, errors = demo.communicate(timeout=30)
    assert demo.returncode == 0, errors
    assert "stopping nsqadmin, nsqd and nsqlookupd" in output
    assert not processes_naming(str(tmp_path))


def test_it_fails_when_nsqd_cannot_start(tmp_path: Path) -> None:
    demo = start_demo("--nsqd=/no/such/nsqd", f"--data-path={tmp_path}")
    _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 1
    assert "cannot start /no/such/nsqd" in errors


def processes_naming(text: str) -> list[str]:
    """The command lines of running processes that contain the text."""
    command_lines = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            command_lines.append(Path("/proc", entry, "cmdline").read_text())
        except OSError:  # the process has ended since
            continue
    return [line for line in command_lines if text in line]
