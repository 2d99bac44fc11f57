"""The demonstration behind ``scripts/run``: it must tell right from wrong, and leave nothing running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


def start_demo(nsqd_command: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "conformance.demo", "--tcp-port=0", "--http-port=0", f"--nsqd={nsqd_command}", *options],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_sends_a_file_compares_and_stops(nsqd_command: str) -> None:
    demo = start_demo(nsqd_command, "--once", f"--file={__file__}")
    output, errors = demo.communicate(timeout=50)
    assert demo.returncode == 0, errors
    assert "came back exactly once" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_stays_until_a_signal_and_takes_nsqd_with_it(nsqd_command: str, number: int, tmp_path: Path) -> None:
    demo = start_demo(nsqd_command, f"--file={__file__}", f"--data-path={tmp_path}")
    assert demo.stdout is not None
    assert any("Ctrl-C stops it" in line for line in demo.stdout)
    demo.send_signal(number)
    output, errors = demo.communicate(timeout=30)
    assert demo.returncode == 0, errors
    assert "stopping nsqd" in output
    assert not processes_naming(str(tmp_path))


def test_it_fails_when_nsqd_cannot_start(tmp_path: Path) -> None:
    demo = start_demo("/no/such/nsqd", f"--data-path={tmp_path}")
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
