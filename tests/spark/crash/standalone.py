"""A standalone Spark cluster: one master and workers, each a process, on free ports."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.spark.crash.running import environment, wait_until

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class Standalone:
    """A context manager. Each worker has one core and one gigabyte; `folder` has logs and work files."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.url = ""
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self.url = self._start("master.Master", [], _MASTER)
            for number in range(self._workers):
                work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}"), self.url]
                self._start("worker.Worker", work, re.compile(f"({_REGISTERED})"))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def _start(self, kind: str, arguments: Sequence[str], sign: re.Pattern[str]) -> str:
        """Start a process, and return the match of `sign` in its log."""
        log = self._folder / f"{kind}-{len(self._processes)}.log"
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [_CLASS, f"org.apache.spark.deploy.{kind}", *address, *arguments],
                stdout=output,
                stderr=output,
                env=environment(self._folder),
            )
        self._processes.append(process)

        def found() -> re.Match[str] | None:
            assert process.poll() is None, f"{kind} ended early:\n{log.read_text()[-3000:]}"
            return sign.search(log.read_text())

        wait_until(found)
        match = found()
        assert match is not None, "found by the wait above"
        return match[1]
