"""Runs spark/jobs/windowed_counts.py on the stream of events, submitted as by a user.

It reads by offset if nsqd retains the events, otherwise on a channel of its own.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from nsq_conformance.clients import ClientFailed
from nsq_conformance.demo.comparison import say
from nsq_conformance.demo.stream import TOPIC

CHANNEL = "spark"
_ROOT = Path(__file__).parents[2]
_SUBMIT = Path(sys.executable).with_name("spark-submit")
_PIPELINE = _ROOT / "spark" / "jobs" / "windowed_counts.py"
_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_JOB = (
    f"--topic={TOPIC}",
    # Longer than the latest event, so that none is dropped.
    *("--key=key", "--time=time", "--window=10 seconds", "--watermark=2 minutes"),
)
_FOR_EVER = ("--every=5 seconds", "--show-every=30")
# More windows than there can be, so that all are shown. On a busy machine the job may need several batches.
_ONCE = ("--once", "--option=maxMessagesPerTrigger=1000", "--windows=100")
_BY_OFFSET = ("--option=startingOffsets=earliest",)
_ONCE_SECONDS = 600.0
_STOP_SECONDS = 20.0
_LAST_LINES = 15


class SparkCounts:
    """The Spark job, which writes its progress and its table to the file `counts`; a context manager.

    With `once` it ends when it has counted the events that were there at its start. `folder` is for its checkpoint, its
    spool and both files.
    """

    def __init__(self, lookupd_http_address: str, folder: Path, *, once: bool, is_retained: bool) -> None:
        self._folder = folder
        self.counts = folder / "counts"
        self._log = folder / "log"
        self._has_table = False
        self._command = [
            str(_SUBMIT),
            "--master=local[2]",
            *(f"--conf={name}={value}" for name, value in _SETTINGS.items()),
            str(_PIPELINE),
            *_JOB,
            *(_ONCE if once else _FOR_EVER),
            f"--lookupd-http-address={lookupd_http_address}",
            *(_BY_OFFSET if is_retained else (f"--channel={CHANNEL}", f"--spool={folder / 'spool'}")),
            f"--checkpoint={folder / 'checkpoint'}",
        ]

    def check(self) -> None:
        """Raise ClientFailed if the job has ended. Say once that the first table is there."""
        if (status := self._process.poll()) is not None:
            raise self._failed(status)
        if not self._has_table and _has_table(self.counts.read_text()):
            self._has_table = True
            say(f"Spark has written its first table; to watch, run in another terminal: tail -f {self.counts}")

    def wait(self) -> str:
        """Wait until it has counted all events, and return what it has written. Raises ClientFailed."""
        try:
            status = self._process.wait(_ONCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise ClientFailed(f"Spark had not counted the events after {_ONCE_SECONDS:.0f} s") from None
        if status:
            raise self._failed(status)
        return self.counts.read_text()

    def __enter__(self) -> Self:
        if not _SUBMIT.exists() or not _PIPELINE.exists():
            raise ClientFailed("Spark is not installed; scripts/run installs it, and --no-spark runs without it")
        (self._folder / "spool").mkdir(parents=True)
        with open(self.counts, "wb") as counts, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=counts,
                stderr=log,
                # Otherwise its workers use the python3 on PATH, and it needs a host name that resolves.
                env=os.environ
                | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(_ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
                # In its own session: Ctrl-C reaches only this process, which stops the job and its children.
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _failed(self, status: int) -> ClientFailed:
        last = _last_lines(self._log.read_text(errors="replace").splitlines())
        return ClientFailed(f"Spark's job ended unexpectedly with status {status}; its last lines:\n{last}")


def _has_table(counts: str) -> bool:
    return any(line.startswith("key ") for line in counts.splitlines())


def _last_lines(lines: Sequence[str]) -> str:
    return "\n".join(lines[-_LAST_LINES:])
