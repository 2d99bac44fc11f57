"""Certificates, and the TLS of each connection that uses them.

The files are read at the start and again at SIGHUP. Open connections keep their certificate. If a file cannot be used,
the previous certificates stay in force.

`ssl` is imported with the first certificate, because it takes 6 MB of memory.
"""

import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from nsq_compat import missing_package
from nsq_compat.net.tls_codec import MakeTls, Tls

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

REQUIRE: Final = "require"
REQUIRE_VERIFY: Final = "require-verify"

# For TLS 1.2 and older. nsqd: forward secrecy only.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES"
_TLS_1_0: Final = 0x0301
# Older versions need SHA-1 in signatures, which OpenSSL refuses by default.
_TLS_1_2: Final = 0x0303
_OLD_LEVEL: Final = ":@SECLEVEL=0"
_LARGE_GROUPS_END: Final = (3, 5)
"""The first OpenSSL that accepts no group of a Diffie-Hellman key exchange above ffdhe3072 by default."""


class CertificateError(Exception):
    """A file cannot be used, or a package is missing; the text has the reason."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files, and the options that apply to them.

    `client_policy` is ``require`` (any client certificate), ``require-verify`` (one signed by an authority in `root_ca`
    or in the system's store), or anything else: nsqd then asks for no certificate. `min_version` is TLS's number on
    the wire.
    """

    certificate: str
    key: str
    root_ca: str = ""
    client_policy: str = ""
    min_version: int = _TLS_1_0


class TlsOptions(Protocol):
    """The options of a daemon that offers TLS."""

    tls_cert: str
    tls_key: str
    tls_root_ca_file: str
    tls_client_auth_policy: str
    tls_min_version: int


def load_certificates(options: TlsOptions) -> "Certificates | None":
    """A daemon's certificates; None if its options name none. Raises ``CertificateError``, in NSQ's words."""
    if not (options.tls_cert or options.tls_key):
        return None
    files = TlsFiles(
        options.tls_cert,
        options.tls_key,
        options.tls_root_ca_file,
        options.tls_client_auth_policy,
        options.tls_min_version,
    )
    try:
        return Certificates(files)
    except CertificateError as error:
        raise CertificateError(f"failed to build TLS config - {error}") from None


class Certificates:
    """Makes the TLS of new connections from the files last read. The constructor raises ``CertificateError``."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._make_tls = _read(files)
        if files.client_policy not in ("", REQUIRE, REQUIRE_VERIFY):  # docs/differences.md: policy-name
            log.warning(
                "--tls-client-auth-policy=%s is neither %s nor %s: clients need no certificate",
                files.client_policy, REQUIRE, REQUIRE_VERIFY,
            )  # fmt: skip

    def make_tls(self) -> Tls:
        return self._make_tls()

    def reload(self) -> None:
        """Read the files again. If one cannot be used, log that and keep the certificates in force."""
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


def _read(files: TlsFiles) -> MakeTls:
    import ssl

    from nsq_compat.net.tls import StandardTls

    # The standard library checks the files, also if pyOpenSSL uses them.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 1  # as Go's; a second one would take 4 % of the time of a connection
    # The client's order of ciphers: Go's begins with AES-128, cheaper than the AES-256 that OpenSSL prefers in TLS 1.3.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    # Older OpenSSLs accept ffdhe8192, which takes 150 ms for each handshake, in which all clients wait. `ssl` can only
    # name the one group that is accepted. By default all clients know this one, but most of TLS 1.3 need another round
    # trip for it. And TLS 1.2 then refuses client certificates on other curves.
    verifies = files.client_policy == REQUIRE_VERIFY and files.min_version <= _TLS_1_2
    if ssl.OPENSSL_VERSION_INFO < _LARGE_GROUPS_END and not verifies:
        context.set_ecdh_curve("prime256v1")
    ciphers = _CIPHERS + (_OLD_LEVEL if files.min_version < _TLS_1_2 else "")
    context.set_ciphers(ciphers)
    with warnings.catch_warnings():  # old versions cause a warning, but --tls-min-version allows them
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion(files.min_version)
    _load_certificate(context, files)
    if files.root_ca:
        _read_pem(files.root_ca)
        try:
            context.load_verify_locations(files.root_ca)
        except ssl.SSLError:
            raise CertificateError("failed to append certificate to pool") from None
    if files.client_policy == REQUIRE:
        try:  # pyOpenSSL is an extra, and takes some megabytes of memory
            from nsq_compat.net.tls_lenient import LenientTls, lenient_context
        except ImportError:
            reason = missing_package("pyopenssl", extra="pyopenssl")
            raise CertificateError(f"--tls-client-auth-policy={REQUIRE}: {reason}") from None
        lenient = lenient_context(files.certificate, files.key, files.min_version, ciphers)
        return lambda: LenientTls(lenient)
    if files.client_policy == REQUIRE_VERIFY:
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that is resumed is not verified again, although a certificate of its chain may have expired. Without
        # tickets, only those of TLS 1.2 are, for two hours; `StandardTls` looks at the client's own certificate.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        if not files.root_ca:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return lambda: StandardTls(context)


def _load_certificate(context: "ssl.SSLContext", files: TlsFiles) -> None:
    import ssl

    for path, noun in ((files.certificate, "certificate"), (files.key, "key")):
        if "-----BEGIN" not in _read_pem(path):
            raise CertificateError(f"tls: failed to find any PEM data in {noun} input")
    try:
        # Without this argument, OpenSSL asks for the password of an encrypted key at the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError("tls: private key does not match public key") from None
        raise CertificateError(f"tls: {files.certificate} and {files.key}: {error.reason or error}") from None
