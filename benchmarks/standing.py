"""The costs of many topics and deferred messages: start-up time, and CPU and memory while idle.

``python -m benchmarks.standing`` creates topics with a channel each and deferred messages, lets nsqd idle, kills it,
starts it, stops it, and starts it once more. Prints the result, and writes it to ``--out``. For our nsqd only, because
Go's loses deferred messages when it is killed.
"""

import argparse
import os
import shlex
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from http.client import HTTPConnection
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from benchmarks import machine
from benchmarks.measure import version_of
from benchmarks.results import table
from nsq_conformance.daemon_process import DaemonFailed
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd

_PATIENCE = 120.0
_REST = 60.0  # checkpoints are written at intervals of twenty times their duration
_PIPELINED = 1000
_AN_HOUR_MS = 3_600_000
_OK = struct.pack(">ii", 6, 0) + b"OK"


class Nsqd(NsqdProcess):
    """The measured nsqd, with a long start timeout for busy machines."""

    def __enter__(self) -> Self:
        return self.start(_PATIENCE)

    @property
    def cpu_seconds(self) -> float:
        return machine.cpu_seconds(self.pid)

    @property
    def resident_bytes(self) -> int:
        return machine.resident_bytes(self.pid)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.standing", description=__doc__)
    parser.add_argument("--nsqd", default=installed_nsqd(), help="command line of the nsqd to measure (default: ours)")
    parser.add_argument("--topics", type=int, default=10_000, help="topics with a channel each (default: 10000)")
    parser.add_argument("--deferred", type=int, default=50_000, help="deferred messages, in one topic (default: 50000)")
    parser.add_argument(
        "--stop-topics",
        type=int,
        default=20_000,
        help="topics for the separate measurement of a stop (default: 20000)",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each idle period (default: 20)")
    parser.add_argument("--out", type=Path, help="file for the result")
    return parser.parse_args()


def make_topics(nsqd: Nsqd, count: int) -> None:
    connection = HTTPConnection(nsqd.http_address, timeout=_PATIENCE)
    for number in range(count):
        for path, names in (("topic", {}), ("channel", {"channel": "c"})):
            connection.request("POST", f"/{path}/create?{urlencode({'topic': f'topic{number}', **names})}")
            reply = connection.getresponse()
            if reply.status != 200:
                sys.exit(f"benchmarks.standing: {path}/create: {reply.status} {reply.read()!r}")
            reply.read()
    connection.close()


def defer_messages(nsqd: Nsqd, topic: str, count: int) -> None:
    body = bytes(200)
    command = b"DPUB %s %d\n" % (topic.encode(), _AN_HOUR_MS) + struct.pack(">i", len(body)) + body
    host, _, port = nsqd.tcp_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_PATIENCE) as connection:
        connection.sendall(b"  V2")
        answers = connection.makefile("rb")
        for at in range(0, count, _PIPELINED):
            some = min(_PIPELINED, count - at)
            connection.sendall(command * some)
            if answers.read(len(_OK) * some) != _OK * some:
                sys.exit("benchmarks.standing: a DPUB was refused")


def settle(nsqd: Nsqd) -> None:
    """Wait until postponed work is done."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        before = nsqd.cpu_seconds
        time.sleep(_REST)
        if nsqd.cpu_seconds - before < _REST / 100:
            return


def idle(nsqd: Nsqd, seconds: float) -> str:
    """Let nsqd idle; returns its CPU use."""
    before = nsqd.cpu_seconds
    time.sleep(seconds)
    return f"{(nsqd.cpu_seconds - before) / seconds:.2%}"


def start_again(stack: ExitStack, command: str, data_path: Path, topic: str, deferred: int) -> tuple[Nsqd, str]:
    """Start nsqd and check that all messages exist; returns it and the time until both listeners are open."""
    began = time.monotonic()
    nsqd = stack.enter_context(Nsqd(command, data_path))
    seconds = time.monotonic() - began
    found = nsqd.channel_stats(topic, "c")["deferred_count"]
    if found != deferred:
        sys.exit(f"benchmarks.standing: {found} of {deferred} deferred messages are left")
    return nsqd, f"{seconds:.1f} s"


def measure(arguments: argparse.Namespace, data_path: Path) -> Iterator[tuple[str, str]]:
    """Yield each figure as it is measured."""
    topic = f"topic{arguments.topics - 1}"
    with ExitStack() as stack:
        nsqd = stack.enter_context(Nsqd(arguments.nsqd, data_path))
        yield "RSS of an empty nsqd", f"{nsqd.resident_bytes / 2**20:.0f} MiB"
        make_topics(nsqd, arguments.topics)
        defer_messages(nsqd, topic, arguments.deferred)
        yield "RSS with all of them", f"{nsqd.resident_bytes / 2**20:.0f} MiB"
        settle(nsqd)
        yield "idle CPU", idle(nsqd, arguments.seconds)
        nsqd.kill()
        nsqd, took = start_again(stack, arguments.nsqd, data_path, topic, arguments.deferred)
        yield "start after kill -9", took
        yield "RSS after it", f"{nsqd.resident_bytes / 2**20:.0f} MiB"
        settle(nsqd)
        yield "idle CPU after it", idle(nsqd, arguments.seconds)
        began = time.monotonic()
        nsqd.stop(_PATIENCE)
        yield "clean stop", f"{time.monotonic() - began:.1f} s"
        _, took = start_again(stack, arguments.nsqd, data_path, topic, arguments.deferred)
        yield "start after a clean stop", took


def measure_stop(arguments: argparse.Namespace, data_path: Path) -> Iterator[tuple[str, str]]:
    """Measure the stop of an nsqd with many empty topics; works with Go's too."""
    with Nsqd(arguments.nsqd, data_path) as nsqd:
        make_topics(nsqd, arguments.stop_topics)
        began = time.monotonic()
        nsqd.stop(_PATIENCE)
        yield f"clean stop with {arguments.stop_topics:,} empty topics", f"{time.monotonic() - began:.1f} s"


def render(arguments: argparse.Namespace, load_average: float, rows: Sequence[tuple[str, str]]) -> str:
    """The whole document, without a newline at its end."""
    options = [
        f"--{name.replace('_', '-')}={getattr(arguments, name):g}"
        for name in ("topics", "deferred", "stop_topics", "seconds")
    ]
    if arguments.nsqd != installed_nsqd():
        program, *rest = shlex.split(arguments.nsqd)
        options.insert(0, shlex.join(["--nsqd", shlex.join([Path(program).name, *rest])]))
    facts = [
        f"Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {machine.commit()}",
        f"Machine: {machine.cpu()}, {os.cpu_count()} CPUs, {machine.memory()}, {machine.system()}",
        f"nsqd: `{version_of('nsqd', shlex.split(arguments.nsqd))}`",
        f"{machine.python()}, gevent {version('gevent')}, greenlet {version('greenlet')}",
        f"Command: `python -m benchmarks.standing {' '.join(options)}`",
        f"Load average before: {load_average:.2f}",
    ]
    what = f"{arguments.topics:,} topics with a channel each, {arguments.deferred:,} deferred messages in one of them"
    return "\n\n".join(
        [
            "# Results with many topics and deferred messages",
            "\n".join(f"- {fact}" for fact in facts),
            f"{what}. CPU is that of one core, over {arguments.seconds:g} s.",
            table([["what", "measured"], *map(list, rows)]),
        ]
    )


def main() -> None:
    arguments = parse_arguments()
    load_average = os.getloadavg()[0]
    rows: list[tuple[str, str]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
            both = [Path(folder, name) for name in ("waiting", "empty")]
            for path in both:
                path.mkdir()
            for what, figure in chain(measure(arguments, both[0]), measure_stop(arguments, both[1])):
                print(f"{what}: {figure}", file=sys.stderr, flush=True)
                rows.append((what, figure))
    except DaemonFailed as error:
        sys.exit(f"benchmarks.standing: {error}")
    text = render(arguments, load_average, rows)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
