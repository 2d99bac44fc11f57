"""``make bench-check``: check that a message costs no more than recorded. ``make bench-record``: record the costs.

Timings are not precise enough to notice 15 % on a shared machine. Therefore nsqd runs in valgrind, which counts
instructions and system calls while the same messages are sent repeatedly; counts do not depend on other load. nsqd gets
a single CPU, because on several it polls busily, for a time and not for a count. Instructions are given as a ratio to a
calibration loop in the same Python, which removes most of the influence of Python's build. Work of the kernel is not
counted, but the number of system calls is.

The compiled nsqd, used if it is on PYTHONPATH, has its own record: ``guard-compiled.json``.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import RunFailed, version_of
from benchmarks.path_loads import LOADS, OPTIONS, Load
from nsq_conformance.daemon_process import DaemonFailed, installed
from nsq_conformance.nsqd_process import NsqdProcess

RECORD = Path(__file__).with_name("guard.json")
GROWTH = 1.15
"""The factor from which on a cost counts as grown."""

_CALLS_BY_ITSELF = 100
"""System calls of a round that depend on time and not on messages, on a slow machine."""

_PATIENCE = 300.0
_ROUNDS = 3
_CALIBRATION_LOOPS = 2000
_VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-systime=yes")


class CannotCount(Exception):
    """Costs cannot be counted; the text says why."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one message, or of one calibration loop."""

    instructions: float
    system_calls: float


class Counted:
    """A process in valgrind that counts on request. `dumps` is the prefix of valgrind's output files."""

    def __init__(self, pid: int, dumps: Path) -> None:
        self._pid = pid
        self._dumps = dumps

    def count(self, work: Callable[[], object]) -> Cost:
        """Count while `work` runs."""
        self._tell("instrumentation", "on")
        self._tell("zero")
        work()
        before = set(self._dumps.parent.glob(f"{self._dumps.name}.*"))
        self._tell("dump")
        (dump,) = set(self._dumps.parent.glob(f"{self._dumps.name}.*")) - before
        self._tell("instrumentation", "off")
        return _totals(dump.read_text())

    def _tell(self, *words: str) -> None:
        command = ["vgdb", f"--pid={self._pid}", *words]
        run = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        if run.returncode:
            raise CannotCount(f"valgrind did not execute {shlex.join(words)}: {run.stderr.strip()}")


def _totals(dump: str) -> Cost:
    """Parse a callgrind dump: ``events: Ir sysCount ...`` names the values of ``totals: 1234 5 ...``."""
    lines = dict(line.partition(": ")[::2] for line in dump.splitlines() if line.startswith(("events: ", "totals: ")))
    values = dict(zip(lines["events"].split(), map(int, lines["totals"].split()), strict=False))
    return Cost(values["Ir"], values.get("sysCount", 0))


def _valgrind(dumps: Path) -> list[str]:
    if shutil.which("valgrind") is None or shutil.which("vgdb") is None:
        raise CannotCount(
            "valgrind counts the instructions, and is not installed (on Debian: apt-get install valgrind)"
        )
    return [*_VALGRIND, f"--callgrind-out-file={dumps}"]


def calibrate(folder: Path) -> float:
    """Instructions of one loop of `calibration.py`."""
    dumps = folder / "calibration"
    program = Path(__file__).with_name("calibration.py")
    with subprocess.Popen(
        [*_valgrind(dumps), sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def calibrate_loops(loops: int) -> None:
            stdin.write(f"{loops}\n")
            stdin.flush()
            if stdout.readline() != "done\n":
                raise CannotCount("the calibration loop failed in valgrind")

        calibrate_loops(_CALIBRATION_LOOPS)
        counted = Counted(process.pid, dumps)
        few = counted.count(lambda: calibrate_loops(1))
        many = counted.count(lambda: calibrate_loops(1 + _CALIBRATION_LOOPS))
        stdin.close()
    return (many.instructions - few.instructions) / _CALIBRATION_LOOPS


@contextmanager
def _nsqd(command: str, folder: Path) -> Iterator[NsqdProcess]:
    data_path = folder / "data"
    data_path.mkdir()
    a_cpu = min(os.sched_getaffinity(0))
    words = ["taskset", "--cpu-list", str(a_cpu), *_valgrind(folder / "nsqd"), *shlex.split(command)]
    nsqd = NsqdProcess(shlex.join(words), data_path, options=OPTIONS).start(_PATIENCE)
    try:
        yield nsqd
    finally:
        nsqd.stop(_PATIENCE)


def costs(command: str, loads: Sequence[Load], folder: Path) -> dict[str, Cost]:
    """The cost of a message for each load. Raises CannotCount and DaemonFailed."""
    with _nsqd(command, folder) as nsqd, ExitStack() as stack:
        counted = Counted(nsqd.pid, folder / "nsqd")
        found: dict[str, list[Cost]] = {load.name: [] for load in loads}
        running = [(load, load.connect(nsqd, stack)) for load in loads]
        for _, send in running:
            send()
        for _ in range(_ROUNDS):
            for load, send in running:
                spent = counted.count(send)
                found[load.name].append(Cost(spent.instructions / load.messages, spent.system_calls / load.messages))
    return {name: _median(each) for name, each in found.items()}


def _median(each: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.instructions for cost in each), statistics.median(cost.system_calls for cost in each)
    )


def measure(command: str, loads: Sequence[Load]) -> dict[str, dict[str, float]]:
    """The cost of a message for each load, in ``loops`` of the calibration loop and ``system_calls``."""
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
        loop = calibrate(Path(folder))
        return {
            name: {"loops": round(cost.instructions / loop, 3), "system_calls": round(cost.system_calls, 3)}
            for name, cost in costs(command, loads, Path(folder)).items()
        }


def grown(recorded: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A sentence for each cost that has grown by more than 15 %, or is not recorded."""
    by_itself = {load.name: _CALLS_BY_ITSELF / load.messages for load in LOADS}
    sentences = []
    for name, figures in now.items():
        if name not in recorded:
            sentences.append(f"{name}: never recorded, make bench-record")
            continue
        for figure, value in figures.items():
            before = recorded[name][figure]
            if value > before * GROWTH + (by_itself.get(name, 0) if figure == "system_calls" else 0):
                what = figure.replace("_", " ")
                sentences.append(
                    f"{name}: {value:g} {what} per message, recorded {before:g}: {value / before:.2f} times"
                )
    return sentences


def table(recorded: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"{'a message of':<42}{'loops':>10}{'recorded':>10}{'system calls':>14}{'recorded':>10}"]
    for name, figures in now.items():
        before = recorded.get(name, {})
        cells = [figures["loops"], before.get("loops", 0), figures["system_calls"], before.get("system_calls", 0)]
        lines.append(
            f"{name:<42}" + "".join(f"{cell:>{width}.3f}" for cell, width in zip(cells, (10, 10, 14, 10), strict=True))
        )
    return "\n".join(lines)


def _build(command: str) -> str:
    """The build of an nsqd: ``python3.11.7``, with or without ``-compiled``. Raises RunFailed."""
    version = version_of("nsqd", shlex.split(command))
    return re.sub(r".*\(built w/(.*)\)$", r"\1", version)


def _refuse_another_kind(recorded: str, this: str) -> None:
    """Raise CannotCount if only one of them is compiled; print a note if the Python versions differ."""
    (recorded_python, *recorded_with), (python, *with_) = recorded.split("-"), this.split("-")
    if recorded_with != with_:
        raise CannotCount(f"the record is of {recorded}, this is {this}: they cannot be compared")
    if recorded_python.rpartition(".")[0] != python.rpartition(".")[0]:
        print(f"note: the record is of {recorded}, this is {this}; counts may differ")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nsqd", default=installed("nsqd"), help="command line of the nsqd to count (default: ours)")
    parser.add_argument("--record", action="store_true", help="write the costs to the file instead of comparing")
    parser.add_argument("--file", type=Path, default=RECORD, help="file of recorded costs (default: guard.json here)")
    options = parser.parse_args(arguments)
    try:
        build = _build(options.nsqd)
        if options.record:
            costs_now = {"build": build, "costs": measure(options.nsqd, LOADS)}
            options.file.write_text(json.dumps(costs_now, indent=2) + "\n")
            print(f"recorded in {options.file}")
            return
        record = json.loads(options.file.read_text())
        _refuse_another_kind(record["build"], build)
        now = measure(options.nsqd, LOADS)
    except (CannotCount, DaemonFailed, RunFailed) as error:
        sys.exit(f"bench-check: {error}")
    print(table(record["costs"], now))
    if sentences := grown(record["costs"], now):
        sys.exit("\n".join(["bench-check: the message path has become more expensive", *sentences]))


if __name__ == "__main__":
    main()
