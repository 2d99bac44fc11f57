"""TLS as a codec, without a socket.

`tls.StandardTls` uses the standard library, `tls_lenient.LenientTls` pyOpenSSL. Like nsqd, we never send close_notify:
the stream ends with the connection.

This module is apart from both because OpenSSL takes 6 MB of memory: a daemon without TLS does not import it.
"""

from collections.abc import Callable

from nsq_compat.protocol.compression import Codec
from nsq_compat.session.conversation import TlsFacts


class TlsError(Exception):
    """The peer's TLS is invalid or refused, so the connection is unusable. The text is Go's, where Go has one."""


class Tls(Codec):
    """One side of a connection's TLS. All methods raise ``TlsError``.

    `encode` also returns TLS's own bytes, for the handshake and alerts: call it after feeding received bytes, with b""
    if there is nothing to send. After an error it returns only those.
    """

    def do_handshake(self, data: bytes) -> bool:
        """Feed received bytes; return whether the handshake is complete."""
        raise NotImplementedError

    @property
    def pending(self) -> int:
        """The number of TLS's own bytes that are not sent yet."""
        raise NotImplementedError

    def facts(self) -> TlsFacts:
        """The facts for /stats, once the handshake is complete."""
        raise NotImplementedError


MakeTls = Callable[[], Tls]
