"""Properties of the machine on which a result is measured, and its load."""

import os
import platform
import resource
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_DESCRIPTORS = 65536
_NOT_WORKING = (3, 4)  # idle and waiting for a disk, among the columns of /proc/stat
_IDLE = 0.1


def wait_until_idle(patience: float) -> float:
    """Wait until the machine is idle, for at most `patience` seconds; returns the time waited."""
    began = time.monotonic()
    while time.monotonic() - began < patience and _cpus_used(1.0) > _IDLE:
        pass
    return time.monotonic() - began


def _cpus_used(seconds: float) -> float:
    before = busy_seconds()
    time.sleep(seconds)
    return (busy_seconds() - before) / seconds


def busy_seconds() -> float:
    """Busy time of all CPUs together, in steps of 10 ms."""
    columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return sum(int(ticks) for place, ticks in enumerate(columns) if place not in _NOT_WORKING) / _TICKS_PER_SECOND


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, including ended ones: clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE


def allow_descriptors() -> int:
    """Raise the descriptor limit as far as possible, above the hard limit if permitted; returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, _DESCRIPTORS), max(hard, _DESCRIPTORS)))
        return max(hard, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def commit() -> str:
    """The commit that is checked out, and whether there are changes."""
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


def python() -> str:
    """The interpreter, and whether it uses a shared libpython, because such builds differ in speed."""
    shared = "/libpython" in Path("/proc/self/maps").read_text(encoding="ascii", errors="replace")
    return f"Python {platform.python_version()}{', libpython shared' if shared else ''}"
