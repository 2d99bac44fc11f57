"""The process's memory in the nine figures of NSQ's /stats, as far as Python has their like (docs/differences.md)."""

import gc
import os
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_REMEMBERED_PAUSES = 1000


class MemoryFigures:
    """Watches the garbage collector from its making on. One per process."""

    def __init__(self) -> None:
        self._pauses_us: deque[float] = deque(maxlen=_REMEMBERED_PAUSES)
        self._began = 0.0
        self._pages = (0, 0)  # of the whole process, and resident; as they were read last
        gc.callbacks.append(self._on_collection)

    def figures(self) -> dict[str, int]:
        """By NSQ's names and in its order; sizes in bytes, pauses in microseconds."""
        with suppress(OSError):  # without a free descriptor /stats has the figures of its last call
            size, resident = Path("/proc/self/statm").read_text("ascii").split()[:2]
            self._pages = int(size), int(resident)
        total_bytes, resident_bytes = (pages * _PAGE for pages in self._pages)
        pauses = sorted(self._pauses_us)
        return {
            "heap_objects": sys.getallocatedblocks(),
            "heap_idle_bytes": total_bytes - resident_bytes,
            "heap_in_use_bytes": resident_bytes,
            "heap_released_bytes": 0,
            "gc_pause_usec_100": _percentile(pauses, 100),
            "gc_pause_usec_99": _percentile(pauses, 99),
            "gc_pause_usec_95": _percentile(pauses, 95),
            "next_gc_bytes": 0,
            "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
        }

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._pauses_us.append((time.perf_counter() - self._began) * 1e6)


def _percentile(values: list[float], percent: int) -> int:
    return int(values[(len(values) - 1) * percent // 100]) if values else 0
