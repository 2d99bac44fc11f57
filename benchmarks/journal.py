"""A journal of runs, one line of JSON each, from which an interrupted measurement continues."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.measure import Effort, Figures, RunFailed
from benchmarks.scenarios import Scenario
from benchmarks.subjects import Server


@dataclass(frozen=True, slots=True)
class Entry:
    """A run. `key` identifies it; `load_average` is the machine's (1 minute) after the run."""

    key: list[Any]
    at: str
    commit: str
    load_average: float
    figures: Figures

    @property
    def scenario(self) -> str:
        return str(self.key[0])


class Journal:
    """The journal, in memory and optionally in a file. Entries of the file count as measured now."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._kept = list(_read(path)) if path is not None and path.exists() else []
        self.entries: list[Entry] = []
        """The entries that were looked up or added."""

    def find(self, scenario: Scenario, server: Server, effort: Effort, round_number: int) -> Figures | None:
        key = _key(scenario, server, effort, round_number)
        # The last one counts, because a run may be repeated by hand.
        found = next((entry for entry in reversed(self._kept) if entry.key == key), None)
        if found is None:
            return None
        self.entries.append(found)
        return found.figures

    def add(self, scenario: Scenario, server: Server, effort: Effort, round_number: int, figures: Figures) -> None:
        key = _key(scenario, server, effort, round_number)
        at = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        entry = Entry(key, at, machine.commit(), os.getloadavg()[0], figures)
        self.entries.append(entry)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(entry)) + "\n")


def _key(scenario: Scenario, server: Server, effort: Effort, round_number: int) -> list[Any]:
    load = [*scenario.load, *scenario.options, *scenario.ours]
    return [scenario.name, load, server.name, effort.seconds, effort.seed, round_number]


def _read(path: Path) -> Iterator[Entry]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            values = json.loads(line)
            yield Entry(**values | {"figures": Figures(**values["figures"])})
        except (ValueError, TypeError, KeyError):
            raise RunFailed(f"{path}, line {number}: not the figures of a run") from None
