"""The process's memory in the nine figures of NSQ's /stats, as far as Python has their like (docs/differences.md)."""

import gc
import os
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from nsq_compat.net.process import exempt_from_collection
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic

_EXEMPTED_AT_ONCE = 500
"""Topics; a collection of the objects of a thousand takes 10 ms."""
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


class TopicExemption:
    """Exempts topics from garbage collection as their number grows: collecting 20,000 of them takes 0.4 s.

    Only a number that was never reached before counts. So where topics come and go, what is exempt stays bounded, and
    deleted topics are collected.
    """

    def __init__(self, broker: Broker) -> None:
        self._topics = broker.topics
        self._next_count = _EXEMPTED_AT_ONCE
        broker.observers.append(self)

    def topic_created(self, topic: Topic) -> None:
        if len(self._topics) >= self._next_count:
            self._next_count = len(self._topics) + _EXEMPTED_AT_ONCE
            exempt_from_collection()

    def topic_deleted(self, topic: Topic) -> None: ...

    def channel_created(self, topic: Topic, channel: Channel) -> None: ...

    def channel_deleted(self, topic: Topic, channel: Channel) -> None: ...


def _percentile(values: list[float], percent: int) -> int:
    return int(values[(len(values) - 1) * percent // 100]) if values else 0
