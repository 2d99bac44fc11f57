"""What a task does that writes: rows to nsqd, many in one MPUB, several MPUBs on their way at once.

nsqd takes an MPUB whole or not at all, and nothing can be taken back. When it is not known whether one was taken, the
task fails and Spark tries again: nothing is lost, and something may be there twice.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.names import is_valid_name
from pyspark_nsq.connection import NsqConnection, NsqdUnreachable
from pyspark_nsq.options import WriteOptions

BODY_COLUMNS: Final = ("body", "value")


class CannotPublish(Exception):
    """A row cannot be a message, or nobody takes it; the text says what to do."""


def publish(batches: Iterable[pa.RecordBatch], options: WriteOptions, turn: int) -> int:
    """How many rows were published, each confirmed by its nsqd. Tasks of different `turn` begin with different nsqd."""
    rows = 0
    full = (batch for batch in batches if batch.num_rows)
    first = next(full, None)
    if first is None:
        return rows
    with connect(options, turn) as connection:
        for batch in itertools.chain([first], full):
            for command in commands(batch, options):
                connection.publish(command, options.mpub_window)
            rows += batch.num_rows
        connection.confirm()
    return rows


def connect(options: WriteOptions, turn: int) -> NsqConnection:
    """To the nsqd whose turn it is, or the next one that can be reached. Raises ``CannotPublish``."""
    addresses = options.nsqd_tcp_addresses
    complaints = []
    for step in range(len(addresses)):
        try:
            return NsqConnection(addresses[(turn + step) % len(addresses)], options)
        except NsqdUnreachable as error:
            complaints.append(str(error))
    raise CannotPublish("nsqdTcpAddresses: no nsqd can be published to: " + "; ".join(complaints))


def commands(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[bytes]:
    """The rows as commands to nsqd. Raises ``CannotPublish``."""
    names = batch.schema.names
    column = batch.column(next(name for name in BODY_COLUMNS if name in names))
    if column.null_count:
        raise CannotPublish("a message has no body: filter rows whose body is null before they are written")
    bodies = column.cast(pa.binary()).to_pylist()
    if not all(bodies):
        raise CannotPublish("a message has an empty body, which nsqd refuses: filter such rows before they are written")
    topics = batch.column("topic").to_pylist() if "topic" in names else [options.topic] * len(bodies)
    delays = batch.column("defer_ms").to_pylist() if "defer_ms" in names else [None] * len(bodies)
    together: dict[str, list[bytes]] = {}
    for body, topic, delay in zip(bodies, (each or options.topic for each in topics), delays, strict=True):
        if delay:
            yield command_writer.publish_deferred(_checked(topic), body, delay)
        else:
            together.setdefault(topic, []).append(body)
    for topic, those in together.items():
        for packet in packets(those, options.mpub_messages, options.mpub_bytes):
            yield command_writer.publish_many(_checked(topic), packet)


def packets(bodies: Iterable[bytes], most: int, most_bytes: int) -> Iterator[list[bytes]]:
    """The bodies in order, in lists of at most so many and, unless one alone is more, of so many bytes on the wire."""
    packet: list[bytes] = []
    size = 0
    for body in bodies:
        if packet and (len(packet) == most or size + len(body) + 4 > most_bytes):
            yield packet
            packet, size = [], 0
        packet.append(body)
        size += len(body) + 4
    if packet:
        yield packet


def _checked(topic: str) -> str:
    if not is_valid_name(topic):
        raise CannotPublish(f"no topic can be called {topic!r}: give the option topic, or a column of good names")
    return topic
