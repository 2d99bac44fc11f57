"""What a daemon asks of its own process: when to stop or to look again, and what is going on in it."""

import gc
import io
import signal
from collections.abc import Callable

import gevent
from gevent.event import Event
from gevent.util import print_run_info


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


def tune_gc() -> None:
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
