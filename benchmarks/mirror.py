"""The cost of mirroring: nsqd with a standby, and the same nsqd alone, in turns.

The measured nsqd has a CPU of its own. The standby and the load generator share the others.

``python -m benchmarks.mirror`` prints the result, and writes it to ``--out``.
"""

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.measure import Figures, RunFailed, build_generator, load, version_of
from benchmarks.results import table
from benchmarks.retention import Nsqd
from benchmarks.scenarios import load_of
from benchmarks.subjects import SUBJECTS
from nsq_conformance.daemon_process import DaemonFailed
from nsq_conformance.nsqd_process import installed_nsqd

_PATIENCE = 120.0
_LOADS = {
    "`MPUB` of 200": load_of(publish="mpub", batch=200, publishers=4),
    "`PUB`, 10 connections": load_of(publish="pub", publishers=10),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mirror", description=__doc__)
    parser.add_argument("--nsqd", default=installed_nsqd(), help="command line of the nsqd to measure (default: ours)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each load (default: 5)")
    parser.add_argument("--megabytes", type=int, default=1000, help="what a standby catches up with (default: 1000)")
    parser.add_argument("--out", type=Path, help="file for the result")
    return parser.parse_args()


class Measurement:
    def __init__(self, arguments: argparse.Namespace, generator: Path, own_cpu: Collection[int]) -> None:
        self._arguments = arguments
        self._own_cpu = own_cpu
        self._generator = generator

    def rows(self) -> Iterator[tuple[str, str]]:
        for what, flags in _LOADS.items():
            pairs = [
                (self._load("nsqd", flags, mirrored=True), self._load("nsqd", flags, mirrored=False))
                for _ in range(self._arguments.rounds)
            ]
            yield (
                f"{what}: mirrored to alone",
                f"msg/s {_ratio(pairs, lambda run: run.rate)}, CPU per message {_ratio(pairs, lambda run: run.cpu_us)}"
                f" ({statistics.median(run.cpu_us for run, _ in pairs):.2f} us)",
            )
        pairs = [
            (self._load("bystander", (), mirrored=True), self._load("bystander", (), mirrored=False))
            for _ in range(self._arguments.rounds)
        ]
        more = [(one.p50 - other.p50, one.p99 - other.p99) for one, other in pairs]
        p50, p99 = (statistics.median(each) for each in zip(*more, strict=True))
        alone = statistics.median(run.p99 for _, run in pairs)
        yield "`PUB`, one every 5 ms: more than alone", f"p50 {p50:.0f} us, p99 {p99:.0f} us (p99 alone {alone:.0f} us)"
        yield "an empty standby catches up, with the start of the primary", f"{self._catch_up():.0f} MB/s"

    def _load(self, subject: str, flags: Sequence[str], *, mirrored: bool) -> Figures:
        words = (f"-seconds={self._arguments.seconds}", "-most=3000000", "-keep=true", *flags)
        if subject == "bystander":
            words = (f"-seconds={self._arguments.seconds}",)
        with ExitStack() as stack:
            options = [f"--mirror-to={self._standby(stack).tcp_address}"] if mirrored else []
            with on_cpus(self._own_cpu):
                nsqd = self._start(stack, "--node-id=1", *options)
            _wait_until(lambda: not mirrored or _is_in_sync(nsqd))
            figures = load(self._generator, SUBJECTS[subject], nsqd, words, subject)
            if mirrored and not _is_in_sync(nsqd):
                raise RunFailed("the standby was lost")
            return figures

    def _catch_up(self) -> float:
        with ExitStack() as stack:
            data_path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsq-bench-")))
            nsqd = Nsqd(self._arguments.nsqd, data_path, options=["--node-id=1"]).start(_PATIENCE)
            body = os.urandom(100_000)
            for _ in range(self._arguments.megabytes * 10):
                nsqd.asks("POST", "/pub?topic=t", body)
            nsqd.stop(_PATIENCE)
            standby = self._standby(stack)
            options = ["--node-id=1", f"--mirror-to={standby.tcp_address}"]
            again = Nsqd(self._arguments.nsqd, data_path, options=options)
            began = time.monotonic()
            stack.enter_context(again)
            _wait_until(lambda: _is_in_sync(again))
            seconds: float = time.monotonic() - began
            return float(self._arguments.megabytes / seconds)

    def _standby(self, stack: ExitStack) -> Nsqd:
        return self._start(stack, "--node-id=2", "--mirror-accept")

    def _start(self, stack: ExitStack, *options: str) -> Nsqd:
        data_path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsq-bench-")))
        return stack.enter_context(Nsqd(self._arguments.nsqd, data_path, options=options))


@contextmanager
def on_cpus(cpus: Collection[int]) -> Iterator[None]:
    """Processes that are started meanwhile run on these CPUs only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _is_in_sync(nsqd: Nsqd) -> bool:
    return bool(nsqd.asks("GET", "/mirror").json()["standby"]["state"] == "in sync")


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RunFailed("the standby does not get in sync")
        time.sleep(0.01)


def _ratio(pairs: Sequence[tuple[Figures, Figures]], figure: Callable[[Figures], float]) -> str:
    return f"{statistics.median(figure(one) / figure(other) for one, other in pairs):.2f}"


def render(arguments: argparse.Namespace, load_average: float, rows: Sequence[tuple[str, str]]) -> str:
    """The whole document, without a newline at its end."""
    facts = [
        f"Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {machine.commit()}",
        f"Machine: {machine.cpu()}, {os.cpu_count()} CPUs, {machine.memory()}, {machine.system()}",
        f"nsqd: `{version_of('nsqd', shlex.split(arguments.nsqd))}`, `--mirror-mode=sync`, on loopback",
        "CPUs: one for the primary, the others for the standby and the generator",
        machine.python(),
        f"Command: `python -m benchmarks.mirror --seconds={arguments.seconds:g} --rounds={arguments.rounds}`",
        f"Load average before: {load_average:.2f}",
    ]
    return "\n\n".join(
        [
            "# Results of mirroring",
            "\n".join(f"- {fact}" for fact in facts),
            table([["what", "measured"], *map(list, rows)]),
        ]
    )


def main() -> None:
    arguments = parse_arguments()
    load_average = os.getloadavg()[0]
    try:
        cpus = sorted(os.sched_getaffinity(0))
        with tempfile.TemporaryDirectory(prefix="nsq-bench-") as folder, on_cpus(cpus[1:] or cpus):
            measurement = Measurement(arguments, build_generator(Path(folder)), cpus[:1])
            rows = []
            for row in measurement.rows():
                print(*row, sep=": ", flush=True)
                rows.append(row)
    except (RunFailed, DaemonFailed) as failure:
        sys.exit(f"benchmarks.mirror: {failure}")
    if arguments.out:
        arguments.out.write_text(render(arguments, load_average, rows) + "\n")


if __name__ == "__main__":
    main()
