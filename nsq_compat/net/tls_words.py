"""TLS in NSQ's words: versions and cipher suites as /stats names them, and what went wrong as its clients read it."""

import ssl
from typing import Final

_VERSIONS: Final = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}

# nsqd: of all cipher suites only these have names; the rest, those of TLS 1.3 among them, are numbers.
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
# What OpenSSL calls a failure, and Go's TLS does.
_FAILURES: Final = {
    "HTTP_REQUEST": _NOT_TLS,
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "UNSUPPORTED_PROTOCOL": "client offered only unsupported versions",
    "NO_SHARED_CIPHER": "no cipher suite supported by both client and server",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "client didn't provide a certificate",
}


class TlsError(ConnectionError):
    """The peer's TLS is none, or not acceptable; the connection is of no more use. The text is Go's, if it has one."""


def _suite_numbers() -> dict[str, int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    return {cipher["name"]: cipher["id"] & 0xFFFF for cipher in context.get_ciphers()}


_NUMBERS: Final = _suite_numbers()


def version_name(version: str | None) -> str:
    """``TLS1.3`` for OpenSSL's ``TLSv1.3``."""
    return _VERSIONS.get(version or "", f"Unknown {version}")


def suite_name(openssl_name: str) -> str:
    """NSQ's name of a cipher suite, for OpenSSL's; ``Unknown 4865`` for what NSQ has no name for."""
    number = _NUMBERS.get(openssl_name, 0)
    return _SUITES.get(number, f"Unknown {number}")


def failure(reason: str, detail: str = "") -> str:
    """A failed handshake or a broken stream; `reason` is OpenSSL's word, `detail` what is wrong with a certificate."""
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"tls: failed to verify certificate: x509: {detail}"
    _, alert, name = reason.partition("_ALERT_")
    if alert:
        return f"remote error: tls: {_spelled(name)}"
    return f"tls: {_FAILURES.get(reason) or _spelled(reason)}"


def _spelled(reason: str) -> str:
    return reason.lower().replace("_", " ")
