"""NSQ's address forms, sockets that listen on them and what is said of those, and connecting to a host and port."""

import os
import socket
import stat
import threading
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest

from nsq_compat.net import sockets
from nsq_compat.net.sockets import (
    Dialer,
    ListenError,
    Resolver,
    address_of,
    check_address,
    listen,
    peer_of,
    port_of,
    prepare_client,
    prepare_listener,
    split_host_port,
)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:4150", ("127.0.0.1", "4150")),
        (":4150", ("", "4150")),
        ("[::1]:80", ("::1", "80")),
        ("localhost:http", ("localhost", "http")),
        ("/run/nsqd.sock", None),
        ("nsqd.sock", None),
        ("::1", None),
        ("", None),
    ],
)
def test_an_address_is_host_and_port_or_a_path(address, parts):
    assert split_host_port(address) == parts


def test_port_0_binds_a_free_port_and_reports_it():
    with listen("127.0.0.1:0") as listener:
        assert port_of(listener) > 0
        assert address_of(listener) == f"127.0.0.1:{port_of(listener)}"


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", ":0"])
def test_a_wildcard_accepts_both_families_and_shows_ipv4_clients_as_such(address):
    with listen(address) as listener:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.connect((host, port_of(listener)))
                accepted, name = listener.accept()
                accepted.close()
            assert peer_of(name)[1] == host


def test_a_named_address_accepts_only_its_own_family():
    with (
        listen("127.0.0.1:0") as listener,
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as client,
        pytest.raises(ConnectionRefusedError),
    ):
        client.connect(("::1", port_of(listener)))


def test_an_ipv6_peer_is_shown_in_brackets():
    assert peer_of(("::1", 5000, 0, 0)) == ("[::1]:5000", "::1")
    assert peer_of(("::ffff:10.0.0.1", 5000, 0, 0)) == ("10.0.0.1:5000", "10.0.0.1")


def test_a_unix_socket_has_no_port_and_its_clients_no_address(tmp_path: Path):
    path = str(tmp_path / "nsqd.sock")
    with listen(path) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(path)
        accepted, name = listener.accept()
        accepted.close()
        assert port_of(listener) == -1
        assert address_of(listener) == path
        assert peer_of(name) == ("@", "")


def test_a_socket_file_left_by_a_killed_process_is_replaced(tmp_path: Path):
    path = str(tmp_path / "nsqd.sock")
    listen(path).close()
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    with listen(path) as listener:
        assert address_of(listener) == path


def test_a_socket_file_with_a_listener_is_refused(tmp_path: Path):
    path = str(tmp_path / "nsqd.sock")
    with listen(path), pytest.raises(ListenError, match="address already in use"):
        listen(path)


def test_a_file_that_is_not_a_socket_is_kept(tmp_path: Path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ListenError):
        listen(str(path))
    assert path.read_text() == "data"


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:port", "256.0.0.1:0", "no.such.host.invalid:0"])
def test_an_invalid_address_is_refused_with_its_text(address):
    with pytest.raises(ListenError, match=r"listen \(.*\) failed - ."):
        listen(address)


def test_an_address_is_checked_without_binding_it(tmp_path: Path):
    with listen("127.0.0.1:0") as taken:
        for address in (address_of(taken), "127.0.0.1:0", ":4150", "0.0.0.0:1", "[::1]:80", "localhost:http", "socket"):
            check_address(address)
    check_address(str(tmp_path / "socket"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:65536", "127.0.0.1:x", "192.0.2.1:80", "/none/socket"])
def test_checking_finds_an_invalid_address(address):
    with pytest.raises(ListenError) as caught:
        check_address(address)
    assert str(caught.value).startswith(f"listen ({address}) failed - ")


def test_a_port_that_is_taken_is_refused():
    with listen("127.0.0.1:0") as listener, pytest.raises(ListenError, match="address already in use"):
        listen(address_of(listener))


def has_options_of_a_client(connected: socket.socket) -> bool:
    options = [(socket.IPPROTO_TCP, getattr(socket, name)) for name in ("TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL")]
    return [connected.getsockopt(*each) for each in [*options, (socket.SOL_SOCKET, socket.SO_KEEPALIVE)]] == [
        1,
        15,
        15,
        1,
    ]


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", ":0"])
def test_an_accepted_client_is_kept_alive(address):
    with listen(address) as listener:
        prepare_listener(listener)
        with socket.create_connection(
            listener.getsockname()[:2] if address[0] != ":" else ("127.0.0.1", port_of(listener))
        ):
            gevent.get_hub().wait(gevent.get_hub().loop.io(listener.fileno(), 1))
            with listener.accept()[0] as accepted:
                assert has_options_of_a_client(accepted)


def test_a_connected_socket_does_not_wait_and_is_kept_alive():
    with listen("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()) as connected:
        prepare_client(connected)
        assert not connected.getblocking()
        assert has_options_of_a_client(connected)


def test_a_unix_socket_has_no_such_options(tmp_path):
    with listen(str(tmp_path / "socket")) as listener, socket.socket(socket.AF_UNIX) as connected:
        prepare_listener(listener)
        connected.connect(str(tmp_path / "socket"))
        prepare_client(connected)
        assert not connected.getblocking()


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

    monkeypatch.setattr(sockets, "_outcome", slow)
    slow_one = Resolver("nameserver.is.away.invalid:4160")
    try:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                slow_one.resolve(0.05)
        assert len(asked) == 1
        assert Resolver("127.0.0.1:4160").resolve(20)
    finally:
        release.set()
