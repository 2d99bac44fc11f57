"""nsqd that measures its event loop: the longest CPU time of one iteration, in a file. Run as a program.

SIGUSR2 begins the measurement again, so that what the start takes is not in it.
"""

import os
import signal
import time
from pathlib import Path

from gevent.hub import get_hub

from nsq_compat.nsqd.main import main


class LongestIteration:
    """Of the main thread's loop; written to `path` whenever it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._longest = 0.0
        self._began = 0.0
        loop = get_hub().loop
        self._watcher = loop.prepare(priority=-2)  # behind gevent's own, which runs greenlets
        self._watcher.start(self._end_iteration)
        self._signal = loop.signal(signal.SIGUSR2)
        self._signal.start(self._begin)

    def _begin(self) -> None:
        self._longest = 0.0
        self._began = time.thread_time()
        self._write()

    def _end_iteration(self) -> None:
        now = time.thread_time()
        if self._began and now - self._began > self._longest:
            self._longest = now - self._began
            self._write()
        if self._began:
            self._began = time.thread_time()

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(str(self._longest), "ascii")
        part.replace(self._path)


if __name__ == "__main__":
    measured = LongestIteration(Path(os.environ["LOOP_HELD_FILE"]))
    main()
