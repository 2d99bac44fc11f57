"""systemd is told what it wants to know, by a socket of the test's own."""

import socket
from collections.abc import Iterator
from pathlib import Path

import gevent.socket
import pytest

from nsq_compat.net.supervisor import Supervisor


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[gevent.socket.socket]:
    with gevent.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.settimeout(20)
        heard.bind(str(tmp_path / "notify"))
        yield heard


def test_it_is_told_of_the_start_and_of_the_stop(systemd):
    supervisor = Supervisor({"NOTIFY_SOCKET": systemd.getsockname()})
    supervisor.ready()
    supervisor.stopping()
    assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_the_watchdog_is_fed_again_and_again(systemd):
    supervisor = Supervisor({"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "20000"})
    supervisor.ready()
    assert [systemd.recv(100) for _ in range(4)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    assert supervisor._feeding is not None
    supervisor._feeding.kill()


def test_a_socket_without_a_file_is_found():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("")  # the system chooses a name
        name = heard.getsockname()
        heard.settimeout(20)
        Supervisor({"NOTIFY_SOCKET": "@" + name[1:].decode()}).ready()
        assert heard.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": "/none/there"}, {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "x"}]
)
def test_nobody_who_wants_to_know_is_no_matter(environment):
    supervisor = Supervisor(environment)
    supervisor.ready()
    supervisor.stopping()
