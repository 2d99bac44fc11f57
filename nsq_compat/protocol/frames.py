"""The frames nsqd sends that are not messages: responses and errors. Message frames are made in ``message``.

A frame is immutable bytes in wire form, size field included, ready to be joined with others and sent.
"""

from typing import Final

from nsq_compat.protocol import schema
from nsq_compat.protocol.layout import derive

FRAME_TYPE_RESPONSE: Final = 0
FRAME_TYPE_ERROR: Final = 1
FRAME_TYPE_MESSAGE: Final = 2

FRAME_HEADER: Final = derive(schema.FRAME_HEADER)

_pack_header = FRAME_HEADER.pack
_TYPE_SIZE: Final = FRAME_HEADER.size - FRAME_HEADER.offset("type")  # what the size field counts besides the data


def response_frame(data: bytes) -> bytes:
    """A response in wire form: ``OK``, ``CLOSE_WAIT``, ``_heartbeat_`` or a JSON object."""
    return _pack_header(_TYPE_SIZE + len(data), FRAME_TYPE_RESPONSE) + data


def error_frame(data: bytes) -> bytes:
    """An error in wire form; ``data`` is what ``NsqError.data`` gives."""
    return _pack_header(_TYPE_SIZE + len(data), FRAME_TYPE_ERROR) + data


OK: Final = response_frame(b"OK")
HEARTBEAT: Final = response_frame(b"_heartbeat_")
CLOSE_WAIT: Final = response_frame(b"CLOSE_WAIT")
