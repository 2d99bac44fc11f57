"""Fuzzing of the five parsers: `make fuzz INPUTS=10000000`.

Inputs are mutations of a corpus: the files of `corpus`, one folder for each parser, and inputs that reached a new line
of ours. Every input leads to values or to a documented error. It fails if it raises another exception, or takes more
than 50 ms of CPU time in one step, three times in a row. Resident memory must stay level. A run is determined by its
seed, and an input that fails is written to a file, which belongs into the corpus with the correction.

It is a mutator of our own, because it needs no native package, runs with every Python that nsq_compat supports, and
shares its parsers with the tests. Tracing makes an input twenty times slower, so one in `_TRACED` inputs is traced.
"""

import argparse
import gc
import hashlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final, NamedTuple

from nsq_compat.log.recovery import StoredTopic
from nsq_compat.protocol.compression import Codec, CompressionError, Deflate, Snappy
from nsq_compat.session.http_message import Admission, HttpLimits, Response
from nsq_compat.session.http_request_reader import RequestReader
from tests.cuts import cut
from tests.faults.test_log_damage import FEW, FOLDER, NOW_NS, with_file
from tests.session.conftest import Nsqd
from tests.session.test_any_bytes import SMALL
from tests.session.test_lookupd_session import Nsqlookupd

CORPUS: Final = Path(__file__).with_name("corpus")
MAX_SECONDS: Final = 0.05
"""CPU time of one step: what nsqd does before it serves other clients."""
_ENDLESS_SECONDS: Final = 10.0
MAX_GROWTH: Final = 32 << 20
_MAX_INPUT: Final = 4096
_TRACED: Final = 200
_MAX_KEPT: Final = 2000
"""Inputs of a corpus in memory."""
_MAX_PIECES: Final = 64

Step = Callable[[], object]
Parser = Callable[[bytes], Iterator[Step]]


class Failed(AssertionError):
    """An input that a parser does not survive. The text says where it is."""


# --- The parsers ------------------------------------------------------------------------------------------------------


def pieces_of(data: bytes) -> list[bytes]:
    """The input in up to three pieces, which the first byte selects."""
    return cut(data[1:], [data[0], 7 * data[0]]) if data and data[0] % 2 else [data[1:]]


def v2(data: bytes) -> Iterator[Step]:
    """Commands to nsqd, with the magic."""
    client = Nsqd(**SMALL).connect(b"")
    for piece in pieces_of(data):
        yield partial(client.says, piece)
    yield client.stops_sending
    yield lambda: client.and_is_closed().hears_anything()


def lookupd(data: bytes) -> Iterator[Step]:
    """Commands to nsqlookupd, with the magic."""
    client = Nsqlookupd().connect(b"")
    for piece in pieces_of(data):
        yield partial(client.says, piece)
    yield client.stops_sending


_TOO_BIG: Final = Response(413, b"too big", close=True)


def http(data: bytes) -> Iterator[Step]:
    """Requests to any of the daemons."""
    reader = RequestReader(lambda head: Admission(300, _TOO_BIG), HttpLimits(max_head_bytes=2000), "peer")
    for piece in pieces_of(data):
        yield partial(reader.receive_data, piece)
    yield reader.close


def compression(data: bytes) -> Iterator[Step]:
    """What a client sends after it has negotiated snappy or deflate. Each decoded piece is a step."""
    codec: Codec = Snappy() if data[:1] < b"\x80" else Deflate(6)
    for piece in pieces_of(data):
        decoded = iter(codec.decode(piece))
        for _ in range(_MAX_PIECES):
            ended: list[bool] = []
            yield partial(next_piece, decoded, ended)
            if ended:
                break


def next_piece(decoded: Iterator[bytes], ended: list[bool]) -> None:
    try:
        if next(decoded, None) is None:
            ended.append(True)
    except CompressionError:
        ended.append(True)


_TOPICS: Final = list(FEW.values())
_FILES: Final = [
    (topic, f"{FOLDER}/{name}") for topic in _TOPICS for name in sorted(topic.disk.listdir(FOLDER))
]  # with the checkpoints


def log(data: bytes) -> Iterator[Step]:
    """The start on a topic's folder in which one file has this content, and the reading of all messages."""
    topic, path = _FILES[(data[0] if data else 0) % len(_FILES)]

    def start() -> None:
        with StoredTopic(with_file(topic.disk, path, data[1:]), FOLDER, 400) as stored:
            stored.depths()
            for _, frames in stored.backlogs():
                for _ in frames:
                    pass
            for _, due in stored.unfinished(NOW_NS):
                for _ in due:
                    pass
            stored.read_needed()

    yield start


PARSERS: Final[dict[str, Parser]] = {
    "v2": v2,
    "lookupd": lookupd,
    "http": http,
    "compression": compression,
    "log": log,
}
SHARES: Final = {"v2": 0.2, "lookupd": 0.2, "http": 0.28, "compression": 0.3, "log": 0.02}
"""Of the inputs: an input of a log takes a hundred times longer."""


# --- Mutations --------------------------------------------------------------------------------------------------------

_NUMBERS: Final[tuple[bytes, ...]] = (
    *(b"\0", b"\xff", b"\x7f", b"\x80", b"\0\0\0\0", b"\xff" * 4, b"\x7f" + b"\xff" * 3, b"\0\0\1\0"),
    *(b"9" * 30, b"-1", b" ", b"\n", b"\r\n", b"\xff" * 8),
)


def mutated(data: bytes, others: list[bytes], random: Random) -> bytes:
    """The input with one to four changes."""
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        at, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
        end = min(end, at + random.choice((1, 4, 16, 64)))
        kind = random.randrange(7)
        if kind == 0 and data:  # flip a bit
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        elif kind == 1:  # overwrite
            new = random.choice(_NUMBERS)
            data = data[:at] + new + data[at + len(new) :]
        elif kind == 2:  # insert
            data = data[:at] + random.choice(_NUMBERS) + data[at:]
        elif kind == 3:  # delete
            data = data[:at] + data[end:]
        elif kind == 4:  # repeat
            data = data[:end] + data[at:end] * random.choice((1, 1, 2, 20)) + data[end:]
        elif kind == 5:  # a part of another input
            other = random.choice(others)
            begin = random.randrange(len(other) + 1)
            data = data[:at] + other[begin : begin + random.choice((4, 16, 64, 1024))] + data[end:]
        else:
            data = data[:at] + random.randbytes(random.choice((1, 2, 8))) + data[at:]
    return data[:_MAX_INPUT]


# --- Running ----------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    slowest: float
    error: BaseException | None


def run(parser: Parser, data: bytes) -> Outcome:
    slowest = 0.0
    signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, _ENDLESS_SECONDS)
    try:
        for step in parser(data):
            began = time.thread_time()
            step()
            slowest = max(slowest, time.thread_time() - began)
    except Exception as error:
        return Outcome(slowest, error)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return Outcome(slowest, None)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no end within {_ENDLESS_SECONDS} s of CPU time")


class Lines:
    """The lines of ours that inputs have reached."""

    def __init__(self) -> None:
        self._reached: set[tuple[Any, int]] = set()

    def are_new(self, parser: Parser, data: bytes) -> bool:
        count, before = len(self._reached), sys.gettrace()
        sys.settrace(self._on_call)
        try:
            run(parser, data)
        finally:
            sys.settrace(before)
        return len(self._reached) > count

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._on_line if "/nsq_compat/" in frame.f_code.co_filename else None

    def _on_line(self, frame: FrameType, event: str, argument: object) -> Any:
        self._reached.add((frame.f_code, frame.f_lineno))
        return self._on_line


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def check(name: str, data: bytes, failures: Path) -> None:
    """Run one input. Raises ``Failed``, and then keeps it in the folder `failures`."""
    parser = PARSERS[name]
    outcome = run(parser, data)
    if outcome.error is None and outcome.slowest > MAX_SECONDS:
        # Collecting garbage, and other programs, delay a step once, but not always.
        outcome = min((run(parser, data) for _ in range(3)), key=lambda each: each.slowest)
    if outcome.error is not None or outcome.slowest > MAX_SECONDS:
        failures.mkdir(parents=True, exist_ok=True)
        path = failures / f"{name}-{hashlib.sha1(data, usedforsecurity=False).hexdigest()[:12]}"
        path.write_bytes(data)
        what = repr(outcome.error) if outcome.error is not None else f"{outcome.slowest * 1000:.0f} ms in one step"
        raise Failed(f"{name}: {what}; the input is in {path}") from outcome.error


def fuzz(name: str, count: int, seed: int, failures: Path, *, traces: bool = True) -> int:
    """Run the corpus and `count` mutations. Returns how many bytes of memory the process has gained."""
    random, kept, lines = Random(f"{seed} {name}"), corpus(name), Lines()
    for data in kept:
        check(name, data, failures)
        if traces:
            lines.are_new(PARSERS[name], data)
    before = 0
    for number in range(count):
        if number == min(2000, count // 10):
            gc.collect()
            before = resident()
        data = mutated(random.choice(kept), kept, random)
        check(name, data, failures)
        if traces and number % _TRACED == 0 and len(kept) < _MAX_KEPT and lines.are_new(PARSERS[name], data):
            kept.append(data)
    gc.collect()
    return resident() - before


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    program = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    program.add_argument("--inputs", type=int, default=100_000, help="of all parsers together")
    program.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    program.add_argument("--parser", choices=PARSERS, action="append")
    program.add_argument("--failures", type=Path, default=Path("build/fuzz"))
    options = program.parse_args()
    logging.disable(logging.CRITICAL)
    print(f"seed {options.seed}", flush=True)
    failed = False
    for name in options.parser or PARSERS:
        count = max(1, int(options.inputs * (SHARES[name] if not options.parser else 1 / len(options.parser))))
        began = time.monotonic()
        try:
            growth = fuzz(name, count, options.seed, options.failures)
        except Failed as error:
            failed = True
            print(error, flush=True)
            continue
        each = (time.monotonic() - began) / count * 1e6
        print(f"{name}: {count} inputs, {each:.0f} us each, memory {growth / 1024:+.0f} KiB", flush=True)
        failed |= growth > MAX_GROWTH
    sys.exit(failed)


if __name__ == "__main__":
    main()
