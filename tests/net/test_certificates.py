"""Certificates from files: which files and versions are accepted, and what a reload changes."""

import re
import shutil
import ssl
import sys
import warnings
from dataclasses import replace

import pytest

from nsq_compat.net.certificates import CertificateError, Certificates
from nsq_compat.net.tls import StandardTls
from nsq_compat.net.tls_codec import TlsError

VERSIONS = {
    "TLS1.0": ssl.TLSVersion.TLSv1,
    "TLS1.1": ssl.TLSVersion.TLSv1_1,
    "TLS1.2": ssl.TLSVersion.TLSv1_2,
    "TLS1.3": ssl.TLSVersion.TLSv1_3,
}


def do_handshake(certificates, client):
    """The server's side, complete."""
    server = certificates.make_tls()
    said = client.do_handshake()
    while not server.do_handshake(said):
        said = client.do_handshake(server.encode(b""))
    client.do_handshake(server.encode(b""))
    return server


@pytest.fixture
def encrypted_key(authority, tmp_path):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    path = tmp_path / "encrypted.key"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return path


def test_an_unusable_file_is_refused_with_its_name_and_the_reason(authority, tmp_path, encrypted_key):
    good = authority.files()
    nothing = tmp_path / "nothing"
    text = tmp_path / "text.pem"
    text.write_text("no certificate\n")
    for wrong, reason in (
        ({"certificate": str(nothing)}, f"open {nothing}: no such file or directory"),
        ({"key": str(nothing)}, f"open {nothing}: no such file or directory"),
        ({"key": ""}, "open : no such file or directory"),
        ({"certificate": str(tmp_path)}, f"open {tmp_path}: is a directory"),
        ({"certificate": str(text)}, "tls: failed to find any PEM data in certificate input"),
        ({"key": str(text)}, "tls: failed to find any PEM data in key input"),
        ({"key": str(authority.client_key)}, "tls: private key does not match public key"),
        ({"root_ca": str(nothing)}, f"open {nothing}: no such file or directory"),
        ({"root_ca": str(text)}, "failed to append certificate to pool"),
    ):
        with pytest.raises(CertificateError) as refusal:
            Certificates(replace(good, **wrong))
        assert str(refusal.value) == reason
    for wrong in ({"certificate": str(authority.key)}, {"key": str(authority.root_ca)}, {"key": str(encrypted_key)}):
        with pytest.raises(CertificateError, match=r"^tls: "):
            Certificates(replace(good, **wrong))


@pytest.mark.parametrize("oldest", VERSIONS)
@pytest.mark.parametrize("offered", VERSIONS)
@pytest.mark.parametrize("policy", ["", "require"])
def test_tls_versions_from_the_configured_minimum_are_accepted(authority, oldest, offered, policy):
    certificates = Certificates(authority.files(min_version=VERSIONS[oldest], client_policy=policy))
    context = authority.trusting(authority.client, authority.client_key)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = VERSIONS[offered]
    client = type(authority.client_tls())(context)
    if offered >= oldest:
        assert do_handshake(certificates, client).facts().version == offered
    else:
        with pytest.raises(TlsError, match="client offered only unsupported versions"):
            do_handshake(certificates, client)


def test_an_unknown_policy_requires_no_certificate_which_is_logged(authority, caplog):
    client = authority.client_tls(authority.client, authority.client_key)
    assert do_handshake(Certificates(authority.files(client_policy="verify")), client).facts().common_name == ""
    assert caplog.messages == [
        "--tls-client-auth-policy=verify is neither require nor require-verify: clients need no certificate"
    ]


@pytest.mark.parametrize("policy", ["", "require", "require-verify"])
def test_a_known_policy_is_not_warned_of(authority, caplog, policy):
    Certificates(authority.files(client_policy=policy))
    assert not caplog.messages


@pytest.mark.parametrize("policy", ["", "require", "require-verify"])
def test_a_reload_applies_to_new_connections(authority, tmp_path, policy):
    certificate, key = tmp_path / "in-use.crt", tmp_path / "in-use.key"
    shutil.copy(authority.certificate, certificate)
    shutil.copy(authority.key, key)
    files = replace(authority.files(client_policy=policy), certificate=str(certificate), key=str(key))
    certificates = Certificates(files)

    def connects():
        client = authority.client_tls(authority.client, authority.client_key)
        return client, do_handshake(certificates, client)

    before, server = connects()
    authority.issue(tmp_path / "in-use", common_name="renewed")
    assert subject(connects()[0]) == "nsqd"
    certificates.reload()
    assert subject(connects()[0]) == "renewed"
    assert list(server.decode(before.encode(b"NOP\n"))) == [b"NOP\n"]


def test_a_policy_that_needs_a_missing_package_is_refused_with_its_name(authority, monkeypatch):
    monkeypatch.setitem(sys.modules, "nsq_compat.net.tls_lenient", None)
    says = "--tls-client-auth-policy=require: pyopenssl is not installed: pip install 'nsq_compat[pyopenssl]'"
    with pytest.raises(CertificateError, match=f"^{re.escape(says)}$"):
        Certificates(authority.files(client_policy="require"))
    for policy in ("", "require-verify"):
        assert isinstance(Certificates(authority.files(client_policy=policy)).make_tls(), StandardTls)


def test_a_failed_reload_is_logged_and_changes_nothing(authority, tmp_path, caplog):
    certificate, key = tmp_path / "in-use.crt", tmp_path / "in-use.key"
    shutil.copy(authority.certificate, certificate)
    shutil.copy(authority.key, key)
    certificates = Certificates(replace(authority.files(), certificate=str(certificate), key=str(key)))
    key.write_bytes(authority.client_key.read_bytes())
    certificates.reload()
    assert "TLS: keeping the certificates in use - tls: private key does not match public key" in caplog.text
    client = authority.client_tls()
    do_handshake(certificates, client)
    assert subject(client) == "nsqd"


def subject(client):
    """The common name the server has shown."""
    return dict(part[0] for part in client.tls.getpeercert()["subject"])["commonName"]
