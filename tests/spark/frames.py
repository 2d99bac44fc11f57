"""Messages as nsqd sends them, and as columns of the spool."""

from collections.abc import Iterable
from itertools import accumulate

import pyarrow as pa

from nsq_compat.protocol import schema
from nsq_compat.protocol.frames import Message
from nsq_compat.session.client_session import ReceivedFrames
from pyspark_nsq.decode import decode
from pyspark_nsq.rows import Origin, spooled


def frames_of(messages: Iterable[Message]) -> tuple[bytes, list[int]]:
    """The frames, and where each begins and the last ends."""
    frames = [schema.MESSAGE_FRAME.build(message._asdict()) for message in messages]
    return b"".join(frames), [0, *accumulate(map(len, frames))]


def batch_of(origin: Origin, *messages: Message) -> pa.RecordBatch:
    """As a task puts them into the spool."""
    return spooled(origin, decode([ReceivedFrames(*frames_of(messages))]))
