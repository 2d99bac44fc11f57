"""Connecting to a host and port."""

import socket
import threading
from contextlib import ExitStack

import gevent
import pytest

from nsq_compat.net import dialer
from nsq_compat.net.dialer import Dialer, Resolver
from nsq_compat.net.listeners import listen, port_of


def test_each_connect_returns_a_non_blocking_socket():
    with listen("127.0.0.1:0") as listener:
        there = Dialer(f"127.0.0.1:{port_of(listener)}")
        for _ in range(2):
            with there.connect(20) as line:
                assert type(line) is socket.socket
                assert line.gettimeout() == 0
                listener.setblocking(True)
                with listener.accept()[0] as accepted:
                    accepted.sendall(b"hello")
                    gevent.get_hub().wait(gevent.get_hub().loop.io(line.fileno(), 1))
                    assert line.recv(10) == b"hello"


def test_a_name_is_resolved_and_each_of_its_addresses_is_tried():
    with listen("127.0.0.1:0") as listener, Dialer(f"localhost:{port_of(listener)}").connect(20) as line:
        assert line.getpeername()[:2] == listener.getsockname()


def test_an_address_without_a_port_is_refused():
    with pytest.raises(OSError, match="missing port in address"):
        Dialer("127.0.0.1").connect(20)


def test_a_refused_connection_is_reported_at_once():
    with listen("127.0.0.1:0") as listener:
        port = port_of(listener)
    with pytest.raises(ConnectionRefusedError):
        Dialer(f"127.0.0.1:{port}").connect(20)


def fill_backlog(dialer: Dialer, lines: ExitStack) -> None:
    for _ in range(10):
        lines.enter_context(dialer.connect(0.3))


def test_a_server_that_does_not_answer_is_given_up_after_the_timeout():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        there = Dialer(f"127.0.0.1:{deaf.getsockname()[1]}")
        with ExitStack() as lines, pytest.raises(TimeoutError, match="i/o timeout"):
            fill_backlog(there, lines)


def test_an_ip_address_resolves_to_itself():
    assert Resolver("127.0.0.1:8125").resolve(20) == [(socket.AF_INET, ("127.0.0.1", 8125))]
    ((family, name),) = Resolver("[::1]:8125", socket.SOCK_DGRAM).resolve(20)
    assert (family, name[:2]) == (socket.AF_INET6, ("::1", 8125))


@pytest.mark.parametrize("host", ["localhost", ""])
def test_a_name_is_resolved_and_an_empty_host_is_localhost(host):
    found = Resolver(f"{host}:4160").resolve(20)
    assert {name[:2] for _, name in found} <= {("127.0.0.1", 4160), ("::1", 4160)}
    assert found


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "address 127.0.0.1: missing port in address"),
        ("127.0.0.1:99999", "invalid port"),
        ("no.such.host.invalid:4160", r"\w"),
        ("127.0.0.1:nothing", r"\w"),
        ("a..b:4160", r"\w"),
    ],
)
def test_an_invalid_or_unknown_address_is_refused(address, reason):
    with pytest.raises(OSError, match=reason):
        Resolver(address).resolve(20)


def test_a_slow_name_is_resolved_once_at_a_time_and_does_not_delay_others(monkeypatch):
    release, asked = threading.Event(), []

    def slow(host, port, kind):
        asked.append(host)
        release.wait(20)
        return OSError("no such host")

    monkeypatch.setattr(dialer, "_outcome", slow)
    slow_one = Resolver("nameserver.is.away.invalid:4160")
    try:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                slow_one.resolve(0.05)
        assert len(asked) == 1
        assert Resolver("127.0.0.1:4160").resolve(20)
    finally:
        release.set()
