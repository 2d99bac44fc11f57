"""Certificates for tests: a server's, its authority's, and those of known and unknown clients."""

import ssl
from pathlib import Path

import trustme

CLIENT_NAME = "known client"
"""The common name of the client that nsqd trusts."""


class Certificates:
    """A new authority and its certificates, as files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.root_ca, self.certificate, self.key = folder / "ca.pem", folder / "nsqd.crt", folder / "nsqd.key"
        self.client, self.stranger = folder / "client.pem", folder / "stranger.pem"
        self._ca.cert_pem.write_to_path(self.root_ca)
        known = self._ca.issue_cert("client", common_name=CLIENT_NAME)
        known.private_key_and_cert_chain_pem.write_to_path(self.client)
        trustme.CA().issue_cert("stranger").private_key_and_cert_chain_pem.write_to_path(self.stranger)
        self.renew("nsqd")

    def renew(self, common_name: str) -> None:
        """Replace the server's certificate, in the same files."""
        issued = self._ca.issue_cert("localhost", "127.0.0.1", common_name=common_name)
        issued.cert_chain_pems[0].write_to_path(self.certificate)
        issued.private_key_pem.write_to_path(self.key)

    @property
    def options(self) -> list[str]:
        """The options of nsqd."""
        return [f"--tls-cert={self.certificate}", f"--tls-key={self.key}", "--https-address=127.0.0.1:0"]

    def trusting(self, certificate: Path | None = None) -> ssl.SSLContext:
        """A client's TLS context, with a client certificate if one is given."""
        context = ssl.create_default_context(cafile=str(self.root_ca))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context
