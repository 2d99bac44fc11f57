"""What follows a command's line: one body with its size before it, or the many of an MPUB.

Bodies are read out of whatever has come so far. What cannot be is refused as soon as it shows, in nsqd's words.
"""

import struct
from functools import lru_cache
from typing import Final

from nsq_compat.protocol.command_table import PUB, BodySpec, CommandSpec
from nsq_compat.protocol.commands import Command, Line, Publish
from nsq_compat.protocol.errors import E_BAD_BODY, E_BAD_MESSAGE, FatalClientError
from nsq_compat.protocol.sizes import SIZE_OF_SIZE, read_batch_header, read_size
from nsq_compat.protocol.uniform_bodies import UniformBodies

_WORTH_A_LOOK: Final = 4
_ALIKE_AT_ONCE: Final = 256
"""Messages of one size; bounds what a remembered layout takes."""
_NONE: Final = UniformBodies()


@lru_cache(maxsize=64)
def _alike(size: int, count: int) -> struct.Struct:
    """So many messages of that size, each with its size before it."""
    return struct.Struct(f"{SIZE_OF_SIZE}s{size}s" * count)


def _cut_alike(buffer: bytes, position: int, size: int, count: int) -> tuple[bytes, ...]:
    """So many messages that are all there, if all of them are of that size, which the first one is; else none."""
    fields = _alike(size, count).unpack_from(buffer, position)
    return fields[1::2] if fields[::2].count(fields[0]) == count else ()


def whole_batch(data: bytes, begin: int, max_msg_size: int, max_body_size: int) -> UniformBodies:
    """The messages of the MPUB whose size is at `begin`, if they are of one size and all there is; else none."""
    start = begin + 2 * SIZE_OF_SIZE
    if start + SIZE_OF_SIZE > len(data):
        return _NONE
    body_size: int
    count: int
    size: int
    body_size, count, size = read_batch_header(data, begin)
    if body_size != len(data) - begin - SIZE_OF_SIZE or body_size > max_body_size:
        return _NONE
    if not 0 < count <= _ALIKE_AT_ONCE or not 0 < size <= max_msg_size:
        return _NONE
    if start + count * (SIZE_OF_SIZE + size) != len(data):
        return _NONE
    return UniformBodies(_cut_alike(data, start, size, count))


class SizedBody:
    """A body that is awaited: first its size, then as many bytes."""

    def __init__(self, spec: CommandSpec, tokens: list[bytes], body: BodySpec, limit: int) -> None:
        self._spec = spec
        self._tokens = tokens
        self._wording = body
        self._limit = limit
        self._size: int | None = None
        self.needed = SIZE_OF_SIZE

    def read(self, buffer: bytes, position: int, end: int) -> tuple[Command | None, int]:
        """The command, if its body is complete in the buffer, and where reading stopped."""
        if self._size is None:
            if end - position < SIZE_OF_SIZE:
                return None, position
            self._size = self._judged(read_size(buffer, position)[0])
            self.needed = self._size
            position += SIZE_OF_SIZE
        stop = position + self._size
        if stop > end:
            return None, position
        body = buffer[position:stop]
        if self._spec is PUB:
            return Publish(self._spec, self._tokens, [body]), stop
        return Line(self._spec, self._tokens, body), stop

    def _judged(self, size: int) -> int:
        if size <= 0:
            raise self._refusal(f"invalid {self._wording.noun} size {size}")
        if size > self._limit:
            raise self._refusal(f"{self._wording.whole} too big {size} > {self._limit}")
        return size

    def unreadable(self) -> FatalClientError:
        part = " size" if self._size is None else ""
        return self._refusal(f"failed to read {self._wording.noun}{part}")

    def _refusal(self, text: str) -> FatalClientError:
        return FatalClientError(self._wording.code, f"{self._spec.name} {text}")


class MultipleBody:
    """The body of an MPUB: a size, a count, then so many sized messages.

    nsqd: the size is checked and then forgotten; the count decides where the command ends. Here the size limit also
    bounds what the messages take together (docs/differences.md: mpub-total).
    """

    def __init__(self, spec: CommandSpec, tokens: list[bytes], max_msg_size: int, max_body_size: int) -> None:
        self._spec = spec
        self._tokens = tokens
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._size: int | None = None
        self._count: int | None = None
        self._taken = SIZE_OF_SIZE  # bytes of the body so far, the count included
        self._bodies: list[bytes] = []
        self._in_message = False
        self.needed = SIZE_OF_SIZE

    def read(self, buffer: bytes, position: int, end: int) -> tuple[Command | None, int]:
        """The command, if its last message is complete in the buffer, and where reading stopped."""
        if self._size is None:
            if end - position < SIZE_OF_SIZE:
                return None, position
            self._size = self._judged_size(read_size(buffer, position)[0])
            position += SIZE_OF_SIZE
        if self._count is None:
            if end - position < SIZE_OF_SIZE:
                return None, position
            self._count = self._judged_count(read_size(buffer, position)[0])
            position += SIZE_OF_SIZE
        position = self._read_messages(buffer, position, end, self._count)
        if len(self._bodies) < self._count:
            return None, position
        return Publish(self._spec, self._tokens, self._bodies), position

    def _read_messages(self, buffer: bytes, position: int, end: int, count: int) -> int:
        # Hot: runs for every message of an MPUB.
        begin, max_msg_size = position, self._max_msg_size
        last_allowed = begin + self._max_body_size - self._taken
        while alike := self._next_alike(buffer, position, min(end, last_allowed), count - len(self._bodies)):
            self._bodies += alike
            position += len(alike) * (SIZE_OF_SIZE + len(alike[0]))
        append = self._bodies.append
        self._in_message = False
        self.needed = SIZE_OF_SIZE
        for _ in range(count - len(self._bodies)):
            start = position + SIZE_OF_SIZE
            if start > end:
                break
            (size,) = read_size(buffer, position)
            stop = start + size
            if size > max_msg_size or size <= 0 or stop > last_allowed:
                raise self._wrong_message(size, stop - last_allowed)
            if stop > end:
                self._in_message = True
                self.needed = SIZE_OF_SIZE + size
                break
            append(buffer[start:stop])
            position = stop
        self._taken += position - begin
        return position

    def _next_alike(self, buffer: bytes, position: int, end: int, wanted: int) -> tuple[bytes, ...]:
        """The next messages, if they are all there and of one size, so many at once; else none."""
        # Records of one size are cut by one call, at a quarter of the cost; others cost no more than looking at two.
        count = min(wanted, _ALIKE_AT_ONCE)
        start = position + SIZE_OF_SIZE
        if count < _WORTH_A_LOOK or start > end:
            return ()
        size = read_size(buffer, position)[0]
        following = start + size
        if not 0 < size <= self._max_msg_size or position + count * (SIZE_OF_SIZE + size) > end:
            return ()
        if buffer[position:start] != buffer[following : following + SIZE_OF_SIZE]:
            return ()
        return _cut_alike(buffer, position, size, count)

    def _judged_size(self, size: int) -> int:
        if size <= 0:
            raise self._refusal(f"invalid body size {size}")
        if size > self._max_body_size:
            raise self._refusal(f"body too big {size} > {self._max_body_size}")
        return size

    def _judged_count(self, count: int) -> int:
        # nsqd: a message takes at least a size and one byte.
        if not 0 < count <= (self._max_body_size - SIZE_OF_SIZE) // (SIZE_OF_SIZE + 1):
            raise self._refusal(f"invalid message count {count}")
        return count

    def _wrong_message(self, size: int, excess: int) -> FatalClientError:
        if size <= 0:
            return self._refusal(f"invalid message({len(self._bodies)}) body size {size}", E_BAD_MESSAGE)
        if size > self._max_msg_size:
            return self._refusal(f"message too big {size} > {self._max_msg_size}", E_BAD_MESSAGE)
        return self._refusal(f"body too big {self._max_body_size + excess} > {self._max_body_size}")

    def unreadable(self) -> FatalClientError:
        if self._size is None:
            return self._refusal("failed to read body size")
        if self._count is None:
            return self._refusal("failed to read message count")
        if self._in_message:
            return self._refusal("failed to read message body", E_BAD_MESSAGE)
        return self._refusal(f"failed to read message({len(self._bodies)}) body size", E_BAD_MESSAGE)

    def _refusal(self, text: str, code: str = E_BAD_BODY) -> FatalClientError:
        return FatalClientError(code, f"{self._spec.name} {text}")
