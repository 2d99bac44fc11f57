"""Limits for each address: by themselves, and attacked at daemons while others are served."""

import http.client
import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from io import StringIO

import pytest

from nsq_compat.net.server import ConnectionLimits, TooManyConnections
from nsq_conformance.certificates import Certificates
from nsq_conformance.daemon_process import DaemonProcess
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.client.waiting import wait_until
from tests.v2_client import Client

PATIENCE = 30.0
OPTIONS = ("--max-connections-per-address=5",)
ME, OTHER, THIRD = "127.0.0.1", "127.9.9.9", "127.9.9.10"


# --- The limits by themselves -----------------------------------------------------------------------------------------


def admitted(limits: ConnectionLimits, host: str, count: int, now: float = 100.0) -> int:
    """How many of these connections are admitted."""
    admitted = 0
    for _ in range(count):
        with suppress(TooManyConnections):
            limits.admit(host, now)
            admitted += 1
    return admitted


def test_an_address_has_so_many_connections_and_another_one_as_many():
    limits = ConnectionLimits(per_address=3)
    key = limits.admit("10.0.0.1", 0)
    assert admitted(limits, "10.0.0.1", 5) == 2
    assert admitted(limits, "10.0.0.2", 5) == 3
    limits.release(key)
    assert admitted(limits, "10.0.0.1", 5) == 1
    assert limits.refused == {"per_address": 9, "per_second": 0}


def test_an_address_begins_so_many_connections_in_a_second():
    limits = ConnectionLimits(per_second=3)
    assert [admitted(limits, "10.0.0.1", 5, now) for now in (100.0, 100.9, 101.0)] == [3, 0, 3]
    assert admitted(limits, "10.0.0.2", 5, 101.0) == 3
    assert limits.refused == {"per_address": 0, "per_second": 11}


def test_any_second_has_so_many_connections_also_around_the_change_of_the_clocks_second():
    limits = ConnectionLimits(per_second=4)
    times = [100.5, 100.9, 101.1, 101.4, 101.5, 101.6, 101.9]
    assert [admitted(limits, "10.0.0.1", 2, now) for now in times] == [2, 2, 0, 0, 2, 0, 2]


def test_a_client_that_changes_its_ipv6_address_is_one_client():
    limits = ConnectionLimits(per_address=2)
    assert sum(admitted(limits, f"2001:db8:0:1::{number:x}", 1) for number in range(10)) == 2
    assert admitted(limits, "2001:db8:0:2::1", 5) == 2
    assert admitted(limits, "fe80::1%eth0", 5) == 2


def test_unix_sockets_are_exempt_and_no_limit_is_the_default():
    assert admitted(ConnectionLimits(per_address=1, per_second=1), "", 50) == 50
    assert admitted(ConnectionLimits(), "10.0.0.1", 50) == 50


def test_addresses_without_connections_are_forgotten():
    limits = ConnectionLimits(per_address=2, per_second=2)
    for number in range(1000):
        limits.release(limits.admit(f"10.0.{number // 256}.{number % 256}", float(number)))
    assert len(limits._open) == 0
    assert len(limits._begun) == 1


# --- Daemons under attack ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[NsqdProcess]:
    options = (*OPTIONS, *certificates.options)
    with NsqdProcess(installed_nsqd(), tmp_path_factory.mktemp("nsqd"), options=options) as nsqd:
        yield nsqd


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def connect(address: str, source: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=(source, 0))


def rest(connection: socket.socket) -> bytes:
    """What it receives before it is closed."""
    received = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65536):
            received += data
    return received


def ping(address: str, source: str) -> int:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE, source_address=(source, 0))
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status
    finally:
        connection.close()


def is_free_again(daemon: DaemonProcess, source: str = OTHER) -> None:
    def is_served() -> bool:
        with suppress(OSError, http.client.HTTPException):
            return ping(daemon.http_address, source) == 200
        return False

    wait_until(is_served, PATIENCE)


def fill(stack: ExitStack, address: str, says: bytes = b"", source: str = OTHER) -> list[socket.socket]:
    """Connect until the limit is reached; the connections that were not refused.

    The address must not have been used with this daemon before, which may not have seen all its connections end.
    """
    connections = [stack.enter_context(connect(address, source)) for _ in range(12)]
    poll = select.poll()
    for each in connections:
        poll.register(each, select.POLLIN)

    def refused() -> set[int]:
        return {descriptor for descriptor, _ in poll.poll(0)}  # nothing is said to others

    wait_until(lambda: len(refused()) == 7, PATIENCE)
    accepted = [each for each in connections if each.fileno() not in refused()]
    for each in accepted:
        each.sendall(says)
    return accepted


def test_nsqd_refuses_further_connections_of_an_address_and_serves_others(nsqd):
    with ExitStack() as stack:
        held = fill(stack, nsqd.tcp_address, b"  V2")
        answer = rest(stack.enter_context(connect(nsqd.tcp_address, OTHER)))
        assert answer[8:] == b"E_TOO_MANY_CONNECTIONS this address has too many connections"
        assert answer[:8] == (len(answer) - 4).to_bytes(4, "big") + b"\0\0\0\1"
        # The limit is one for all ports.
        over_http = rest(stack.enter_context(connect(nsqd.http_address, OTHER)))
        assert over_http.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert rest(stack.enter_context(connect(nsqd.https_address, OTHER))) == b""
        with Client(nsqd.tcp_address) as client:
            client.publishes(b"served")
        held[0].sendall(b"PUB t\n\0\0\0\1x")
        assert held[0].recv(100) == b"\0\0\0\6\0\0\0\0OK", "those that it has are served"
        assert b'nsqd_connections_refused_total{limit="per_address"}' in nsqd.asks("GET", "/metrics").body
    is_free_again(nsqd)


def test_half_open_tls_handshakes_count(nsqd, certificates):
    with ExitStack() as stack:
        fill(stack, nsqd.https_address, b"\x16\x03\x01", THIRD)
        assert ping(nsqd.http_address, THIRD) == 429
        context = ssl.create_default_context(cafile=certificates.root_ca)
        with context.wrap_socket(connect(nsqd.https_address, ME), server_hostname="localhost") as mine:
            mine.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            assert mine.recv(100).startswith(b"HTTP/1.1 200")
    is_free_again(nsqd, THIRD)


def test_many_addresses_that_come_and_go_cost_others_nothing(nsqd):
    """400 addresses with up to 8 connections each, 5 of which are served."""
    served = 0
    with Client(nsqd.tcp_address) as client:
        for number in range(400):
            source = f"127.{number % 200 + 10}.{number // 200}.1"
            with ExitStack() as stack:
                for _ in range(8):
                    stack.enter_context(connect(nsqd.tcp_address, source))
            if number % 20 == 0:
                client.publishes(b"served")
                served += ping(nsqd.http_address, ME) == 200
    assert served == 20
    is_free_again(nsqd)


def test_a_kept_connection_counts_once_however_many_requests_it_has(tmp_path):
    options = ("--max-connections-per-address=1", "--max-new-connections-per-second=1000")
    with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd:
        host, _, port = nsqd.http_address.rpartition(":")
        kept = http.client.HTTPConnection(host, int(port), timeout=PATIENCE, source_address=(OTHER, 0))
        for _ in range(20):
            kept.request("GET", "/ping")
            assert kept.getresponse().read() == b"OK"
        assert ping(nsqd.http_address, OTHER) == 429
        assert nsqd.logs("refused 1 connections: 127.9.9.9 has 1 (--max-connections-per-address)")
        kept.close()
        is_free_again(nsqd)


def test_an_address_that_connects_too_often_is_refused_and_others_are_not(tmp_path):
    log, options = StringIO(), ("--max-new-connections-per-second=10",)
    with NsqdProcess(installed_nsqd(), tmp_path, options=options, log=log) as nsqd:
        statuses = [429]
        while statuses.count(429) < 50:
            began = time.monotonic()
            with suppress(OSError, http.client.HTTPException):
                statuses.append(ping(nsqd.http_address, OTHER))
                assert ping(nsqd.http_address, f"127.0.{len(statuses) // 200 + 1}.{len(statuses) % 200 + 1}") == 200
            assert time.monotonic() - began < PATIENCE
    assert "127.9.9.9 began 10 within a second (--max-new-connections-per-second)" in log.getvalue()


@pytest.mark.parametrize("program", ["nsqlookupd", "nsqadmin"])
def test_the_other_daemons_have_the_limits_too(program):
    if program == "nsqlookupd":
        daemon: DaemonProcess = NsqlookupdProcess(installed_nsqlookupd(), options=OPTIONS)
    else:
        daemon = NsqadminProcess(installed_nsqadmin(), options=["--nsqd-http-address=127.0.0.1:1", *OPTIONS])
    with daemon, ExitStack() as stack:
        address = daemon.tcp_address if program == "nsqlookupd" else daemon.http_address
        fill(stack, address)
        if program == "nsqlookupd":
            answer = rest(stack.enter_context(connect(address, OTHER)))
            assert answer[4:] == b"E_TOO_MANY_CONNECTIONS this address has too many connections"
        assert ping(daemon.http_address, OTHER) == 429
        assert ping(daemon.http_address, ME) == 200
