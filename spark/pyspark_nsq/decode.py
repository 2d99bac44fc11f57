"""Conversion of message frames to Arrow columns and FIN commands, without creating an object per message.

Columns are copied out of the received bytes. benchmarks/RESULTS-spark.md has the gain.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nsq_compat.protocol import command_writer, schema
from nsq_compat.protocol.frames import FRAME_TYPE_MESSAGE_WITH_HEADERS
from nsq_compat.protocol.headers import HeaderError, body_begin
from nsq_compat.protocol.headers import decode as decode_headers
from nsq_compat.protocol.layout import derive
from nsq_compat.session.client_session import ReceivedFrames
from pyspark_nsq.rows import HEADERS, HEADERS_TYPE, SPOOLED

_HEADER: Final = derive(schema.MESSAGE_FRAME_HEADER)
_ID: Final = _HEADER.slices["id"]
_ID_SIZE: Final = _ID.stop - _ID.start
_MIN_PAYLOAD: Final = 2
"""The size of the header block, with headers."""
_TYPE_END: Final = _HEADER.slices["type"].stop
_FIELDS: Final = np.dtype(
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
Numbers = npt.NDArray[np.int64]


class InvalidMessage(ValueError):
    """A message id is not ASCII, or the headers of a message are not valid."""


def decode(blocks: Sequence[ReceivedFrames]) -> pa.RecordBatch:
    """Convert at least one block, and less than 2 GiB in all, to columns of the spool.

    Raises ``InvalidMessage``. A column of headers is there if a message has some.
    """
    sizes = {block.starts.step if isinstance(block.starts, range) else None for block in blocks}
    size = sizes.pop() if len(sizes) == 1 else None
    rows, bodies, headers = _split_frames(blocks) if size is None else (*_split_uniform(blocks, size), None)
    fields = rows.view(_FIELDS)[:, 0]
    columns = [
        _ids(rows[:, _ID]),
        bodies,
        _array(pa.int64(), fields["timestamp_ns"].astype(np.int64)),
        _array(pa.int32(), fields["attempts"].astype(np.int32)),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SPOOLED)
    return batch if headers is None else batch.append_column(HEADERS, headers)


def finish(ids: pa.Array) -> bytes:
    """Encode a FIN for each of these ids, which ``decode`` has returned."""
    commands = np.repeat(_FIN[np.newaxis], len(ids), axis=0)
    if len(ids):
        text = np.frombuffer(ids.buffers()[2], np.uint8)[ids.offset * _ID_SIZE : (ids.offset + len(ids)) * _ID_SIZE]
        commands[:, _FIN_ID] = text.reshape(-1, _ID_SIZE)
    return commands.tobytes()


def _ids(rows: Bytes) -> pa.Array:
    if rows.max() > 0x7F:
        raise InvalidMessage("a message id is not ASCII")
    return _array(pa.string(), np.arange(0, rows.size + 1, _ID_SIZE, dtype=np.int32), rows)


def _split_uniform(blocks: Sequence[ReceivedFrames], size: int) -> tuple[Bytes, pa.Array]:
    """Split frames that all have this size into headers, one per row, and bodies."""
    tables = [
        np.frombuffer(block.data, np.uint8, (len(block.starts) - 1) * size, block.starts[0]).reshape(-1, size)
        for block in blocks
    ]
    bodies = np.concatenate([each[:, _HEADER.size :] for each in tables])
    offsets = np.arange(len(bodies) + 1, dtype=np.int32) * np.int32(size - _HEADER.size)
    return np.concatenate([each[:, : _HEADER.size] for each in tables]), _array(pa.binary(), offsets, bodies)


def _split_frames(blocks: Sequence[ReceivedFrames]) -> tuple[Bytes, pa.Array, pa.Array | None]:
    """Split frames of any sizes into what precedes the payload, one per row, bodies, and headers if there are any."""
    data, places = _joined(blocks)
    count = len(places) - 1
    everywhere = np.ndarray((len(data) - _HEADER.size + 1, _HEADER.size), np.uint8, data, strides=(1, 1))
    rows = everywhere[places[:-1]]
    # As an Arrow array the bytes are header, body, header, body; every second element is taken.
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[::2] = places
    offsets[1::2], headers = _split_payloads(rows, data, places[:-1] + _HEADER.size, places[1:])
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return rows, both.take(_array(pa.int32(), np.arange(1, 2 * count, 2, dtype=np.int32))), headers


def _split_payloads(rows: Bytes, data: bytes, begins: Numbers, ends: Numbers) -> tuple[Numbers, pa.Array | None]:
    """Where the bodies begin, and the headers before them (``schema.PAYLOAD``), null for messages without any."""
    having = np.flatnonzero(rows[:, _TYPE_END - 1] == FRAME_TYPE_MESSAGE_WITH_HEADERS)
    if not len(having):
        return begins, None
    headers: list[list[tuple[str, str]] | None] = [None] * len(begins)
    for number in having.tolist():
        begin, stop = int(begins[number]), int(ends[number])
        # Arrow does not check that offsets rise, so no header may reach into the next frame.
        begins[number] = end = min(body_begin(data, begin), stop) if stop - begin >= _MIN_PAYLOAD else stop
        try:
            headers[number] = list(decode_headers(data[begin:end])[0].items())
        except HeaderError as error:
            raise InvalidMessage(f"invalid headers of a message: {error}") from None
    return begins, pa.array(headers, HEADERS_TYPE)


def _joined(blocks: Sequence[ReceivedFrames]) -> tuple[bytes, Numbers]:
    """Join blocks: the data, and the offsets where each frame begins and the last one ends."""
    data = b"".join([memoryview(block.data)[block.starts[0] : block.starts[-1]] for block in blocks])
    places, begin = [np.zeros(1, np.int64)], 0
    for block in blocks:
        ends = np.array(block.starts, np.int64)[1:] + (begin - block.starts[0])
        places.append(ends)
        begin = int(ends[-1])
    return data, np.concatenate(places)


def _array(kind: pa.DataType, *columns: npt.NDArray[Any]) -> pa.Array:
    """An Arrow array of numbers, or of offsets and bytes, that shares numpy's memory."""
    return pa.Array.from_buffers(
        kind, len(columns[0]) - (len(columns) - 1), [None, *map(pa.py_buffer, map(np.ascontiguousarray, columns))]
    )
