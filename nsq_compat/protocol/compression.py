"""Deflate and snappy, bytes to bytes: what lies between a socket and everything else once a client has asked for it.

A codec serves both directions of one connection. What it compresses is complete for the peer at once (flushed). What
it decompresses comes out in pieces, so that a few hostile bytes cannot fill the memory; together they are the same
bytes however the input was cut. Where the input is corrupt ``CompressionError`` is raised; snappy gives everything
before that place, of deflate the last plain bytes may be lost with what follows.

Both are as nsqd has them: deflate without a header, snappy in its framing format, where each direction begins with
the stream identifier and each chunk carries a checksum.
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
"""Whether there may be a `Snappy`. Who would make one without asks here first."""
SNAPPY_MISSING: Final = missing_package("python-snappy", "snappy")

MAX_PIECE: Final = 1 << 16
"""Bytes of plain data made at once, unless another limit is given."""

# --- The snappy framing format ----------------------------------------------------------------------------------------

_HEADER_SIZE: Final = schema.SNAPPY_CHUNK_HEADER.sizeof()
_CRC_SIZE: Final = 4
_MAX_BLOCK: Final = 1 << 16  # plain bytes in a chunk
_MAX_COMPRESSED_BLOCK: Final = 32 + _MAX_BLOCK + _MAX_BLOCK // 6  # the worst a block may grow to when compressed
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
    """The peer's stream is corrupt; the connection is of no more use."""


class Codec(Protocol):
    """Both directions of one connection: plain bytes on one side, those of the wire on the other."""

    def encode(self, data: bytes) -> bytes:
        """What to send for `data`; the peer can read all of it."""
        ...

    def decode(self, data: bytes, limit: int = MAX_PIECE) -> Iterable[bytes]:
        """The plain bytes in what was received, in pieces; iterate once, to the end before the next call.

        A piece is never empty, but for one that says the peer has ended its stream; what follows that is nothing.
        A piece has at most `limit` bytes, or 64 KiB if that is more. Raises ``CompressionError``, or while
        iterating.
        """
        ...


class Deflate:
    """Raw deflate; each direction is one stream, flushed to a byte boundary after every ``encode``."""

    def __init__(self, level: int) -> None:
        if not 1 <= level <= 9:
            raise ValueError(f"deflate level {level}, not 1 to 9")
        self._compressor = zlib_ng.compressobj(level, wbits=_RAW_DEFLATE)
        self._decompressor = zlib_ng.decompressobj(_RAW_DEFLATE)
        self._ended = False

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        return self._compressor.compress(data) + self._compressor.flush(zlib_ng.Z_SYNC_FLUSH)

    def decode(self, data: bytes, limit: int = MAX_PIECE) -> Iterator[bytes]:
        # Slices, because it copies the input it has not used yet for every piece.
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

    Streams are read here and not by the library, which believes what a block says of its own size, takes a stream
    without identifier, keeps what is incomplete without a bound, and costs several times as much where chunks are
    small. It decodes single blocks.
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
        """The complete chunks that hold data, each with the plain size it claims."""
        buffer = self._buffer
        data, position = buffer.gather(), 0
        buffer.needed = _HEADER_SIZE
        while position + _HEADER_SIZE <= len(data):
            kind, length = chunk_header(data, position)
            self._judge(kind, length)
            stop = position + _HEADER_SIZE + length
            if stop > len(data):
                buffer.needed = stop - position
                break
            chunk = data[position:stop]
            buffer.position = position = stop
            if kind == _IDENTIFIER and chunk != _STREAM_IDENTIFIER:
                raise CompressionError("not a snappy stream identifier")
            if kind in (_COMPRESSED, _UNCOMPRESSED):
                yield chunk, _plain_size(kind, chunk)
        buffer.gather()

    def _judge(self, kind: int, length: int) -> None:
        """Whether a chunk may be awaited."""
        if not self._identified and kind != _IDENTIFIER:
            raise CompressionError("a snappy stream without its identifier")
        self._identified = True
        # nsqd: a longer chunk is refused even where its content would be skipped.
        if length > _MAX_CHUNK:
            raise CompressionError(f"a snappy chunk of {length} bytes")
        if _UNCOMPRESSED < kind < _FIRST_SKIPPABLE:
            raise CompressionError(f"an unknown snappy chunk type {kind:#04x}")


def chunk_header(data: bytes, position: int) -> tuple[int, int]:
    """Type and length of the snappy chunk at `position`; what ``schema.SNAPPY_CHUNK_HEADER`` says, faster."""
    return data[position], int.from_bytes(data[position + 1 : position + _HEADER_SIZE], "little")


def _plain_size(kind: int, chunk: bytes) -> int:
    """How many plain bytes a chunk claims to hold, judged before any memory is taken for them."""
    begin = _HEADER_SIZE + _CRC_SIZE
    if len(chunk) < begin:
        raise CompressionError("a snappy chunk without its checksum")
    size = len(chunk) - begin if kind == _UNCOMPRESSED else _block_size(chunk[begin : begin + 3])
    if size > _MAX_BLOCK:
        raise CompressionError(f"a snappy block of {size} bytes")
    return size


def _block_size(prefix: bytes) -> int:
    """The plain size a raw block begins with: seven bits a byte, the lowest first. Three bytes are enough for 65536."""
    size = 0
    for index, byte in enumerate(prefix):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CompressionError("a snappy block that is too large or says no size")


def _decode(chunk: bytes) -> bytes:
    """The plain bytes of a chunk that holds data."""
    checksum = int.from_bytes(chunk[_HEADER_SIZE : _HEADER_SIZE + _CRC_SIZE], "little")
    block = chunk[_HEADER_SIZE + _CRC_SIZE :]
    if chunk[0] == _COMPRESSED:
        try:
            block = snappy.uncompress(block)
        except snappy.UncompressError:
            raise CompressionError("a corrupt snappy block") from None
    crc = google_crc32c.value(block)
    # Masked, as the format has it: turned by 15 bits, plus a constant.
    if ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF != checksum:
        raise CompressionError("a snappy block with a wrong checksum")
    return block
