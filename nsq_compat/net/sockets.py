"""Sockets for addresses: listening on ``host:port`` or the path of a unix socket, and connecting to ``host:port``."""

import contextlib
import errno
import os
import socket
import stat
import time
from typing import Any

import gevent
import gevent.socket

_KEEPALIVE_SECONDS = 15
_MAX_PORT = 65535


class ListenError(Exception):
    """Cannot listen on an address; the text has the address and the reason."""

    def __init__(self, address: str, error: Exception) -> None:
        strerror = getattr(error, "strerror", None)
        super().__init__(f"listen ({address}) failed - {str(strerror).lower() if strerror else error}")


def listen(address: str) -> socket.socket:
    """Create a non-blocking listening socket. Raises ``ListenError``.

    nsqd: a wildcard (``0.0.0.0:4150``, ``[::]:4150``, ``:4150``) accepts IPv4 and IPv6. With port 0 the system chooses
    a free port. An address that is not ``host:port`` is the path of a unix socket; a socket file without a listener is
    replaced.
    """
    try:
        host_and_port = split_host_port(address)
        if host_and_port is None:
            _remove_if_dead(address)
            listener = _bound(socket.AF_UNIX, address)
        else:
            family, name, dual_stack = _resolved(*host_and_port)
            listener = _bound(family, name, dual_stack=dual_stack)
    except (OSError, ValueError, OverflowError) as error:
        raise ListenError(address, error) from error
    listener.setblocking(False)
    return listener


def check_address(address: str) -> None:
    """Check an address without taking its port or path. Raises ``ListenError``, as `listen` would."""
    try:
        host_and_port = split_host_port(address)
        if host_and_port is None:
            os.close(os.open(os.path.dirname(address) or ".", os.O_RDONLY | os.O_DIRECTORY))
        else:
            family, name, _ = _resolved(*host_and_port)
            _bound(family, (name[0], 0)).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ListenError(address, error) from error


def split_host_port(address: str) -> tuple[str, str] | None:
    """``("host", "port")``, without brackets; None if `address` does not have that form."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    return None if ":" in host else (host, port)


def close_listener(listener: socket.socket) -> None:
    """Close a listener, and remove a unix socket's file (nsqd)."""
    name = listener.getsockname()
    listener.close()
    if isinstance(name, str):
        with contextlib.suppress(OSError):
            os.unlink(name)


def address_of(listener: socket.socket) -> str:
    """The bound address and port, for the log line ``listening on``."""
    name = listener.getsockname()
    return peer_of(name)[0] if isinstance(name, tuple) else str(name)


def port_of(listener: socket.socket) -> int:
    """The bound port; -1 for a unix socket (nsqd)."""
    name = listener.getsockname()
    return int(name[1]) if isinstance(name, tuple) else -1


def peer_of(name: object) -> tuple[str, str]:
    """A socket name as (``host:port``, ``host``): ``127.0.0.1:5000``, ``[::1]:5000``; ("@", "") for a unix socket.

    An IPv4 client of a dual-stack listener has its IPv4 address here.
    """
    if not isinstance(name, tuple):
        return "@", ""
    host = str(name[0]).removeprefix("::ffff:")
    return (f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"), host


def prepare_client(client: socket.socket) -> None:
    """Make a connected socket non-blocking, with TCP_NODELAY and keep-alive after 15 seconds (nsqd)."""
    client.setblocking(False)
    with contextlib.suppress(OSError):  # the other side may have disconnected, which the next read reports
        _set_options(client)


def prepare_listener(listener: socket.socket) -> None:
    """Make a listening socket non-blocking. The clients that it accepts get the options that `prepare_client` sets.

    In Linux they inherit them, which saves four system calls for each client. Their sockets still block.
    """
    listener.setblocking(False)
    _set_options(listener)


def _set_options(either: socket.socket) -> None:
    if either.family != socket.AF_UNIX:
        either.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        either.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        either.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        either.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)


def _resolved(host: str, port: str) -> tuple[int, tuple[Any, ...], bool]:
    """The family and name to bind to, and whether the socket accepts IPv4 and IPv6."""
    _check_port(port)
    dual_stack = host in ("", "0.0.0.0", "::") and socket.has_dualstack_ipv6()
    found = socket.getaddrinfo(
        "::" if dual_stack else host or "0.0.0.0", port or "0", type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, name = found[0]
    return family, name, dual_stack


def _check_port(port: str) -> None:
    if port.isdigit() and int(port) > _MAX_PORT:
        raise OSError("invalid port")  # the system's resolver would reduce it modulo 65536


def _bound(family: int, name: Any, *, dual_stack: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        listener.bind(name)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_if_dead(path: str) -> None:
    """Remove a socket file without a listener, left by a killed process (docs/differences.md: unix-leftover)."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                os.unlink(path)


# --- Connecting -------------------------------------------------------------------------------------------------------

_IDLE_THREAD_SECONDS = 10
Address = tuple[int, tuple[Any, ...]]
"""An address family, and the name of a socket of that family."""


class Resolver:
    """Resolves one ``host:port`` for sockets of one kind, each time it is asked, without blocking the event loop.

    The system's resolver blocks, so a name is resolved in a thread. Each resolver has one thread: an attempt that finds
    it busy with the previous attempt waits for it, within its own timeout.
    """

    def __init__(self, address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
        self._address = address
        self._kind = kind
        from gevent.threadpool import ThreadPool  # 1.2 MB, which nsqlookupd does not need

        self._thread = ThreadPool(1, idle_task_timeout=_IDLE_THREAD_SECONDS)

    def resolve(self, timeout: float) -> list[Address]:
        """At least one address. Raises ``OSError``, after `timeout` seconds at the latest."""
        host_and_port = split_host_port(self._address)
        if host_and_port is None:
            raise OSError(f"address {self._address}: missing port in address")
        host, port = host_and_port
        _check_port(port)
        with contextlib.suppress(socket.gaierror, UnicodeError):
            return _addresses(host, port, self._kind, socket.AI_NUMERICHOST)
        with gevent.Timeout(timeout, TimeoutError("i/o timeout")):
            outcome = self._thread.apply(_outcome, (host, port, self._kind))
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


def _outcome(host: str, port: str, kind: socket.SocketKind) -> list[Address] | OSError:
    # Errors are returned, because gevent prints a traceback of an exception that leaves a thread.
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
            # Each address gets a share of the time, so that an unresponsive one leaves time for the next.
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
