"""Compression of a connection: deflate and snappy, bytes to bytes.

A codec serves both directions of a connection. Compressed data is flushed, so that the peer can decompress all of it.
Decompressed data is returned in pieces of limited size, so that a few hostile bytes cannot exhaust the memory; their
concatenation does not depend on how the input is split. Corrupt input raises ``CompressionError``. Snappy first returns
all data before the corruption; with deflate, the last bytes before it may be lost.

nsqd: deflate has no header; snappy uses the framing format, in which each direction begins with a stream identifier and
each chunk has a checksum.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import google_crc32c
from zlib_ng import zlib_ng

from nsq_compat import missing_package
from nsq_compat.protocol import schema
from nsq_compat.protocol.receive_buffer import ReceiveBuffer

try:
    import snappy
except ModuleNotFoundError:  # an extra
    snappy = None

SNAPPY_INSTALLED: Final = snappy is not None
"""Whether `Snappy` can be used; check before making one."""
SNAPPY_MISSING: Final = missing_package("python-snappy", "snappy")

MAX_PIECE: Final = 1 << 16
"""The default limit of a decompressed piece, in bytes."""

# --- The snappy framing format ----------------------------------------------------------------------------------------

_HEADER_SIZE: Final = schema.SNAPPY_CHUNK_HEADER.sizeof()
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

# --- Deflate ----------------------------------------------------------------------------------------------------------

_RAW_DEFLATE: Final = -zlib_ng.MAX_WBITS
_INPUT_SLICE: Final = 1 << 14


class CompressionError(Exception):
    """The compressed stream is corrupt; the connection must be closed."""


class Codec(Protocol):
    """Compresses and decompresses one connection."""

    def encode(self, data: bytes) -> bytes:
        """Compress and flush `data`."""
        ...

    def decode(self, data: bytes, limit: int = MAX_PIECE) -> Iterable[bytes]:
        """Decompress received bytes, in pieces. Iterate to the end before the next call.

        A piece has at most `limit` bytes, or 64 KiB if that is more. An empty piece marks the end of the peer's stream;
        later input is ignored. Raises ``CompressionError``, possibly while iterating.
        """
        ...


class Deflate:
    """Raw deflate. Each direction is one stream, flushed to a byte boundary after each ``encode``."""

    def __init__(self, level: int) -> None:
        if not 1 <= level <= 9:
            raise ValueError(f"deflate level must be 1 to 9, not {level}")
        self._compressor = zlib_ng.compressobj(level, wbits=_RAW_DEFLATE)
        self._decompressor = zlib_ng.decompressobj(_RAW_DEFLATE)
        self._ended = False

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        return self._compressor.compress(data) + self._compressor.flush(zlib_ng.Z_SYNC_FLUSH)

    def decode(self, data: bytes, limit: int = MAX_PIECE) -> Iterator[bytes]:
        # In slices, because zlib copies the unused input for every piece.
        for begin in range(0, 0 if self._ended else len(data), _INPUT_SLICE):
            waiting = data[begin : begin + _INPUT_SLICE]
            while True:
                piece = self._inflate(waiting, max(limit, MAX_PIECE))
                waiting = self._decompressor.unconsumed_tail
                if piece:
                    yield piece
                elif not waiting:
                    break
            if self._decompressor.eof:
                self._ended = True
                yield b""
                return

    def _inflate(self, data: bytes, limit: int) -> bytes:
        try:
            return self._decompressor.decompress(data, limit)
        except zlib_ng.error as error:  # type: ignore[misc]  # its stub calls it an instance
            raise CompressionError(str(error)) from None


class Snappy:
    """The snappy framing format.

    The library only decompresses single blocks. Its reader of streams trusts the size that a block claims, accepts a
    stream without an identifier, buffers incomplete chunks without a limit, and is several times slower with small
    chunks.
    """

    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._buffer = ReceiveBuffer(_HEADER_SIZE)
        self._identified = False

    def encode(self, data: bytes) -> bytes:
        chunks: bytes = self._compressor.compress(data)
        return chunks

    def decode(self, data: bytes, limit: int = MAX_PIECE) -> Iterator[bytes]:
        if not self._buffer.append(data):
            return
        blocks: list[bytes] = []
        size = 0
        refusal: CompressionError | None = None
        try:
            for chunk, claimed in self._chunks():
                if blocks and size + claimed > limit:
                    yield b"".join(blocks)
                    blocks, size = [], 0
                block = _decode(chunk)
                if block:
                    blocks.append(block)
                    size += len(block)
        except CompressionError as error:
            refusal = error
        if blocks:
            yield blocks[0] if len(blocks) == 1 else b"".join(blocks)
        if refusal is not None:
            raise refusal

    def _chunks(self) -> Iterator[tuple[bytes, int]]:
        """The complete data chunks, each with the plain size it claims."""
        buffer = self._buffer
        data, position = buffer.gather(), 0
        buffer.needed = _HEADER_SIZE
        while position + _HEADER_SIZE <= len(data):
            kind, length = chunk_header(data, position)
            self._check_header(kind, length)
            stop = position + _HEADER_SIZE + length
            if stop > len(data):
                buffer.needed = stop - position
                break
            chunk = data[position:stop]
            buffer.position = position = stop
            if kind == _IDENTIFIER and chunk != _STREAM_IDENTIFIER:
                raise CompressionError("invalid snappy stream identifier")
            if kind in (_COMPRESSED, _UNCOMPRESSED):
                yield chunk, _plain_size(kind, chunk)
        buffer.gather()

    def _check_header(self, kind: int, length: int) -> None:
        """Check a chunk's header, before the rest of the chunk is awaited."""
        if not self._identified and kind != _IDENTIFIER:
            raise CompressionError("the snappy stream has no identifier")
        self._identified = True
        # nsqd: a longer chunk is refused even if its type is skippable.
        if length > _MAX_CHUNK:
            raise CompressionError(f"snappy chunk too long: {length} bytes")
        if _UNCOMPRESSED < kind < _FIRST_SKIPPABLE:
            raise CompressionError(f"unknown snappy chunk type {kind:#04x}")


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
    """The plain size at the beginning of a raw block: seven bits a byte, lowest first. Three bytes suffice for
    65536."""
    size = 0
    for index, byte in enumerate(prefix):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CompressionError("snappy block with an invalid size")


def _decode(chunk: bytes) -> bytes:
    """The plain bytes of a data chunk."""
    checksum = int.from_bytes(chunk[_HEADER_SIZE : _HEADER_SIZE + _CRC_SIZE], "little")
    block = chunk[_HEADER_SIZE + _CRC_SIZE :]
    if chunk[0] == _COMPRESSED:
        try:
            block = snappy.uncompress(block)
        except snappy.UncompressError:
            raise CompressionError("corrupt snappy block") from None
    crc = google_crc32c.value(block)
    # The format masks the checksum: rotated by 15 bits, plus a constant.
    if ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF != checksum:
        raise CompressionError("snappy block with a wrong checksum")
    return block
