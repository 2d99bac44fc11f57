"""TLS as bytes to bytes: what lies between a socket and a session once nsqd has agreed to it.

The stream never touches the socket, so a thread may wait for the socket while another sends; an ``ssl.SSLSocket`` must
not be used by two threads at once. The caller has a lock around each call.
"""

import contextlib
import ssl
from collections.abc import Callable

_PIECE = 1 << 16


class TlsStream:
    """The client's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    @property
    def has_pending(self) -> bool:
        """Whether TLS itself has something to say; `encode` has it."""
        return self._outgoing.pending > 0

    def shake_hands(self, send: Callable[[bytes], object], receive: Callable[[], bytes]) -> None:
        """Raises ``OSError`` (``ssl.SSLError`` is one) when there is no agreement; `receive` gives b"" at the end."""
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
        """The plain bytes in what was received, perhaps none. Raises ``ssl.SSLError``."""
        self._incoming.write(data)
        pieces = []
        # What was said before a goodbye counts; the end itself is seen on the socket.
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self._tls.read(_PIECE):
                pieces.append(piece)
        return b"".join(pieces)

    def encode(self, data: bytes) -> bytes:
        """What to send for `data`, and whatever TLS itself has to say."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()
