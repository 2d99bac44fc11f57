"""The units in contrib/systemd, and daemons started as systemd starts them."""

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_compat.cli.flags import parse
from nsq_compat.cli.options import table_of
from nsq_compat.nsqadmin.options import NsqadminOptions
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqlookupd.main import NsqlookupdOptions

UNITS = Path(__file__).parents[2] / "contrib" / "systemd"
OPTIONS = {"nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions, "nsqadmin": NsqadminOptions}
NEEDED = {"nsqd": ["--tcp-address=127.0.0.1:0"], "nsqlookupd": ["--tcp-address=127.0.0.1:0"]}


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.settimeout(30)
        heard.bind(str(tmp_path / "notify"))
        yield heard


def settings(program: str) -> list[tuple[str, str]]:
    lines = (UNITS / f"{program}.service").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and line[0] not in "#["]
    assert all(equals for _, equals, _ in pairs)
    return [(name, value) for name, _, value in pairs]


@pytest.mark.parametrize("program", OPTIONS)
def test_a_unit_starts_its_daemon_with_known_flags(program):
    unit = dict(settings(program))
    assert unit["Type"] == "notify"
    path, *words = shlex.split(unit["ExecStart"])
    assert path == f"/usr/local/bin/{program}"
    assert words.pop() == f"${program.upper()}_OPTIONS"
    parse(table_of(OPTIONS[program]), words)


@pytest.mark.parametrize("program", OPTIONS)
def test_a_unit_restricts_its_daemon(program):
    unit = dict(settings(program))
    assert unit["NoNewPrivileges"] == unit["ProtectHome"] == unit["PrivateDevices"] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert unit["CapabilityBoundingSet"] == ""
    assert "User" in unit or unit["DynamicUser"] == "yes"


def test_the_unit_of_a_node_is_that_of_nsqd_with_a_place_of_its_own():
    changed = {"Description", "EnvironmentFile", "ExecStart", "StateDirectory", "WantedBy"}
    alone, node = settings("nsqd"), settings("nsqd@")
    assert [pair for pair in node if pair[0] not in {*changed, "PartOf"}] == [
        pair for pair in alone if pair[0] not in changed
    ]
    assert [pair for pair in node if pair[0] in {*changed, "PartOf"}] == [
        ("Description", "NSQ message queue, node %i of this machine"),
        ("PartOf", "nsqd.target"),
        ("EnvironmentFile", "-/etc/default/nsqd"),
        ("EnvironmentFile", "/etc/nsqd/%i.env"),
        ("ExecStart", "/usr/local/bin/nsqd $NSQD_OPTIONS $NSQD_NODE_OPTIONS"),
        ("StateDirectory", "nsqd/%i"),
        ("WantedBy", "nsqd.target"),
    ]
    assert "WantedBy=multi-user.target" in (UNITS / "nsqd.target").read_text()


def test_a_stop_by_systemd_leaves_time_for_a_drain():
    unit = dict(settings("nsqd"))
    minutes = int(unit["TimeoutStopSec"].removesuffix("min"))
    assert minutes * 60_000_000_000 > NsqdOptions().drain_timeout


@pytest.mark.parametrize("program", OPTIONS)
def test_a_daemon_notifies_systemd_of_start_watchdog_and_stop(program, systemd, tmp_path):
    words = NEEDED.get(program, ["--nsqd-http-address=127.0.0.1:1", "--sample-interval=0s"])
    if program == "nsqd":
        words = [*words, f"--data-path={tmp_path}", "--sigterm=drain"]
    environment = {**os.environ, "NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "100000"}
    command = [sys.executable, "-m", f"nsq_compat.{program}.main", "--http-address=127.0.0.1:0", *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        process.send_signal(signal.SIGTERM)
        while (heard := systemd.recv(100)) == b"WATCHDOG=1":
            pass
        assert heard == b"STOPPING=1"
        assert process.wait(30) == 0
