"""A forked program is like one that was really started."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import fork_server

NSQLOOKUPD = str(Path(sys.executable).with_name("nsqlookupd"))
LISTENS = [NSQLOOKUPD, "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
ALIKE = ("Umask", "Threads", "SigBlk", "SigIgn", "SigCgt", "ShdPnd", "CapEff", "Seccomp", "NoNewPrivs", "Uid", "Groups")
Starts = Callable[..., list["subprocess.Popen[str]"]]


def is_forked(process: "subprocess.Popen[str]") -> bool:
    return "fork_server" in Path(f"/proc/{process.pid}/cmdline").read_text()


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    """Start a program really, and then by fork. Wait until each has logged a line with `until`."""
    running: list[subprocess.Popen[str]] = []

    def start_both(
        words: list[str], until: str = "HTTP: listening", **options: object
    ) -> list["subprocess.Popen[str]"]:
        for is_used in (False, True, True):  # the server may not be there yet
            monkeypatch.setattr(fork_server, "is_used", is_used)
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
            )  # type: ignore[call-overload]
            running.append(process)
            while until and until not in process.stderr.readline():
                assert process.poll() is None
        return [running[-3], running[-1]]

    yield start_both
    for process in running:
        process.kill()
        process.communicate()


def test_it_is_a_child_of_the_test_process_in_every_respect(starts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    real, forked = starts(LISTENS)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert (is_forked(real), is_forked(forked)) == (False, True)

    def observed(process):
        proc = Path(f"/proc/{process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        assert int(status["PPid"]) == os.getpid()
        files = {os.readlink(each) for each in (proc / "fd").iterdir()}
        return {
            "status": {name: status[name] for name in ALIKE},
            "files": sorted("socket" if each.startswith(("socket", "pipe")) else each for each in files),
            "limits": (proc / "limits").read_text(),
            "folder": os.readlink(proc / "cwd"),
            "program": os.readlink(proc / "exe"),
            "group": os.getpgid(process.pid) == os.getpgid(0),
            "session": os.getsid(process.pid) == os.getsid(0),
            "priority": os.getpriority(os.PRIO_PROCESS, process.pid),
            "namespaces": {each.name: os.readlink(each) for each in (proc / "ns").iterdir()},
        }

    def differences() -> dict[str, tuple[object, object]]:
        one, other = observed(forked), observed(real)
        pairs = {**one.pop("status"), **one}, {**other.pop("status"), **other}
        return {name: (pairs[0][name], pairs[1][name]) for name in pairs[0] if pairs[0][name] != pairs[1][name]}

    deadline = time.monotonic() + 20
    while differences() and time.monotonic() < deadline:  # one was started just now
        pass
    assert differences() == {}
    assert observed(forked)["folder"] == str(tmp_path)


def test_it_may_have_a_session_of_its_own(starts):
    for process in starts(LISTENS, start_new_session=True):
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_signals_and_statuses_are_its_own(starts, number, status):
    for process in starts(LISTENS):
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == status


def test_options_and_errors_are_its_own(starts):
    real, forked = (
        (*process.communicate(timeout=60), process.returncode) for process in starts([NSQLOOKUPD, "--x"], "")
    )
    assert forked == real
    assert real[2] != 0
    real, forked = (process.communicate(timeout=60) for process in starts([NSQLOOKUPD, "--version"], ""))
    assert forked == real
    assert "nsqlookupd v" in real[0]


def test_a_changed_environment_is_a_real_start(starts, monkeypatch):
    assert is_forked(starts(LISTENS)[1])
    monkeypatch.setenv("ANY", "thing")
    assert not is_forked(starts(LISTENS)[1])
