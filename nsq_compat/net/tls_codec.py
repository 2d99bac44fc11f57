"""TLS as a codec, without a socket.

`tls.StandardTls` uses the standard library, `tls_lenient.LenientTls` pyOpenSSL. Like nsqd, we never send close_notify:
the stream ends with the connection.

This module is apart from both because OpenSSL takes 6 MB of memory: a daemon without TLS does not import it.
"""

from collections.abc import Callable
from typing import Final

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


_HEADER_SIZE: Final = 5
RECORDS_IN_PART: Final = 16
MAX_IDLE_RECORDS: Final = 32
"""Records without data in one call of `decode`. Updating a key takes 20 us and 27 bytes, as much again if the client
asks for an update of ours, and OpenSSL goes on until there is data: a read of such records would hold up all other
clients for 50 ms, and hundreds of connections may receive them at once. Clients send one of them in hours. But with TLS
1.0, which has no such updates, OpenSSL's clients send an empty record before each with data."""
TOO_MANY_IDLE_RECORDS: Final = "tls: too many non-advancing records"
MAX_HANDSHAKE_RECORDS: Final = 128
"""Records before the end of a handshake, which has fewer than ten. A step with 64 KiB of records of one byte would hold
up all other clients for 11 ms."""
TOO_MANY_HANDSHAKE_RECORDS: Final = "tls: too many records in a handshake"


class Records:
    """Cuts received bytes where a record ends, so that OpenSSL has few of them at once."""

    def __init__(self) -> None:
        self._header = b""  # the received part of one
        self._ahead = 0  # bytes before the next record
        self.begun = 0
        """Records of which the header was received."""

    def cut(self, data: bytes) -> list[bytes]:
        """The same bytes in parts; in each but the last, `RECORDS_IN_PART` records begin. The last may be empty."""
        # Hot: usually one record, or a part of one.
        begun = len(self._header)
        received = self._header + data if begun else data
        parts: list[bytes] = []
        begin, count, at, size = 0, 0, self._ahead, len(received)
        while at + _HEADER_SIZE <= size:
            if count == RECORDS_IN_PART:
                parts.append(data[begin : at - begun])
                begin, count = at - begun, 0
            count += 1
            self.begun += 1
            at += _HEADER_SIZE + (received[at + 3] << 8 | received[at + 4])
        self._header = received[at:]
        self._ahead = max(0, at - size)
        parts.append(data[begin:] if begin else data)
        return parts


MakeTls = Callable[[], Tls]
