"""A writing task: publish rows to nsqd, many in one MPUB, with several MPUBs pipelined.

nsqd accepts an MPUB as a whole or not at all, and a publish cannot be undone. If the answer to an MPUB is lost, the
task fails and Spark runs it again: no row is lost, but rows may be published twice.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.headers import HeaderError, encode
from nsq_compat.protocol.names import is_valid_name
from pyspark_nsq.connection import NsqConnection, NsqdUnreachable, lookupd_access
from pyspark_nsq.nodes import registered
from pyspark_nsq.options import WriteOptions
from pyspark_nsq.rows import HEADERS

BODY_COLUMNS: Final = ("body", "value")


class CannotPublish(Exception):
    """A row cannot be a message, or no nsqd accepts it; the text says what to do."""


def publish(batches: Iterable[pa.RecordBatch], options: WriteOptions, task: int) -> int:
    """Publish the rows and return their number, after nsqd has confirmed all. `task` selects the first nsqd to try."""
    rows = 0
    full = (batch for batch in batches if batch.num_rows)
    first = next(full, None)
    if first is None:
        return rows
    with connect(options, task) as connection:
        for batch in itertools.chain([first], full):
            for command in commands(batch, options):
                connection.publish(command, options.mpub_window)
            rows += batch.num_rows
        connection.confirm()
    return rows


def targets(options: WriteOptions) -> Sequence[str]:
    """The TCP addresses of the nsqd to publish to. Raises ``NoNodes`` if no nsqlookupd answers."""
    if options.nsqd_tcp_addresses:
        return options.nsqd_tcp_addresses
    lookupds = options.lookupd_http_addresses
    return registered(lookupds, options.topic, options.connect_timeout, lookupd_access(options, lookupds))


def connect(options: WriteOptions, first: int) -> NsqConnection:
    """Connect to nsqd number `first` (modulo their count), or the next that is reachable. Raises ``CannotPublish``."""
    addresses = targets(options)
    complaints = []
    for step in range(len(addresses)):
        try:
            return NsqConnection(addresses[(first + step) % len(addresses)], options)
        except NsqdUnreachable as error:
            complaints.append(str(error))
    name = "nsqdTcpAddresses" if options.nsqd_tcp_addresses else "lookupdHttpAddresses"
    raise CannotPublish(
        f"{name}: no nsqd can be reached to publish to: {'; '.join(complaints) or 'none is registered'}"
    )


def commands(batch: pa.RecordBatch, options: WriteOptions) -> Iterator[bytes]:
    """Convert rows to commands that publish. Raises ``CannotPublish``."""
    names = batch.schema.names
    column = batch.column(next(name for name in BODY_COLUMNS if name in names))
    if column.null_count:
        raise CannotPublish("a row has a null body: filter such rows before they are written")
    bodies = column.cast(pa.binary()).to_pylist()
    if not all(bodies):
        raise CannotPublish("a row has an empty body, which nsqd refuses: filter such rows before they are written")
    topics = batch.column("topic").to_pylist() if "topic" in names else [options.topic] * len(bodies)
    delays = batch.column("defer_ms").to_pylist() if "defer_ms" in names else [None] * len(bodies)
    has_headers = HEADERS in names and HEADERS not in options.ignore_columns
    all_headers = batch.column(HEADERS).to_pylist() if has_headers else [None] * len(bodies)
    by_topic: dict[str, list[bytes]] = {}
    with_headers: dict[str, list[bytes]] = {}
    for body, row_topic, delay, headers in zip(bodies, topics, delays, all_headers, strict=True):
        topic = row_topic or options.topic
        if headers:
            payload = _block(headers) + body
            if delay:
                yield command_writer.publish_with_headers(_checked(topic), payload, delay)
            else:
                with_headers.setdefault(topic, []).append(payload)
        elif delay:
            yield command_writer.publish_deferred(_checked(topic), body, delay)
        else:
            by_topic.setdefault(topic, []).append(body)
    for found, write in (
        (by_topic, command_writer.publish_many),
        (with_headers, command_writer.publish_many_with_headers),
    ):
        for topic, of_topic in found.items():
            for packet in split_into_mpubs(of_topic, options.mpub_messages, options.mpub_bytes):
                yield write(_checked(topic), packet)


def _block(headers: Sequence[tuple[str, str | None]]) -> bytes:
    pairs = [(name, value) for name, value in headers if value is not None]
    if len(pairs) < len(headers):
        raise CannotPublish("a row has a header without a value: filter such headers before they are written")
    try:
        return encode(pairs)
    except HeaderError as error:
        raise CannotPublish(f"a row has headers that no message can have: {error}") from None


def split_into_mpubs(bodies: Iterable[bytes], max_messages: int, max_bytes: int) -> Iterator[list[bytes]]:
    """Split bodies into lists of at most `max_messages` and `max_bytes` on the wire; a larger body is alone."""
    packet: list[bytes] = []
    size = 0
    for body in bodies:
        if packet and (len(packet) == max_messages or size + len(body) + 4 > max_bytes):
            yield packet
            packet, size = [], 0
        packet.append(body)
        size += len(body) + 4
    if packet:
        yield packet


def _checked(topic: str) -> str:
    if not is_valid_name(topic):
        raise CannotPublish(f"{topic!r} is not a valid topic name: set the option topic, or correct the column topic")
    return topic
