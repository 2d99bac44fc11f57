"""Messages as Arrow: how they lie in the spool, and how Spark gets them.

In the spool a message has what differs from message to message. Where it came from is the same for a whole file and
stands once, in the schema's metadata. `columns` puts both together into the columns a query asks for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from nsq_compat.protocol.frame_reader import Message

SPARK_SCHEMA: Final = (
    "id string, body binary, timestamp timestamp, attempts int, topic string, channel string, nsqd string"
)
"""What a reader has unless the user says ``.schema(...)``: any of these, and `timestamp_ns bigint`."""

SPOOLED: Final = pa.schema(
    [("id", pa.string()), ("body", pa.binary()), ("timestamp_ns", pa.int64()), ("attempts", pa.int32())]
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where messages came from. An id is unique only together with its nsqd and topic."""

    topic: str
    channel: str
    nsqd: str


def to_batch(origin: Origin, messages: Sequence[Message]) -> pa.RecordBatch:
    """The messages as they go into the spool."""
    # Hot: runs for every message. Whole columns, no object for a row.
    columns = [
        pa.array([message.id for message in messages], pa.binary()).cast(pa.string()),
        pa.array([message.body for message in messages], pa.binary()),
        pa.array([message.timestamp_ns for message in messages], pa.int64()),
        pa.array([message.attempts for message in messages], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SPOOLED.with_metadata(asdict(origin)))


def origin_of(batch: pa.RecordBatch) -> Origin:
    metadata = {key.decode(): value.decode() for key, value in batch.schema.metadata.items()}
    return Origin(metadata["topic"], metadata["channel"], metadata["nsqd"])


def columns(batch: pa.RecordBatch, wanted: Iterable[str]) -> pa.RecordBatch:
    """The columns Spark was promised, in its types."""
    return pa.RecordBatch.from_arrays([_column(batch, name) for name in wanted], names=list(wanted))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in SPOOLED.names:
        return batch.column(name)
    if name == "timestamp":
        microseconds = pc.divide(batch.column("timestamp_ns"), pa.scalar(1000, pa.int64()))
        return microseconds.cast(pa.timestamp("us", tz="UTC"))
    return pa.repeat(getattr(origin_of(batch), name), batch.num_rows)
