"""TLS, bytes to bytes, between the socket and the session.

The stream does not use the socket, so that one thread can receive while another sends; an ``ssl.SSLSocket`` does not
allow that. The caller holds a lock around each call.
"""

import contextlib
import ssl
from collections.abc import Callable

_READ_SIZE = 1 << 16


class TlsStream:
    """The client side of a TLS connection."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    @property
    def has_pending(self) -> bool:
        """Whether TLS has data of its own to send; `encode` returns it."""
        return self._outgoing.pending > 0

    def shake_hands(self, send: Callable[[bytes], object], receive: Callable[[], bytes]) -> None:
        """Raises ``OSError`` (such as ``ssl.SSLError``) if the handshake fails. `receive` returns b"" at EOF."""
        while True:
            try:
                self._tls.do_handshake()
                send(self._outgoing.read())
                return
            except ssl.SSLWantReadError:
                send(self._outgoing.read())
            data = receive()
            if not data:
                raise ConnectionError("closed by nsqd during the TLS handshake")
            self._incoming.write(data)

    def decode(self, data: bytes) -> bytes:
        """Decrypt received bytes; the result may be empty. Raises ``ssl.SSLError``."""
        self._incoming.write(data)
        pieces = []
        # Data before close_notify counts. The socket reports the end itself.
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self._tls.read(_READ_SIZE):
                pieces.append(piece)
        return b"".join(pieces)

    def encode(self, data: bytes) -> bytes:
        """Encrypt `data`, and add pending data of TLS itself."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()
