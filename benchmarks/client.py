"""Compare consumers with pynsq's: messages per CPU second of the consuming process, with a handler that only counts.

    .venv/bin/python -m benchmarks.client            a table for RESULTS-client.md

Each consumer is a process with its own nsqd, which has all messages before the consumer starts. The clocks are read at
the first message and at the last.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd

_BODY = b"x" * 200
_BATCH = 500
_READY = 2500
_TOPIC, _CHANNEL = "t", "c"
_SECONDS = 50


class Count:
    """A handler that counts messages and calls `done` at the last one."""

    def __init__(self, wanted: int, done: Callable[[], object]) -> None:
        self._wanted = wanted
        self._done = done
        self._seen = 0
        self.report: dict[str, float] = {}

    def __call__(self, message: object) -> bool:
        if not self._seen:
            self._began, self._cpu = time.perf_counter(), time.process_time()
        self._seen += 1
        if self._seen == self._wanted:
            self.report = {
                "seconds": time.perf_counter() - self._began,
                "cpu_seconds": time.process_time() - self._cpu,
                "messages": self._seen,
            }
            self._done()
        return True


def _consumer(address: str, count: int, **options: Any) -> dict[str, float]:
    import nsq_compat.client as nsq

    over = threading.Event()
    handler = Count(count, over.set)
    with nsq.Consumer(_TOPIC, _CHANNEL, handler, nsqd_tcp_addresses=address, max_in_flight=_READY, **options):
        over.wait(_SECONDS)
    return handler.report


def _reader(address: str, count: int) -> dict[str, float]:
    import nsq_compat.client as nsq
    from nsq_compat.client.pynsq import current_loop

    handler = Count(count, lambda: current_loop().call_soon(current_loop().stop))
    nsq.Reader(_TOPIC, _CHANNEL, handler, nsqd_tcp_addresses=[address], max_in_flight=_READY)
    nsq.run()
    return handler.report


def _pynsq(address: str, count: int) -> dict[str, float]:
    import nsq
    import tornado.ioloop

    handler = Count(count, lambda: tornado.ioloop.IOLoop.current().stop())
    nsq.Reader(_TOPIC, _CHANNEL, handler, nsqd_tcp_addresses=[address], max_in_flight=_READY)
    nsq.run()
    return handler.report


SUBJECTS: dict[str, Callable[[str, int], dict[str, float]]] = {
    "Consumer": _consumer,
    "Consumer, snappy": lambda address, count: _consumer(address, count, snappy=True),
    "Reader": _reader,
    "pynsq 0.9.1": _pynsq,
}
_BASELINE = "pynsq 0.9.1"


def measure(name: str, count: int, command: str) -> dict[str, float]:
    """Run a consumer process on a new nsqd that has all messages. Raises if it does not finish."""
    from nsq_compat.client import Producer

    with tempfile.TemporaryDirectory() as folder:
        options = [f"--mem-queue-size={count}"]
        with NsqdProcess(command, Path(folder), options=options) as nsqd:
            nsqd.create_channel(_TOPIC, _CHANNEL)
            with Producer(nsqd.tcp_address) as producer:
                for _ in range(count // _BATCH):
                    producer.publish_many(_TOPIC, [_BODY] * _BATCH)
            child = [sys.executable, "-m", "benchmarks.client", "--consume", name, nsqd.tcp_address, str(count)]
            run = subprocess.run(child, capture_output=True, text=True, timeout=2 * _SECONDS, check=True)
            report: dict[str, float] = json.loads(run.stdout)
            return report


def table(results: dict[str, list[dict[str, float]]]) -> str:
    def median(name: str, figure: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(figure, results[name]))

    def per_cpu_second(run: dict[str, float]) -> float:
        return run["messages"] / run["cpu_seconds"]

    baseline = median(_BASELINE, per_cpu_second)
    lines = [
        "| consumer | msg/s | msg/CPU s | spread | CPU us/msg | times pynsq's |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for name, runs in results.items():
        rate, rates = median(name, per_cpu_second), list(map(per_cpu_second, runs))
        lines.append(
            f"| {name} | {median(name, lambda run: run['messages'] / run['seconds']):,.0f} | {rate:,.0f} "
            f"| {(max(rates) - min(rates)) / rate:.0%} | {1e6 / rate:.2f} | **{rate / baseline:.1f}** |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nsqd", default=installed_nsqd(), help="command line of the nsqd to consume from")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--consume", nargs=3, metavar=("NAME", "ADDRESS", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.consume:
        name, address, count = options.consume
        print(json.dumps(SUBJECTS[name](address, int(count))))
        return
    results: dict[str, list[dict[str, float]]] = {name: [] for name in SUBJECTS}
    for _ in range(options.rounds):
        for name, runs in results.items():
            runs.append(measure(name, options.messages, options.nsqd))
    print(f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {machine.commit()}")
    print(f"- Machine: {machine.cpu()}, {machine.memory()}, {machine.system()}, Python {sys.version.split()[0]}")
    print(f"- {options.messages:,} messages of {len(_BODY)} bytes, RDY {_READY}, medians of {options.rounds} rounds\n")
    print(table(results))


if __name__ == "__main__":
    main()
