"""Fast codecs derived from declarations: a ``construct.Struct`` of fixed size becomes a ``struct.Struct`` and slices.

Parsing with construct takes tens of microseconds, with the derived codec a fraction of one. A declaration that cannot
be translated exactly is refused when the module that uses it is imported.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import construct

from nsq_compat.protocol import schema


@dataclass(frozen=True, slots=True)
class Layout:
    """The codec of a declaration.

    ``pack(*values)`` takes and ``unpack_from(buffer, offset=0)`` returns the fields in declared order, without
    constants, which ``pack`` writes and ``unpack_from`` checks (``ValueError``). Both raise ``struct.error`` for
    numbers that do not fit and buffers that are too short. ``pack`` pads or truncates a bytes field of the wrong length
    silently. ``slices`` has the position of every field, constants included.
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
    """The codec of a struct of named big-endian numbers, ``Bytes(n)`` and constants of these.

    Raises ``TypeError``, naming the field, for anything else.
    """
    if not isinstance(declaration, construct.Struct):
        raise TypeError(f"only a construct.Struct has a layout, not {declaration!r}")
    formats: list[str] = []
    slices: dict[str, slice] = {}
    constants: dict[int, Any] = {}
    position = 0
    for index, member in enumerate(declaration.subcons):
        name, field, constant = _describe(member)
        if constant is not None:
            constants[index] = constant
        code, length = _format_of(name, field)
        if code.endswith("s") and isinstance(constant, bytes) and len(constant) != length:
            raise TypeError(f"the constant {name!r} has {len(constant)} bytes, not {length}")
        formats.append(code)
        slices[name] = slice(position, position + length)
        position += length
    codec = struct.Struct(">" + "".join(formats))
    pack, unpack_from = codec.pack, codec.unpack_from
    if constants:
        pack, unpack_from = _with_constants(codec, constants)
    return Layout(codec.size, pack, unpack_from, MappingProxyType(slices))


def _describe(member: construct.Construct) -> tuple[str, construct.Construct, Any]:
    """A member's name, its unwrapped field, and its constant, if it is one."""
    if not isinstance(member, construct.Renamed) or not member.name:
        raise TypeError(f"a field without a name cannot be located: {member!r}")
    name, field = member.name, member.subcon
    if isinstance(field, construct.Const):
        return name, field.subcon, field.value
    return name, field, None


def _format_of(name: str, field: construct.Construct) -> tuple[str, int]:
    """The ``struct`` code of a field and its length in bytes."""
    if isinstance(field, construct.FormatField) and field.fmtstr.startswith(">"):
        return field.fmtstr[1:], field.length
    if isinstance(field, construct.Bytes) and isinstance(field.length, int):
        return f"{field.length}s", field.length
    raise TypeError(f"no fixed-size big-endian layout for field {name!r}: {field!r}")


def _with_constants(
    codec: struct.Struct, constants: Mapping[int, Any]
) -> tuple[Callable[..., bytes], Callable[..., tuple[Any, ...]]]:
    def pack(*values: Any) -> bytes:
        remaining = list(values)
        for index, constant in constants.items():
            remaining.insert(index, constant)
        return codec.pack(*remaining)

    def unpack_from(buffer: bytes, offset: int = 0) -> tuple[Any, ...]:
        values = codec.unpack_from(buffer, offset)
        for index, constant in constants.items():
            if values[index] != constant:
                raise ValueError(f"expected the constant {constant!r}, found {values[index]!r}")
        return tuple(value for index, value in enumerate(values) if index not in constants)

    return pack, unpack_from


# --- Sizes ------------------------------------------------------------------------------------------------------------

_SIZE: Final = derive(schema.SIZE)
_BATCH_HEADER: Final = derive(schema.MPUB_HEADER)

SIZE_OF_SIZE: Final[int] = _SIZE.size
"""Bytes of a size field, and of the count of messages in an MPUB."""

pack_size: Final = _SIZE.pack
read_size: Final = _SIZE.unpack_from
"""Returns a tuple of one."""

read_batch_header: Final = _BATCH_HEADER.unpack_from
"""Returns the size of an MPUB's body, its count of messages, and the size of the first message."""
