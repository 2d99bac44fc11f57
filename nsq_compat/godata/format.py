"""The disk queues of Go's nsqd: file names, positions, and messages as frames.

A queue is named ``topic`` or ``topic:channel``. It has numbered data files and one file of positions:

    orders:archive.diskqueue.000007.dat       records, one after the other
    orders:archive.diskqueue.meta.dat         "3\\n7,0\\n7,93\\n": depth; file and offset of reading; of writing
    orders:archive.diskqueue.000006.dat.bad   set aside by Go's nsqd after an error; no longer part of the queue

Go's nsqd writes the positions every two seconds or 2500 messages, so after a crash they are out of date. The attempts
of a record are the deliveries *so far*; those of a frame include the delivery that the frame is for.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from nsq_compat.protocol import message, storage_schema
from nsq_compat.protocol.frames import FRAME_TYPE_MESSAGE
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.names import is_valid_name

RECORD_HEADER = derive(storage_schema.GO_RECORD_HEADER)
SIZE_FIELD: int = RECORD_HEADER.slices["size"].stop
SMALLEST_RECORD = RECORD_HEADER.size - SIZE_FIELD
"""The smallest valid value of a record's size field: that of a message without a body."""

_ATTEMPTS_MODULUS = 1 << 16
_FRAME_OVERHEAD = message.HEADER_SIZE - 4  # a frame's size field does not count itself
_file = re.compile(r"(.+)\.diskqueue\.(?:meta\.dat|(\d{6}|[1-9]\d{6,17})\.dat(\.bad)?)", re.DOTALL).fullmatch
_positions = re.compile(r"(-?\d{1,19})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n?", re.ASCII).fullmatch


class GoMessage(NamedTuple):
    """A message in a disk queue. `attempts` counts the deliveries so far, `id` has 16 bytes."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Positions(NamedTuple):
    """The positions of a queue; `depth` is the number of messages between them, according to Go's nsqd."""

    depth: int
    read_file: int
    read_offset: int
    write_file: int
    write_offset: int

    def encode(self) -> bytes:
        text = f"{self.depth}\n{self.read_file},{self.read_offset}\n{self.write_file},{self.write_offset}\n"
        return text.encode("ascii")


def decode_positions(data: bytes) -> Positions | None:
    """Decode a file of positions; None if it is invalid."""
    match = _positions(data.decode("latin-1"))
    return Positions(*map(int, match.groups())) if match else None


@dataclass(slots=True)
class QueueFiles:
    """The files of one queue in a folder. The keys of `data` and `bad` are the numbers in the file names."""

    name: str
    positions: str | None = None
    data: dict[int, str] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)

    @property
    def owner(self) -> tuple[str, str | None] | None:
        """Topic and channel (None: the topic's own queue); None if the name is not that of a queue of nsqd."""
        topic, colon, channel = self.name.partition(":")
        if not is_valid_name(topic) or (colon and not is_valid_name(channel)):
            return None
        return topic, channel if colon else None

    @property
    def live(self) -> list[str]:
        """The files that are part of the queue: positions first, then data files in order."""
        return ([] if self.positions is None else [self.positions]) + [self.data[n] for n in sorted(self.data)]


def queues_among(names: Iterable[str]) -> dict[str, QueueFiles]:
    """The queues among the file names of a folder, by queue name and sorted; other files are ignored."""
    found: dict[str, QueueFiles] = {}
    for name in names:
        if match := _file(name):
            queue = found.setdefault(match[1], QueueFiles(match[1]))
            if match[2] is None:
                queue.positions = name
            else:
                (queue.bad if match[3] else queue.data)[int(match[2])] = name
    return dict(sorted(found.items()))


def queue_name(topic: str, channel: str | None) -> str:
    return topic if channel is None else f"{topic}:{channel}"


def positions_name(queue: str) -> str:
    return f"{queue}.diskqueue.meta.dat"


def data_name(queue: str, number: int) -> str:
    return f"{queue}.diskqueue.{number:06d}.dat"


def encode_record(stored: GoMessage) -> bytes:
    size = SMALLEST_RECORD + len(stored.body)
    return RECORD_HEADER.pack(size, stored.timestamp_ns, stored.attempts, stored.id) + stored.body


def frame_of(stored: GoMessage) -> bytes:
    """The frame of a message's next delivery."""
    # nsqd: attempts has 16 bits and wraps around.
    attempts = (stored.attempts + 1) % _ATTEMPTS_MODULUS
    size = _FRAME_OVERHEAD + len(stored.body)
    return message.HEADER.pack(size, FRAME_TYPE_MESSAGE, stored.timestamp_ns, attempts, stored.id) + stored.body


def message_of(frame: bytes) -> GoMessage:
    """The stored message that Go's nsqd delivers as `frame`."""
    attempts = (message.attempts(frame) - 1) % _ATTEMPTS_MODULUS
    return GoMessage(message.timestamp_ns(frame), attempts, message.message_id(frame), message.body(frame))
