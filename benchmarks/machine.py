"""The machine a result was measured on, and how busy it is."""

import os
import platform
import subprocess
import time
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_NOT_WORKING = (3, 4)  # idle and waiting for a disk, among the columns of /proc/stat
_IDLE = 0.1


def await_rest(patience: float) -> float:
    """Return when nobody uses the machine, or after `patience` seconds; how long that took."""
    began = time.monotonic()
    while time.monotonic() - began < patience and _cpus_used(1.0) > _IDLE:
        pass
    return time.monotonic() - began


def _cpus_used(seconds: float) -> float:
    before = _busy_seconds()
    time.sleep(seconds)
    return (_busy_seconds() - before) / seconds


def _busy_seconds() -> float:
    columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return sum(int(ticks) for place, ticks in enumerate(columns) if place not in _NOT_WORKING) / _TICKS_PER_SECOND


def commit() -> str:
    """What is checked out, and whether it was changed since."""
    root = Path(__file__).parent.parent
    try:
        command = ["git", "describe", "--always", "--dirty=, with changes"]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def system() -> str:
    return f"{platform.system()} {platform.release().split('-')[0]}"
