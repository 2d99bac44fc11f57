"""The files of Go nsqd's disk queues: their names, their positions, and their messages as our frames.

A queue is named ``topic`` or ``topic:channel`` and consists of numbered data files and one file of positions:

    orders:archive.diskqueue.000007.dat       records, one behind the other
    orders:archive.diskqueue.meta.dat         "3\\n7,0\\n7,93\\n": depth; file and offset of reading; of writing
    orders:archive.diskqueue.000006.dat.bad   set aside by Go after an error; no part of the queue any more

Go writes the positions every two seconds or 2500 messages, so after a crash they are out of date. A message on disk
counts the deliveries *so far*, our frames the delivery they are *meant for*: one more.
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
"""The least a record's size field may say: a message without a body."""

_ATTEMPTS_LIMIT = 1 << 16
_FRAME_EXTRA = message.HEADER_SIZE - 4  # what a frame's size field counts besides the body
_data_file = re.compile(r"(.+)\.diskqueue\.(\d{6}|[1-9]\d{6,17})\.dat", re.DOTALL).fullmatch
_positions_file = re.compile(r"(.+)\.diskqueue\.meta\.dat", re.DOTALL).fullmatch
_bad_file = re.compile(r"(.+)\.diskqueue\.(\d{6}|[1-9]\d{6,17})\.dat\.bad", re.DOTALL).fullmatch
_positions = re.compile(r"(-?\d{1,19})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n?", re.ASCII).fullmatch


class GoMessage(NamedTuple):
    """A message as Go keeps it on disk. `attempts` counts the deliveries so far, `id` has 16 bytes."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Positions(NamedTuple):
    """Where a queue is read and written next; `depth` is what Go believed to be in between."""

    depth: int
    read_file: int
    read_offset: int
    write_file: int
    write_offset: int

    def encode(self) -> bytes:
        """The content of the file of positions."""
        return f"{self.depth}\n{self.read_file},{self.read_offset}\n{self.write_file},{self.write_offset}\n".encode(
            "ascii"
        )


def decode_positions(data: bytes) -> Positions | None:
    """The positions in a file's content; None when it holds anything else."""
    match = _positions(data.decode("latin-1"))
    return Positions(*map(int, match.groups())) if match else None


@dataclass(slots=True)
class QueueFiles:
    """Which files of one queue a folder holds. The keys of `data` and `bad` are the numbers in the names."""

    name: str
    positions: str | None = None
    data: dict[int, str] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)

    @property
    def owner(self) -> tuple[str, str | None] | None:
        """Topic and, for the queue of a channel, channel; None when the name is not that of a queue of nsqd's."""
        topic, colon, channel = self.name.partition(":")
        if not is_valid_name(topic) or (colon and not is_valid_name(channel)):
            return None
        return topic, channel if colon else None

    @property
    def live(self) -> list[str]:
        """The files that are still part of the queue: positions first, then the data in order."""
        return ([] if self.positions is None else [self.positions]) + [self.data[n] for n in sorted(self.data)]


def queues_among(names: Iterable[str]) -> dict[str, QueueFiles]:
    """The queues that the files of a folder belong to, by name and sorted; other files are left out."""
    found: dict[str, QueueFiles] = {}
    for name in names:
        if match := _data_file(name):
            found.setdefault(match[1], QueueFiles(match[1])).data[int(match[2])] = name
        elif match := _positions_file(name):
            found.setdefault(match[1], QueueFiles(match[1])).positions = name
        elif match := _bad_file(name):
            found.setdefault(match[1], QueueFiles(match[1])).bad[int(match[2])] = name
    return dict(sorted(found.items()))


def queue_name(topic: str, channel: str | None) -> str:
    """What Go calls the queue of a topic or of one of its channels."""
    return topic if channel is None else f"{topic}:{channel}"


def positions_name(queue: str) -> str:
    """The name of a queue's file of positions."""
    return f"{queue}.diskqueue.meta.dat"


def data_name(queue: str, number: int) -> str:
    """The name of a queue's data file of that number."""
    return f"{queue}.diskqueue.{number:06d}.dat"


def encode_record(stored: GoMessage) -> bytes:
    """The record of a message in a data file."""
    size = SMALLEST_RECORD + len(stored.body)
    header = RECORD_HEADER.pack(size, stored.timestamp_ns, stored.attempts, stored.id)
    return header + stored.body


def frame_of(stored: GoMessage) -> bytes:
    """The frame of a message's next delivery."""
    # nsqd: the number is 16 bits wide and wraps around.
    attempts = (stored.attempts + 1) % _ATTEMPTS_LIMIT
    size = _FRAME_EXTRA + len(stored.body)
    return message.HEADER.pack(size, FRAME_TYPE_MESSAGE, stored.timestamp_ns, attempts, stored.id) + stored.body


def message_of(frame: bytes) -> GoMessage:
    """The message on disk that Go will deliver as `frame`."""
    attempts = (message.attempts(frame) - 1) % _ATTEMPTS_LIMIT
    return GoMessage(message.timestamp_ns(frame), attempts, message.message_id(frame), message.body(frame))
