"""What a program imports until it serves, and the memory that this takes.

A module that libraries import, or that few processes need, costs every start and every process. Imports are kept apart
in `nsq_compat.programs` or moved into the functions that need them; these tests fail if one comes back.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsq_compat import version_text
from nsq_conformance.daemon_process import DaemonProcess
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

pytestmark = pytest.mark.real_start

SCRIPTS = Path(sys.executable).parent
REPORTING = f"{sys.executable} -X importtime"
IMPORTED = re.compile(r"^import time: .*\| +(\S+)$", re.MULTILINE)
PATIENCE = 60.0

# By program, those that it must not have at the start. Each takes 0.3 to 10 MB, or some milliseconds.
UNNEEDED = {
    "nsqd": (
        *("_hashlib", "_ssl", "datetime", "decimal", "email", "html", "pdb", "pickle", "tomllib"),
        # From Python 3.13 on, dataclasses with slots call it.
        *(("inspect",) if sys.version_info < (3, 13) else ()),
        *(
            "cramjam",
            "ddsketch",
            "flask",
            "jinja2",
            "prometheus_client",
            "re2",
            "requests",
            "urllib3",
            "werkzeug",
            "zlib_ng",
        ),
        *("nsq_compat.bounded_http", "nsq_compat.client", "nsq_compat.net.tls", "nsq_compat.web.admin"),
    ),
    "to_nsq": (
        "asyncio",
        "ddsketch",
        "flask",
        "gevent",
        "prometheus_client",
        "re2",
        "snappy",
        "nsq_compat.log.topic_log",
    ),
}
UNNEEDED["nsqlookupd"] = (
    *UNNEEDED["nsqd"],
    "gevent.threadpool",
    "google_crc32c",
    "nsq_compat.queue.topic",
    "nsq_compat.log.topic_log",
    "nsq_compat.nsqd",
)
UNNEEDED["nsq_tail"] = UNNEEDED["to_nsq"]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def as_installed(monkeypatch):
    """Without the modules with which Python measures coverage, and with the bytecode of ours."""
    for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


def named(imported: set[str], unneeded: tuple[str, ...]) -> set[str]:
    """Those of the modules that were imported, or have a part that was."""
    return {name for name in unneeded if any(f"{each}.".startswith(f"{name}.") for each in imported)}


@contextmanager
def started(program: str, folder: Path, before: str = "") -> Iterator[DaemonProcess]:
    command = f"{before} {SCRIPTS / program}"
    with (folder / "log").open("w") as log:
        if program == "nsqd":
            with NsqdProcess(command, folder, log=log) as daemon:
                yield daemon
        else:
            with NsqlookupdProcess(command, log=log) as daemon:
                yield daemon


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_a_daemon_that_serves_has_not_imported_what_it_does_not_need(program, tmp_path):
    with started(program, tmp_path, REPORTING) as daemon:
        assert daemon.asks("GET", "/ping").status == 200
        assert daemon.asks("GET", "/stats?format=json" if program == "nsqd" else "/topics").status == 200
    imported = set(IMPORTED.findall((tmp_path / "log").read_text()))
    assert "nsq_compat.net.server" in imported
    assert named(imported, UNNEEDED[program]) == set()


@pytest.mark.parametrize("program", ["nsq_tail", "to_nsq"])
def test_a_utility_that_connects_has_not_imported_what_it_does_not_need(program):
    with socket.create_server(("127.0.0.1", 0)) as nsqd:
        address = "{}:{}".format(*nsqd.getsockname())
        words = [*REPORTING.split(), str(SCRIPTS / program), "--topic=t", f"--nsqd-tcp-address={address}"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            nsqd.settimeout(PATIENCE)
            nsqd.accept()[0].close()
            nsqd.close()
            _, log = process.communicate(timeout=PATIENCE)
    imported = set(IMPORTED.findall(log))
    assert "nsq_compat.client" in imported
    assert named(imported, UNNEEDED[program]) == set()


@pytest.mark.parametrize("program", ["nsqd", "nsqadmin", "nsq_data", "nsq_tail", "to_nsq"])
@pytest.mark.parametrize("flag", ["-version", "--version"])
def test_the_version_is_printed_before_anything_is_imported(program, flag):
    words = [*REPORTING.split(), str(SCRIPTS / program), flag]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert version_text(program).endswith(done.stdout.partition("\n")[2].rstrip())
    ours = {name for name in IMPORTED.findall(done.stderr) if name.startswith("nsq_compat")}
    assert ours == {"nsq_compat", "nsq_compat.programs"}


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def of_python_alone() -> int:
    """What each process of this Python has, which differs from version to version."""
    words = [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.read()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return resident(process.pid)


# Python 3.11 has 9 MiB: nsqd has 28 in all, or 31 if it is compiled, nsqlookupd 22 or 25.
@pytest.mark.parametrize(("program", "limit"), [("nsqd", 23 * MIB), ("nsqlookupd", 16 * MIB)])
def test_the_memory_of_an_idle_daemon_is_bounded(program, limit, tmp_path):
    # The first start may have to compile modules to bytecode, which takes memory.
    for _ in range(2):
        with started(program, tmp_path) as daemon:
            assert daemon.asks("GET", "/ping").status == 200
            memory = resident(daemon.pid)
    assert memory - of_python_alone() < limit
