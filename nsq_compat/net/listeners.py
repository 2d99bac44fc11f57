"""Listening sockets for NSQ's addresses: ``host:port``, or the path of a unix socket."""

import contextlib
import errno
import os
import socket
import stat
from typing import Any

_BACKLOG = 1024
_IPV4_MAPPED = "::ffff:"
_KEEPALIVE_SECONDS = 15
MAX_PORT = 65535


class ListenError(Exception):
    """Cannot listen on an address; the text has the address and the reason."""


def listen(address: str) -> socket.socket:
    """A non-blocking listening socket. Raises ``ListenError``.

    nsqd: an IPv4 wildcard (``0.0.0.0:4150``, ``:4150``) also accepts IPv6. Port 0 takes a free one. An address without
    the form ``host:port`` is the path of a unix socket; a socket file without a listener is replaced.
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
        raise ListenError(f"listen ({address}) failed - {_reason(error)}") from error
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
        raise ListenError(f"listen ({address}) failed - {_reason(error)}") from error


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
    host = str(name[0]).removeprefix(_IPV4_MAPPED)
    return (f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"), host


def prepare_client(client: socket.socket) -> None:
    """Make a connected socket non-blocking, without delay, with keep-alive after 15 seconds (nsqd)."""
    client.setblocking(False)
    if client.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):  # the client may have left already; the next read tells
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)


def _resolved(host: str, port: str) -> tuple[int, tuple[Any, ...], bool]:
    """The family and name to bind to, and whether the socket also accepts IPv4."""
    if port.isdigit() and int(port) > MAX_PORT:
        raise ValueError("invalid port")  # the system's resolver would take it modulo 65536
    dual_stack = host in ("", "0.0.0.0") and socket.has_dualstack_ipv6()
    found = socket.getaddrinfo(
        "::" if dual_stack else host or "0.0.0.0", port or "0", type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, name = found[0]
    return family, name, dual_stack


def _bound(family: int, name: Any, *, dual_stack: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        listener.bind(name)
        listener.listen(_BACKLOG)
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


def _reason(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror).lower() if strerror else str(error)
