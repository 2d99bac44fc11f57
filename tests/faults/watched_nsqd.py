"""nsqd with a watchdog on its event loop: while it serves, an iteration that is held too long is logged.

Run as a program, in place of ``nsqd``.
"""

import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from nsq_compat.net.event_loop import LoopLag
from nsq_compat.nsqd import daemon
from nsq_compat.nsqd.main import main
from tests.faults.loop_watchdog import HELD_SECONDS, LoopWatchdog

LIMIT_SECONDS = float(os.environ.get("FAULT_HELD_MS") or HELD_SECONDS * 1000) / 1000
HELD = "event loop held for"
"""Begins the log line of an iteration that was too long."""

log = logging.getLogger(__name__)


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
