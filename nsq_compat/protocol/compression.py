"""Compression of a connection: deflate and snappy, bytes to bytes.

A codec serves both directions of a connection. Compressed data is flushed, so that the peer can decompress all of it.
Decompressed data is returned in pieces of limited size, so that a few hostile bytes cannot exhaust the memory; their
concatenation does not depend on how the input is split. Corrupt input raises ``CompressionError``. Snappy first returns
all data before the corruption; with deflate, the last bytes before it may be lost.

nsqd: deflate has no header; snappy uses the framing format, in which each direction begins with a stream identifier and
each chunk has a checksum.

The libraries are imported by the first connection that uses them. They take 3 MB of memory.
"""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any, Final

from nsq_compat import missing_package
from nsq_compat.protocol import schema
from nsq_compat.protocol.layout import ReceiveBuffer

SNAPPY_INSTALLED: Final = find_spec("snappy") is not None  # an extra
"""Whether `Snappy` can be used; check before making one."""
SNAPPY_MISSING: Final = missing_package("python-snappy", "snappy")

MAX_PIECE: Final = 1 << 16
"""The limit of a decompressed piece, in bytes."""

# --- The snappy framing format ----------------------------------------------------------------------------------------

_HEADER_SIZE: Final[int] = schema.SNAPPY_CHUNK_HEADER.sizeof()
_CRC_SIZE: Final = 4
_MAX_BLOCK: Final = 1 << 16  # bytes of plain data in a chunk
_MAX_COMPRESSED_BLOCK: Final = 32 + _MAX_BLOCK + _MAX_BLOCK // 6  # snappy's worst case
_MAX_CHUNK: Final = _CRC_SIZE + _MAX_COMPRESSED_BLOCK
_STREAM_IDENTIFIER: Final[bytes] = schema.SNAPPY_STREAM_IDENTIFIER.build({})

_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
_IDENTIFIER: Final = 0xFF
_FIRST_SKIPPABLE: Final = 0x80
_MASK_DELTA: Final = 0xA282EAD8
_CHUNKS_IN_PIECE: Final = 256
MAX_IDLE_CHUNKS: Final = 256
"""Chunks in a row without data. Each takes 2 us and as few as 4 bytes, and there is no piece, and therefore no pause,
until data comes. Encoders write an identifier and some padding."""

# --- Deflate ----------------------------------------------------------------------------------------------------------

_RAW_DEFLATE: Final = -15  # without a header, with the largest window
_SYNC_FLUSH: Final = 2
_INPUT_SLICE: Final = 1 << 14


class CompressionError(Exception):
    """The compressed stream is corrupt; the connection must be closed."""


class Codec:
    """Encodes and decodes one connection: a compression, or TLS (``net.tls``)."""

    def encode(self, data: bytes) -> bytes:
        """The bytes to send for `data`, all of it."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Iterable[bytes]:
        """Decode received bytes, in pieces of at most `MAX_PIECE` bytes. Iterate to the end before the next call.

        An empty piece marks the end of the peer's stream; later input is ignored. A compression raises
        ``CompressionError``, possibly while iterating.
        """
        raise NotImplementedError


class Deflate(Codec):
    """Raw deflate. Each direction is one stream, flushed to a byte boundary after each ``encode``."""

    def __init__(self, level: int) -> None:
        if not 1 <= level <= 9:
            raise ValueError(f"deflate level must be 1 to 9, not {level}")
        from zlib_ng import zlib_ng

        self._error: Any = zlib_ng.error
        self._compressor = zlib_ng.compressobj(level, wbits=_RAW_DEFLATE)
        self._decompressor = zlib_ng.decompressobj(_RAW_DEFLATE)
        self._ended = False

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        return self._compressor.compress(data) + self._compressor.flush(_SYNC_FLUSH)

    def decode(self, data: bytes) -> Iterator[bytes]:
        # In slices, because zlib copies the unused input for every piece.
        for begin in range(0, 0 if self._ended else len(data), _INPUT_SLICE):
            waiting = data[begin : begin + _INPUT_SLICE]
            while True:
                try:
                    piece = self._decompressor.decompress(waiting, MAX_PIECE)
                except self._error as error:
                    raise CompressionError(str(error)) from None
                waiting = self._decompressor.unconsumed_tail
                if piece:
                    yield piece
                # At the end, the tail still has what the stream does not use.
                if self._decompressor.eof or not (piece or waiting):
                    break
            if self._decompressor.eof:
                self._ended = True
                yield b""
                return


class Snappy(Codec):
    """The snappy framing format.

    The library's own reader of streams trusts the size that a block claims, accepts a stream without an identifier,
    buffers incomplete chunks without a limit, and is several times slower with small chunks.
    """

    def __init__(self) -> None:
        import snappy

        self._compressor = snappy.StreamCompressor()
        self._buffer = ReceiveBuffer(_HEADER_SIZE)
        self._identified = False
        self._idle = 0  # chunks since there was data

    def encode(self, data: bytes) -> bytes:
        chunks: bytes = self._compressor.compress(data)
        return chunks

    def decode(self, data: bytes) -> Iterator[bytes]:
        if not self._buffer.append(data):
            return
        blocks: list[bytes] = []
        size = count = 0
        refusal = ""  # not the error: its traceback has this frame, so they would keep each other alive
        try:
            for chunk, claimed in self._chunks():
                if blocks and (size + claimed > MAX_PIECE or count >= _CHUNKS_IN_PIECE):
                    yield b"".join(blocks)
                    blocks = []
                    size = count = 0
                block = _decode(chunk)
                count += 1
                if block:
                    blocks.append(block)
                    size += len(block)
                    self._idle = 0
        except CompressionError as error:
            refusal = str(error)
        if blocks:
            yield blocks[0] if len(blocks) == 1 else b"".join(blocks)
        if refusal:
            raise CompressionError(refusal)

    def _chunks(self) -> Iterator[tuple[bytes, int]]:
        """The complete data chunks, each with the plain size it claims."""
        for chunk in self._buffer.pieces(_HEADER_SIZE, self._size_of):
            self._idle += 1
            if self._idle > MAX_IDLE_CHUNKS:
                raise CompressionError("too many snappy chunks without data")
            kind = chunk[0]
            if kind == _IDENTIFIER and chunk != _STREAM_IDENTIFIER:
                raise CompressionError("invalid snappy stream identifier")
            if kind in (_COMPRESSED, _UNCOMPRESSED):
                yield chunk, _plain_size(kind, chunk)

    def _size_of(self, data: bytes, position: int) -> int:
        """The size of a chunk. Its header is checked before the rest of it is awaited."""
        kind, length = chunk_header(data, position)
        if not self._identified and kind != _IDENTIFIER:
            raise CompressionError("the snappy stream has no identifier")
        self._identified = True
        # nsqd: a longer chunk is refused even if its type is skippable.
        if length > _MAX_CHUNK:
            raise CompressionError(f"snappy chunk too long: {length} bytes")
        if _UNCOMPRESSED < kind < _FIRST_SKIPPABLE:
            raise CompressionError(f"unknown snappy chunk type {kind:#04x}")
        return _HEADER_SIZE + length


def chunk_header(data: bytes, position: int) -> tuple[int, int]:
    """Type and length of the snappy chunk at `position`: a fast ``schema.SNAPPY_CHUNK_HEADER``."""
    return data[position], int.from_bytes(data[position + 1 : position + _HEADER_SIZE], "little")


def _plain_size(kind: int, chunk: bytes) -> int:
    """The plain size that a chunk claims, checked before memory is allocated for it."""
    begin = _HEADER_SIZE + _CRC_SIZE
    if len(chunk) < begin:
        raise CompressionError("snappy chunk without a checksum")
    size = len(chunk) - begin if kind == _UNCOMPRESSED else _block_size(chunk[begin : begin + 3])
    if size > _MAX_BLOCK:
        raise CompressionError(f"snappy block too large: {size} bytes")
    return size


def _block_size(prefix: bytes) -> int:
    """The plain size at the beginning of a raw block: seven bits a byte, lowest first, up to 65536."""
    size = 0
    for index, byte in enumerate(prefix):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CompressionError("snappy block with an invalid size")


def _decode(chunk: bytes) -> bytes:
    """The plain bytes of a data chunk."""
    import google_crc32c

    checksum = int.from_bytes(chunk[_HEADER_SIZE : _HEADER_SIZE + _CRC_SIZE], "little")
    block = chunk[_HEADER_SIZE + _CRC_SIZE :]
    if chunk[0] == _COMPRESSED:
        import snappy

        try:
            block = snappy.uncompress(block)
        except snappy.UncompressError:
            raise CompressionError("corrupt snappy block") from None
    crc = google_crc32c.value(block)
    # The format masks the checksum: rotated by 15 bits, plus a constant.
    if ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF != checksum:
        raise CompressionError("snappy block with a wrong checksum")
    return block
