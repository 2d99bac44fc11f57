"""The body of IDENTIFY and nsqd's response to it, encoded and decoded. The session negotiates."""

from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from nsq_compat.protocol.errors import E_BAD_BODY, FatalClientError
from nsq_compat.protocol.go_json import INT32, JsonError, Kind, dumps, fields_of, lenient, loads_object, object_of

MAX_TEXT: Final = 256
"""Characters of a client's texts. /stats and log lines repeat them, for every consumer of a channel."""
_MAX_REMEMBERED: Final = 1024
"""Bytes of a body that may be remembered."""


@dataclass(frozen=True, slots=True)
class IdentifyRequest:
    """The fields of an IDENTIFY body that nsqd knows. Absent fields are zero; nsqd treats both alike.

    `heartbeat_interval`, `output_buffer_timeout` and `msg_timeout` are milliseconds, `output_buffer_size` bytes,
    `sample_rate` percent. Values are not validated here.
    """

    client_id: str = ""
    hostname: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    user_agent: str = ""
    msg_timeout: int = 0
    topology_region: str = ""
    topology_zone: str = ""
    message_headers: bool = False
    """Not in NSQ: messages with headers. On the wire, here and in the response, it is in an object `nsq_compat`."""
    publish_ids: bool = False
    """Not in NSQ: `NO_WINDOW` as the answer to a publish with headers, where ids have no effect."""

    def __str__(self) -> str:
        """The form of Go's log lines."""
        values = _go_values(self)
        return _GO_LINE % tuple("true" if each is True else "false" if each is False else each for each in values)

    def encode(self) -> bytes:
        """The JSON object, without fields that are zero."""
        return dumps({name: value for name, value in _to_wire(self).items() if value}).encode("utf-8")


@dataclass(frozen=True, slots=True)
class IdentifyResponse:
    """nsqd's response to a client that negotiates. nsqd: the fields are in this order on the wire.

    `max_msg_timeout`, `msg_timeout` and `output_buffer_timeout` are milliseconds. The topology is the daemon's.
    """

    max_rdy_count: int
    version: str
    max_msg_timeout: int
    msg_timeout: int
    tls_v1: bool
    deflate: bool
    deflate_level: int
    max_deflate_level: int
    snappy: bool
    sample_rate: int
    auth_required: bool
    output_buffer_size: int
    output_buffer_timeout: int
    topology_region: str
    topology_zone: str
    message_headers: bool = False
    publish_ids: bool = False

    def encode(self) -> bytes:
        """The JSON object, as the data of a response frame."""
        return _encoded(self)


_GO_NAMES: Final = {
    "client_id": "ClientID",
    "hostname": "Hostname",
    "heartbeat_interval": "HeartbeatInterval",
    "output_buffer_size": "OutputBufferSize",
    "output_buffer_timeout": "OutputBufferTimeout",
    "feature_negotiation": "FeatureNegotiation",
    "tls_v1": "TLSv1",
    "deflate": "Deflate",
    "deflate_level": "DeflateLevel",
    "snappy": "Snappy",
    "sample_rate": "SampleRate",
    "user_agent": "UserAgent",
    "msg_timeout": "MsgTimeout",
    "topology_region": "TopologyRegion",
    "topology_zone": "TopologyZone",
}


_GO_LINE: Final = "{" + " ".join(f"{name}:%s" for name in _GO_NAMES.values()) + "}"
_go_values: Final = attrgetter(*_GO_NAMES)

_EXTENSIONS: Final = "nsq_compat"
_ON_WIRE: Final = {"message_headers": "headers", "publish_ids": "ids"}
"""The names of the members of that object."""


def _to_wire(message: IdentifyRequest | IdentifyResponse) -> dict[str, Any]:
    # Not with asdict(), which copies each value and takes ten times as long.
    values = {name: getattr(message, name) for name in message.__slots__}
    extensions = {on_wire: True for name, on_wire in _ON_WIRE.items() if values.pop(name)}
    return values | {_EXTENSIONS: extensions} if extensions else values


@lru_cache(64)  # most clients of an nsqd are granted the same
def _encoded(response: IdentifyResponse) -> bytes:
    return dumps(_to_wire(response)).encode("utf-8")


def _from_wire(values: dict[str, Any]) -> dict[str, Any]:
    extensions = values.pop(_EXTENSIONS)
    return values | {name: extensions[on_wire] for name, on_wire in _ON_WIRE.items()}


def _fields(message: type[IdentifyRequest | IdentifyResponse]) -> dict[str, Kind]:
    fields = fields_of(message)
    # Lenient, because NSQ's nsqd ignores what it does not know.
    extensions = lenient(object_of({on_wire: lenient(fields.pop(name)) for name, on_wire in _ON_WIRE.items()}))
    # nsqd: the sample rate is the only field of 32 bits.
    return fields | {"sample_rate": INT32, _EXTENSIONS: extensions}


_REQUEST_FIELDS: Final = _fields(IdentifyRequest)
_RESPONSE_FIELDS: Final = _fields(IdentifyResponse)


def decode_identify(body: bytes) -> IdentifyRequest:
    """Decode the body of an IDENTIFY. Raises ``FatalClientError`` for anything but such a JSON object."""
    # A client sends the same body with each connection, and so do most clients of a host.
    return _remembered_identify(body) if len(body) <= _MAX_REMEMBERED else _decode_identify(body)


def _decode_identify(body: bytes) -> IdentifyRequest:
    try:
        fields = _from_wire(loads_object(body, _REQUEST_FIELDS))
    except JsonError:
        raise FatalClientError(E_BAD_BODY, "IDENTIFY failed to decode JSON body") from None
    for name, value in fields.items():
        if isinstance(value, str):
            fields[name] = value[:MAX_TEXT]  # docs/differences.md: document-size
    return IdentifyRequest(**fields)


_remembered_identify: Final = lru_cache(64)(_decode_identify)


def decode_identify_response(data: bytes) -> IdentifyResponse:
    """Decode nsqd's response. Absent fields are zero, and so are all fields if it is ``OK`` (no negotiation).

    Raises ``ValueError`` for anything else, such as negative limits.
    """
    response = IdentifyResponse(**_from_wire(loads_object(b"{}" if data == b"OK" else data, _RESPONSE_FIELDS)))
    if min(response.max_rdy_count, response.msg_timeout) < 0:
        raise JsonError("a limit is negative")
    return response
