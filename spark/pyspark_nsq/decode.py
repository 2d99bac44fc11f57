"""Frames to Arrow and FIN, by the thousand: whole columns are cut out of what the socket gave, no object is made for a
message. What that buys: benchmarks/RESULTS-spark.md.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nsq_compat.protocol import command_writer, schema
from nsq_compat.protocol.layout import derive
from pyspark_nsq.rows import SPOOLED

_HEADER: Final = derive(schema.MESSAGE_FRAME_HEADER)
_ID: Final = _HEADER.slices["id"]
_ID_SIZE: Final = _ID.stop - _ID.start
_HEADERS: Final = np.dtype(
    {
        "names": ["timestamp_ns", "attempts"],
        "formats": [">i8", ">u2"],
        "offsets": [_HEADER.offset("timestamp_ns"), _HEADER.offset("attempts")],
        "itemsize": _HEADER.size,
    }
)
_FIN: Final = np.frombuffer(command_writer.finish([bytes(_ID_SIZE)]), np.uint8)
_FIN_ID: Final = slice(_FIN.tobytes().index(bytes(_ID_SIZE)), _FIN.tobytes().index(bytes(_ID_SIZE)) + _ID_SIZE)

Bytes = npt.NDArray[np.uint8]


class NotText(ValueError):
    """Ids that are no text: what sent them is no nsqd."""


def decode(data: bytes, starts: Sequence[int]) -> pa.RecordBatch:
    """The messages in the frames ``data[starts[i] : starts[i + 1]]`` (one at least, each with a whole header) as
    columns of the spool. Raises ``NotText``."""
    places = np.array(starts, np.int64)
    begins = places[:-1]
    headers = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), _HEADER.size)[begins]
    fields = headers.view(_HEADERS)[:, 0]
    columns = [
        _ids(headers[:, _ID]),
        _bodies(data, places),
        pa.array(fields["timestamp_ns"].astype(np.int64)),
        pa.array(fields["attempts"].astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SPOOLED)


def finish(ids: pa.Array) -> bytes:
    """A FIN for each of these ids, as ``decode`` gave them."""
    commands = np.repeat(_FIN[np.newaxis], len(ids), axis=0)
    if len(ids):
        text = np.frombuffer(ids.buffers()[2], np.uint8)[ids.offset * _ID_SIZE : (ids.offset + len(ids)) * _ID_SIZE]
        commands[:, _FIN_ID] = text.reshape(-1, _ID_SIZE)
    return commands.tobytes()


def _ids(rows: Bytes) -> pa.Array:
    if rows.max() > 0x7F:
        raise NotText("an id is no text")
    offsets = np.arange(0, rows.size + 1, _ID_SIZE, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


def _bodies(data: bytes, places: npt.NDArray[np.int64]) -> pa.Array:
    # To Arrow the bytes are header, body, header, body; every second of these is taken.
    count = len(places) - 1
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[::2] = places
    offsets[1::2] = places[:-1] + _HEADER.size
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))
