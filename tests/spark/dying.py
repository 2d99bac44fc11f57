"""Run a reading task in a process that kills itself at a given point."""

import multiprocessing
import os
import signal

from pyspark_nsq.drain import drain
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.rows import Origin
from pyspark_nsq.spool import Spool

# Not forked, because the test process has threads.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["pyspark_nsq.drain"])


def die_at(point: str, times: int, spool: Spool, origin: Origin, options: ReadOptions, count: int) -> None:
    """Run the task of batch 1, partition 0 until it reaches a point for the n-th time."""
    process = _processes.Process(target=_run, args=(point, times, spool, origin, options, count))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"the process was not killed: exit code {process.exitcode}"
    process.close()


def _run(point: str, times: int, spool: Spool, origin: Origin, options: ReadOptions, count: int) -> None:
    def at(reached: str) -> None:
        nonlocal times
        times -= reached == point
        if times == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    drain(spool, spool.partition(1, 0), origin, count, options, at)
