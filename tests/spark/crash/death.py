"""How processes of Spark's kill themselves, or the JVM above them, where a test wants it."""

import os
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_jvm() -> None:
    """And this process, which is under it and would otherwise go on for some milliseconds."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text() != "java\n":
        status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        pid = int(status["PPid"])
    os.kill(pid, signal.SIGKILL)
    kill_this_process()


@dataclass
class Death:
    """Of a process, when it comes to a point for the n-th time. So many in all, noted in a folder by name: who is named
    there dies no second time."""

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
    """The names of the dead."""
    return os.listdir(folder) if folder.exists() else []
