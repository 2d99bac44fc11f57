"""What comes between a socket and its session when IDENTIFY has granted it: TLS first, then a compression.

On the wire (nsqd): the answer to IDENTIFY as everything before it, the handshake, OK through TLS, OK through the
compression. Each step takes effect where the one before it ends, so bytes that a client sent ahead belong to the layer
they were meant for (docs/differences.md: pipelined-upgrade).
"""

from collections.abc import Callable
from dataclasses import dataclass

from nsq_compat.protocol.compression import Codec, Deflate, Snappy
from nsq_compat.protocol.errors import E_IDENTIFY_FAILED, FatalClientError
from nsq_compat.session.nsqd_limits import Features

HANDSHAKE_SECONDS = 5.0
"""nsqd: how long a client may take to shake hands."""


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What is known of a TLS connection, in NSQ's words. `common_name` is the client certificate's, "" without one."""

    version: str
    cipher_suite: str
    common_name: str = ""


@dataclass(slots=True)
class Upgrade:
    """The next layer, for the shell to put on as soon as everything so far is sent.

    `codec` is None for TLS, which is the shell's to make. `received` are bytes that have come for the new layer
    already. When it is in place the shell calls `done` with what is known of TLS and with `now`; if it cannot be,
    `failed` with the reason.
    """

    codec: Codec | None
    received: bytes
    done: Callable[[TlsFacts | None, float], None]
    failed: Callable[[str], None]


class Layers:
    """What one connection has between socket and session, and what it is about to get."""

    def __init__(self) -> None:
        self.tls: TlsFacts | None = None
        self.deflate = False
        self.snappy = False
        self._wanted: tuple[Codec | None, ...] = ()

    def want(self, features: Features) -> None:
        """Raises ``FatalClientError`` for what cannot come on top of what is there."""
        # nsqd begins again at the bare socket, and both sides then talk past each other.
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
        """Whether something is still to be put on."""
        return bool(self._wanted)

    def next(self) -> Codec | None:
        """The codec to put on now, None for TLS."""
        return self._wanted[0]

    def put_on(self, tls: TlsFacts | None) -> None:
        """The one that was next is in place."""
        codec, *rest = self._wanted
        self._wanted = tuple(rest)
        self.tls = tls or self.tls
        self.deflate |= isinstance(codec, Deflate)
        self.snappy |= isinstance(codec, Snappy)
