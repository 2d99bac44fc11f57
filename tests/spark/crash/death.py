"""Killing Spark's processes, or the JVM that is their parent, from inside."""

import os
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_jvm() -> None:
    """Kill the parent JVM, and this process, which would otherwise run for some milliseconds more."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text() != "java\n":
        status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        pid = int(status["PPid"])
    os.kill(pid, signal.SIGKILL)
    kill_this_process()


@dataclass
class Death:
    """Kills a process when it reaches a point for the n-th time.

    A folder has a file for each process killed so far; a name that is there is not killed again, and their number is
    limited.
    """

    folder: Path
    most: int
    point: str
    turn: int = 1
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    kill: Callable[[], None] = kill_this_process
    passed: int = field(default=0, init=False)

    def at(self, point: str) -> None:
        if point != self.point:
            return
        self.passed += 1
        if self.passed != self.turn or len(deaths(self.folder)) >= self.most or (self.folder / self.name).exists():
            return
        self.folder.mkdir(exist_ok=True)
        (self.folder / self.name).touch()
        self.kill()


def deaths(folder: Path) -> list[str]:
    """The names of the killed processes."""
    return os.listdir(folder) if folder.exists() else []
