"""TLS with the standard library, and NSQ's names for versions, suites and errors."""

import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

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

_EXPIRED: Final = "tls: failed to verify certificate: x509: certificate has expired"
_VERSIONS: Final = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}

# nsqd: only these cipher suites have names; all others, such as those of TLS 1.3, are shown as numbers.
_SUITES: Final = {
    0x0005: "TLS_RSA_WITH_RC4_128_SHA",
    0x000A: "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0xC007: "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC011: "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    0xC012: "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
}

_NOT_TLS: Final = "first record does not look like a TLS handshake"
# The texts of Go's TLS by OpenSSL's names of failures.
_FAILURES: Final = {
    "HTTP_REQUEST": _NOT_TLS,
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "UNSUPPORTED_PROTOCOL": "client offered only unsupported versions",
    "NO_SHARED_CIPHER": "no cipher suite supported by both client and server",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "client didn't provide a certificate",
}


_ALL_SUITES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
_ALL_SUITES.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
_NUMBERS: Final = {cipher["name"]: cipher["id"] & 0xFFFF for cipher in _ALL_SUITES.get_ciphers()}


def version_name(version: str | None) -> str:
    """``TLS1.3`` for OpenSSL's ``TLSv1.3``."""
    return _VERSIONS.get(version or "", f"Unknown {version}")


def suite_name(openssl_name: str) -> str:
    """NSQ's name of a cipher suite for OpenSSL's name, or such as ``Unknown 4865`` if NSQ has none."""
    number = _NUMBERS.get(openssl_name, 0)
    return _SUITES.get(number, f"Unknown {number}")


def failure(reason: str, detail: str = "") -> str:
    """The text of a failure. `reason` is OpenSSL's name, `detail` describes an invalid certificate."""
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"tls: failed to verify certificate: x509: {detail}"
    _, alert, name = reason.partition("_ALERT_")
    spelled = (name or reason).lower().replace("_", " ")
    return f"remote error: tls: {spelled}" if alert else f"tls: {_FAILURES.get(reason, spelled)}"


_RECORD_SIZE: Final = 1 << 14  # plain bytes


class StandardTls(Tls):
    """TLS with the standard library, the server's side unless the name of a server is given."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        is_server = server_name is None
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=server_name)
        # Hot: the methods of `SSLObject` with these names only call these.
        inner: Any = self._tls._sslobj  # type: ignore[attr-defined]
        self._read_plain: Callable[[int], bytes] = inner.read
        self._write_plain: Callable[[bytes], int] = inner.write
        self._refused = False
        self._records = Records()
        self._unread: list[bytes] = []  # came with the end of the handshake
        self._reads = 0  # records with data
        self._records_each = 1  # of which one has data

    def do_handshake(self, data: bytes) -> bool:
        begun = self._records.begun
        parts = self._records.cut(data)
        for number, part in enumerate(parts, 1):
            if begun + (number - 1) * RECORDS_IN_PART > MAX_HANDSHAKE_RECORDS:
                self._refused = True
                raise TlsError(TOO_MANY_HANDSHAKE_RECORDS)
            self._incoming.write(part)
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                raise self._refusal(error) from None
            if self._tls.session_reused and self._has_expired():
                self._refused = True
                raise TlsError(_EXPIRED)
            self._unread = parts[number:]
            self._records_each = 2 if self._tls.version() == "TLSv1" else 1
            return True
        return False

    def encode(self, data: bytes) -> bytes:
        if data and not self._refused:
            try:
                self._write_plain(data)  # all of it, because the BIO is in memory
            except ssl.SSLError as error:
                raise self._refusal(error) from None
        return self._outgoing.read()

    def decode(self, data: bytes) -> Iterable[bytes]:
        # Hot: a client that waits for each reply sends one record at a time, which needs no generator or second read.
        parts = self._records.cut(data)
        if self._unread:
            parts, self._unread = self._unread + parts, []
        if len(parts) > 1:
            return self._decode_parts(parts)
        self._incoming.write(data)
        size = len(data)
        if 0 < size < MAX_PIECE:
            try:
                record = self._read_plain(size)
            except ssl.SSLWantReadError:
                return ()
            except ssl.SSLError as error:
                raise self._refusal(error) from None
            if not record or (len(record) < size and not self._incoming.pending):
                return (record,)
            return self._decode(record)
        return self._decode(b"")

    def _decode_parts(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        idle = 0
        for part in parts:
            self._incoming.write(part)
            reads = self._reads
            for piece in self._decode(b""):
                yield piece
                if not piece:
                    return
            idle += max(0, RECORDS_IN_PART - (self._reads - reads) * self._records_each)
            if idle > MAX_IDLE_RECORDS:
                self._refused = True
                raise TlsError(TOO_MANY_IDLE_RECORDS)

    def _decode(self, record: bytes) -> Iterator[bytes]:
        """This record and those after it."""
        records = [record] if record else []
        size = len(record)
        refusal: TlsError | None = None
        try:
            # Read only while bytes are pending: a last read that raises would cost more than the others together.
            while self._incoming.pending or self._tls.pending():
                following = self._read_plain(_RECORD_SIZE)
                self._reads += 1
                if size and (not following or size + len(following) > MAX_PIECE):
                    yield b"".join(records)
                    records.clear()
                    size = 0
                records.append(following)
                size += len(following)
                if not following:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            refusal = self._refusal(error)
        if records:
            yield records[0] if len(records) == 1 else b"".join(records)
        if refusal is not None:
            raise refusal

    @property
    def pending(self) -> int:
        return self._outgoing.pending

    def facts(self) -> TlsFacts:
        cipher = self._tls.cipher()
        certificate: Any = self._tls.getpeercert() or {}
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        hosts = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
        return TlsFacts(
            version_name(self._tls.version()),
            suite_name(cipher[0] if cipher else ""),
            names[-1] if names else "",
            tuple(dict.fromkeys(names + hosts)),
        )

    def _has_expired(self) -> bool:
        """Whether the peer's certificate has; OpenSSL does not verify it again when a session is resumed."""
        certificate = self._tls.getpeercert() or {}
        end = certificate.get("notAfter")
        return isinstance(end, str) and ssl.cert_time_to_seconds(end) < time.time()

    def _refusal(self, error: ssl.SSLError) -> TlsError:
        self._refused = True
        return TlsError(failure(error.reason or str(error), getattr(error, "verify_message", "")))
