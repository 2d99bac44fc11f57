"""TLS that requires a client certificate and accepts any (``--tls-client-auth-policy=require``).

The standard library cannot require a certificate without verifying it, so this policy needs pyOpenSSL. Each read and
write takes a few microseconds longer than with the standard library.
"""

from collections.abc import Iterator
from typing import Final

from cryptography.x509 import InvalidVersion
from cryptography.x509.oid import NameOID
from OpenSSL import SSL

from nsq_compat.net.tls import failure, suite_name, version_name
from nsq_compat.net.tls_codec import (
    MAX_HANDSHAKE_RECORDS,
    MAX_IDLE_RECORDS,
    RECORDS_IN_PART,
    TOO_MANY_HANDSHAKE_RECORDS,
    TOO_MANY_IDLE_RECORDS,
    Records,
    Tls,
    TlsError,
)
from nsq_compat.protocol.compression import MAX_PIECE
from nsq_compat.session.conversation import TlsFacts

_OUTGOING_SIZE: Final = 1 << 16


class LenientTls(Tls):
    """TLS with pyOpenSSL."""

    def __init__(self, context: SSL.Context) -> None:
        self._tls = SSL.Connection(context, None)
        self._tls.set_accept_state()
        self._outgoing = bytearray()
        self._refused = False
        self._records = Records()
        self._unread: list[bytes] = []  # came with the end of the handshake

    def do_handshake(self, data: bytes) -> bool:
        begun = self._records.begun
        parts = self._records.cut(data)
        for number, part in enumerate(parts, 1):
            if begun + (number - 1) * RECORDS_IN_PART > MAX_HANDSHAKE_RECORDS:
                self._refused = True
                raise TlsError(TOO_MANY_HANDSHAKE_RECORDS)
            self._write_incoming(part)
            if self._is_established():
                self._unread = parts[number:]
                return True
        return False

    def _is_established(self) -> bool:
        try:
            self._tls.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise self._refusal(error) from None
        finally:
            self._read_outgoing()
        return True

    def encode(self, data: bytes) -> bytes:
        rest = b"" if self._refused else data
        try:
            while rest:
                rest = rest[self._tls.send(rest) :]
                self._read_outgoing()
        except SSL.Error as error:
            raise self._refusal(error) from None
        wire = bytes(self._outgoing)
        self._outgoing.clear()
        return wire

    def decode(self, data: bytes) -> Iterator[bytes]:
        parts = self._records.cut(data)
        parts, self._unread = self._unread + parts, []
        idle, records_each = 0, 2 if self._tls.get_protocol_version() == SSL.TLS1_VERSION else 1
        for part in parts:
            self._write_incoming(part)
            idle += RECORDS_IN_PART
            while (piece := self._read_piece()) is not None:
                yield piece
                if not piece:
                    return
                idle = max(0, idle - records_each)
            if idle > MAX_IDLE_RECORDS:
                self._refused = True
                raise TlsError(TOO_MANY_IDLE_RECORDS)

    def _read_piece(self) -> bytes | None:
        """None if more bytes have to be received, b"" at the end of the connection."""
        try:
            return self._tls.recv(MAX_PIECE)
        except SSL.WantReadError:
            return None
        except SSL.ZeroReturnError:
            return b""
        except SSL.Error as error:
            raise self._refusal(error) from None
        finally:
            self._read_outgoing()

    @property
    def pending(self) -> int:
        return len(self._outgoing)

    def facts(self) -> TlsFacts:
        tls = self._tls
        try:
            certificate = tls.get_peer_certificate(as_cryptography=True)
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME) if certificate is not None else []
        except (ValueError, InvalidVersion):  # a certificate may contain anything
            names = []
        suite, name = suite_name(tls.get_cipher_name() or ""), str(names[-1].value) if names else ""
        return TlsFacts(version_name(tls.get_protocol_version_name()), suite, name)

    def _write_incoming(self, data: bytes) -> None:
        while data:
            data = data[self._tls.bio_write(data) :]

    def _read_outgoing(self) -> None:
        while True:
            try:
                self._outgoing += self._tls.bio_read(_OUTGOING_SIZE)
            except SSL.WantReadError:
                return

    def _refusal(self, error: SSL.Error) -> TlsError:
        self._refused = True
        reasons = error.args[0] if error.args else ()
        reason = reasons[-1][-1] if isinstance(reasons, list) and reasons else str(error)
        return TlsError(failure(reason.upper().replace(" ", "_")))


def lenient_context(certificate: str, key: str, min_version: int, ciphers: str) -> SSL.Context:
    """The context of all connections. Raises ``SSL.Error``."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(min_version)
    context.set_cipher_list(ciphers.encode("ascii"))
    context.set_options(SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION)
    context.set_session_id(b"nsqd")
    context.use_certificate_chain_file(certificate)
    context.use_privatekey_file(key)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *_: True)
    # No result matters, and with the keys of its choice a client could have each of 70 signatures take 5 ms.
    context.set_verify_depth(0)
    return context
