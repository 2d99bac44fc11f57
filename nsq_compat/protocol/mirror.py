"""What a mirrored nsqd sends to its standby: changes of files, in the bodies of ``MIRROR changes`` commands.

A standby that applies every change in order has the files that the primary had at that moment.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

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
