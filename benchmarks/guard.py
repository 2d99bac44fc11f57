"""``make bench-check``: check that a message costs no more than recorded. ``make bench-record``: record the costs.

Timings are not precise enough to notice 15 % on a shared machine. Therefore nsqd runs in valgrind, which counts
instructions and system calls while the same messages are sent repeatedly; counts do not depend on other load. nsqd gets
a single CPU, because on several it polls busily, for a time and not for a count. Instructions are given as a ratio to a
calibration loop in the same Python, which removes most of the influence of Python's build. Work of the kernel is not
counted, but the number of system calls is.

The functions that a message spends its time in are recorded too, so that a growth is told with their names: for an
interpreted nsqd, the lines that each Python function executes (`executed_lines.py`), for a compiled one the
instructions of each function.

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.executed_lines import lines_by_function
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
_MOST_NAMED = 5
_POSITION = frozenset("0123456789+-*")
"""The first character of a line with a cost: a line number, or its distance from the one before."""

_LEAST_SHARE = 0.01
"""The part of a message's cost from which on a function is recorded."""

_VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-systime=yes", "--compress-strings=no")


Record = dict[str, dict[str, dict[str, float]]]
"""``costs`` and ``functions``, each by load."""


class CannotCount(Exception):
    """Costs cannot be counted; the text says why."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one message, or of one calibration loop."""

    instructions: float
    system_calls: float
    functions: Mapping[str, float]
    """The instructions of each function itself, without those of the functions that it calls."""


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
    """Parse a callgrind dump.

    ``events: Ir sysCount ...`` names the values of ``totals: 1234 5 ...``, and those of each line of a function, after
    the line's number. A line after ``calls=`` is the cost of the called function.
    """
    heads = dict(line.partition(": ")[::2] for line in dump.splitlines() if line.startswith(("events: ", "totals: ")))
    values = dict(zip(heads["events"].split(), map(int, heads["totals"].split()), strict=False))
    functions: Counter[str] = Counter()
    name, of_called = "", False
    for line in dump.splitlines():
        if line.startswith("fn="):
            name = line[3:]
        elif line.startswith("calls="):
            of_called = True
        elif line[:1] in _POSITION:
            if not of_called:
                functions[name] += int(line.split()[1])
            of_called = False
    return Cost(values["Ir"], values.get("sysCount", 0), functions)


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
                found[load.name].append(_of_one(spent, load.messages))
    return {name: _median(each) for name, each in found.items()}


def _of_one(spent: Cost, messages: int) -> Cost:
    functions = {
        name: instructions / messages
        for name, instructions in spent.functions.items()
        if instructions >= _LEAST_SHARE * spent.instructions
    }
    return Cost(spent.instructions / messages, spent.system_calls / messages, functions)


def _median(each: Sequence[Cost]) -> Cost:
    """The one with the median of instructions, and the median of system calls."""
    of_instructions = sorted(each, key=lambda cost: cost.instructions)[len(each) // 2]
    return replace(of_instructions, system_calls=statistics.median(cost.system_calls for cost in each))


def measure(command: str, loads: Sequence[Load], *, compiled: bool) -> Record:
    """The cost of a message for each load, in ``loops`` of the calibration loop and ``system_calls``; and the functions
    that take the most, in loops if `compiled`, in lines otherwise. Raises CannotCount, DaemonFailed and TimeoutError.
    """
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as name:
        folder = Path(name)
        loop = calibrate(folder)
        found = costs(command, loads, folder)
        functions = (
            {name: {each: ir / loop for each, ir in cost.functions.items()} for name, cost in found.items()}
            if compiled
            else lines_by_function(command, loads, folder)
        )
    return {
        "costs": {
            name: {"loops": round(cost.instructions / loop, 3), "system_calls": round(cost.system_calls, 3)}
            for name, cost in found.items()
        },
        "functions": {
            name: {each: round(amount, 4) for each, amount in sorted(of_load.items()) if _counts(amount, of_load)}
            for name, of_load in functions.items()
        },
    }


def _counts(amount: float, of_load: Mapping[str, float]) -> bool:
    return amount >= _LEAST_SHARE * sum(of_load.values())


def grown(recorded: Record, now: Record, unit: str = "lines") -> list[str]:
    """A sentence for each cost that has grown by more than 15 %, with functions that have grown; or is not recorded.

    `unit` is that of the functions.
    """
    by_itself = {load.name: _CALLS_BY_ITSELF / load.messages for load in LOADS}
    sentences = []
    for name, figures in now["costs"].items():
        if name not in recorded["costs"]:
            sentences.append(f"{name}: never recorded, make bench-record")
            continue
        for figure, value in figures.items():
            before = recorded["costs"][name][figure]
            if value > before * GROWTH + (by_itself.get(name, 0) if figure == "system_calls" else 0):
                what = figure.replace("_", " ")
                which = _most_grown(recorded["functions"].get(name, {}), now["functions"].get(name, {}), unit)
                sentences.append(
                    f"{name}: {value:g} {what} per message, recorded {before:g}: {value / before:.2f} times{which}"
                )
    return sentences


def _most_grown(before: Mapping[str, float], now: Mapping[str, float], unit: str) -> str:
    """The functions with the largest growth, and at least a tenth of the largest."""
    by = {name: amount - before.get(name, 0.0) for name, amount in now.items()}
    most = sorted(by, key=by.__getitem__, reverse=True)[:_MOST_NAMED]
    named = [name for name in most if by[name] > max(0.1 * by[most[0]], _LEAST_SHARE * sum(now.values()))]
    if not named:
        return f"; no function has more {unit}: what it calls, in a library or in C, costs more"
    return "; " + ", ".join(f"{name} ({before.get(name, 0):g} -> {now[name]:g} {unit})" for name in named)


def table(recorded: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]]) -> str:
    """The costs of all loads, beside the recorded ones."""
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
        compiled = build.endswith("-compiled")
        if options.record:
            now = measure(options.nsqd, LOADS, compiled=compiled)
            options.file.write_text(json.dumps({"build": build, **now}, indent=2) + "\n")
            print(f"recorded in {options.file}")
            return
        record = json.loads(options.file.read_text())
        _refuse_another_kind(record["build"], build)
        now = measure(options.nsqd, LOADS, compiled=compiled)
    except (CannotCount, DaemonFailed, RunFailed, TimeoutError) as error:
        sys.exit(f"bench-check: {error}")
    print(table(record["costs"], now["costs"]))
    if sentences := grown(record, now, "loops" if compiled else "lines"):
        sys.exit("\n".join(["bench-check: the message path has become more expensive", *sentences]))


if __name__ == "__main__":
    main()
