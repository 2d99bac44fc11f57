"""Connecting to a host and port."""

import socket
from contextlib import ExitStack

import gevent
import pytest

from nsq_compat.net.dialer import Dialer
from nsq_compat.net.listeners import listen, port_of


def test_it_gives_a_plain_non_blocking_socket_again_and_again():
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


def test_an_address_nobody_can_be_at_is_refused():
    with pytest.raises(OSError, match="missing port in address"):
        Dialer("127.0.0.1").connect(20)


def test_nobody_listening_is_said_at_once():
    with listen("127.0.0.1:0") as listener:
        port = port_of(listener)
    with pytest.raises(ConnectionRefusedError):
        Dialer(f"127.0.0.1:{port}").connect(20)


def fill_backlog(dialer: Dialer, lines: ExitStack) -> None:
    for _ in range(10):
        lines.enter_context(dialer.connect(0.3))


def test_whoever_does_not_answer_is_waited_for_so_long_and_no_longer():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        there = Dialer(f"127.0.0.1:{deaf.getsockname()[1]}")
        with ExitStack() as lines, pytest.raises(TimeoutError, match="i/o timeout"):
            fill_backlog(there, lines)
