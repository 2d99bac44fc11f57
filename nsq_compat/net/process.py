"""The daemon's own process: signals, garbage collection, file descriptors, systemd, and its stacks for /debug."""

import contextlib
import errno
import gc
import io
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Final

import gevent
from gevent.event import Event
from gevent.util import print_run_info

log = logging.getLogger(__name__)

_MIN_RESERVE: Final = 512
"""Descriptors, enough for a daemon with few topics."""
_MAX_RESERVE: Final = 4096
_M_TRIM_THRESHOLD: Final = -1  # of glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3


def stop_signal(before: list[Callable[[], None]] | None = None) -> Event:
    """An event that SIGTERM or SIGINT sets; further signals have no effect while the process stops.

    Call it before the process listens. `before` is a stack of functions, to which the caller may add later. While it is
    not empty, SIGTERM calls the last function and removes it, and does not set the event.
    """
    stop = Event()
    # At exit Python restores the default handler, with which another SIGINT would kill the process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gevent.signal_handler(signal.SIGTERM, lambda: (before.pop() if before else stop.set)())
    gevent.signal_handler(signal.SIGINT, stop.set)
    return stop


def on_hangup(reload: Callable[[], None]) -> None:
    """Call `reload` at SIGHUP. An exception in it is logged, and does not end the process."""

    def reload_or_log() -> None:
        try:
            reload()
        except Exception:  # the top of a greenlet
            log.exception("SIGHUP: internal error, not everything was read again")

    gevent.signal_handler(signal.SIGHUP, reload_or_log)


def tune_gc() -> None:
    """Collect less often, and never visit the objects of the program itself.

    Cycles are rare here: frames are bytes, which the collector does not visit. Reference counting frees the rest. But
    HTTP calls are cycles, and freeing 50,000 such objects at once would block the event loop for 20 ms.
    """
    # Without a collection, which would take 6 ms of the start and find some hundred objects.
    gc.freeze()
    gc.set_threshold(10_000, 100, 50)


def exempt_from_collection() -> None:
    """Exempt all current objects from garbage collection.

    A collection of 20,000 topics blocks the event loop for 0.4 s, and the one at exit takes 3 s.
    """
    gc.freeze()


def reuse_freed_memory() -> None:
    """Let the C library use freed blocks of up to 32 MiB again, instead of returning each to the system at once.

    Messages of some KB are read, written and sent in blocks of 256 KiB and more. glibc gets pages for each of these and
    returns them, which takes half of the system's CPU time. It would find such limits itself, but only after it has
    freed one block that is as large. It keeps 64 MiB at most at the end of the heap. Other C libraries are left alone.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def shorten_thread_switches() -> None:
    """Let the event loop interrupt a worker thread that runs Python code after 0.5 ms, instead of CPython's 5 ms.

    With 5 ms, four threads that read answers of auth servers delay the event loop by 20 ms.
    """
    sys.setswitchinterval(0.0005)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one (nsqd: Go's runtime does)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_left_by_clients() -> int:
    """The number of descriptors reserved for files, without which a daemon could not write a checkpoint.

    A quarter of the limit. If that is more than 512, the reserve is an eighth, but at least 512 and at most 4,096. Half
    of it is for logs. If more topics than that are busy, logs are closed and opened again.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_RESERVE
    return min(soft // 4, max(_MIN_RESERVE, soft // 8), _MAX_RESERVE)


class ClientDescriptors:
    """Checks before a client is accepted that a descriptor is left for it. `descriptor` must stay open."""

    def __init__(self, descriptor: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._descriptor = descriptor
        self._end = float("inf") if soft == resource.RLIM_INFINITY else soft - descriptors_left_by_clients()

    def check(self) -> None:
        """Raises ``OSError`` if the next client would get a descriptor that is reserved for files."""
        lowest = os.dup(self._descriptor)  # all descriptors below it are in use
        os.close(lowest)
        if lowest >= self._end:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Supervisor:
    """Notifies systemd (`Type=notify`, `WatchdogSec=`) if it started this process. Methods do not raise.

    `environment` has the socket (``NOTIFY_SOCKET``) and the watchdog's limit (``WATCHDOG_USEC``). The event loop sends
    the watchdog's keep-alive messages, so systemd restarts a daemon if its loop is blocked.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # A name with @ is in the abstract namespace, not in the file system.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        microseconds = environment.get("WATCHDOG_USEC", "")
        self._limit = int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0
        self._keep_alive: gevent.Greenlet[[], None] | None = None

    def ready(self) -> None:
        """Report that the daemon serves, and start the watchdog's keep-alive messages."""
        self._notify("READY=1")
        if self._address and self._limit:
            self._keep_alive = gevent.spawn(self._send_keep_alives)

    def stopping(self) -> None:
        """Report that the daemon is stopping, which may take longer than the watchdog's limit."""
        self._notify("STOPPING=1")

    def _send_keep_alives(self) -> None:
        while True:
            self._notify("WATCHDOG=1")
            gevent.sleep(self._limit / 2)

    def _notify(self, state: str) -> None:
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode("ascii"), self._address)


def sleep(seconds: float) -> None:
    """Sleep while other greenlets run."""
    gevent.sleep(seconds)


def greenlet_stacks() -> str:
    """The stacks of all greenlets and threads, as text."""
    text = io.StringIO()
    print_run_info(file=text)
    return text.getvalue()
