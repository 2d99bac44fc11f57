"""What a daemon asks of its own process: when to stop or to look again, and what is going on in it."""

import contextlib
import errno
import gc
import io
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping

import gevent
from gevent.event import Event
from gevent.util import print_run_info

_ENOUGH_FOR_FEW_TOPICS = 512
_MOST_LEFT = 4096


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may allow itself (nsqd: Go's runtime does)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_left_by_clients() -> int:
    """How many descriptors clients may not take: a quarter, or, where 512 are less than that, an eighth if it is more.

    Half of them are for logs, which are opened and closed again and again where more topics than that are busy.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_LEFT
    return min(soft // 4, max(_ENOUGH_FOR_FEW_TOPICS, soft // 8), _MOST_LEFT)


class ClientDescriptors:
    """What a listener asks before it accepts; `descriptor` is any that stays open."""

    def __init__(self, descriptor: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._descriptor = descriptor
        self._end = float("inf") if soft == resource.RLIM_INFINITY else soft - descriptors_left_by_clients()

    def check(self) -> None:
        """Raises ``OSError`` when a client would get one of those left to files."""
        lowest = os.dup(self._descriptor)  # every descriptor below it is in use
        os.close(lowest)
        if lowest >= self._end:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def stop_signal(before: list[Callable[[], None]] | None = None) -> Event:
    """Set once this process is asked to stop, by SIGTERM or SIGINT; while it stops, more of them change nothing.

    Ask for it before anybody can see the process listen. What is put into `before`, now or later, SIGTERM asks for
    first, each once.
    """
    stop = Event()
    # What Python knows of SIGINT it undoes at its very end, where one more would kill the process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gevent.signal_handler(signal.SIGTERM, lambda: (before.pop() if before else stop.set)())
    gevent.signal_handler(signal.SIGINT, stop.set)
    return stop


def first_of(*events: Event) -> None:
    """Wait until one of them is set."""
    gevent.wait(events, count=1)


def on_hangup(act: Callable[[], None]) -> None:
    """Do it, in a greenlet of its own, whenever this process gets SIGHUP."""
    gevent.signal_handler(signal.SIGHUP, act)


def spare_the_collector() -> None:
    """Keep the garbage collector from walking over what lives long: the program itself, and what a daemon keeps.

    Cycles are rare here (frames are bytes, which it does not look into); counting references frees the rest.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def exempt_from_collection() -> None:
    """Have no garbage collection look at the objects there are now.

    A collection of 20,000 topics holds the event loop for 0.4 s, and the one at the interpreter's exit takes 3 s.
    """
    gc.freeze()


class Process:
    """The running process as /debug looks at it (`web.profiling.RunningProcess`)."""

    def sleep(self, seconds: float) -> None:
        """Wait while others run."""
        gevent.sleep(seconds)

    def greenlet_stacks(self) -> str:
        """Every greenlet's and thread's stack, as text."""
        text = io.StringIO()
        print_run_info(file=text)
        return text.getvalue()


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
