"""The costs of retained messages: start, memory, finding, rewinding, reading, and publishing beside them.

``python -m benchmarks.retention`` writes the log of a topic with ``--messages`` messages, 20 GB by default, with the
log's own writer, and measures nsqd with it. An nsqd with an empty topic and the same policy takes turns with it. Prints
the result, and writes it to ``--out``.
"""

import argparse
import json
import os
import random
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from benchmarks import machine
from benchmarks.measure import Figures, RunFailed, build_generator, load, version_of
from benchmarks.results import table
from benchmarks.scenarios import load_of
from benchmarks.subjects import SUBJECTS
from nsq_compat.log.checkpoint import ChannelState, TopicState
from nsq_compat.log.data_path import our_folder, topic_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.protocol.message import FrameFactory
from nsq_compat.protocol.schema import UniformBodies
from nsq_conformance.daemon_process import DaemonFailed
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd

TOPIC = "measured"
CHANNEL = "channel0"
"""The names that the load generator uses."""
SMALL_TOPICS = {"tens": 10, "singles": 1}
"""Topics of fewer messages, with smaller groups: a group has the messages of one publish."""
GROUP = 200
BODY_SIZE = 200
_HISTORY_NS = 72 * 3600 * 10**9
_PATIENCE = 120.0
_READ_BYTES = 1 << 24
_SMALL_READ_BYTES = 1 << 20
_PAGE = 4096
_POLICY = '[[policies]]\ntopic = ".*"\nretain_for = "10000h"\n'


class Nsqd(NsqdProcess):
    """The measured nsqd, with a long start timeout for busy machines."""

    def __enter__(self) -> Self:
        return self.start(_PATIENCE)

    @property
    def resident_mib(self) -> float:
        return machine.resident_bytes(self.pid) / 2**20

    @property
    def read_from_disk(self) -> int:
        """Bytes that the process has caused to be read from a disk."""
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retention", description=__doc__)
    parser.add_argument("--nsqd", default=installed_nsqd(), help="command line of the nsqd to measure (default: ours)")
    parser.add_argument(
        "--messages", type=int, default=100_000_000, help="retained messages, of 200 bytes (default: 100 million)"
    )
    parser.add_argument("--data", type=Path, help="folder for the data, which stays and is used again (default: none)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each load (default: 5)")
    parser.add_argument("--out", type=Path, help="file for the result")
    return parser.parse_args()


# --- Data -------------------------------------------------------------------------------------------------------------


def generate(data_path: Path, messages: int) -> None:
    """Write topics whose channel has finished everything, as they are after a clean stop."""
    Path(our_folder(str(data_path))).mkdir(parents=True)
    storage = Storage(OsFiles(), str(data_path), durability=Durability.OS, segment_size=100 << 20)
    _write_topic(storage, TOPIC, messages, GROUP)
    for topic, group in SMALL_TOPICS.items():
        _write_topic(storage, topic, messages // 50, group)
    os.sync()  # pages that are not on the disk cannot be dropped from the cache


def _write_topic(storage: Storage, name: str, messages: int, group: int) -> None:
    store = storage.create(name)
    frames = FrameFactory(0)
    bodies = [UniformBodies(random.randbytes(BODY_SIZE) for _ in range(group)) for _ in range(16)]
    begin, seq = time.time_ns() - _HISTORY_NS, 0
    while seq < messages:
        now_ns = begin + _HISTORY_NS * seq // messages
        made, joined, _ = frames.make(bodies[seq // group % len(bodies)], now_ns)
        store.append(made, seq, joined=joined)
        seq += len(made)
    state = TopicState(store.log.end, time.time() - time.monotonic(), frames.ids.last)
    state.channels[CHANNEL] = ChannelState(seq)
    store.log.close()
    store.write_checkpoint(state.encode())
    store.adopt_checkpoint()


def drop_from_cache(data_path: Path) -> None:
    """Drop the topic's files from the page cache. On tmpfs this has no effect."""
    for path in Path(topic_folder(str(data_path), TOPIC)).glob("log.*"):
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(data_path: Path, topic: str, most: int) -> None:
    """Read the first files of a topic, so that they are in the page cache."""
    for path in sorted(Path(topic_folder(str(data_path), topic)).glob("log.*")):
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                most -= len(piece)
        if most <= 0:
            return


# --- Requests ---------------------------------------------------------------------------------------------------------


class Reader:
    """Reads /topic/read on one connection, as fast as it can: it takes the bytes and drops them."""

    def __init__(self, address: str, topic: str, size: int = _READ_BYTES) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_PATIENCE)
        self._topic, self._size = topic, size
        self._buffer = bytearray(1 << 20)

    def read(self, offset: int) -> tuple[int, int]:
        """The next offset, and the number of bytes."""
        target = f"/topic/read?topic={self._topic}&from={offset}&max_bytes={self._size}"
        self._socket.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._received(self._socket.recv(1 << 16))
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        if " 200 " not in status or "X-NSQ-Gap" in headers:
            raise RunFailed(f"{target}: {status} {body!r}")
        size = int(headers["Content-Length"])
        left = size - len(body)
        while left:
            count = self._socket.recv_into(self._buffer, min(left, len(self._buffer)))
            self._received(count)
            left -= count
        return int(headers["X-NSQ-Next-Offset"]), size

    def _received(self, data: Any) -> Any:
        if not data:
            raise RunFailed(f"nsqd closed the connection of a reader of {self._topic}")
        return data

    def close(self) -> None:
        self._socket.close()


@contextmanager
def reading(nsqd: Nsqd, topic: str, size: int) -> Iterator[list[int]]:
    """Read the topic again and again meanwhile; yields a list of the sizes of the answers."""
    sizes: list[int] = []
    failures: list[Exception] = []
    ends = threading.Event()

    def run() -> None:
        reader, offset = Reader(nsqd.http_address, topic, size), 0
        try:
            while not ends.is_set():
                offset, count = reader.read(offset)
                sizes.append(count)
                offset = offset if count else 0
        except (OSError, RunFailed) as error:
            failures.append(error)
        finally:
            reader.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sizes
    finally:
        ends.set()
        thread.join()
    if failures:
        raise failures[0]


class Client:
    """Asks on one connection, and measures how long the answers take."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._connection = HTTPConnection(nsqd.http_address, timeout=_PATIENCE)
        self.ask("GET", "/ping")

    def ask(self, method: str, path: str, **query: str | int) -> tuple[Any, float]:
        """The answer, and the milliseconds that it took."""
        began = time.monotonic()
        self._connection.request(method, f"{path}?{urlencode(query)}")
        response = self._connection.getresponse()
        body = response.read()
        took = (time.monotonic() - began) * 1e3
        if response.status != 200:
            raise RunFailed(f"{method} {path} {query}: {response.status} {body!r}")
        return (json.loads(body) if body.startswith(b"{") else body), took


# --- What is measured -------------------------------------------------------------------------------------------------


class Measurement:
    """All figures, of a data path with retained messages and of an empty one."""

    def __init__(self, arguments: argparse.Namespace, full: Path, empty: Path, generator: Path) -> None:
        self._arguments = arguments
        self._full, self._empty = full, empty
        self._generator = generator
        self._random = random.Random(1)

    def figures(self) -> Iterator[tuple[str, str]]:
        yield from self._start_and_memory()
        yield from self._find()
        yield from self._throughput()
        yield from self._head()
        yield from self._latency()

    def _nsqd(self, data_path: Path) -> Nsqd:
        config = data_path / "nsqd.toml"
        config.write_text(_POLICY)
        return Nsqd(self._arguments.nsqd, data_path, options=[f"--config={config}"])

    def _start(self, data_path: Path) -> tuple[float, float]:
        """Seconds until both listeners are open, and MiB of memory a second later."""
        began = time.monotonic()
        with self._nsqd(data_path) as nsqd:
            took = time.monotonic() - began
            time.sleep(1)
            return took, nsqd.resident_mib

    def _start_and_memory(self) -> Iterator[tuple[str, str]]:
        with self._nsqd(self._empty) as nsqd:
            nsqd.create_channel(TOPIC, CHANNEL)
        seconds, empty = self._start(self._empty)
        yield "start, empty topic", f"{seconds:.2f} s"
        drop_from_cache(self._full)
        seconds, _ = self._start(self._full)
        yield "start, retained messages not in the page cache", f"{seconds:.2f} s"
        seconds, after_start = self._start(self._full)
        yield "start, again", f"{seconds:.2f} s"
        yield "RSS, empty topic", f"{empty:.1f} MiB"
        yield "RSS, retained messages", f"{after_start:.1f} MiB"
        with self._nsqd(self._full) as nsqd:
            self._read_old(nsqd)
            yield "RSS after reading at 200 places, finding 200 times and 50 rewinds", f"{nsqd.resident_mib:.1f} MiB"
        written = self._arguments.messages // 5
        words = load_of(publish="mpub", batch=GROUP, publishers=4, keep="true", most=written, seconds=600)
        with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder, self._nsqd(Path(folder)) as nsqd:
            figures = load(self._generator, SUBJECTS["nsqd"], nsqd, words, "writing")
            yield f"RSS after nsqd has written {figures.messages:,} messages", f"{nsqd.resident_mib:.1f} MiB"

    def _read_old(self, nsqd: Nsqd) -> None:
        client, reader = Client(nsqd), Reader(nsqd.http_address, TOPIC)
        offsets, _ = client.ask("GET", "/topic/offsets", topic=TOPIC)
        span = range(offsets["first"], offsets["next"])
        for _ in range(200):
            reader.read(self._random.choice(span))
            client.ask("GET", "/topic/offsets", topic=TOPIC, at=self._some_time(offsets))
        for _ in range(50):
            client.ask("POST", "/channel/rewind", topic=TOPIC, channel=CHANNEL, to=self._random.choice(span))
            client.ask("GET", "/channel/peek", topic=TOPIC, channel=CHANNEL)
            client.ask("GET", "/topic/recent", topic=TOPIC)
        client.ask("POST", "/channel/rewind", topic=TOPIC, channel=CHANNEL, to="latest")
        reader.close()

    def _some_time(self, offsets: dict[str, int]) -> str:
        ns = self._random.randrange(offsets["first_timestamp"], offsets["last_timestamp"])
        return datetime.fromtimestamp(ns / 1e9, UTC).isoformat()

    def _find(self) -> Iterator[tuple[str, str]]:
        times: dict[str, list[tuple[float, int]]] = {}

        def measure(what: str, nsqd: Nsqd, ask: Callable[[], tuple[Any, float]]) -> None:
            before = nsqd.read_from_disk
            took = ask()[1]
            times.setdefault(what, []).append((took, nsqd.read_from_disk - before))

        with self._nsqd(self._full) as nsqd:
            offsets, _ = Client(nsqd).ask("GET", "/topic/offsets", topic=TOPIC)
        for _ in range(self._arguments.rounds):
            with self._nsqd(self._full) as nsqd:
                client = Client(nsqd)
                for what in ("first request after a start, cold", *["cold"] * 10):
                    drop_from_cache(self._full)
                    when = self._some_time(offsets)
                    measure(f"`/topic/offsets?at=`, {what}", nsqd, partial(_find, client, when))
                    measure("`/topic/offsets?at=`, again", nsqd, partial(_find, client, when))
                    measure("`/channel/rewind`, in the page cache", nsqd, partial(_rewind, client, when))
                    drop_from_cache(self._full)
                    measure("`/channel/rewind`, cold", nsqd, partial(_rewind, client, self._some_time(offsets)))
                client.ask("POST", "/channel/rewind", topic=TOPIC, channel=CHANNEL, to="latest")
        for what, found in times.items():
            took = [each for each, _ in found]
            yield (
                what,
                f"median {statistics.median(took):.1f} ms, longest {max(took):.1f} ms of {len(took)};"
                f" {statistics.median(size for _, size in found) / 1024:.0f} KiB read from the disk",
            )

    def _throughput(self) -> Iterator[tuple[str, str]]:
        for topic, group in {TOPIC: GROUP, **SMALL_TOPICS}.items():
            cached(self._full, topic, 1 << 31)
            with self._nsqd(self._full) as nsqd:
                for size in (_READ_BYTES, _SMALL_READ_BYTES):
                    rates = [self._read_rate(nsqd, topic, size) for _ in range(self._arguments.rounds)]
                    yield (
                        f"`/topic/read`, groups of {group}, max_bytes={size}",
                        f"{statistics.median(cpu for cpu, _ in rates):.2f} GB per CPU second,"
                        f" {statistics.median(rate for _, rate in rates):.2f} GB/s",
                    )

    def _read_rate(self, nsqd: Nsqd, topic: str, size: int) -> tuple[float, float]:
        """GB per CPU second of nsqd, and per second."""
        reader, offset, total = Reader(nsqd.http_address, topic, size), 0, 0
        cpu, began = machine.cpu_seconds(nsqd.pid), time.monotonic()
        while total < 2e9:
            offset, count = reader.read(offset)
            total += count
            if not count:
                break
        cpu, seconds = machine.cpu_seconds(nsqd.pid) - cpu, time.monotonic() - began
        reader.close()
        return total / 1e9 / cpu, total / 1e9 / seconds

    def _head(self) -> Iterator[tuple[str, str]]:
        loads = {
            "`MPUB` of 200": load_of(publish="mpub", batch=200, publishers=4),
            "`PUB`, 10 connections": load_of(publish="pub", publishers=10),
            "`MPUB` of 200, consumed at RDY 2500": load_of(
                publish="mpub", batch=200, publishers=2, consumers=2, rdy=2500
            ),
        }
        for what, flags in loads.items():
            pairs = [
                (self._load(self._full, flags), self._load(self._empty, flags)) for _ in range(self._arguments.rounds)
            ]
            yield (
                f"{what}: retained to empty",
                f"msg/s {_ratio(pairs, lambda run: run.rate)}, CPU per message {_ratio(pairs, lambda run: run.cpu_us)}"
                f" ({statistics.median(run.cpu_us for run, _ in pairs):.2f} us)",
            )

    def _load(self, data_path: Path, flags: Sequence[str]) -> Figures:
        words = (f"-seconds={self._arguments.seconds}", "-most=3000000", "-keep=true", *flags)
        with self._nsqd(data_path) as nsqd:
            figures = load(self._generator, SUBJECTS["nsqd"], nsqd, words, "the head of the log")
            Client(nsqd).ask("POST", "/channel/empty", topic=TOPIC, channel=CHANNEL)
            return figures

    def _latency(self) -> Iterator[tuple[str, str]]:
        words = (f"-seconds={self._arguments.seconds}",)
        for topic, group in {TOPIC: GROUP, **SMALL_TOPICS}.items():
            alone, beside, rates = [], [], []
            for _ in range(self._arguments.rounds):
                with self._nsqd(self._full) as nsqd:
                    alone.append(load(self._generator, SUBJECTS["bystander"], nsqd, words, "a quiet publisher"))
                with self._nsqd(self._full) as nsqd, reading(nsqd, topic, _READ_BYTES) as sizes:
                    began = time.monotonic()
                    beside.append(load(self._generator, SUBJECTS["bystander"], nsqd, words, "a publisher and a reader"))
                    rates.append(sum(sizes) / 1e9 / (time.monotonic() - began))
            p50 = _ratio(list(zip(beside, alone, strict=True)), lambda run: run.p50)
            p99 = _ratio(list(zip(beside, alone, strict=True)), lambda run: run.p99)
            yield (
                f"a publisher beside a reader of groups of {group}",
                f"p50 {p50}, p99 {p99} times ({statistics.median(run.p99 for run in beside):.0f} us, alone"
                f" {statistics.median(run.p99 for run in alone):.0f} us); the reader took"
                f" {statistics.median(rates):.2f} GB/s",
            )


def _find(client: Client, when: str) -> tuple[Any, float]:
    return client.ask("GET", "/topic/offsets", topic=TOPIC, at=when)


def _rewind(client: Client, when: str) -> tuple[Any, float]:
    return client.ask("POST", "/channel/rewind", topic=TOPIC, channel=CHANNEL, to=when)


def _ratio(pairs: Sequence[tuple[Figures, Figures]], figure: Callable[[Figures], float]) -> str:
    return f"{statistics.median(figure(one) / figure(other) for one, other in pairs):.2f}"


def render(arguments: argparse.Namespace, load_average: float, rows: Sequence[tuple[str, str]]) -> str:
    """The whole document, without a newline at its end."""
    options = [f"--{name}={getattr(arguments, name):g}" for name in ("seconds", "rounds")]
    options.insert(0, f"--messages={arguments.messages}")
    if arguments.nsqd != installed_nsqd():
        program, *rest = shlex.split(arguments.nsqd)
        options.insert(0, shlex.join(["--nsqd", shlex.join([Path(program).name, *rest])]))
    facts = [
        f"Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {machine.commit()}",
        f"Machine: {machine.cpu()}, {os.cpu_count()} CPUs, {machine.memory()}, {machine.system()}",
        f"nsqd: `{version_of('nsqd', shlex.split(arguments.nsqd))}`",
        machine.python(),
        f"Command: `python -m benchmarks.retention {' '.join(options)}`",
        f"Load average before: {load_average:.2f}",
        "*Cold*: the topic's files were dropped from the page cache before each request (`POSIX_FADV_DONTNEED`)",
    ]
    return "\n\n".join(
        [
            "\n".join(f"- {fact}" for fact in facts),
            table([["what", "measured"], *map(list, rows)]),
        ]
    )


def main() -> None:
    arguments = parse_arguments()
    load_average = os.getloadavg()[0]
    rows: list[tuple[str, str]] = []
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-bench-")))
            full, empty = arguments.data or scratch / "full", scratch / "empty"
            if not full.exists():
                generate(full, arguments.messages)
            empty.mkdir()
            for what, figure in Measurement(arguments, full, empty, build_generator(scratch)).figures():
                print(f"{what}: {figure}", file=sys.stderr, flush=True)
                rows.append((what, figure))
    except (DaemonFailed, RunFailed, subprocess.SubprocessError) as error:
        sys.exit(f"benchmarks.retention: {error}")
    text = render(arguments, load_average, rows)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
