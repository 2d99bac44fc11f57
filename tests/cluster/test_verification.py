"""Certificates that Go's programs and earlier Pythons accept, and the default of Python 3.13 and newer does not."""

import datetime
import ipaddress
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from urllib3.util.ssl_ import create_urllib3_context

from nsq_compat import bounded_http
from nsq_compat.bounded_http import verifying_tls
from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.cluster.reading import UpstreamError
from nsq_compat.nsqd.http_calls import client_tls

DAY = datetime.timedelta(days=1)


def certificate(name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey) -> bytes:
    """In PEM, as `openssl x509 -req` of OpenSSL 3.0 and older makes it: it does not name the key of its authority."""
    now = datetime.datetime.now(datetime.UTC)
    subject, by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
    builder = x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY)
    if name == issuer:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=False)
    else:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """The file of a private authority; beside it is the server's, with its key."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    (tmp_path / "ca.pem").write_bytes(certificate("ca", keys[0], "ca", keys[0]))
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key = keys[1].private_bytes(pem, form, serialization.NoEncryption())
    (tmp_path / "server.pem").write_bytes(certificate("server", keys[1], "ca", keys[0]) + key)
    return tmp_path / "ca.pem"


@pytest.fixture(autouse=True)
def newest_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults of Python 3.13 and urllib3, on every Python."""

    def strict(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
        def made(*args, **kwargs):
            context = make(*args, **kwargs)
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            return context

        return made

    monkeypatch.setattr(ssl, "create_default_context", strict(ssl.create_default_context))
    monkeypatch.setattr(bounded_http, "create_urllib3_context", strict(create_urllib3_context))


def hands_shake(context: ssl.SSLContext, certificate: Path) -> bool:
    """Whether a client with this context accepts the server; in memory. Raises ``SSLError``."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.version() is not None


@pytest.mark.parametrize(
    "make",
    [
        verifying_tls,
        lambda path: client_tls(path, 0),
        lambda path: ConnectionSettings(tls_options={"ca_certs": path}).tls_context(check_hostname=True),
    ],
    ids=["utilities and Spark", "nsqd", "client library"],
)
def test_a_certificate_need_not_name_the_key_of_its_authority(make, authority):
    assert hands_shake(make(str(authority)), authority.with_name("server.pem"))


def test_nsqadmin_accepts_it_too_and_no_certificate_of_another_authority(authority):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(authority.with_name("server.pem"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.socket = serving.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"https://127.0.0.1:{server.server_address[1]}"
            assert HttpClient(request_timeout=20, tls_root_ca_file=str(authority)).get(address, "info") == {}
            with pytest.raises(UpstreamError, match="TLS: "):
                HttpClient(request_timeout=20).get(address, "info")
        finally:
            server.shutdown()
