"""Connecting to another server by its ``host:port``, again and again, without blocking the event loop.

The system's resolver blocks, so a name is resolved in a thread. Each address has one: an attempt that finds the thread
still busy with the previous attempt waits for it within its own timeout.
"""

import contextlib
import socket
import time
from typing import Any

import gevent
import gevent.socket
from gevent.threadpool import ThreadPool

from nsq_compat.net.listeners import MAX_PORT, prepare_client, split_host_port

_IDLE_THREAD_SECONDS = 10
Address = tuple[int, tuple[Any, ...]]
"""An address family, and the name of a socket of that family."""


class Resolver:
    """Resolves one ``host:port`` for sockets of one kind."""

    def __init__(self, address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
        self._address = address
        self._kind = kind
        self._thread = ThreadPool(1, idle_task_timeout=_IDLE_THREAD_SECONDS)

    def resolve(self, timeout: float) -> list[Address]:
        """At least one address. Raises ``OSError``, after `timeout` seconds at the latest."""
        host_and_port = split_host_port(self._address)
        if host_and_port is None:
            raise OSError(f"address {self._address}: missing port in address")
        host, port = host_and_port
        if port.isdigit() and int(port) > MAX_PORT:
            raise OSError("invalid port")  # the system's resolver would take it modulo 65536
        with contextlib.suppress(socket.gaierror, UnicodeError):
            return _addresses(host, port, self._kind, socket.AI_NUMERICHOST)
        with gevent.Timeout(timeout, TimeoutError("i/o timeout")):
            outcome = self._thread.apply(_outcome, (host, port, self._kind))
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


def _outcome(host: str, port: str, kind: socket.SocketKind) -> list[Address] | OSError:
    # An exception is returned, because gevent prints a traceback of one that a thread raises.
    try:
        return _addresses(host, port, kind)
    except (OSError, UnicodeError) as error:
        return error if isinstance(error, OSError) else OSError("no such host")


def _addresses(host: str, port: str, kind: socket.SocketKind, flags: int = 0) -> list[Address]:
    infos = socket.getaddrinfo(host or "localhost", port, type=kind, flags=flags)
    return [(family, name) for family, _, _, _, name in infos]


class Dialer:
    """Connects to one ``host:port``."""

    def __init__(self, address: str) -> None:
        self._resolver = Resolver(address)

    def connect(self, timeout: float) -> socket.socket:
        """A connected, non-blocking socket. Raises ``OSError``, after `timeout` seconds at the latest."""
        deadline = time.monotonic() + timeout
        addresses = self._resolver.resolve(timeout)
        failure = OSError("no such host")
        for index, (family, name) in enumerate(addresses):
            # Each address has its share of the time, so that one that does not answer leaves time for the next.
            share = (deadline - time.monotonic()) / (len(addresses) - index)
            try:
                return _connect(family, name, max(0.0, share))
            except OSError as error:
                failure = error
        raise failure


def _connect(family: int, name: tuple[Any, ...], timeout: float) -> socket.socket:
    connecting = gevent.socket.socket(family, socket.SOCK_STREAM)
    try:
        with gevent.Timeout(timeout, TimeoutError("i/o timeout")):
            connecting.connect(name)
        connected = socket.socket(fileno=connecting.detach())
    finally:
        connecting.close()
    prepare_client(connected)
    return connected
