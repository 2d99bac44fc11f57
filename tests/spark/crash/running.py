"""Start, watch and kill users' programs, and show the results as rows of the tables in docs/spark.md."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyspark

from benchmarks.process_tree import descendants
from tests.client import waiting

wait_until = functools.partial(waiting.wait_until, within=240)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final numbers of messages in the table."""

    published: int
    rows: int
    distinct: int

    @property
    def lost(self) -> int:
        return self.published - self.distinct

    @property
    def twice(self) -> int:
        return self.rows - self.distinct


def environment(folder: Path) -> dict[str, str]:
    """Environment for Spark's programs: our Python, a home in the folder, for local-cluster's files, and a JVM that
    compiles for a short life, which saves a third of the time of these tests.
    """
    home = folder / "spark"
    home.mkdir(exist_ok=True)
    for part in ("bin", "jars"):
        with contextlib.suppress(FileExistsError):
            (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    # Of PYTHONPATH, another Spark than the installed one.
    path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    own = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    own["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return os.environ | own | {"SPARK_LOCAL_IP": "127.0.0.1"}


class Program:
    """A run of `program.py`; a context manager."""

    def __init__(self, master: str, folder: Path) -> None:
        self._log = folder / f"program-{time.monotonic_ns()}.log"
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("program.py")), master],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(folder),
            )
        self.jvm = int(self._line())

    def begin(self, work: str, options: dict[str, str], folder: Path) -> None:
        """Start one of its works."""
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.write(json.dumps({"work": work, "options": options, "folder": str(folder)}) + "\n")
        self._process.stdin.flush()

    def outcome(self, published: int) -> Outcome:
        """Wait until the work is done."""
        return Outcome(published, *json.loads(self._line()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None, "opened as a pipe"
            pipe.close()
        self._process.wait()
        # The JVM ends after its program. Wait for that, because two JVMs must not use one checkpoint.
        wait_until(lambda: not Path(f"/proc/{self.jvm}").exists())

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        """The program's log, for error messages."""
        return "it ended early:\n" + self._log.read_text()[-3000:]

    def under_its_jvm(self, words: str) -> list[int]:
        """The ids of processes with these words in their command lines."""
        return [pid for pid in descendants(self.jvm) if words in _command_line(pid)]

    def _line(self) -> str:
        assert self._process.stdout is not None, "opened as a pipe"
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise AssertionError(self.output())
        return line


def await_another(name: str, program: Program, folder: Path, parent: str = "spool/*/*/*") -> None:
    """Wait for a new file of this name, in the spool or in another folder."""

    def found() -> set[Path]:
        return set(folder.glob(f"{parent}/{name}"))

    before = found()
    wait_until(lambda: found() - before or not program.is_running())
    assert program.is_running(), program.output()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def check_repeats(diary: Path) -> int:
    """Check that all attempts at a partition yielded the same bytes; returns the number of repeated attempts."""
    again = 0
    for partition in (diary / "yields").iterdir():
        attempts = sorted((fields_of for each in partition.iterdir() if (fields_of := each.read_bytes())), key=len)
        assert all(attempts[-1].startswith(each) for each in attempts), f"attempts at {partition.name} differ"
        again += len(attempts) > 1
    return again


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


# --- Tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kills:
    """A kind of process, the number of kills, and the outcome."""

    victim: str
    times: int
    outcome: Outcome

    def cells(self) -> list[str]:
        outcome = self.outcome
        numbers = outcome.published, self.times, outcome.lost, outcome.twice
        return [self.victim, *(f"{number:,}" for number in numbers)]


@dataclass(frozen=True, slots=True)
class Work:
    """A work on one of Spark's masters."""

    name: str
    master: str
    result: str

    def cells(self) -> list[str]:
        return [self.name, self.master, self.result]


def lines(kills: Sequence[Sequence[str]], works: Sequence[Sequence[str]]) -> list[str]:
    """Return a table of kills and a table of works by master, of their cells."""
    fields_of: list[str] = []
    if kills:
        fields_of += ["", *_table(["Killed (SIGKILL)", "Messages", "Times", "Lost", "Twice"], kills)]
    if works:
        by_name = dict[str, dict[str, str]]()
        for name, master, result in works:
            by_name.setdefault(name, {})[master] = result
        masters = list(dict.fromkeys(master for by_master in by_name.values() for master in by_master))
        rows = ([name, *(by_master.get(master, "") for master in masters)] for name, by_master in by_name.items())
        fields_of += ["", *_table(["", *(f"`{master}`" for master in masters)], rows)]
    return fields_of


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]
