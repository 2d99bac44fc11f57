"""Certificates from files, and TLS for each connection that comes.

They are read when the program starts and again when it is told to (SIGHUP). Connections keep what they began with; a
file that cannot be used leaves everything as it was.
"""

import logging
import ssl
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nsq_compat import missing_package
from nsq_compat.net.tls import StandardTls, Tls

log = logging.getLogger(__name__)

REQUIRE: Final = "require"
REQUIRE_VERIFY: Final = "require-verify"

# Up to TLS 1.2. nsqd: forward secrecy only.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES"
# What these versions need OpenSSL does not give by default: SHA-1 in signatures.
_OLD_VERSIONS: Final = frozenset({ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1})
_OLD_LEVEL: Final = ":@SECLEVEL=0"


class CertificateError(Exception):
    """A file cannot be used, or a package is missing; the text says why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files and what goes with them.

    `client_policy` is ``require`` (some certificate), ``require-verify`` (one the authorities in `root_ca`, or the
    system's, have signed), or anything else: nsqd then asks for none.
    """

    certificate: str
    key: str
    root_ca: str = ""
    client_policy: str = ""
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1


class Certificates:
    """The TLS of every connection, from the files as they were last read. Raises ``CertificateError`` when made."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._make_tls = _read(files)

    def make_tls(self) -> Tls:
        return self._make_tls()

    def reload(self) -> None:
        """Read the files again; what cannot be used is logged, and the old stays in force."""
        try:
            self._make_tls = _read(self._files)
        except CertificateError as error:
            log.error("TLS: keeping the certificates in use - %s", error)
        else:
            log.info("TLS: reloaded %s", self._files.certificate)


def _read_pem(path: str) -> str:
    """The content of a PEM file. Raises ``CertificateError``."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise CertificateError(f"open {path}: {(error.strerror or str(error)).lower()}") from None


def _read(files: TlsFiles) -> Callable[[], Tls]:
    """In any case through the standard library, which judges the files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    # The client's order: Go's have AES-128 first, which costs less than the AES-256 OpenSSL would choose for TLS 1.3.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    ciphers = _CIPHERS + (_OLD_LEVEL if files.min_version in _OLD_VERSIONS else "")
    context.set_ciphers(ciphers)
    with warnings.catch_warnings():  # of old versions; whoever wants one has said so
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = files.min_version
    _load_certificate(context, files)
    if files.root_ca:
        _trust(context, files.root_ca)
    if files.client_policy == REQUIRE:
        return _lenient(files, ciphers)
    if files.client_policy == REQUIRE_VERIFY:
        context.verify_mode = ssl.CERT_REQUIRED
        if not files.root_ca:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return lambda: StandardTls(context)


def _lenient(files: TlsFiles, ciphers: str) -> Callable[[], Tls]:
    """By pyOpenSSL, which is an extra: only this policy needs it, and it takes some megabytes."""
    try:
        from nsq_compat.net.tls_lenient import LenientTls, lenient_context
    except ImportError:
        reason = missing_package("pyopenssl", extra="pyopenssl")
        raise CertificateError(f"--tls-client-auth-policy={REQUIRE}: {reason}") from None
    context = lenient_context(files.certificate, files.key, files.min_version, ciphers)
    return lambda: LenientTls(context)


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    for path, noun in ((files.certificate, "certificate"), (files.key, "key")):
        if "-----BEGIN" not in _read_pem(path):
            raise CertificateError(f"tls: failed to find any PEM data in {noun} input")
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError("tls: private key does not match public key") from None
        raise CertificateError(f"tls: {files.certificate} and {files.key}: {error.reason or error}") from None


def _trust(context: ssl.SSLContext, path: str) -> None:
    _read_pem(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise CertificateError("failed to append certificate to pool") from None
