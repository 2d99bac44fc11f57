"""The process's memory in /stats."""

import errno
from pathlib import Path

from nsq_compat.nsqd.memory import MemoryFigures


def test_without_a_free_descriptor_the_figures_are_those_of_the_last_call(monkeypatch):
    memory = MemoryFigures()
    before = memory.figures()
    assert before["heap_in_use_bytes"] > 1_000_000

    def no_descriptor(*_: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", no_descriptor)
    again = memory.figures()
    assert again["heap_in_use_bytes"] == before["heap_in_use_bytes"]
    assert again["heap_idle_bytes"] == before["heap_idle_bytes"]
