"""The lines that each Python function of an nsqd executes for a message.

The same work executes the same lines in every run, however fast the machine is. A function is named by its file and its
name, such as ``nsq_compat/queue/topic.py Topic.publish``. Libraries and compiled modules are not counted.

As a program, ``python -m benchmarks.executed_lines FILE PROGRAM [FLAG ...]`` runs a Python program that counts. At
SIGUSR1 it writes FILE, a JSON object with the lines by function since the last time, and counts from zero again.
"""

import json
import os
import runpy
import shlex
import signal
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.path_loads import OPTIONS, Load
from nsq_conformance.nsqd_process import NsqdProcess

_LIBRARIES = (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), "<frozen", __file__)
_PATIENCE = 60.0


def lines_by_function(command: str, loads: Sequence[Load], folder: Path) -> dict[str, dict[str, float]]:
    """The lines for a message of each load, by function. Raises DaemonFailed, and TimeoutError."""
    found = {}
    data_path = folder / "traced"
    data_path.mkdir()
    path = folder / "lines"
    program = [word for word in shlex.split(command) if word != sys.executable]
    words = [sys.executable, "-m", "benchmarks.executed_lines", str(path), *program]
    with NsqdProcess(shlex.join(words), data_path, options=OPTIONS) as nsqd, ExitStack() as stack:
        for load in loads:
            send = load.connect(nsqd, stack)
            send()
            _lines_so_far(nsqd.pid, path)
            send()
            found[load.name] = {
                function: lines / load.messages for function, lines in _lines_so_far(nsqd.pid, path).items()
            }
    return found


def _lines_so_far(pid: int, path: Path) -> dict[str, int]:
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + _PATIENCE
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the traced nsqd does not write the lines that it executed")
        time.sleep(0.01)
    lines: dict[str, int] = json.loads(path.read_text())
    return lines


def _count_lines(path: Path) -> None:
    """Begin to count, in this thread, and in greenlets that are started later."""
    lines: Counter[CodeType] = Counter()

    def in_function(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines[frame.f_code] += 1
        return in_function

    def at_call(frame: FrameType, event: str, _: object) -> Any:
        return None if frame.f_code.co_filename.startswith(_LIBRARIES) else in_function

    def write(*_: object) -> None:
        named: Counter[str] = Counter()
        for code, count in lines.items():
            named[f"{os.path.relpath(code.co_filename)} {code.co_qualname}"] += count
        lines.clear()
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(named))
        unfinished.rename(path)

    signal.signal(signal.SIGUSR1, write)
    sys.settrace(at_call)


if __name__ == "__main__":
    _, file, *sys.argv = sys.argv
    _count_lines(Path(file))
    runpy.run_path(sys.argv[0], run_name="__main__")
