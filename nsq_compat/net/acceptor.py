"""Accepting clients: what every server does with its listening socket, whatever is spoken behind it."""

import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

import gevent

from nsq_compat.net.descriptor_limit import ClientDescriptors
from nsq_compat.net.listeners import address_of, close_listener, prepare_client

log = logging.getLogger(__name__)

_READABLE: Final = 1
ACCEPTED_AT_ONCE: Final = 16
"""Clients accepted in one iteration of the event loop, each of which takes some 0.2 ms until it is served."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
# What accept() says when a client has gone again: nothing to wait for.
_CLIENT_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EPERM})


class Acceptor:
    """Owns a listening socket (TCP or unix) from here on.

    `serve` is given each client, prepared (`listeners.prepare_client`), and its socket name. `name` is the protocol,
    for the log lines operators look for: ``TCP: listening on 127.0.0.1:4150``.
    """

    def __init__(self, listener: socket.socket, name: str, serve: Callable[[socket.socket, object], None]) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._name = name
        self._address = address_of(listener)
        self._serve = serve
        self._descriptors = ClientDescriptors(listener.fileno())
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        log.info("%s: listening on %s", self._name, self._address)
        self._greenlet = gevent.spawn(self._accept_loop)

    def stop(self) -> None:
        """Close the listener; who is connected stays. May be called twice."""
        if self._listener.fileno() < 0:
            return
        log.info("%s: closing %s", self._name, self._address)
        if self._greenlet is not None:
            self._greenlet.kill()
        close_listener(self._listener)

    def _accept_loop(self) -> None:
        hub = gevent.get_hub()
        watcher = hub.loop.io(self._listener.fileno(), _READABLE)
        pause = _FIRST_PAUSE
        try:
            while True:
                hub.wait(watcher)
                try:
                    self._accept_waiting()
                    pause = _FIRST_PAUSE
                except OSError as error:
                    # Out of descriptors or memory: the client stays in the kernel's queue until others have left.
                    log.warning("temporary Accept() failure - %s; retrying in %.2fs", error, pause)
                    gevent.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            watcher.stop()
            watcher.close()

    def _accept_waiting(self) -> None:
        """Take what waits, but not for ever: others want to run."""
        for _ in range(ACCEPTED_AT_ONCE):
            self._descriptors.check()
            try:
                client, name = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _CLIENT_GONE:
                    continue
                raise
            prepare_client(client)
            self._serve(client, name)
