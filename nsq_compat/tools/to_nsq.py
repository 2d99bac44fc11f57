"""``to_nsq``: publish the records on standard input, a message for each.

Unlike Go's: a last record without delimiter is published whole, the topic is checked, many records are published
at once, and an error has the number of its record. A signal ends the reading; records that were read are published.
"""

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from nsq_compat.cli.kinds import INTEGER, STRING, STRINGS
from nsq_compat.cli.options import option
from nsq_compat.client import Error, Producer, Published
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.tools.client_options import ProducerOptions, RetryOptions, reach, with_remedy
from nsq_compat.tools.program import Refused, Stopping, console_script, refuse, say
from nsq_compat.tools.progress import Progress

_READ_SIZE: Final = 1 << 16
_MAX_UNANSWERED: Final = 2000
"""Records that wait for their OK, which bounds the memory."""


@dataclass(kw_only=True)
class Options(ProducerOptions, RetryOptions):
    program = "to_nsq"
    topic: str = option(STRING, "", "topic to publish to")
    delimiter: str = option(STRING, "\n", "character that ends a record")
    rate: int = option(INTEGER, 0, "most records a second; by default no limit")
    nsqd_tcp_addresses: tuple[str, ...] = option(
        STRINGS, (), "host:port of an nsqd (repeat for several: each gets every record)", flag="nsqd-tcp-address"
    )


@console_script(Options)
def main(options: Options) -> None:
    delimiter = options.delimiter.encode("utf-8", "surrogateescape")
    refuse(
        (not options.topic, "--topic required"),
        (len(delimiter) != 1, "--delimiter must be a single byte"),
        (not options.nsqd_tcp_addresses, "--nsqd-tcp-address required"),
        (sys.stdin is None, "standard input is closed"),
        (not is_valid_name(options.topic), f"--topic {options.topic!r} is not a valid name"),
    )
    stopping = Stopping()
    addresses = list(dict.fromkeys(options.nsqd_tcp_addresses))
    # One producer for all nodes: a record is published when each of them has it.
    with options.producer(addresses, copies=len(addresses)) as producer:
        options.reached(
            lambda: reach(addresses, producer.settings, "producer-opt", may_be_down=not options.retry), stopping
        )
        published = _Records(producer, options.topic)
        with Progress(lambda: published.answered):
            for record in _paced(records(partial(_standard_input, stopping), delimiter), options.rate):
                published.publish(record)
                if stopping.is_set():
                    break
            published.finish()
    count, nsqds = published.answered, len(addresses)
    say(
        f"published {count} {'record' if count == 1 else 'records'} to topic {options.topic}"
        + (f" on each of {nsqds} nsqd" if nsqds > 1 else "")
        + (", stopped by a signal" if stopping.is_set() else "")
    )


class _Records:
    """Records being published, in order; the first that fails ends the program with its number."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._waiting: deque[Future[Published]] = deque()
        self.answered = 0

    def publish(self, record: bytes) -> None:
        self._waiting.append(self._producer.publish_async(self._topic, record))
        while len(self._waiting) > _MAX_UNANSWERED or (self._waiting and self._waiting[0].done()):
            self._await_first()

    def finish(self) -> None:
        while self._waiting:
            self._await_first()

    def _await_first(self) -> None:
        try:
            self._waiting.popleft().result()
        except Error as error:
            text = with_remedy(f"record {self.answered + 1}: {error}", "producer-opt")
            raise Refused(f"{text} ({self.answered} published before it)") from error
        self.answered += 1


def records(read: Callable[[int], bytes], delimiter: bytes) -> Iterator[bytes]:
    """Records between delimiters, and behind the last one; empty records are skipped (to_nsq)."""
    rest = b""
    while data := read(_READ_SIZE):
        *whole, rest = (rest + data).split(delimiter) if delimiter in data else (rest + data,)
        yield from filter(None, whole)
    if rest:
        yield rest


def _standard_input(stopping: Stopping, size: int) -> bytes:
    """Read input; nothing at its end, and when the program should stop."""
    select.select([0, stopping.fileno()], [], [])
    return b"" if stopping.is_set() else os.read(0, size)


def _paced(records: Iterator[bytes], rate: int) -> Iterator[bytes]:
    """At most `rate` records a second, plus unused allowance of up to a second."""
    if rate <= 0:
        yield from records
        return
    print(f"Throttling messages rate to max:{rate}/second", file=sys.stderr)
    allowance, last = 1.0, time.monotonic()
    for record in records:
        now = time.monotonic()
        allowance, last = min(float(rate), allowance + (now - last) * rate), now
        if allowance < 1:
            time.sleep((1 - allowance) / rate)
        allowance -= 1
        yield record
