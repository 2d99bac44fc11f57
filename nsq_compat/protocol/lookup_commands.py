"""The V1 protocol between nsqd and nsqlookupd, both ends: bytes to commands and replies, and back.

nsqd connects and sends the magic, IDENTIFY, and then other commands. Each command is answered by one reply: a size and
as many bytes, without a type. A command is a line; only IDENTIFY has a sized body, which is JSON. In nsqlookupd every
error is fatal: it is sent as a reply, then the connection is closed.

nsqlookupd reads commands with the ``CommandReader`` of nsqd. The reader of replies has the same invariants: *any cut of
the input gives the same values* and the same error at the same place; a size is checked before its data is awaited.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from nsq_compat.protocol import schema
from nsq_compat.protocol.commands import BodySpec, CommandSpec
from nsq_compat.protocol.errors import E_BAD_BODY, E_BAD_CHANNEL, E_BAD_TOPIC, E_INVALID, FatalClientError
from nsq_compat.protocol.go_json import STRING, Fields, JsonError, dumps, encode, fields_of, loads_object
from nsq_compat.protocol.layout import SIZE_OF_SIZE, ReceiveBuffer, read_size, sized
from nsq_compat.protocol.names import is_valid_name

MAGIC: Final[bytes] = schema.MAGIC_V1.value
PING: Final = b"PING\n"
OK: Final = b"OK"
"""The data of the reply to all commands but IDENTIFY."""

MAX_BODY_SIZE: Final = 1 << 14
"""The maximum size of IDENTIFY's body, which is usually a few hundred bytes. NSQ's nsqlookupd has no limit, and
crashes at a negative size."""

MAX_REPLY_SIZE: Final = 1 << 15
"""Bytes. The longest, to IDENTIFY, has a few hundred; reading one of 5 MB takes 0.3 s. nsqd: its --max-body-size."""


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


_LOOKUPD_INFO_FIELDS: Final = fields_of(LookupdInfo)
del _LOOKUPD_INFO_FIELDS["hostname"]  # nsqd: ignored, so it may have any type
_PEER_INFO_FIELDS: Final = fields_of(PeerInfo) | {"remote_address": STRING}
"""nsqlookupd: the remote address must be a string if present, and is ignored."""


_TOKEN_FIELD: Final[Fields] = {"token": STRING}


class LookupReplyError(Exception):
    """Received data is not a valid reply of nsqlookupd; the connection must be closed."""


# --- nsqd's end -------------------------------------------------------------------------------------------------------


def identify(info: PeerInfo, token: str = "") -> bytes:
    """IDENTIFY, the first command of every connection. `token` is for an nsqlookupd with an access file; not in NSQ."""
    return b"IDENTIFY\n" + sized(dumps(asdict(info) | {"token": token}).encode("utf-8") if token else encode(info))


def _registration(verb: str, topic: str, channel: str = "") -> bytes:
    return f"{verb} {topic} {channel}".rstrip(" ").encode("ascii") + b"\n"


register: Final = partial(_registration, "REGISTER")
"""REGISTER a topic, or a channel and its topic."""
unregister: Final = partial(_registration, "UNREGISTER")
"""UNREGISTER a channel, or a topic with all its channels."""


class ReplyReader:
    """Reads one connection's replies. `max_size` is the maximum size of a reply's data in bytes."""

    def __init__(self, max_size: int = MAX_REPLY_SIZE) -> None:
        self._max_size = max_size
        self._buffer = ReceiveBuffer(SIZE_OF_SIZE)

    def receive_data(self, data: bytes) -> Iterator[bytes]:
        """Feed received bytes; iterate over the data of complete replies.

        The iterator raises ``LookupReplyError`` if a reply's size is too large or negative.
        """
        if self._buffer.append(data):
            for piece in self._buffer.pieces(SIZE_OF_SIZE, self._size_of):
                yield piece[SIZE_OF_SIZE:]

    def _size_of(self, data: bytes, position: int) -> int:
        (size,) = read_size(data, position)
        if not 0 <= size <= self._max_size:
            raise LookupReplyError(f"a reply of {size} bytes, not 0 to {self._max_size}")
        return SIZE_OF_SIZE + int(size)


def decode_lookupd_info(data: bytes) -> LookupdInfo:
    """Decode the reply to IDENTIFY. Raises ``LookupReplyError`` unless it is a JSON object, so also for errors."""
    try:
        return LookupdInfo(**loads_object(data, _LOOKUPD_INFO_FIELDS))
    except JsonError:
        text = data[:100].decode("utf-8", "backslashreplace")
        raise LookupReplyError(f"not an answer to IDENTIFY: {text}") from None


# --- nsqlookupd's end -------------------------------------------------------------------------------------------------


reply: Final = sized
"""A reply in wire form, of ``OK``, an encoded ``LookupdInfo``, or an error's ``data``."""


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


def token_of(body: bytes) -> bytes:
    """The token in an IDENTIFY body; empty without one. Raises ``FatalClientError`` if it is not a text."""
    try:
        return str(loads_object(body, _TOKEN_FIELD)["token"]).encode("utf-8", "replace")
    except JsonError:
        raise FatalClientError(E_BAD_BODY, "IDENTIFY failed to decode JSON body") from None


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
_IDENTIFY_BODY: Final = BodySpec(E_BAD_BODY, "body", "body", is_message=True, may_be_empty=True)
COMMANDS: Final = {
    name.encode(): CommandSpec(name, frozenset(), body=_IDENTIFY_BODY if name == "IDENTIFY" else None)
    for name in ("PING", "IDENTIFY", "REGISTER", "UNREGISTER")
}


def check(tokens: list[bytes]) -> CommandSpec:
    """The command of a line to nsqlookupd; strips the tokens of white space. Raises ``FatalClientError``."""
    line = b" ".join(tokens).decode("utf-8", "surrogateescape").strip(_WHITE_SPACE)
    tokens[:] = line.encode("utf-8", "surrogateescape").split(b" ")
    spec = COMMANDS.get(tokens[0])
    if spec is None:
        raise FatalClientError(E_INVALID, b"invalid command " + tokens[0])
    return spec
