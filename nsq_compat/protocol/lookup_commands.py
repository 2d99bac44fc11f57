"""The V1 protocol between nsqd and nsqlookupd, both ends: bytes to commands and replies, and back.

nsqd connects and sends the magic, IDENTIFY, and then other commands. Each command is answered by one reply: a size and
as many bytes, without a type. A command is a line; only IDENTIFY has a sized body, which is JSON. In nsqlookupd every
error is fatal: it is sent as a reply, then the connection is closed.

Invariants of both readers: *any cut of the input gives the same values* and the same error at the same place; a size is
checked before its data is awaited; time is linear in the bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final, NamedTuple

from nsq_compat.protocol import schema
from nsq_compat.protocol.errors import (
    E_BAD_BODY,
    E_BAD_CHANNEL,
    E_BAD_TOPIC,
    E_INVALID,
    FatalClientError,
    SilentClose,
)
from nsq_compat.protocol.go_json import INT64, STRING, Fields, JsonError, dumps, loads_object
from nsq_compat.protocol.layout import SIZE_OF_SIZE, pack_size, read_size
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.protocol.receive_buffer import ReceiveBuffer

MAGIC: Final[bytes] = schema.MAGIC_V1.value
PING: Final = b"PING\n"
OK: Final = b"OK"
"""The data of the reply to all commands but IDENTIFY."""

MAX_LINE: Final = 16384
"""The maximum size of a line with its newline, as in nsqd. NSQ's nsqlookupd has no limit."""

DEFAULT_MAX_BODY_SIZE: Final = 1 << 20
"""The maximum size of IDENTIFY's body, which is usually a few hundred bytes. NSQ's nsqlookupd has no limit, and
crashes at a negative size."""

DEFAULT_MAX_REPLY_SIZE: Final = 5 << 20
"""nsqd: its --max-body-size."""

_PORTS: Final = ("tcp_port", "http_port")


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The body of IDENTIFY. Fields are in alphabetical order, as on the wire."""

    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    topology_region: str = ""
    topology_zone: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class LookupdInfo:
    """The reply to IDENTIFY. Fields are in alphabetical order, as on the wire."""

    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    version: str = ""


_LOOKUPD_INFO_FIELDS: Final[Fields] = {
    field.name: INT64 if field.name in _PORTS else STRING
    for field in fields(LookupdInfo)
    if field.name != "hostname"  # nsqd: ignored, so it may have any type
}
_PEER_INFO_FIELDS: Final[Fields] = {
    field.name: INT64 if field.name in _PORTS else STRING for field in fields(PeerInfo)
} | {"remote_address": STRING}  # nsqlookupd: must be a string if present, and is ignored


class LookupReplyError(Exception):
    """Received data is not a valid reply of nsqlookupd; the connection must be closed."""


class LookupCommand(NamedTuple):
    """A command to nsqlookupd: its line split at spaces, and the body, which only IDENTIFY has."""

    tokens: Sequence[bytes]
    body: bytes


# --- nsqd's end -------------------------------------------------------------------------------------------------------


def identify(info: PeerInfo) -> bytes:
    """IDENTIFY, the first command of every connection."""
    command: bytes = schema.LOOKUPD_IDENTIFY.build({"body": dumps(asdict(info)).encode("utf-8")})
    return command


def register(topic: str, channel: str = "") -> bytes:
    """REGISTER a topic, or a channel and its topic."""
    return _registration("REGISTER", topic, channel)


def unregister(topic: str, channel: str = "") -> bytes:
    """UNREGISTER a channel, or a topic with all its channels."""
    return _registration("UNREGISTER", topic, channel)


def _registration(verb: str, topic: str, channel: str) -> bytes:
    return f"{verb} {topic} {channel}".rstrip(" ").encode("ascii") + b"\n"


class ReplyReader:
    """Reads one connection's replies. `max_size` is the maximum size of a reply's data in bytes."""

    def __init__(self, max_size: int = DEFAULT_MAX_REPLY_SIZE) -> None:
        self._max_size = max_size
        self._buffer = ReceiveBuffer(SIZE_OF_SIZE)

    def receive_data(self, data: bytes) -> Iterator[bytes]:
        """Feed received bytes; iterate over the data of complete replies.

        The iterator raises ``LookupReplyError`` if a reply's size is too large or negative.
        """
        return self._replies() if self._buffer.append(data) else iter(())

    def _replies(self) -> Iterator[bytes]:
        buffer = self._buffer
        data, position = buffer.gather(), 0
        buffer.needed = SIZE_OF_SIZE
        while position + SIZE_OF_SIZE <= len(data):
            (size,) = read_size(data, position)
            if not 0 <= size <= self._max_size:
                raise LookupReplyError(f"a reply of {size} bytes, not 0 to {self._max_size}")
            stop = position + SIZE_OF_SIZE + size
            if stop > len(data):
                buffer.needed = SIZE_OF_SIZE + size
                break
            buffer.position = stop
            yield data[position + SIZE_OF_SIZE : stop]
            position = stop
        buffer.gather()


def decode_lookupd_info(data: bytes) -> LookupdInfo:
    """Decode the reply to IDENTIFY. Raises ``LookupReplyError`` unless it is a JSON object, so also for errors."""
    try:
        return LookupdInfo(**loads_object(data, _LOOKUPD_INFO_FIELDS))
    except JsonError:
        text = data[:100].decode("utf-8", "backslashreplace")
        raise LookupReplyError(f"not an answer to IDENTIFY: {text}") from None


# --- nsqlookupd's end -------------------------------------------------------------------------------------------------


def reply(data: bytes) -> bytes:
    """A reply in wire form; `data` is ``OK``, a result of ``encode_lookupd_info``, or an error's ``data``."""
    return pack_size(len(data)) + data


def encode_lookupd_info(info: LookupdInfo) -> bytes:
    """The data of the reply to IDENTIFY."""
    return dumps(asdict(info)).encode("utf-8")


def decode_peer_info(body: bytes) -> PeerInfo:
    """Decode an IDENTIFY body. Raises ``FatalClientError`` for invalid JSON and missing fields."""
    try:
        values = loads_object(body, _PEER_INFO_FIELDS)
    except JsonError:
        raise FatalClientError(E_BAD_BODY, "IDENTIFY failed to decode JSON body") from None
    del values["remote_address"]
    info = PeerInfo(**values)
    if not (info.broadcast_address and info.tcp_port and info.http_port and info.version):
        raise FatalClientError(E_BAD_BODY, "IDENTIFY missing fields")
    return info


def registration(tokens: Sequence[bytes]) -> tuple[str, str]:
    """Topic and channel ("" for none) of a REGISTER or UNREGISTER line. Raises ``FatalClientError``."""
    verb = tokens[0].decode("ascii")
    if len(tokens) < 2:
        raise FatalClientError(E_INVALID, f"{verb} insufficient number of params")
    topic, channel = tokens[1], tokens[2] if len(tokens) > 2 else b""
    if not is_valid_name(topic):
        raise FatalClientError(E_BAD_TOPIC, b"%b topic name '%b' is not valid" % (tokens[0], topic))
    if channel and not is_valid_name(channel):
        raise FatalClientError(E_BAD_CHANNEL, b"%b channel name '%b' is not valid" % (tokens[0], channel))
    return topic.decode("ascii"), channel.decode("ascii")


# nsqlookupd: all Unicode white space is stripped from both ends of a line, not only a carriage return.
_WHITE_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_VERBS: Final = frozenset({b"PING", b"IDENTIFY", b"REGISTER", b"UNREGISTER"})


class LookupCommandReader:
    """Reads one connection's commands, after the magic.

    `admit` is called with the tokens of each complete line that has a known verb, before a body is awaited. It raises
    the error to reply if the command is not allowed now. `max_body_size` is in bytes.
    """

    def __init__(self, admit: Callable[[Sequence[bytes]], None], *, max_body_size: int = DEFAULT_MAX_BODY_SIZE) -> None:
        self._admit = admit
        self._max_body_size = max_body_size
        self._buffer = ReceiveBuffer(1)
        self._identify: Sequence[bytes] | None = None
        self._body_size: int | None = None

    def receive_data(self, data: bytes) -> Iterator[LookupCommand]:
        """Feed received bytes; iterate over complete commands.

        The iterator raises ``FatalClientError`` for invalid commands, ``SilentClose`` for an over-long line, and the
        errors of `admit`. After an error the reader must not be fed again.
        """
        return self._commands() if self._buffer.append(data) else iter(())

    def end_of_input(self) -> None:
        """Handle EOF: raises ``SilentClose`` between commands and inside a line, ``FatalClientError`` inside a body."""
        if self._identify is None:
            raise SilentClose("end of input")
        part = " size" if self._body_size is None else ""
        raise FatalClientError(E_BAD_BODY, f"IDENTIFY failed to read body{part}")

    def _commands(self) -> Iterator[LookupCommand]:
        self._buffer.gather()
        self._buffer.needed = 1
        while True:
            command = self._next_line() if self._identify is None else self._next_body(self._identify)
            if command is None:
                break
            yield command
        self._buffer.gather()

    def _next_line(self) -> LookupCommand | None:
        buffer = self._buffer
        data, position = buffer.data, buffer.position
        newline = data.find(b"\n", position, position + MAX_LINE)
        if newline < 0:
            if len(data) - position >= MAX_LINE:
                raise SilentClose("line too long")
            buffer.needed = len(data) - position + 1
            return None
        tokens = _tokens(data[position:newline])
        if tokens[0] not in _VERBS:
            raise FatalClientError(E_INVALID, b"invalid command " + tokens[0])
        self._admit(tokens)
        buffer.position = newline + 1
        if tokens[0] != b"IDENTIFY":
            return LookupCommand(tokens, b"")
        self._identify = tokens
        return self._next_body(tokens)

    def _next_body(self, tokens: Sequence[bytes]) -> LookupCommand | None:
        buffer = self._buffer
        if self._body_size is None:
            if len(buffer.data) - buffer.position < SIZE_OF_SIZE:
                buffer.needed = SIZE_OF_SIZE
                return None
            self._body_size = self._checked_size(read_size(buffer.data, buffer.position)[0])
            buffer.position += SIZE_OF_SIZE
        stop = buffer.position + self._body_size
        if stop > len(buffer.data):
            buffer.needed = self._body_size
            return None
        body = buffer.data[buffer.position : stop]
        buffer.position = stop
        self._identify = self._body_size = None
        return LookupCommand(tokens, body)

    def _checked_size(self, size: int) -> int:
        # nsqlookupd has neither check; the texts are nsqd's.
        if size < 0:
            raise FatalClientError(E_BAD_BODY, f"IDENTIFY invalid body size {size}")
        if size > self._max_body_size:
            raise FatalClientError(E_BAD_BODY, f"IDENTIFY body too big {size} > {self._max_body_size}")
        return size


def _tokens(line: bytes) -> list[bytes]:
    stripped = line.decode("utf-8", "surrogateescape").strip(_WHITE_SPACE)
    return stripped.encode("utf-8", "surrogateescape").split(b" ")
