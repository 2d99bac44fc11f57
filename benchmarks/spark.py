"""Compare the Spark source with pynsq's reader, and with itself without a spool: messages per second and CPU time.

    .venv/bin/python -m benchmarks.spark             a table for RESULTS-spark.md

All runs share one Spark session, so that its code is compiled. Every run has its own nsqd, which have all messages
before it starts. CPU time is that of a whole query with its start, by process tree: of the JVM, of Python (workers and
the planning process), and of nsqd.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyspark

from benchmarks import client, machine
from benchmarks.process_tree import cpu_by_program
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd

_SIZE = 200
_PUBLISHED_TOGETHER = 500
_ALIKE = (b"x" * _SIZE,) * _PUBLISHED_TOGETHER
# The same number of bytes, but neighbours differ in size, which tasks decode in another way.
_MIXED = tuple(b"x" * (_SIZE // 2 + number * 71 % (_SIZE + 1)) for number in range(_PUBLISHED_TOGETHER))
_TOPIC, _CHANNEL = "t", "c"
_PYNSQ = "pynsq 0.9.1"
_PROGRAMS = ("JVM", "Python", "nsqd")


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    format: str
    sink: str
    bodies: Sequence[bytes] = _ALIKE
    mode: str = "spool"


SUBJECTS = (
    Subject("noop, mode=log", "nsq", "noop", mode="log"),
    Subject("noop, mixed sizes, mode=log", "nsq", "noop", _MIXED, mode="log"),
    Subject("noop, mode=log, rows made in advance", "nsq-ready", "noop", mode="log"),
    Subject("parquet, mode=log", "nsq", "parquet", mode="log"),
    Subject("noop", "nsq", "noop"),
    Subject("noop, mixed sizes", "nsq", "noop", _MIXED),
    Subject("noop, no spool", "nsq-direct", "noop"),
    Subject("parquet", "nsq", "parquet"),
    Subject("parquet, no spool", "nsq-direct", "parquet"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """`seconds` are those of the micro-batches; CPU seconds are by program."""

    messages: int
    seconds: float
    cpu: dict[str, float]

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpus_used(self) -> float:
        return sum(self.cpu.values()) / self.seconds

    def cpu_us(self, *programs: str) -> float:
        """CPU time per message in microseconds, of these programs or of all."""
        return sum(self.cpu[each] for each in programs or self.cpu) / self.messages * 1e6


class Session:
    """The program with the Spark session."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        assert process.stdin is not None, "opened as a pipe"
        assert process.stdout is not None, "opened as a pipe"
        self._input, self._output = process.stdin, process.stdout

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        self._input.write(json.dumps(request) + "\n")
        self._input.flush()
        report: dict[str, Any] = json.loads(self._output.readline())
        return report


@contextmanager
def session(master: str) -> Iterator[Session]:
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.spark_program", master],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        yield Session(process)
        process.communicate()


@contextmanager
def full_nsqds(command: str, number: int, messages: int, bodies: Sequence[bytes]) -> Iterator[list[NsqdProcess]]:
    """Start `number` nsqd that have `messages` messages in all, with these bodies repeated."""
    from nsq_compat.client import Producer

    share = messages // number
    with ExitStack() as stack:
        nsqds = []
        for _ in range(number):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-bench-")))
            nsqd = stack.enter_context(NsqdProcess(command, folder, options=[f"--mem-queue-size={share}"]))
            nsqd.create_channel(_TOPIC, _CHANNEL)
            with Producer(nsqd.tcp_address) as producer:
                for _ in range(share // len(bodies)):
                    producer.publish_many(_TOPIC, bodies)
            nsqds.append(nsqd)
        yield nsqds


def measure(session: Session, subject: Subject, options: argparse.Namespace, messages: int) -> Run:
    """Run a query over all messages of new nsqd. Raises ``RuntimeError`` unless each arrives once."""
    with (
        full_nsqds(options.nsqd, options.nsqds, messages, subject.bodies) as nsqds,
        tempfile.TemporaryDirectory() as folder,
    ):
        spool = Path(folder) / "spool"
        spool.mkdir()
        read = {
            "mode": subject.mode,
            "subscribe": _TOPIC,
            "nsqdHttpAddresses": ",".join(each.http_address for each in nsqds),
            "maxMessagesPerTrigger": str(options.per_trigger),
        }
        if subject.mode == "log":
            read |= {"startingOffsets": "earliest", "minPartitions": str(options.partitions)}
        else:
            tcp = ",".join(each.tcp_address for each in nsqds)
            read |= {"channel": _CHANNEL, "nsqdTcpAddresses": tcp, "spoolDir": str(spool)}
        query = {"format": subject.format, "sink": subject.sink, "options": read, "folder": f"{folder}/{uuid.uuid4()}"}
        before = _cpu(session, nsqds)
        report = session.run(query)
        after = _cpu(session, nsqds)
        if report["rows"] != messages:
            raise RuntimeError(f"{subject.name}: {report['rows']} rows of {messages} messages")
    return Run(messages, report["batch_seconds"], {program: after[program] - before[program] for program in after})


def _cpu(session: Session, nsqds: Sequence[NsqdProcess]) -> dict[str, float]:
    spark = cpu_by_program(session.pid)
    # Ended processes were Python: workers, and the planning process of each query.
    jvm = spark.pop("java", 0.0)
    nsqd = sum(sum(cpu_by_program(each.pid).values()) for each in nsqds)
    return {"JVM": jvm, "Python": sum(spark.values()), "nsqd": nsqd}


def measure_pynsq(options: argparse.Namespace) -> Run:
    report = client.measure("pynsq", options.pynsq_messages, options.nsqd)
    return Run(int(report["messages"]), report["seconds"], {"JVM": 0.0, "Python": report["cpu_seconds"], "nsqd": 0.0})


def median(runs: Sequence[Run], figure: Callable[[Run], float]) -> float:
    return statistics.median(map(figure, runs))


def table(results: dict[str, list[Run]]) -> str:
    lines = [
        "| | msg/s | spread | times pynsq's | CPU us/msg | JVM | Python | nsqd | CPUs used |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    baseline = median(results[_PYNSQ], lambda run: run.rate)
    for name, runs in results.items():
        rates = [run.rate for run in runs]
        rate = statistics.median(rates)
        programs = [statistics.median(run.cpu_us(program) for run in runs) for program in _PROGRAMS]
        lines.append(
            f"| {name} | {rate:,.0f} | {(max(rates) - min(rates)) / rate:.0%} | **{rate / baseline:.1f}** "
            f"| {median(runs, lambda run: run.cpu_us()):.2f} | "
            + " | ".join(f"{each:.2f}" if each else "" for each in programs)
            + f" | {median(runs, lambda run: run.cpus_used):.2f} |"
        )
    return "\n".join(lines)


def cost_of_the_spool(results: dict[str, list[Run]], sink: str) -> str:
    """The ratio of CPU time with the spool to that without."""
    with_it, without = results[sink], results[f"{sink}, no spool"]
    of_all = median(with_it, lambda run: run.cpu_us()) / median(without, lambda run: run.cpu_us())
    of_python = median(with_it, lambda run: run.cpu_us("Python")) / median(without, lambda run: run.cpu_us("Python"))
    return f"- To {sink} the spool costs {of_all:.2f} times the CPU; of Python alone {of_python:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nsqd", default=installed_nsqd(), help="command line of the nsqd to read from")
    parser.add_argument("--nsqds", type=int, default=2, help="number of nsqd")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--pynsq-messages", type=int, default=100_000)
    parser.add_argument("--per-trigger", type=int, default=250_000)
    parser.add_argument("--partitions", type=int, default=2, help="tasks of a micro-batch in mode=log (default: 2)")
    parser.add_argument("--only", default="", help="part of the names of the subjects to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-ups", type=int, default=2, help="rounds with half the messages that are not counted")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="longest wait before each run for the machine to be idle"
    )
    options = parser.parse_args()
    subjects = [subject for subject in SUBJECTS if options.only in subject.name]
    results: dict[str, list[Run]] = {name: [] for name in (*(subject.name for subject in subjects), _PYNSQ)}
    with session(options.master) as spark:
        for subject in subjects * options.warm_ups:
            measure(spark, subject, options, options.messages // 2)
        for _ in range(options.rounds):
            for subject in subjects:
                machine.wait_until_idle(options.patience)
                results[subject.name].append(measure(spark, subject, options, options.messages))
            machine.wait_until_idle(options.patience)
            results[_PYNSQ].append(measure_pynsq(options))
    print(f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {machine.commit()}")
    print(f"- Machine: {machine.cpu()}, {os.cpu_count()} CPUs, {machine.memory()}, {machine.system()}")
    print(f"- Python {sys.version.split()[0]}, PySpark {pyspark.__version__}, pyarrow {pyarrow.__version__}")
    print(f"- Load average over the last quarter of an hour: {os.getloadavg()[2]:.1f}")
    print(
        f"- {options.messages:,} messages of {_SIZE} bytes (mixed: {len(min(_MIXED))} to {len(max(_MIXED))}) on "
        f"{options.nsqds} nsqd, {options.per_trigger:,} per micro-batch, `{options.master}`; medians of "
        f"{options.rounds} rounds, the subjects in turn\n"
    )
    print(table(results))
    print()
    for sink in ("noop", "parquet"):
        if f"{sink}, no spool" in results:
            print(cost_of_the_spool(results, sink))


if __name__ == "__main__":
    main()
