"""Fast codecs derived from declarations: a ``construct.Struct`` of fixed size becomes a ``struct.Struct`` and slices.

Parsing with construct takes tens of microseconds, with the derived codec a fraction of one. A declaration that cannot
be translated exactly is refused when the module that uses it is imported.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import construct

from nsq_compat.protocol import schema


@dataclass(frozen=True, slots=True)
class Layout:
    """The codec of a declaration.

    ``pack(*values)`` takes and ``unpack_from(buffer, offset=0)`` returns the fields in declared order. Both raise
    ``struct.error`` for numbers that do not fit and buffers that are too short. ``pack`` pads or truncates a bytes
    field of the wrong length silently. ``slices`` has the position of every field.
    """

    size: int
    pack: Callable[..., bytes]
    unpack_from: Callable[..., tuple[Any, ...]]
    slices: Mapping[str, slice]

    def offset(self, name: str) -> int:
        """A field's position, in bytes."""
        begin: int = self.slices[name].start
        return begin


def derive(declaration: construct.Struct) -> Layout:
    """The codec of a struct of named big-endian numbers and ``Bytes(n)``. Raises ``TypeError`` for anything else."""
    if not isinstance(declaration, construct.Struct):
        raise TypeError(f"only a construct.Struct has a layout, not {declaration!r}")
    formats: list[str] = []
    slices: dict[str, slice] = {}
    position = 0
    for member in declaration.subcons:
        if not isinstance(member, construct.Renamed) or not member.name:
            raise TypeError(f"a field without a name cannot be located: {member!r}")
        field = member.subcon
        if isinstance(field, construct.FormatField) and field.fmtstr.startswith(">"):
            formats.append(field.fmtstr[1:])
        elif isinstance(field, construct.Bytes) and isinstance(field.length, int):
            formats.append(f"{field.length}s")
        else:
            raise TypeError(f"no fixed-size big-endian layout for field {member.name!r}: {field!r}")
        slices[member.name] = slice(position, position + field.length)
        position += field.length
    codec = struct.Struct(">" + "".join(formats))
    return Layout(codec.size, codec.pack, codec.unpack_from, slices)


# --- Sizes ------------------------------------------------------------------------------------------------------------

_SIZE: Final = derive(schema.SIZE)

SIZE_OF_SIZE: Final[int] = _SIZE.size
"""Bytes of a size field, and of the count of messages in an MPUB."""

pack_size: Final = _SIZE.pack
read_size: Final = _SIZE.unpack_from
"""Returns a tuple of one."""


def sized(body: bytes) -> bytes:
    """A body after its size: ``schema.SIZED_BODY``."""
    return pack_size(len(body)) + body


read_batch_header: Final = derive(schema.MPUB_HEADER).unpack_from
"""Returns the size of an MPUB's body, its count of messages, and the size of the first message."""


# --- Received bytes ---------------------------------------------------------------------------------------------------


class ReceiveBuffer:
    """Received bytes that a reader cannot use yet.

    The reader reads `data` from `position`, which it advances. Later pieces are kept apart until there are `needed`
    unread bytes in total, so that a body of a megabyte that arrives in a thousand reads is copied once.
    """

    def __init__(self, needed: int) -> None:
        self.data = b""
        self.position = 0
        self.needed = needed
        self._later: list[bytes] = []
        self._later_size = 0

    def append(self, data: bytes) -> bool:
        """Add received bytes. True if the reader has enough to continue."""
        self._later.append(data)
        self._later_size += len(data)
        return len(self.data) - self.position + self._later_size >= self.needed

    @property
    def is_empty(self) -> bool:
        return self.position == len(self.data) and not self._later

    def gather(self) -> bytes:
        """Join everything unread into `data`, with `position` 0."""
        rest = self.data[self.position :] if self.position else self.data
        if self._later:
            # After everything was read, a single new piece needs no copy.
            rest = b"".join([rest, *self._later]) if rest or len(self._later) > 1 else self._later[0]
            self._later = []
            self._later_size = 0
        self.data = rest
        self.position = 0
        return rest

    def pieces(self, header_size: int, size_of: Callable[[bytes, int], int]) -> Iterator[bytes]:
        """The complete pieces, each with its header. `size_of` is given data and the position of a piece in it."""
        data, position = self.gather(), 0
        self.needed = header_size
        while position + header_size <= len(data):
            size = size_of(data, position)
            if position + size > len(data):
                self.needed = size
                break
            self.position = position + size
            yield data[position : position + size]
            position += size
        self.gather()

    def hand_back(self) -> bytes:
        """Remove and return everything unread."""
        rest = self.gather()
        self.data = b""
        return rest
