"""Messages as Arrow record batches: their form in the spool, and the columns that Spark gets.

In the spool, topic, channel and nsqd are the same for a whole file and stand in the schema's metadata; the other fields
are columns. `columns` combines both into the columns of a query.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

SPARK_SCHEMA: Final = (
    "id string, body binary, timestamp timestamp, attempts int, topic string, channel string, nsqd string, "
    "offset bigint, partition string"
)
"""The default schema of a reader. ``.schema(...)`` may select from these and `OPTIONAL_COLUMNS`.

`channel` is null in mode=log, `offset` and `partition` in mode=spool.
"""

HEADERS: Final = "headers"
OPTIONAL_COLUMNS: Final = f"timestamp_ns bigint, {HEADERS} map<string,string>"
HEADERS_TYPE: Final = pa.map_(pa.string(), pa.string())

SPOOLED: Final = pa.schema(
    [("id", pa.string()), ("body", pa.binary()), ("timestamp_ns", pa.int64()), ("attempts", pa.int32())]
)

_NS_PER_US: Final = pa.scalar(1000, pa.int64())


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of messages. An id is unique only together with its nsqd and topic."""

    topic: str
    channel: str
    nsqd: str


def spooled(origin: Origin, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the origin to messages, for the spool."""
    return batch.replace_schema_metadata(_metadata(origin))


@functools.cache
def _metadata(origin: Origin) -> dict[str, str]:
    return asdict(origin)


def origin_of(batch: pa.RecordBatch) -> Origin:
    metadata = {key.decode(): value.decode() for key, value in batch.schema.metadata.items()}
    return Origin(metadata["topic"], metadata["channel"], metadata["nsqd"])


def columns(batch: pa.RecordBatch, wanted: Iterable[str]) -> pa.RecordBatch:
    """Convert spooled messages to the wanted columns, in Spark's types."""
    return _columns(batch, wanted, asdict(origin_of(batch)))


def log_columns(
    batch: pa.RecordBatch, offsets: pa.Array, wanted: Iterable[str], topic: str, nsqd: str, partition: str
) -> pa.RecordBatch:
    """As `columns`, for messages that were read by offset, from the nsqd with these TCP and HTTP addresses."""
    return _columns(
        batch.append_column("offset", offsets), wanted, {"topic": topic, "nsqd": nsqd, "partition": partition}
    )


def _columns(batch: pa.RecordBatch, wanted: Iterable[str], same: Mapping[str, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_column(batch, name, same) for name in wanted], names=list(wanted))


def _column(batch: pa.RecordBatch, name: str, same: Mapping[str, str]) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    if name == "timestamp":
        return pc.divide(batch.column("timestamp_ns"), _NS_PER_US).view(pa.timestamp("us", tz="UTC"))
    if name == HEADERS:
        return pa.nulls(batch.num_rows, HEADERS_TYPE)
    if name == "offset":
        return pa.nulls(batch.num_rows, pa.int64())
    # With an explicit type: otherwise pyarrow tries to import pandas at every call.
    return pa.repeat(pa.scalar(same.get(name), pa.string()), batch.num_rows)
