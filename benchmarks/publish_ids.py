"""What publish ids cost: CPU time of a publish, memory, and the time of a start. Figures of docs/headers.md.

``python -m benchmarks.publish_ids`` prints them. It measures the queue itself, on a data path in a folder of its own.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from nsq_compat.log.data_path import make_our_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.net.process import tune_gc
from nsq_compat.protocol.headers import encode
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.publish_batch import LargeBatch
from nsq_compat.queue.publish_ids import MAX_IDS, PublishIds, digest_of
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import QueueLimits

_WINDOW: Final = 3600.0
_BODY: Final = b"x" * 200
_ROUNDS: Final = 7
_MESSAGES: Final = 20_000
"""In a round."""
_READ: Final = 200_000
"""Messages that a start reads."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def data_path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        make_our_folder(OsFiles(), folder)
        yield folder


def open_topic(folder: str, *, has_window: bool = True) -> Topic:
    """The topic of a data path, new or restored, with a channel."""
    storage = Storage(OsFiles(), folder, durability=Durability.OS, segment_size=100 << 20)
    broker = Broker(QueueLimits(mem_queue_size=100), storage)
    for name in storage.names():
        broker.restore(name, (), time.monotonic(), time.time_ns())
    topic = broker.topic("t")
    topic.channel("c")
    if has_window:
        topic.publish_ids = PublishIds("t", _WINDOW, time.time_ns)
    return topic


def payloads(first: int, count: int) -> list[bytes]:
    """Messages with ids as an idempotent producer makes them: 32 digits."""
    return [encode([("nsq-id", f"{number:032x}")]) + _BODY for number in range(first, first + count)]


def in_batches(items: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def publish(topic: Topic, batches: Sequence[Sequence[bytes]]) -> tuple[float, float]:
    """CPU nanoseconds per message, and the longest call in milliseconds."""
    longest, began = 0.0, time.process_time()
    for batch in batches:
        before = time.process_time()
        topic.publish_with_headers(batch, time.monotonic(), time.time_ns())
        longest = max(longest, time.process_time() - before)
    count = sum(map(len, batches))
    return (time.process_time() - began) / count * 1e9, longest * 1e3


def publishing(size: int) -> None:
    """The best of some rounds, in which the topics take turns."""
    with data_path() as with_window, data_path() as without:
        known, plain = open_topic(with_window), open_topic(without, has_window=False)
        best = dict.fromkeys(("without a window", "with a window", "repeated"), (1e9, 0.0))
        for number in range(_ROUNDS):
            count = _MESSAGES if size > 1 else _MESSAGES // 4
            batches = in_batches(payloads(number * count, count), size)
            for what, topic in zip(best, (plain, known, known), strict=True):
                best[what] = min(best[what], publish(topic, batches))
    for what, (cost, _) in best.items():
        print(f"publish of {size}, {what}: {cost:,.0f} ns a message")


def in_steps(count: int) -> None:
    with data_path() as folder:
        topic = open_topic(folder)
        batch = LargeBatch(topic, payloads(0, count), time.monotonic(), time.time_ns(), with_headers=True)
        longest, began = 0.0, time.process_time()
        is_done = False
        while not is_done:
            before = time.process_time()
            is_done = batch.step()
            longest = max(longest, time.process_time() - before)
        took = time.process_time() - began
    print(f"publish of {count:,} in steps: {took / count * 1e9:,.0f} ns a message, longest step {longest * 1e3:.1f} ms")


def at_once(count: int) -> None:
    with data_path() as folder:
        topic = open_topic(folder)
        longest = min(publish(topic, [payloads(number * count, count)])[1] for number in range(_ROUNDS))
    print(f"publish of {count:,} at once: {longest:.1f} ms")


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


def memory() -> None:
    ids, now_ns = PublishIds("t", _WINDOW, time.time_ns), time.time_ns()
    before, longest = resident(), 0.0
    for number in range(MAX_IDS):
        digest = digest_of(b"%032x" % number)
        began = time.process_time()
        ids.note([digest], now_ns + number * 1000)
        longest = max(longest, time.process_time() - began)
    used = resident() - before
    print(f"{MAX_IDS:,} ids: {used / MAX_IDS:.0f} bytes each, longest call {longest * 1e3:.2f} ms")
    longest, now_ns, later = 0.0, now_ns + int(2 * _WINDOW * 1e9), 0.0
    ids._now_ns = lambda: now_ns
    while len(ids):
        began = time.process_time()
        ids.on_alarm(later)
        longest = max(longest, time.process_time() - began)
    print(f"forgetting them: longest call {longest * 1e3:.2f} ms")


def starting(what: str, fill: Callable[[Topic], None]) -> None:
    with data_path() as folder:
        topic = open_topic(folder)
        fill(topic)
        assert topic.store is not None
        topic.store.log.close()
        again = open_topic(folder)
        began = time.process_time()
        count = again.recall_ids(time.time_ns())
        took = time.process_time() - began
    print(f"start, {what}: {took / _READ * 1e9:,.0f} ns a message, {count:,} ids read")


def fill_with_ids(topic: Topic, size: int) -> None:
    for batch in in_batches(payloads(0, _READ), size):
        topic.publish_with_headers(batch, time.monotonic(), time.time_ns())


def fill_without_ids(topic: Topic) -> None:
    topic.publish_with_headers(payloads(0, 1), time.monotonic(), time.time_ns())
    for _ in range(_READ // 100):
        topic.publish([_BODY] * 100, time.monotonic(), time.time_ns())


def main() -> None:
    tune_gc()  # as nsqd does
    for size in (1, 100):
        publishing(size)
    for count in (512, 1024):
        at_once(count)
    in_steps(100_000)
    memory()
    starting("messages with ids, published one by one", lambda topic: fill_with_ids(topic, 1))
    starting("messages with ids, in batches of 100", lambda topic: fill_with_ids(topic, 100))
    starting("messages without ids, in batches of 100", fill_without_ids)


if __name__ == "__main__":
    main()
