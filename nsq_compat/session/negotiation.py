"""IDENTIFY: the settings that a client asks for, those it is granted, and the codecs that follow.

The settings of a connection have the form of an ``IdentifyRequest``, with granted values in place of requested ones.

The steps of an upgrade (nsqd): the response to IDENTIFY without the new codecs, the TLS handshake, OK through TLS, OK
through the compression. Each begins exactly where the one before ends, so bytes that a client sends ahead are decoded
by the right codec (docs/differences.md: pipelined-upgrade).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from nsq_compat import NSQ_VERSION
from nsq_compat.protocol.compression import Codec, Deflate, Snappy
from nsq_compat.protocol.errors import E_BAD_BODY, E_IDENTIFY_FAILED, FatalClientError
from nsq_compat.protocol.identify import IdentifyRequest, IdentifyResponse
from nsq_compat.queue.schedule import NEVER
from nsq_compat.queue.wait_queue import Locality
from nsq_compat.session.conversation import TlsFacts

_DEFAULT_OUTPUT_BUFFER_SIZE: Final = 16384
_DEFAULT_DEFLATE_LEVEL: Final = 6
_OFF: Final = -1


@dataclass(frozen=True, slots=True)
class NsqdLimits:
    """The daemon's options that a session depends on. Sizes in bytes."""

    max_rdy_count: int = 2500
    max_msg_size: int = 1 << 20
    max_body_size: int = 5 << 20
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    max_req_timeout_ms: int = 3_600_000
    max_defer_timeout_ms: int = 3_600_000
    client_timeout_ms: int = 60_000
    max_heartbeat_interval_ms: int = 60_000
    max_output_buffer_size: int = 1 << 16
    min_output_buffer_timeout_ms: int = 25
    max_output_buffer_timeout_ms: int = 30_000
    output_buffer_timeout_ms: int = 250
    tls: bool = False
    """There is a certificate."""
    tls_required: bool = False
    deflate: bool = True
    max_deflate_level: int = 6
    auth_required: bool = False
    snappy: bool = True
    topology_region: str = ""
    topology_zone: str = ""


@lru_cache(64)
def settings_before_identify(host: str, limits: NsqdLimits) -> IdentifyRequest:
    """The settings before IDENTIFY; `host` is the client's address without the port."""
    return IdentifyRequest(
        client_id=host,
        hostname=host,
        heartbeat_interval=limits.client_timeout_ms // 2,
        msg_timeout=limits.msg_timeout_ms,
        output_buffer_timeout=limits.output_buffer_timeout_ms,
        output_buffer_size=_DEFAULT_OUTPUT_BUFFER_SIZE,
    )


def command_timeout(settings: IdentifyRequest) -> float:
    """The seconds within which a client must complete a command; without heartbeats it has any time.

    nsqd: two heartbeat intervals; parts of a command do not count.
    """
    return 2 * settings.heartbeat_interval / 1000 if settings.heartbeat_interval else NEVER


@lru_cache(64)  # clients of one program ask for the same
def negotiate(request: IdentifyRequest, current: IdentifyRequest, limits: NsqdLimits) -> IdentifyRequest:
    """The settings after an IDENTIFY. Raises ``FatalClientError`` for the first invalid field, in nsqd's order."""

    def checked(field: str, low: int, high: int, off: int | None = None) -> int:
        """The value in force: 0 keeps the current one, -1 means `off` where that is allowed."""
        value: int = getattr(request, field)
        if value == 0 and field != "sample_rate":  # nsqd: a new IDENTIFY ends sampling
            value = getattr(current, field)
        elif value == _OFF and off is not None:
            value = off
        elif not low <= value <= high:
            raise FatalClientError(E_BAD_BODY, f"IDENTIFY {field.replace('_', ' ')} ({value}) is invalid")
        return value

    granted = {
        "heartbeat_interval": checked("heartbeat_interval", 1000, limits.max_heartbeat_interval_ms, off=0),
        "output_buffer_timeout": checked(
            "output_buffer_timeout", limits.min_output_buffer_timeout_ms, limits.max_output_buffer_timeout_ms, off=0
        ),
        "output_buffer_size": checked("output_buffer_size", 64, limits.max_output_buffer_size, off=1),
        "sample_rate": checked("sample_rate", 0, 99),
        "msg_timeout": checked("msg_timeout", 1000, limits.max_msg_timeout_ms),
    }
    if request.output_buffer_size == _OFF:
        granted["output_buffer_timeout"] = 0
    granted["message_headers"] = has_headers = request.message_headers and request.feature_negotiation
    granted["publish_ids"] = request.publish_ids and has_headers  # a boolean, also where this is compiled
    return replace(request, **granted)  # type: ignore[arg-type]  # all of them are integers or booleans


def grant(settings: IdentifyRequest, limits: NsqdLimits) -> IdentifyResponse:
    """The response to a client that negotiates, with those features that are requested and allowed.

    Raises ``FatalClientError`` for both compressions.
    """
    deflate, snappy = settings.deflate and limits.deflate, settings.snappy and limits.snappy
    if deflate and snappy:
        raise FatalClientError(E_IDENTIFY_FAILED, "cannot enable both deflate and snappy compression")
    # nsqd: the requested level counts only if deflate is granted, and if it is above 0.
    level = settings.deflate_level if deflate and settings.deflate_level > 0 else _DEFAULT_DEFLATE_LEVEL
    return IdentifyResponse(
        max_rdy_count=limits.max_rdy_count,
        version=NSQ_VERSION,
        max_msg_timeout=limits.max_msg_timeout_ms,
        msg_timeout=settings.msg_timeout,
        tls_v1=settings.tls_v1 and limits.tls,
        deflate=deflate,
        deflate_level=min(level, limits.max_deflate_level),
        max_deflate_level=limits.max_deflate_level,
        snappy=snappy,
        sample_rate=settings.sample_rate,
        auth_required=limits.auth_required,
        output_buffer_size=settings.output_buffer_size,
        output_buffer_timeout=settings.output_buffer_timeout,
        topology_region=limits.topology_region,
        topology_zone=limits.topology_zone,
        message_headers=settings.message_headers,
        publish_ids=settings.publish_ids,
    )


def locality(settings: IdentifyRequest, limits: NsqdLimits) -> Locality:
    """The client's locality. nsqd: the zones are compared even if the regions differ.

    Without a configured zone and region all clients are global (docs/differences.md: topology).
    """
    if limits.topology_zone and settings.topology_zone == limits.topology_zone:
        return Locality.ZONE_LOCAL
    if limits.topology_region and settings.topology_region == limits.topology_region:
        return Locality.REGION_LOCAL
    return Locality.GLOBAL


class Layers:
    """The codecs of one connection: those in use, and those that follow (`wanted`)."""

    def __init__(self) -> None:
        self.tls: TlsFacts | None = None
        self.compression: Codec | None = None
        self.are_negotiated = False
        """There was an IDENTIFY."""
        self.wanted: tuple[Codec | None, ...] = ()
        """Those that follow, in order; None for TLS, which the connection creates."""

    def want(self, features: IdentifyResponse) -> None:
        """Plan the codecs of these features. Raises ``FatalClientError`` if they cannot follow those in place."""
        # nsqd applies them to the bare socket, after which neither side can decode the other's bytes.
        if features.tls_v1 and (self.tls is not None or self.compression is not None):
            raise FatalClientError(
                E_IDENTIFY_FAILED, "IDENTIFY failed TLS cannot begin inside a TLS or compressed stream"
            )
        if self.compression is not None and (features.deflate or features.snappy):
            raise FatalClientError(E_IDENTIFY_FAILED, "IDENTIFY failed the stream is compressed already")
        if features.tls_v1:
            self.wanted = (None,)
        if features.deflate:
            self.wanted += (Deflate(features.deflate_level),)
        elif features.snappy:
            self.wanted += (Snappy(),)

    def add(self, tls: TlsFacts | None) -> None:
        """Note that the next codec is in place."""
        codec, self.wanted = self.wanted[0], self.wanted[1:]
        self.tls = tls or self.tls
        self.compression = codec or self.compression
