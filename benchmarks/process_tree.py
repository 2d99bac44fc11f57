"""CPU time of a process and all its descendants, including ended ones."""

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Columns of /proc/PID/stat after the name: user and system time, and those of children that were waited for.
_PARENT, _OWN, _OF_ENDED = 1, slice(11, 13), slice(13, 15)

ENDED = ""
"""The key for processes that have ended, instead of a program's name."""


def cpu_by_program(root: int) -> dict[str, float]:
    """CPU seconds of `root` and its descendants, by program name or `ENDED`."""
    spent = {ENDED: 0.0}
    for pid in descendants(root):
        try:
            name, columns = _stat(pid)
        except FileNotFoundError:  # it has ended, and its time counts for its parent
            continue
        for program, times in ((name, _OWN), (ENDED, _OF_ENDED)):
            spent[program] = spent.get(program, 0.0) + sum(map(int, columns[times])) / _TICKS_PER_SECOND
    return spent


def descendants(root: int) -> list[int]:
    """The process ids of `root` and its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), int(_stat(int(folder.name))[1][_PARENT])
            except (FileNotFoundError, ProcessLookupError):
                continue


def _stat(pid: int) -> tuple[str, list[str]]:
    before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return before.partition("(")[2], after.split()
