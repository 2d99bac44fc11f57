"""Messages as frames of nsqd and as columns of the spool."""

from collections.abc import Iterable
from itertools import accumulate

import pyarrow as pa

from nsq_compat.protocol import schema
from nsq_compat.protocol.frames import Message
from nsq_compat.session.client_session import ReceivedFrames
from pyspark_nsq.decode import decode
from pyspark_nsq.rows import Origin, spooled
from pyspark_nsq.spool import Partition, Piece


def frames_of(messages: Iterable[Message]) -> tuple[bytes, list[int]]:
    """The frames, and the offsets where each begins and the last one ends."""
    frames = [_frame_of(message) for message in messages]
    return b"".join(frames), [0, *accumulate(map(len, frames))]


def _frame_of(message: Message) -> bytes:
    fields = message._asdict()
    headers = [{"name": name.encode(), "value": value.encode()} for name, value in message.headers.items()]
    fields["payload"] = {"headers": headers, "body": message.body}
    layout = schema.MESSAGE_FRAME_WITH_HEADERS if headers else schema.MESSAGE_FRAME
    return bytes(layout.build(fields))


def batch_of(origin: Origin, *messages: Message) -> pa.RecordBatch:
    """Messages as a task spools them."""
    return spooled(origin, decode([ReceivedFrames(*frames_of(messages))]))


def bodies_of(partition: Partition, pieces: list[Piece]) -> list[bytes]:
    return [body for batch in partition.read(pieces) for body in batch.column("body").to_pylist()]
