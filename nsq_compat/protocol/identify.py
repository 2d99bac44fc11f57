"""IDENTIFY: what a client says of itself and asks for, and what nsqd answers, written and read by either side. Only the
forms; who gets what is decided by the session.
"""

from dataclasses import dataclass, fields
from typing import Final

from nsq_compat.protocol.errors import E_BAD_BODY, FatalClientError
from nsq_compat.protocol.go_json import BOOL, INT32, INT64, STRING, Fields, JsonError, dumps, loads_object

REQUEST_FIELDS: Final[Fields] = {
    "client_id": STRING,
    "hostname": STRING,
    "heartbeat_interval": INT64,
    "output_buffer_size": INT64,
    "output_buffer_timeout": INT64,
    "feature_negotiation": BOOL,
    "tls_v1": BOOL,
    "deflate": BOOL,
    "deflate_level": INT64,
    "snappy": BOOL,
    "sample_rate": INT32,
    "user_agent": STRING,
    "msg_timeout": INT64,
    "topology_region": STRING,
    "topology_zone": STRING,
}


@dataclass(frozen=True, slots=True)
class IdentifyRequest:
    """The fields of an IDENTIFY body that nsqd knows; absent ones are zero, which nowhere differs from saying so.

    `heartbeat_interval`, `output_buffer_timeout` and `msg_timeout` are milliseconds, `output_buffer_size` bytes,
    `sample_rate` percent. No value is checked here.
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

    def encode(self) -> bytes:
        """The JSON object, without the fields that say nothing: to nsqd they are the same as absent ones."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return dumps({name: value for name, value in said.items() if value}).encode("utf-8")


@dataclass(frozen=True, slots=True)
class IdentifyResponse:
    """What a client that negotiates is told. The order of the fields is the order on the wire (nsqd).

    `max_msg_timeout`, `msg_timeout` and `output_buffer_timeout` are milliseconds; the topology is the daemon's own.
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

    def encode(self) -> bytes:
        """The JSON object, the data of a response frame."""
        return dumps({field.name: getattr(self, field.name) for field in fields(self)}).encode("utf-8")


RESPONSE_FIELDS: Final[Fields] = {
    "max_rdy_count": INT64,
    "version": STRING,
    "max_msg_timeout": INT64,
    "msg_timeout": INT64,
    "tls_v1": BOOL,
    "deflate": BOOL,
    "deflate_level": INT64,
    "max_deflate_level": INT64,
    "snappy": BOOL,
    "sample_rate": INT32,
    "auth_required": BOOL,
    "output_buffer_size": INT64,
    "output_buffer_timeout": INT64,
    "topology_region": STRING,
    "topology_zone": STRING,
}


def decode_identify(body: bytes) -> IdentifyRequest:
    """The request in an IDENTIFY body. Raises ``FatalClientError`` for what is not such a JSON object."""
    try:
        return IdentifyRequest(**loads_object(body, REQUEST_FIELDS))
    except JsonError:
        raise FatalClientError(E_BAD_BODY, "IDENTIFY failed to decode JSON body") from None


def decode_identify_response(data: bytes) -> IdentifyResponse:
    """What nsqd answered; what it left out is zero, and all of it is for ``OK``, the answer to who does not negotiate.

    Raises ``ValueError`` for what is neither.
    """
    return IdentifyResponse(**loads_object(b"{}" if data == b"OK" else data, RESPONSE_FIELDS))
