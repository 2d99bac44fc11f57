"""nsqd's reader of the V2 protocol: bytes to commands.

Bytes that cannot be used yet are kept as the chunks in which they arrived, until there are as many as the reader needs
(`_needed`). A loop then reads, at the current position, the body of the last line, or a run of FINs, or a line.

Invariants:

- The commands and errors do not depend on how the input is split. Only runs of FINs and PUBs may be split differently.
- A complete line is checked (`admit`) before its body is awaited, and a size before memory is allocated for it.
- The reader is lazy: it yields a command before it examines the bytes after it. If the command fails, or changes the
  meaning of the following bytes, `hand_back` returns them.
"""

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from nsq_compat.protocol.commands import MPUB, PUB, BodySpec, CommandSpec
from nsq_compat.protocol.errors import E_BAD_MESSAGE, FatalClientError, SilentClose
from nsq_compat.protocol.layout import SIZE_OF_SIZE, read_batch_header, read_size
from nsq_compat.protocol.schema import UniformBodies

MAX_LINE: Final = 16384
"""nsqd: the size of its read buffer, which limits a line with its newline. A longer line closes the connection."""

_MAX_KNOWN_LINES: Final = 256
"""Admitted lines remembered for a connection."""

_MIN_UNIFORM_RUN: Final = 4
_MAX_UNIFORM_RUN: Final = 256
"""Messages of one size that are read at once; limits the size of a cached layout."""

_NO_BODIES: Final = UniformBodies()
_FIN_RUN: Final = re.compile(rb"(?:FIN [^\n\r ]{16}\n){1,256}")
_FIN_FIRST_BYTE: Final = ord("F")
_CARRIAGE_RETURN: Final = ord("\r")
_single_fin: Final = re.compile(rb"FIN ([^\n\r ]{16})\n").fullmatch
_SINGLE_FIN_SIZE: Final = 21
_new_tuple: Final = tuple.__new__
"""Makes a named tuple in half the time of a call of its class."""

# --- Commands as values -----------------------------------------------------------------------------------------------


class Finish(NamedTuple):
    """Consecutive well-formed ``FIN <id>`` lines. `ids` are 16 bytes each."""

    ids: Sequence[bytes]


class Publish:
    """Consecutive PUBs to one topic, each with a reply of its own; or one MPUB, with a single reply."""

    # Hot: one is made for every synchronous PUB. Compiled, a dataclass takes eight times the instructions.
    __slots__ = ("bodies", "spec", "tokens")

    def __init__(self, spec: CommandSpec, tokens: list[bytes], bodies: Sequence[bytes]) -> None:
        self.spec = spec
        self.tokens = tokens
        self.bodies = bodies

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Publish):
            return NotImplemented
        return (self.spec, self.tokens, self.bodies) == (other.spec, other.tokens, other.bodies)


class SimpleCommand(NamedTuple):
    """Any other command: its line, split at the spaces, and its sized body, if it has one."""

    spec: CommandSpec
    tokens: list[bytes]
    body: bytes


Command = Finish | Publish | SimpleCommand


# --- Bodies -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _uniform_layout(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{SIZE_OF_SIZE}s{size}s" * count)


def _cut_uniform(buffer: bytes, position: int, size: int, count: int) -> tuple[bytes, ...]:
    """The bodies of `count` complete messages, if all have the `size` of the first one; else none."""
    fields = _uniform_layout(size, count).unpack_from(buffer, position)
    return fields[1::2] if fields[::2].count(fields[0]) == count else ()


def parse_uniform_batch(data: bytes, begin: int, max_msg_size: int, max_body_size: int) -> UniformBodies:
    """The messages of the MPUB with its size at `begin`, if they have one size and end with `data`; else none."""
    start = begin + 2 * SIZE_OF_SIZE
    if start + SIZE_OF_SIZE > len(data):
        return _NO_BODIES
    body_size: int
    count: int
    size: int
    body_size, count, size = read_batch_header(data, begin)
    if body_size != len(data) - begin - SIZE_OF_SIZE or body_size > max_body_size:
        return _NO_BODIES
    if not 0 < count <= _MAX_UNIFORM_RUN or not 0 < size <= max_msg_size:
        return _NO_BODIES
    if start + count * (SIZE_OF_SIZE + size) != len(data):
        return _NO_BODIES
    return UniformBodies(_cut_uniform(data, start, size, count))


class SizedBody:
    """Reads a body of at most `limit` bytes that has its size before it."""

    def __init__(self, spec: CommandSpec, tokens: list[bytes], body: BodySpec, limit: int) -> None:
        self._spec = spec
        self._tokens = tokens
        self._wording = body
        self._limit = limit
        self._size: int | None = None
        self.needed = SIZE_OF_SIZE

    def read(self, buffer: bytes, position: int, end: int) -> tuple[Command | None, int]:
        """The command, if its body is complete in the buffer, and the position after the bytes that were read."""
        if self._size is None:
            if end - position < SIZE_OF_SIZE:
                return None, position
            self._size = self._checked_size(read_size(buffer, position)[0])
            self.needed = self._size
            position += SIZE_OF_SIZE
        stop = position + self._size
        if stop > end:
            return None, position
        body = buffer[position:stop]
        if self._spec is PUB:
            return Publish(self._spec, self._tokens, [body]), stop
        return SimpleCommand(self._spec, self._tokens, body), stop

    def _checked_size(self, size: int) -> int:
        if size <= 0 and (size < 0 or not self._wording.may_be_empty):
            raise self._error(f"invalid {self._wording.noun} size {size}")
        if size > self._limit:
            raise self._error(f"{self._wording.whole} too big {size} > {self._limit}")
        return size

    def read_error(self) -> FatalClientError:
        part = " size" if self._size is None else ""
        return self._error(f"failed to read {self._wording.noun}{part}")

    def _error(self, text: str, code: str = "") -> FatalClientError:
        return FatalClientError(code or self._wording.code, f"{self._spec.name} {text}")


class BatchBody(SizedBody):
    """Reads the body of an MPUB: a size, a count, and that many sized messages.

    nsqd: the size is checked and then ignored; the count determines where the command ends. Here --max-body-size also
    limits the messages' total size (docs/differences.md: mpub-total).
    """

    def __init__(
        self, spec: CommandSpec, tokens: list[bytes], body: BodySpec, max_msg_size: int, max_body_size: int
    ) -> None:
        super().__init__(spec, tokens, body, max_body_size)
        self._max_msg_size = max_msg_size
        self._count: int | None = None
        self._consumed = SIZE_OF_SIZE  # bytes of the body read so far, including the count
        self._bodies: list[bytes] = []
        self._in_message = False

    def read(self, buffer: bytes, position: int, end: int) -> tuple[Command | None, int]:
        if self._size is None:
            if end - position < SIZE_OF_SIZE:
                return None, position
            self._size = self._checked_size(read_size(buffer, position)[0])
            position += SIZE_OF_SIZE
        if self._count is None:
            if end - position < SIZE_OF_SIZE:
                return None, position
            self._count = self._checked_count(read_size(buffer, position)[0])
            position += SIZE_OF_SIZE
        position = self._read_messages(buffer, position, end, self._count)
        if len(self._bodies) < self._count:
            return None, position
        return Publish(self._spec, self._tokens, self._bodies), position

    def _read_messages(self, buffer: bytes, position: int, end: int, count: int) -> int:
        # Hot: runs for every MPUB that did not arrive alone, or has messages of different sizes.
        begin, max_msg_size = position, self._max_msg_size
        last_allowed = begin + self._limit - self._consumed
        while uniform := self._next_uniform(buffer, position, min(end, last_allowed), count - len(self._bodies)):
            self._bodies += uniform
            position += len(uniform) * (SIZE_OF_SIZE + len(uniform[0]))
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
                raise self._message_error(size, stop - last_allowed)
            if stop > end:
                self._in_message = True
                self.needed = SIZE_OF_SIZE + size
                break
            append(buffer[start:stop])
            position = stop
        self._consumed += position - begin
        return position

    def _next_uniform(self, buffer: bytes, position: int, end: int, wanted: int) -> tuple[bytes, ...]:
        """The next messages, if at least `_MIN_UNIFORM_RUN` are complete and have one size; else none."""
        # One call splits all of them, at a quarter of the cost.
        count = min(wanted, _MAX_UNIFORM_RUN)
        start = position + SIZE_OF_SIZE
        if count < _MIN_UNIFORM_RUN or start > end:
            return ()
        size = read_size(buffer, position)[0]
        following = start + size
        if not 0 < size <= self._max_msg_size or position + count * (SIZE_OF_SIZE + size) > end:
            return ()
        if buffer[position:start] != buffer[following : following + SIZE_OF_SIZE]:
            return ()
        return _cut_uniform(buffer, position, size, count)

    def _checked_count(self, count: int) -> int:
        # nsqd: a message has at least a size and one byte.
        if not 0 < count <= (self._limit - SIZE_OF_SIZE) // (SIZE_OF_SIZE + 1):
            raise self._error(f"invalid message count {count}")
        return count

    def _message_error(self, size: int, excess: int) -> FatalClientError:
        if size <= 0:
            return self._error(f"invalid message({len(self._bodies)}) body size {size}", E_BAD_MESSAGE)
        if size > self._max_msg_size:
            return self._error(f"message too big {size} > {self._max_msg_size}", E_BAD_MESSAGE)
        return self._error(f"body too big {self._limit + excess} > {self._limit}")

    def read_error(self) -> FatalClientError:
        if self._size is None:
            return self._error("failed to read body size")
        if self._count is None:
            return self._error("failed to read message count")
        if self._in_message:
            return self._error("failed to read message body", E_BAD_MESSAGE)
        return self._error(f"failed to read message({len(self._bodies)}) body size", E_BAD_MESSAGE)


# --- Commands ---------------------------------------------------------------------------------------------------------


class CommandReader:
    """Reads the commands of one connection, after the magic.

    The caller passes received bytes to `receive_single` first. If it returns None, the caller passes them to
    `receive_data`.

    `admit` is called with the tokens of a complete line, which it may change. It returns the command's spec or raises
    the error to answer with. It is not called for well-formed FINs, and not always for a PUB or MPUB line that it has
    admitted before, so it must always admit such a line again. Sizes are in bytes.
    """

    def __init__(self, admit: Callable[[list[bytes]], CommandSpec], *, max_msg_size: int, max_body_size: int) -> None:
        self._admit = admit
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._chunks: list[bytes] = []
        self._available = 0
        self._needed = 1
        self._buffer = b""
        self._position = 0
        self._body: SizedBody | None = None
        # Admitted PUB and MPUB lines, including their newlines, and the last one used.
        self._known: dict[bytes, tuple[CommandSpec, list[bytes]]] = {}
        self._line = b""
        self._line_spec = PUB
        self._line_tokens: list[bytes] = []
        # The last single PUB up to its body, and its total size: the next PUB often has the same.
        self._single_prefix = b""
        self._single_size = -1

    def receive_single(self, data: bytes) -> Publish | Finish | None:
        """The command, if the bytes are exactly one FIN, or one PUB or MPUB with a line admitted before.

        Otherwise None, and nothing is consumed.
        """
        # Hot: a client that awaits each reply sends one command at a time: half the cost without the generator.
        if self._available or self._body is not None:
            return None
        if len(data) == self._single_size and data.startswith(self._single_prefix):
            return Publish(self._line_spec, self._line_tokens, (data[len(self._single_prefix) :],))
        if len(data) == _SINGLE_FIN_SIZE and (fin := _single_fin(data)) is not None:
            return _new_tuple(Finish, ([fin[1]],))
        line = self._line
        if not data.startswith(line) or not line:
            line = data[: data.find(b"\n") + 1]
            known = self._known.get(line)
            if known is None:
                return None
            self._select_line(line, *known)
        begin = len(line)
        spec = self._line_spec
        if spec is PUB:
            size = len(data) - begin - SIZE_OF_SIZE
            if not 0 < size <= self._max_msg_size or read_size(data, begin)[0] != size:
                return None
            bodies: Sequence[bytes] = (data[begin + SIZE_OF_SIZE :],)
            self._single_prefix, self._single_size = data[: begin + SIZE_OF_SIZE], len(data)
        else:
            bodies = parse_uniform_batch(data, begin, self._max_msg_size, self._max_body_size)
            if not bodies:
                return None
        return Publish(spec, self._line_tokens, bodies)

    def _select_line(self, line: bytes, spec: CommandSpec, tokens: list[bytes]) -> None:
        self._line, self._line_spec, self._line_tokens = line, spec, tokens
        self._single_size = -1

    def receive_data(self, data: bytes) -> Iterator[Command]:
        """Add received bytes and iterate over the complete commands, to the end before the next call.

        The iterator raises ``FatalClientError`` for invalid input, ``SilentClose`` for a line that is too long, and the
        errors of `admit`. The reader cannot be used after an error.
        """
        self._chunks.append(data)
        self._available += len(data)
        if self._available < self._needed:
            return
        self._buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._position = 0
        self._needed = 1
        end = len(self._buffer)
        try:
            while self._position < end:
                command = self._next_command(end)
                if command is None:
                    break
                yield command
        finally:
            rest = self._buffer[self._position :]
            self._buffer = b""
            self._position = 0
            if rest:
                self._chunks.append(rest)
            self._available = len(rest)

    def hand_back(self) -> bytes:
        """Remove and return the bytes after the last command, for another codec; an iterator then ends."""
        rest = self._buffer[self._position :] + b"".join(self._chunks)
        self._position = len(self._buffer)
        self._chunks.clear()
        self._available = 0
        return rest

    def end_of_input(self) -> None:
        """Raise the error for EOF, or for a deadline (nsqd: the same), at this point.

        It is ``SilentClose`` outside a body, and inside one a ``FatalClientError`` that names the missing part.
        """
        if self._body is None:
            raise SilentClose("end of input")
        raise self._body.read_error()

    def _next_command(self, end: int) -> Command | None:
        if self._body is not None:
            return self._read_body(self._body, end)
        buffer, position = self._buffer, self._position
        if buffer[position] == _FIN_FIRST_BYTE:
            run = _FIN_RUN.match(buffer, position)
            if run is not None:
                # Hot: one match and one split for hundreds of FINs. An id cannot contain the separator.
                self._position = run.end()
                return Finish(buffer[position + 4 : run.end() - 1].split(b"\nFIN "))
        newline = buffer.find(b"\n", position, position + MAX_LINE)
        if newline < 0:
            if end - position >= MAX_LINE:
                raise SilentClose("line too long")
            return None
        ends_in_return = newline > position and buffer[newline - 1] == _CARRIAGE_RETURN
        tokens = buffer[position : newline - 1 if ends_in_return else newline].split(b" ")
        self._position = newline + 1
        spec = self._admit(tokens)
        if spec.body is None:
            return SimpleCommand(spec, tokens, b"")
        if spec is PUB or spec is MPUB:
            if len(self._known) >= _MAX_KNOWN_LINES:
                self._known.clear()
            line = buffer[position : newline + 1]
            self._known[line] = spec, tokens
            self._select_line(line, spec, tokens)
        if spec is PUB:
            command = self._read_publish_run(spec, tokens, self._line, end)
            if command is not None:
                return command
        self._body = self._expect_body(spec, tokens, spec.body)
        return self._read_body(self._body, end)

    def _read_publish_run(self, spec: CommandSpec, tokens: list[bytes], line: bytes, end: int) -> Publish | None:
        """All complete PUBs that repeat the line; None if the first one is incomplete or invalid."""
        # Hot: runs for every pipelined PUB. Incomplete and invalid ones are left to `_read_body`.
        buffer, position, max_msg_size = self._buffer, self._position, self._max_msg_size
        bodies: list[bytes] = []
        while position + SIZE_OF_SIZE <= end:
            size = read_size(buffer, position)[0]
            stop = position + SIZE_OF_SIZE + size
            if not 0 < size <= max_msg_size or stop > end:
                break
            bodies.append(buffer[position + SIZE_OF_SIZE : stop])
            if not buffer.startswith(line, stop):
                self._position = stop
                return Publish(spec, tokens, bodies)
            position = stop + len(line)
        if not bodies:
            return None
        # The line of the next PUB was consumed; its body is incomplete or invalid.
        self._position = position
        assert spec.body is not None, "PUB has a body"
        self._body = self._expect_body(spec, tokens, spec.body)
        return Publish(spec, tokens, bodies)

    def _expect_body(self, spec: CommandSpec, tokens: list[bytes], body: BodySpec) -> SizedBody:
        if body.multiple:
            return BatchBody(spec, tokens, body, self._max_msg_size, self._max_body_size)
        limit = body.max_size or (self._max_msg_size if body.is_message else self._max_body_size)
        if body.document_limit:
            limit = min(limit, body.document_limit)
        return SizedBody(spec, tokens, body, limit)

    def _read_body(self, body: SizedBody, end: int) -> Command | None:
        command, self._position = body.read(self._buffer, self._position, end)
        if command is None:
            self._needed = body.needed
            return None
        self._body = None
        return command


def _admit_nothing(tokens: list[bytes]) -> CommandSpec:
    raise SilentClose("closed")


NO_READER: Final = CommandReader(_admit_nothing, max_msg_size=0, max_body_size=0)
"""That of a closed session, which reads no more."""
