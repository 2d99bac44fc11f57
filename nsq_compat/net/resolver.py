"""Names to addresses, without anybody else waiting for it."""

import contextlib
import socket
from typing import Any

import gevent
from gevent.threadpool import ThreadPool

from nsq_compat.net.listeners import MAX_PORT, split_host_port

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
