"""TLS from the daemon's options."""

import ssl

from nsq_compat.cli.errors import OptionError
from nsq_compat.net.certificates import CertificateError, Certificates, TlsFiles
from nsq_compat.nsqd.options import NsqdOptions


def certificates_of(options: NsqdOptions) -> Certificates | None:
    """None without a certificate. Raises ``OptionError`` in NSQ's words."""
    if not (options.tls_cert or options.tls_key):
        return None
    files = TlsFiles(
        options.tls_cert,
        options.tls_key,
        options.tls_root_ca_file,
        options.tls_client_auth_policy,
        ssl.TLSVersion(options.tls_min_version),
    )
    try:
        return Certificates(files)
    except CertificateError as error:
        raise OptionError(f"failed to build TLS config - {error}") from None
