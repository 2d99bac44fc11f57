"""Tells whoever started this process how it is: systemd with `Type=notify` and `WatchdogSec=`, or nobody.

The watchdog is fed by the event loop: a loop that is stuck feeds nothing, and systemd starts the daemon anew.
"""

import contextlib
import socket
from collections.abc import Mapping

import gevent


class Supervisor:
    """`environment` says whom to tell (``NOTIFY_SOCKET``) and how often (``WATCHDOG_USEC``). Telling raises nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is none of the file system's.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._limit = _seconds(environment.get("WATCHDOG_USEC", ""))
        self._feeding: gevent.Greenlet[[], None] | None = None

    def ready(self) -> None:
        """It serves; from now on the watchdog is fed."""
        self._tell("READY=1")
        if self._address and self._limit:
            self._feeding = gevent.spawn(self._feed)

    def stopping(self) -> None:
        """It has begun to stop, which may take longer than the watchdog waits."""
        self._tell("STOPPING=1")

    def _feed(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            gevent.sleep(self._limit / 2)

    def _tell(self, state: str) -> None:
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.setblocking(False)
                to.sendto(state.encode("ascii"), self._address)


def _seconds(microseconds: str) -> float:
    return int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0
