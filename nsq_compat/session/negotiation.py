"""IDENTIFY: the settings that a client asks for, those it is granted, and the codecs that follow.

Durations that appear in IDENTIFY are integer milliseconds here as well.

The steps of an upgrade (nsqd): the response to IDENTIFY as before, the TLS handshake, OK through TLS, OK through the
compression. Each takes effect where the one before ends, so bytes that a client sent ahead belong to the codec they
were meant for (docs/differences.md: pipelined-upgrade).
"""

from dataclasses import dataclass, replace
from typing import Final

from nsq_compat import NSQ_VERSION
from nsq_compat.protocol.compression import Codec, Deflate, Snappy
from nsq_compat.protocol.errors import E_BAD_BODY, E_IDENTIFY_FAILED, FatalClientError
from nsq_compat.protocol.identify import IdentifyRequest, IdentifyResponse
from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.wait_queue import Locality
from nsq_compat.session.conversation import TlsFacts

_MIN_HEARTBEAT_MS: Final = 1000
_MIN_MSG_TIMEOUT_MS: Final = 1000
_MIN_OUTPUT_BUFFER_SIZE: Final = 64
_MAX_SAMPLE_RATE: Final = 99
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


@dataclass(frozen=True, slots=True)
class Features:
    """The granted codecs between socket and session."""

    tls: bool
    deflate: bool
    deflate_level: int
    snappy: bool


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of one connection. A `heartbeat_ms` of 0 means neither heartbeats nor deadlines."""

    client_id: str
    hostname: str
    heartbeat_ms: int
    msg_timeout_ms: int
    output_buffer_timeout_ms: int
    output_buffer_size: int = 16384
    sample_rate: int = 0
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    identified: bool = False
    """Whether the client sent them, with IDENTIFY."""

    @property
    def patience(self) -> float:
        """The seconds within which a client must complete a command.

        nsqd: two heartbeat intervals; parts of a command do not count.
        """
        return 2 * self.heartbeat_ms / 1000 if self.heartbeat_ms else NEVER


def settings_before_identify(host: str, limits: NsqdLimits) -> ClientSettings:
    """The settings before IDENTIFY; `host` is the client's address without the port."""
    return ClientSettings(
        client_id=host,
        hostname=host,
        heartbeat_ms=limits.client_timeout_ms // 2,
        msg_timeout_ms=limits.msg_timeout_ms,
        output_buffer_timeout_ms=limits.output_buffer_timeout_ms,
    )


def negotiate(request: IdentifyRequest, current: ClientSettings, limits: NsqdLimits) -> ClientSettings:
    """The settings after an IDENTIFY. Raises ``FatalClientError`` for the first invalid field, in nsqd's order."""
    heartbeat_ms = _checked(
        request.heartbeat_interval, current.heartbeat_ms, (_MIN_HEARTBEAT_MS, limits.max_heartbeat_interval_ms),
        "heartbeat interval", off=0,
    )  # fmt: skip
    buffer_timeout_ms = _checked(
        request.output_buffer_timeout, current.output_buffer_timeout_ms,
        (limits.min_output_buffer_timeout_ms, limits.max_output_buffer_timeout_ms), "output buffer timeout", off=0,
    )  # fmt: skip
    buffer_size = _checked(
        request.output_buffer_size, current.output_buffer_size,
        (_MIN_OUTPUT_BUFFER_SIZE, limits.max_output_buffer_size), "output buffer size", off=1,
    )  # fmt: skip
    if request.output_buffer_size == _OFF:
        buffer_timeout_ms = 0
    sample_rate = _checked(request.sample_rate, 0, (0, _MAX_SAMPLE_RATE), "sample rate")
    msg_timeout_ms = _checked(
        request.msg_timeout, current.msg_timeout_ms, (_MIN_MSG_TIMEOUT_MS, limits.max_msg_timeout_ms), "msg timeout"
    )
    return replace(
        current,
        client_id=request.client_id,
        hostname=request.hostname,
        heartbeat_ms=heartbeat_ms,
        msg_timeout_ms=msg_timeout_ms,
        output_buffer_timeout_ms=buffer_timeout_ms,
        output_buffer_size=buffer_size,
        sample_rate=sample_rate,
        user_agent=request.user_agent,
        topology_region=request.topology_region,
        topology_zone=request.topology_zone,
        identified=True,
    )


def grant(request: IdentifyRequest, limits: NsqdLimits) -> Features:
    """The features that are requested and allowed. Raises ``FatalClientError`` for both compressions."""
    deflate, snappy = request.deflate and limits.deflate, request.snappy and limits.snappy
    if deflate and snappy:
        raise FatalClientError(E_IDENTIFY_FAILED, "cannot enable both deflate and snappy compression")
    # nsqd: the requested level counts only if deflate is granted, and if it is above 0.
    asked = request.deflate_level if deflate and request.deflate_level > 0 else _DEFAULT_DEFLATE_LEVEL
    return Features(
        tls=request.tls_v1 and limits.tls,
        deflate=deflate,
        deflate_level=min(asked, limits.max_deflate_level),
        snappy=snappy,
    )


def identify_response(settings: ClientSettings, features: Features, limits: NsqdLimits) -> IdentifyResponse:
    """The response to a client that negotiates features."""
    return IdentifyResponse(
        max_rdy_count=limits.max_rdy_count,
        version=NSQ_VERSION,
        max_msg_timeout=limits.max_msg_timeout_ms,
        msg_timeout=settings.msg_timeout_ms,
        tls_v1=features.tls,
        deflate=features.deflate,
        deflate_level=features.deflate_level,
        max_deflate_level=limits.max_deflate_level,
        snappy=features.snappy,
        sample_rate=settings.sample_rate,
        auth_required=limits.auth_required,
        output_buffer_size=settings.output_buffer_size,
        output_buffer_timeout=settings.output_buffer_timeout_ms,
        topology_region=limits.topology_region,
        topology_zone=limits.topology_zone,
    )


def locality(settings: ClientSettings, limits: NsqdLimits) -> Locality:
    """The client's locality. nsqd: its zone may be ours although its region is not.

    Without a configured zone and region all clients are global (docs/differences.md: topology).
    """
    if limits.topology_zone and settings.topology_zone == limits.topology_zone:
        return Locality.ZONE_LOCAL
    if limits.topology_region and settings.topology_region == limits.topology_region:
        return Locality.REGION_LOCAL
    return Locality.GLOBAL


def _checked(requested: int, current: int, allowed: tuple[int, int], name: str, off: int | None = None) -> int:
    """The value in force: 0 keeps the current one, -1 means `off` where that is allowed."""
    if requested == 0:
        return current
    if requested == _OFF and off is not None:
        return off
    low, high = allowed
    if not low <= requested <= high:
        raise FatalClientError(E_BAD_BODY, f"IDENTIFY {name} ({requested}) is invalid")
    return requested


class Layers:
    """The codecs of one connection, those in place and those to come."""

    def __init__(self) -> None:
        self.tls: TlsFacts | None = None
        self.deflate = False
        self.snappy = False
        self._wanted: tuple[Codec | None, ...] = ()

    def want(self, features: Features) -> None:
        """Plan the codecs of these features. Raises ``FatalClientError`` if they cannot follow those in place."""
        # nsqd applies them to the bare socket, and the two sides no longer understand each other.
        if features.tls and (self.tls is not None or self.compressed):
            raise FatalClientError(
                E_IDENTIFY_FAILED, "IDENTIFY failed TLS cannot begin inside a TLS or compressed stream"
            )
        if self.compressed and (features.deflate or features.snappy):
            raise FatalClientError(E_IDENTIFY_FAILED, "IDENTIFY failed the stream is compressed already")
        if features.tls:
            self._wanted = (None,)
        if features.deflate:
            self._wanted += (Deflate(features.deflate_level),)
        elif features.snappy:
            self._wanted += (Snappy(),)

    @property
    def compressed(self) -> bool:
        return self.deflate or self.snappy

    @property
    def pending(self) -> bool:
        """Whether a codec is still to come."""
        return bool(self._wanted)

    def next(self) -> Codec | None:
        """The codec to push now, None for TLS."""
        return self._wanted[0]

    def add(self, tls: TlsFacts | None) -> None:
        """Note that the next codec is in place."""
        codec, *rest = self._wanted
        self._wanted = tuple(rest)
        self.tls = tls or self.tls
        self.deflate |= isinstance(codec, Deflate)
        self.snappy |= isinstance(codec, Snappy)
