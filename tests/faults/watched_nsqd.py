"""nsqd with a watchdog on its event loop: while it serves, an iteration that is held too long is logged.

The watchdog measures every iteration, and samples the stack of one that is too long. A callback for each iteration
costs about a microsecond, which is too much for a daemon in production (`nsq_compat.net.event_loop` samples there).
What counts is the CPU time of the loop's own thread. A shared machine can make that several times as long, too: the
limit grows with the CPU time that a known piece of work takes there, measured after an iteration that was over it.

Run as a program, in place of ``nsqd``.
"""

import logging
import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import gevent

from nsq_compat.net.event_loop import LoopLag
from nsq_compat.nsqd import daemon
from nsq_compat.nsqd.main import main

HELD_SECONDS = 0.1
"""CPU time of one iteration that is too much, on a machine on which the reference work takes ``REFERENCE_SECONDS``."""
REFERENCE_SECONDS = 0.0025
LIMIT_SECONDS = float(os.environ.get("FAULT_HELD_MS") or HELD_SECONDS * 1000) / 1000
HELD = "event loop held for"
"""Begins the log line of an iteration that was too long."""
_LOWEST_PRIORITY = -2
_SAMPLE_SECONDS = 0.01

log = logging.getLogger(__name__)


class LoopWatchdog:
    """Watches the loop of the thread that starts it; `report` gets the seconds of CPU and a stack, or ""."""

    def __init__(self, report: Callable[[float, str], None], limit: float = HELD_SECONDS) -> None:
        self.longest = 0.0
        self.iterations = 0
        self._report = report
        self._limit = limit
        # gevent's own prepare watcher runs greenlets; this one comes after it, at the end of the iteration.
        self._watcher = gevent.get_hub().loop.prepare(priority=_LOWEST_PRIORITY)
        self._began = 0.0
        self._stack = ""
        self._over = threading.Event()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._thread_id = threading.get_ident()

    def start(self) -> None:
        self._began = time.thread_time()
        self._watcher.start(self._end_iteration)
        threading.Thread(target=self._sample, daemon=True).start()

    def stop(self) -> None:
        self._watcher.stop()
        self._watcher.close()
        self._over.set()

    def _end_iteration(self) -> None:
        now = time.thread_time()
        held, self._began = now - self._began, now
        stack, self._stack = self._stack, ""
        self.iterations += 1
        self.longest = max(self.longest, held)
        if held > self._limit:
            if held > self._limit * slowness():
                self._report(held, stack)
            self._began = time.thread_time()

    def _sample(self) -> None:
        """In a thread: note where the loop's thread is once it has been there for most of the time it may take."""
        while not self._over.wait(_SAMPLE_SECONDS):
            if not self._stack and time.clock_gettime(self._clock) - self._began > self._limit * 0.8:
                frame = sys._current_frames().get(self._thread_id)
                self._stack = "".join(traceback.format_stack(frame)) if frame is not None else ""


def slowness() -> float:
    """How many times longer than ``REFERENCE_SECONDS`` the reference work takes now, in CPU time; at least 1."""
    longest = 0.0
    for _ in range(3):
        began = time.thread_time()
        sum(len(b"%016x" % number) for number in range(30_000))
        longest = max(longest, time.thread_time() - began)
    return max(1.0, longest / REFERENCE_SECONDS)


def watched_nsqd(*python_arguments: str) -> str:
    """Its command line; other arguments for Python may do something before they call ``run``."""
    search_path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    return shlex.join(("env", f"PYTHONPATH={search_path}", sys.executable, *(python_arguments or ("-m", __name__))))


class _WatchedLoop(LoopLag):
    def __init__(self, observe: Callable[[float], None], observe_held: Callable[[float], None]) -> None:
        super().__init__(observe, observe_held)
        self._watchdog = LoopWatchdog(_report, LIMIT_SECONDS)
        self._watching = False

    def start(self) -> None:
        super().start()
        if not self._watching:
            self._watching = True
            self._watchdog.start()

    def stop(self) -> None:
        super().stop()
        self._watchdog.stop()


def _report(seconds: float, stack: str) -> None:
    place = " | ".join(line.strip() for line in stack.splitlines()[-12:])
    log.error("%s %.3f s of CPU, near: %s", HELD, seconds, place or "(not sampled)")


def run() -> None:
    """nsqd, watched."""
    setattr(daemon, "LoopLag", _WatchedLoop)  # noqa: B010
    main()


if __name__ == "__main__":
    run()
