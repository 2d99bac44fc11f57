"""The number in front of every body, frame and batch: its codec, derived from ``schema.SIZE``."""

from typing import Final

from nsq_compat.protocol import schema
from nsq_compat.protocol.layout import derive

_SIZE: Final = derive(schema.SIZE)
_BATCH_HEADER: Final = derive(schema.MPUB_HEADER)

SIZE_OF_SIZE: Final[int] = _SIZE.size
"""Bytes of a size, and of a count of messages."""

pack_size: Final = _SIZE.pack
read_size: Final = _SIZE.unpack_from
"""A tuple of one."""

read_batch_header: Final = _BATCH_HEADER.unpack_from
"""The size of an MPUB's body, its count of messages, and the size of the first one."""
