"""What a mirrored nsqd sends to its standby, and the standby's answers.

Changes of files are in the bodies of ``MIRROR changes`` commands. A standby that applies every change in order has the
files that the primary had at that moment.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import construct as cs

from nsq_compat.protocol.layout import derive, pack_size, sized

WRITE: Final = 1
"""Write `data` at `offset`. The file is created if need be."""
ZEROS: Final = 2
"""The file has at least `offset` bytes; those that are new are zeros."""
TRUNCATE: Final = 3
"""The file has `offset` bytes."""
RENAME: Final = 4
"""`data` is the new path."""
REMOVE: Final = 5
"""Delete a file."""
MAKE_FOLDER: Final = 6
REMOVE_FOLDER: Final = 7
"""Delete a folder with its files."""

CHANGE_HEADER: Final = cs.Struct(
    "kind" / cs.Int8ub,
    "path_size" / cs.Int16ub,
    "offset" / cs.Int64ub,
    "size" / cs.Int32ub,
)
CHANGE: Final = cs.Struct(
    *CHANGE_HEADER.subcons,
    "path" / cs.Bytes(cs.this.path_size),
    "data" / cs.Bytes(cs.this.size),
)
"""`path` is relative to the data path, with slashes."""

_HEADER: Final = derive(CHANGE_HEADER)
_NO_DATA: Final = b""
_CHANGES: Final = b"MIRROR changes\n"


class Change(NamedTuple):
    """A change of one file or folder, in the fields of ``CHANGE``."""

    kind: int
    path: str
    offset: int = 0
    data: bytes = _NO_DATA

    def encode(self) -> bytes:
        path = self.path.encode("utf-8")
        return _HEADER.pack(self.kind, len(path), self.offset, len(self.data)) + path + self.data


def decode_changes(body: bytes) -> Iterator[Change]:
    """The changes in a body. Raises ``ValueError`` where the body ends in the middle of one."""
    at, end = 0, len(body)
    while at < end:
        if at + _HEADER.size > end:
            raise ValueError("a change is not complete")
        kind, path_size, offset, size = _HEADER.unpack_from(body, at)
        path_begin = at + _HEADER.size
        data_begin = path_begin + path_size
        at = data_begin + size
        if at > end:
            raise ValueError("a change is not complete")
        yield Change(kind, body[path_begin:data_begin].decode("utf-8"), offset, body[data_begin:at])


def encode_changes(changes: Sequence[Change]) -> list[bytes]:
    """A MIRROR command with these changes, in pieces, because joining them is a copy."""
    # Hot: runs for every group of publishes.
    pieces: list[bytes] = [b""]
    size = 0
    for kind, path, offset, data in changes:
        encoded = path.encode("utf-8")
        head = _HEADER.pack(kind, len(encoded), offset, len(data)) + encoded
        pieces.append(head)
        pieces.append(data)
        size += len(head) + len(data)
    pieces[0] = _CHANGES + pack_size(size)
    return pieces


def command(verb: str, body: bytes = b"{}") -> bytes:
    """A MIRROR command; nsqd answers each."""
    return f"MIRROR {verb}\n".encode() + sized(body)


# --- Answers of a standby; all raise ``ValueError`` for anything else -------------------------------------------------


def object_in(answer: bytes) -> dict[str, Any]:
    """The JSON object that an answer is."""
    value = _value_of(answer)
    if not isinstance(value, dict):
        raise ValueError("the standby's answer is not an object")
    return value


def sizes_in(answer: bytes) -> dict[str, dict[str, int]]:
    """The sizes of the files of a copy, by unit and path."""
    found = object_in(answer)
    for unit, sizes in found.items():
        if not isinstance(sizes, dict) or not _are_integers(sizes.values()):
            raise ValueError(f"the standby's answer has no sizes of files for {unit!r}")
    return found


def sums_in(answer: bytes) -> list[int]:
    """The sums of the chunks of a file."""
    sums = _value_of(answer)
    if not isinstance(sums, list) or not _are_integers(sums):
        raise ValueError("the standby's answer is not a list of sums")
    return sums


def ends_in(answer: bytes) -> dict[str, tuple[int, int, int]]:
    """By topic, the number of a log file, where its groups end, and its salt."""
    found = object_in(answer)
    for topic, end in found.items():
        if not isinstance(end, list) or len(end) != 3 or not _are_integers(end):
            raise ValueError(f"the standby's answer has no end of a log for {topic!r}")
    return {topic: (end[0], end[1], end[2]) for topic, end in found.items()}


def _value_of(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except RecursionError:
        raise ValueError("the standby's answer is nested too deeply") from None


def _are_integers(values: Iterable[object]) -> bool:
    return all(type(each) is int for each in values)
