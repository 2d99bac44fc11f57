"""Memory statistics of /stats, as far as Python has an equivalent (docs/differences.md), and the garbage collector."""

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

_TOPICS_PER_EXEMPTION = 500
"""Collecting the objects of a thousand topics takes 10 ms."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAX_PAUSES = 1000


class MemoryStats:
    """Observes the garbage collector from its construction on. One per process."""

    def __init__(self) -> None:
        self._pauses_us: deque[float] = deque(maxlen=_MAX_PAUSES)
        self._began = 0.0
        self._pages = (0, 0)  # total and resident, when last read
        gc.callbacks.append(self._on_collection)

    def stats(self) -> dict[str, int]:
        """By NSQ's names and in its order; sizes in bytes, pauses in microseconds."""
        with suppress(OSError):  # without a free descriptor the values of the last call are used
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

    Only a new maximum of their number counts. So where topics come and go, the exempted objects stay bounded, and
    deleted topics are collected.
    """

    def __init__(self, broker: Broker) -> None:
        self._topics = broker.topics
        self._next_count = _TOPICS_PER_EXEMPTION
        broker.observers.append(self)

    def topic_created(self, topic: Topic) -> None:
        if len(self._topics) >= self._next_count:
            self._next_count = len(self._topics) + _TOPICS_PER_EXEMPTION
            exempt_from_collection()

    def topic_deleted(self, topic: Topic) -> None: ...

    def channel_created(self, topic: Topic, channel: Channel) -> None: ...

    def channel_deleted(self, topic: Topic, channel: Channel) -> None: ...


def _percentile(values: list[float], percent: int) -> int:
    return int(values[(len(values) - 1) * percent // 100]) if values else 0
