"""Connecting to another server, again and again, without waiting for anybody else's name to be resolved."""

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
"""A family and the name of a socket of it."""


class Resolver:
    """Resolves one ``host:port``, again and again; `kind` is that of the sockets it is for.

    Resolving a name blocks, for as long as the system's resolver likes; so it is done in a thread, one for each
    resolver, and an attempt that finds the thread of the last one still at it waits in its own time.
    """

    def __init__(self, address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
        self._address = address
        self._kind = kind
        self._thread = ThreadPool(1, idle_task_timeout=_IDLE_THREAD_SECONDS)

    def resolve(self, timeout: float) -> list[Address]:
        """At least one. Raises ``OSError``, after `timeout` seconds at the latest."""
        host_and_port = split_host_port(self._address)
        if host_and_port is None:
            raise OSError(f"address {self._address}: missing port in address")
        host, port = host_and_port
        if port.isdigit() and int(port) > MAX_PORT:
            raise OSError("invalid port")  # the resolver would take it modulo 65536
        with contextlib.suppress(socket.gaierror, UnicodeError):
            return _resolved(host, port, self._kind, socket.AI_NUMERICHOST)
        with gevent.Timeout(timeout, TimeoutError("i/o timeout")):
            outcome = self._thread.apply(_outcome, (host, port, self._kind))
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


def _outcome(host: str, port: str, kind: socket.SocketKind) -> list[Address] | OSError:
    # What a thread raises gevent prints with a traceback, though somebody is going to handle it.
    try:
        return _resolved(host, port, kind)
    except (OSError, UnicodeError) as error:
        return error if isinstance(error, OSError) else OSError("no such host")


def _resolved(host: str, port: str, kind: socket.SocketKind, flags: int = 0) -> list[Address]:
    infos = socket.getaddrinfo(host or "localhost", port, type=kind, flags=flags)
    return [(family, name) for family, _, _, _, name in infos]


class Dialer:
    """Connects to one ``host:port``."""

    def __init__(self, address: str) -> None:
        self._resolver = Resolver(address)

    def connect(self, timeout: float) -> socket.socket:
        """A connected, non-blocking socket. Raises ``OSError``, after `timeout` seconds at the latest."""
        deadline = time.monotonic() + timeout
        found = self._resolver.resolve(timeout)
        error = OSError("no such host")
        for number, (family, name) in enumerate(found):
            # Each has its share, so that one that does not answer leaves time for the next.
            share = (deadline - time.monotonic()) / (len(found) - number)
            try:
                return _connect(family, name, max(0.0, share))
            except OSError as each:
                error = each
        raise error


def _connect(family: int, name: tuple[Any, ...], timeout: float) -> socket.socket:
    line = gevent.socket.socket(family, socket.SOCK_STREAM)
    try:
        with gevent.Timeout(timeout, TimeoutError("i/o timeout")):
            line.connect(name)
        connected = socket.socket(fileno=line.detach())
    finally:
        line.close()
    prepare_client(connected)
    return connected
