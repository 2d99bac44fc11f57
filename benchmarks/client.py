"""Compare our consumers and producers with others': messages per CPU second of the client's process.

    .venv/bin/python -m benchmarks.client            tables for RESULTS-client.md

Each client is a process with its own nsqd. A consumer's handler only counts; nsqd has all messages before the consumer
starts, and the clocks are read at the first message and at the last. A producer publishes each message by itself, with
`_AT_ONCE` calls waiting at any time. Others' clients that are not installed are left out; asyncnsq needs Python 3.12.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import machine
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd

_BODY = b"x" * 200
_BATCH = 500
_READY = 2500
_AT_ONCE = 500
_TOPIC, _CHANNEL = "topic", "channel"
_SECONDS = 50

Report = dict[str, float]
Subjects = dict[str, Callable[[str, int], Report]]


class Clock:
    """The times from `start` to `stop`."""

    def __init__(self) -> None:
        self.report: Report = {}

    def start(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, messages: int) -> None:
        self.report = {
            "seconds": time.perf_counter() - self._began,
            "cpu_seconds": time.process_time() - self._cpu,
            "messages": messages,
        }


class Count(Clock):
    """A handler that counts messages and calls `done` at the last one."""

    def __init__(self, wanted: int, done: Callable[[], object]) -> None:
        super().__init__()
        self._wanted = wanted
        self._done = done
        self._seen = 0

    def __call__(self, message: object) -> bool:
        if not self._seen:
            self.start()
        self._seen += 1
        if self._seen == self._wanted:
            self.stop(self._seen)
            self._done()
        return True


# --- Consumers --------------------------------------------------------------------------------------------------------


def _consumer(address: str, count: int, **options: Any) -> Report:
    import nsq_compat.client as nsq

    over = threading.Event()
    handler = Count(count, over.set)
    with nsq.Consumer(_TOPIC, _CHANNEL, handler, nsqd_tcp_addresses=address, max_in_flight=_READY, **options):
        over.wait(_SECONDS)
    return handler.report


def _aio_consumer(address: str, count: int, **options: Any) -> Report:
    from nsq_compat.client import aio

    async def main() -> Report:
        over = asyncio.Event()
        counted = Count(count, over.set)

        async def handle(message: aio.Message) -> bool:
            return counted(message)

        async with aio.Consumer(_TOPIC, _CHANNEL, handle, nsqd_tcp_addresses=address, max_in_flight=_READY, **options):
            await over.wait()
        return counted.report

    return asyncio.run(main())


def _aio_iteration(address: str, count: int) -> Report:
    from nsq_compat.client import aio

    async def main() -> Report:
        async with aio.Consumer(_TOPIC, _CHANNEL, nsqd_tcp_addresses=address, max_in_flight=_READY) as consumer:
            counted = Count(count, consumer.stop_soon)
            async for message in consumer:
                counted(message)
                message.finish()
        return counted.report

    return asyncio.run(main())


def _reader(address: str, count: int) -> Report:
    import nsq_compat.client as nsq
    from nsq_compat.client.pynsq import current_loop

    handler = Count(count, lambda: current_loop().call_soon(current_loop().stop))
    nsq.Reader(_TOPIC, _CHANNEL, handler, nsqd_tcp_addresses=[address], max_in_flight=_READY)
    nsq.run()
    return handler.report


def _pynsq(address: str, count: int) -> Report:
    import nsq
    import tornado.ioloop

    handler = Count(count, lambda: tornado.ioloop.IOLoop.current().stop())
    nsq.Reader(_TOPIC, _CHANNEL, handler, nsqd_tcp_addresses=[address], max_in_flight=_READY)
    nsq.run()
    return handler.report


# --- Producers --------------------------------------------------------------------------------------------------------


def _producer(address: str, count: int) -> Report:
    import nsq_compat.client as nsq

    clock = Clock()
    with nsq.Producer(address) as producer:
        producer.publish(_TOPIC, _BODY)
        clock.start()
        waiting: deque[Any] = deque()
        for _ in range(count):
            waiting.append(producer.publish_async(_TOPIC, _BODY))
            if len(waiting) == _AT_ONCE:
                waiting.popleft().result(_SECONDS)
        for future in waiting:
            future.result(_SECONDS)
        clock.stop(count)
    return clock.report


async def _publish_all(publish: Callable[[], Awaitable[object]], count: int) -> Report:
    clock = Clock()
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            await publish()

    await publish()
    clock.start()
    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    clock.stop(count)
    return clock.report


def _aio_producer(address: str, count: int) -> Report:
    from nsq_compat.client import aio

    async def main() -> Report:
        async with aio.Producer(address) as producer:
            return await _publish_all(lambda: producer.publish(_TOPIC, _BODY), count)

    return asyncio.run(main())


# --- Others' clients for asyncio --------------------------------------------------------------------------------------


def _asyncnsq_consumer(address: str, count: int) -> Report:
    from asyncnsq import create_reader

    async def main() -> Report:
        counted = Count(count, lambda: None)
        reader = await create_reader(nsqd_tcp_addresses=[address], max_in_flight=_READY)
        await reader.subscribe(_TOPIC, _CHANNEL)
        async for message in reader.messages():
            counted(message)
            await message.fin()
            if counted.report:
                break
        return counted.report

    return asyncio.run(main())


def _asyncnsq_producer(address: str, count: int) -> Report:
    from asyncnsq import create_writer

    async def main() -> Report:
        host, _, port = address.rpartition(":")
        writer = await create_writer(host=host, port=int(port))
        return await _publish_all(lambda: writer.pub(_TOPIC, _BODY), count)

    return asyncio.run(main())


def _ansq_consumer(address: str, count: int) -> Report:
    import ansq

    async def main() -> Report:
        counted = Count(count, lambda: None)
        reader = await ansq.create_reader(_TOPIC, _CHANNEL, nsqd_tcp_addresses=[address])
        for connection in reader.connections:
            await connection.rdy(_READY)
        async for message in reader.messages():
            counted(message)
            await message.fin()
            if counted.report:
                break
        return counted.report

    return asyncio.run(main())


def _ansq_producer(address: str, count: int) -> Report:
    import ansq

    async def main() -> Report:
        writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
        return await _publish_all(lambda: writer.pub(_TOPIC, _BODY), count)

    return asyncio.run(main())


CONSUMERS: Subjects = {
    "Consumer": _consumer,
    "Consumer, snappy": lambda address, count: _consumer(address, count, snappy=True),
    "aio.Consumer": _aio_consumer,
    "aio.Consumer, snappy": lambda address, count: _aio_consumer(address, count, snappy=True),
    "aio.Consumer, async for": _aio_iteration,
    "Reader": _reader,
    "pynsq": _pynsq,
    "asyncnsq": _asyncnsq_consumer,
    "ansq": _ansq_consumer,
}
PRODUCERS: Subjects = {
    "Producer.publish_async": _producer,
    "aio.Producer.publish": _aio_producer,
    "asyncnsq": _asyncnsq_producer,
    "ansq": _ansq_producer,
}
_OTHERS = ("pynsq", "asyncnsq", "ansq")


def named(subject: str) -> str:
    """The subject with its version, if it is a package of others."""
    return f"{subject} {version(subject)}" if subject in _OTHERS else subject


def installed(subjects: Subjects) -> list[str]:
    return [subject for subject in subjects if subject not in _OTHERS or _is_installed(subject)]


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


# --- Measuring --------------------------------------------------------------------------------------------------------


def measure(name: str, count: int, command: str, is_consumer: bool = True) -> Report:
    """Run a client process on a new nsqd, which has all messages for a consumer. Raises if it does not finish."""
    from nsq_compat.client import Producer

    with tempfile.TemporaryDirectory() as folder:
        options = [f"--mem-queue-size={count}"]
        with NsqdProcess(command, Path(folder), options=options) as nsqd:
            nsqd.create_channel(_TOPIC, _CHANNEL)
            if is_consumer:
                with Producer(nsqd.tcp_address) as producer:
                    for _ in range(count // _BATCH):
                        producer.publish_many(_TOPIC, [_BODY] * _BATCH)
            act = "--consume" if is_consumer else "--publish"
            child = [sys.executable, "-m", "benchmarks.client", act, name, nsqd.tcp_address, str(count)]
            run = subprocess.run(child, stdout=subprocess.PIPE, text=True, timeout=2 * _SECONDS, check=True)
            report: Report = json.loads(run.stdout.splitlines()[-1])
            return report


def table(kind: str, results: dict[str, list[Report]], baseline_name: str) -> str:
    def median(name: str, figure: Callable[[Report], float]) -> float:
        return statistics.median(map(figure, results[name]))

    def per_cpu_second(run: Report) -> float:
        return run["messages"] / run["cpu_seconds"]

    baseline = median(baseline_name, per_cpu_second)
    lines = [
        f"| {kind} | msg/s | msg/CPU s | spread | CPU us/msg | times {named(baseline_name)} |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for name, runs in results.items():
        rate, rates = median(name, per_cpu_second), list(map(per_cpu_second, runs))
        lines.append(
            f"| {named(name)} | {median(name, lambda run: run['messages'] / run['seconds']):,.0f} | {rate:,.0f} "
            f"| {(max(rates) - min(rates)) / rate:.0%} | {1e6 / rate:.2f} | **{rate / baseline:.1f}** |"
        )
    return "\n".join(lines)


def baseline_of(results: dict[str, list[Report]]) -> str:
    """The best of others' clients for asyncio, or of others', or the first."""

    def rate(name: str) -> float:
        return max(run["messages"] / run["cpu_seconds"] for run in results[name])

    others = [name for name in results if name in ("asyncnsq", "ansq")] or [name for name in results if name in _OTHERS]
    return max(others, key=rate, default=next(iter(results)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nsqd", default=installed_nsqd(), help="command line of the nsqd to use")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only the clients with this text in their names")
    for act in ("--consume", "--publish"):
        parser.add_argument(act, nargs=3, metavar=("NAME", "ADDRESS", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.consume or options.publish:
        name, address, count = options.consume or options.publish
        print(json.dumps((CONSUMERS if options.consume else PRODUCERS)[name](address, int(count))))
        return
    print(f"- Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {machine.commit()}")
    print(f"- Machine: {machine.cpu()}, {machine.memory()}, {machine.system()}, Python {sys.version.split()[0]}")
    print(f"- {options.messages:,} messages of {len(_BODY)} bytes, medians of {options.rounds} rounds")
    for kind, subjects in (("consumer", CONSUMERS), ("producer", PRODUCERS)):
        results: dict[str, list[Report]] = {name: [] for name in installed(subjects) if options.only in name}
        for _ in range(options.rounds):
            for name, runs in results.items():
                runs.append(measure(name, options.messages, options.nsqd, kind == "consumer"))
        if results:
            print(f"\n{table(kind, results, baseline_of(results))}")


if __name__ == "__main__":
    main()
