"""Names to addresses, and what a slow nameserver holds up."""

import socket
import threading

import pytest

from nsq_compat.net import resolver
from nsq_compat.net.resolver import Resolver


def test_an_address_is_itself():
    assert Resolver("127.0.0.1:8125").resolve(20) == [(socket.AF_INET, ("127.0.0.1", 8125))]
    ((family, name),) = Resolver("[::1]:8125", socket.SOCK_DGRAM).resolve(20)
    assert (family, name[:2]) == (socket.AF_INET6, ("::1", 8125))


@pytest.mark.parametrize("host", ["localhost", ""])
def test_a_name_is_resolved_and_no_host_is_this_one(host):
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
def test_an_address_nobody_can_be_at_is_refused(address, reason):
    with pytest.raises(OSError, match=reason):
        Resolver(address).resolve(20)


def test_a_name_that_takes_long_to_resolve_is_asked_for_once_at_a_time_and_keeps_nobody_else_waiting(monkeypatch):
    release, asked = threading.Event(), []

    def slow(host, port, kind):
        asked.append(host)
        release.wait(20)
        return OSError("no such host")

    monkeypatch.setattr(resolver, "_outcome", slow)
    slow_one = Resolver("nameserver.is.away.invalid:4160")
    try:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                slow_one.resolve(0.05)
        assert len(asked) == 1
        assert Resolver("127.0.0.1:4160").resolve(20)
    finally:
        release.set()
