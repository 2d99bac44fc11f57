"""Micro-benchmarks of the functions on the hot list: CPU nanoseconds per message, the best of many measurements.

``python -m benchmarks.micro [WORD...]`` runs all, or those with one of the words in their name. It takes the best and
not the mean, because disturbances only make a measurement longer. The garbage collector is set as in nsqd.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, cycle
from tempfile import TemporaryDirectory
from typing import Any

from nsq_compat.log.data_path import our_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.net.process import tune_gc
from nsq_compat.protocol.command_reader import CommandReader
from nsq_compat.protocol.commands import COMMANDS
from nsq_compat.protocol.message import MessageIds, make_frames, message_ids
from nsq_compat.queue.backlog import FrameQueue
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.queue.values import LatencyOptions, QueueLimits
from nsq_compat.session.negotiation import NsqdLimits
from nsq_compat.session.nsqd_session import MAGIC, NsqdSession

_NOW, _NOW_NS = 1000.0, 1_700_000_000_000_000_000
_SHORTEST_NS = 10_000_000
_MEASUREMENTS = 15
_BODY = b"x" * 200
_BATCH = 200
_FULL = 10_000
_BODIES = [_BODY] * _BATCH
_SIZED_BODY = len(_BODY).to_bytes(4, "big") + _BODY
_PUB = b"PUB t\n" + _SIZED_BODY
_PERCENTILES = LatencyOptions((0.99, 0.95), 600.0)


def _mpub(count: int) -> bytes:
    body = count.to_bytes(4, "big") + _SIZED_BODY * count
    return b"MPUB t\n" + len(body).to_bytes(4, "big") + body


_MPUB = _mpub(_BATCH)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`make` returns the function to measure; one call of it handles `messages` messages."""

    name: str
    messages: int
    make: Callable[[], Callable[[], object]]


def best_ns(benchmark: Benchmark) -> float:
    """CPU nanoseconds per message."""
    run = benchmark.make()
    loops = 1
    while (took := _cpu_ns(run, loops)) < _SHORTEST_NS:
        loops = max(loops * 2, int(loops * _SHORTEST_NS / max(took, 1)))
    return min(_cpu_ns(run, loops) for _ in range(_MEASUREMENTS)) / loops / benchmark.messages


def _cpu_ns(run: Callable[[], object], loops: int) -> int:
    repetitions = range(loops)
    begin = time.thread_time_ns()
    for _ in repetitions:
        run()
    return time.thread_time_ns() - begin


# --- protocol ---------------------------------------------------------------------------------------------------------


def _reading(data: bytes) -> Callable[[], Callable[[], object]]:
    def make() -> Callable[[], object]:
        reader = CommandReader(lambda tokens: COMMANDS[tokens[0]], max_msg_size=1 << 20, max_body_size=5 << 20)
        return lambda: reader.receive_single(data) or list(reader.receive_data(data))

    return make


def _fins(ids: list[bytes]) -> bytes:
    return b"".join(b"FIN %s\n" % message_id for message_id in ids)


def _cutting_ids() -> Callable[[], object]:
    frames = make_frames(_some_ids(), _NOW_NS, _BODIES)
    return lambda: message_ids(frames)


def _making_frames() -> Callable[[], object]:
    ids = _some_ids()
    return lambda: make_frames(ids, _NOW_NS, _BODIES)


def _some_ids() -> list[bytes]:
    return _ids(MessageIds(0))


def _ids(factory: MessageIds) -> list[bytes]:
    return [factory.take_one(_NOW_NS) for _ in range(_BATCH)]


# --- queue ------------------------------------------------------------------------------------------------------------


def _taking_ids(number: int) -> Callable[[], Callable[[], object]]:
    def make() -> Callable[[], object]:
        factory = MessageIds(0)
        return lambda: factory.take_runs(number, _NOW_NS)

    return make


def _passing_frame_queue() -> Callable[[], object]:
    queue = FrameQueue()
    frames = make_frames(_some_ids(), _NOW_NS, _BODIES)

    def run() -> None:
        queue.extend(frames)
        queue.take(_BATCH // 2, 1 << 20)
        queue.take(_BATCH, 1 << 20)

    return run


def _passing_flight() -> Callable[[], object]:
    in_flight = InFlight()
    factory = MessageIds(0)
    # The ids repeat, so each must have been removed meanwhile.
    batches = [_ids(factory) for _ in range(100)]
    deliveries = cycle([(ids, make_frames(ids, _NOW_NS, _BODIES)) for ids in batches])

    def run() -> None:
        ids, frames = next(deliveries)
        in_flight.add(frames, _NOW, 60.0)
        in_flight.finish(ids)

    return run


def _publishing() -> Callable[[], object]:
    topic = Broker(QueueLimits(mem_queue_size=2 * _FULL)).topic("t")
    channel = topic.channel("c")

    def run() -> None:
        topic.publish(_BODIES, _NOW, _NOW_NS)
        if channel.depth > _FULL:
            channel.empty()

    return run


# --- session ----------------------------------------------------------------------------------------------------------


def _session(
    broker: Broker, publish_batch: PublishBatch | None = None, wake: Callable[[], None] = lambda: None
) -> NsqdSession:
    session = NsqdSession(
        broker,
        NsqdLimits(),
        peer="127.0.0.1:1",
        host="127.0.0.1",
        wake=wake,
        abort=lambda: None,
        publish_batch=publish_batch,
        now=_NOW,
        now_ns=_NOW_NS,
    )
    session.receive_data(MAGIC, _NOW, _NOW_NS)
    return session


class _WritesNothing(OsFiles):
    """Skips writes, because the time of the system call varies."""

    @staticmethod
    def pwrite(fd: int, data: Any, offset: int, /) -> int:
        return len(data)

    @staticmethod
    def fallocate(fd: int, offset: int, size: int, /) -> None:
        pass


def _answering(data: bytes, *, logged: bool = False) -> Callable[[], Callable[[], object]]:
    """`logged`: includes the log, up to the system call."""

    def make() -> Callable[[], object]:
        folder, broker = _logged() if logged else (None, Broker(QueueLimits(mem_queue_size=2 * _FULL)))
        channel = broker.topic("t").channel("c")
        session = _session(broker)

        def run() -> object:
            session.receive_data(data, _NOW, _NOW_NS)
            session.data_to_send(_NOW)
            if channel.depth > _FULL:
                channel.empty()
            return folder  # kept alive with `run`

        return run

    return make


def _posting(sessions: int, data: bytes) -> Callable[[], Callable[[], object]]:
    """`sessions` producers send data in one event-loop iteration and are answered at its end; includes the log."""

    def make() -> Callable[[], object]:
        folder, broker = _logged()
        channel = broker.topic("t").channel("c")
        publish_batch = PublishBatch(lambda callback: None)
        producers = [_producer(broker, publish_batch) for _ in range(sessions)]

        def run() -> object:
            for producer in producers:
                producer.receive_data(data, _NOW, _NOW_NS)
            publish_batch.publish_posted()
            if channel.depth > _FULL:
                channel.empty()
            return folder  # kept alive with `run`

        return run

    return make


def _producer(broker: Broker, publish_batch: PublishBatch) -> NsqdSession:
    def wake() -> None:
        session.data_to_send(_NOW)

    session = _session(broker, publish_batch, wake)
    return session


def _logged() -> tuple[TemporaryDirectory[str], Broker]:
    """A broker with logs in a folder, without the system calls."""
    folder = TemporaryDirectory()
    os.mkdir(our_folder(folder.name))
    storage = Storage(_WritesNothing(), folder.name, durability=Durability.OS, segment_size=100 << 20)
    return folder, Broker(QueueLimits(mem_queue_size=2 * _FULL), storage)


def _delivering(batch: int, ready: int, *, watched: bool = False) -> Callable[[], Callable[[], object]]:
    """Messages from the topic to a consumer, and their FINs; includes the creation of the messages.

    `watched`: with latency percentiles.
    """

    def make() -> Callable[[], object]:
        broker = Broker(QueueLimits(latency=_PERCENTILES if watched else None))
        topic = broker.topic("t")
        session = _session(broker)
        session.receive_data(b"SUB t c\nRDY %d\n" % ready, _NOW, _NOW_NS)
        session.data_to_send(_NOW)
        assert session.subscription is not None
        in_flight = session.subscription.in_flight
        moments = count(_NOW_NS)
        bodies = [_BODY] * batch

        def run() -> None:
            topic.publish(bodies, _NOW, next(moments))
            session.data_to_send(_NOW)
            session.receive_data(_fins(list(in_flight.frames)), _NOW, _NOW_NS)
            assert not in_flight.frames, "each message was delivered and finished"

        return run

    return make


BENCHMARKS = (
    Benchmark("reader: one MPUB of 200", _BATCH, _reading(_MPUB)),
    Benchmark("reader: 100 pipelined PUBs", 100, _reading(_PUB * 100)),
    Benchmark("reader: one PUB", 1, _reading(_PUB)),
    Benchmark("reader: a run of 200 FINs", _BATCH, _reading(_fins(_some_ids()))),
    Benchmark("reader: one FIN", 1, _reading(_fins(_some_ids()[:1]))),
    Benchmark("guid: 200 ids", _BATCH, _taking_ids(_BATCH)),
    Benchmark("guid: one id", 1, _taking_ids(1)),
    Benchmark("message: make_frames of 200", _BATCH, _making_frames),
    Benchmark("message: message_ids of 200", _BATCH, _cutting_ids),
    Benchmark("frame queue: 200 in, 100 and 100 out", _BATCH, _passing_frame_queue),
    Benchmark("in_flight: add and finish 200", _BATCH, _passing_flight),
    Benchmark("topic: publish 200, one channel", _BATCH, _publishing),
    Benchmark("session: one PUB and its OK", 1, _answering(_PUB)),
    Benchmark("session: 100 pipelined PUBs", 100, _answering(_PUB * 100)),
    Benchmark("session: one MPUB of 200", _BATCH, _answering(_MPUB)),
    Benchmark("session: one PUB, through the log", 1, _answering(_PUB, logged=True)),
    Benchmark("session: one MPUB of 200, through the log", _BATCH, _answering(_MPUB, logged=True)),
    Benchmark("session: one PUB each of 10 in a turn", 10, _posting(10, _PUB)),
    Benchmark("session: one PUB each of 60 in a turn", 60, _posting(60, _PUB)),
    Benchmark("session: MPUB of 10 each of 4 in a turn", 40, _posting(4, _mpub(10))),
    Benchmark("session: publish, deliver, FIN 200", _BATCH, _delivering(_BATCH, 2500)),
    Benchmark("session: publish, deliver, FIN one", 1, _delivering(1, 1)),
    Benchmark("session: the same 200, latency watched", _BATCH, _delivering(_BATCH, 2500, watched=True)),
    Benchmark("session: the same one, latency watched", 1, _delivering(1, 1, watched=True)),
)


def main() -> None:
    chosen = [each for each in BENCHMARKS if not sys.argv[1:] or any(word in each.name for word in sys.argv[1:])]
    tune_gc()
    for benchmark in chosen:
        print(f"{benchmark.name:<40} {best_ns(benchmark):>9,.0f} ns", flush=True)


if __name__ == "__main__":
    main()
