"""Connecting to another server, again and again, without waiting for anybody else's name to be resolved."""

import socket
import time
from typing import Any

import gevent.socket

from nsq_compat.net.listeners import prepare_client
from nsq_compat.net.resolver import Resolver


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
