"""Run a task in a process that kills itself at a given point."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

# Not forked, because the test process has threads.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["pyspark_nsq.drain", "pyspark_nsq.staging"])


def die_at(point: str, times: int, task: Callable[..., object], *arguments: object) -> None:
    """Call `task` with the arguments and an `at` that kills the process when it reaches a point for the n-th time."""
    process = _processes.Process(target=_run, args=(point, times, task, arguments))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"the process was not killed: exit code {process.exitcode}"
    process.close()


def _run(point: str, times: int, task: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    def at(reached: str) -> None:
        nonlocal times
        times -= reached == point
        if times == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    task(*arguments, at)
