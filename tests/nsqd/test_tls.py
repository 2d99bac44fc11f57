"""nsqd as a process with certificates: admission of clients, refused starts, and SIGHUP."""

import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.request import urlopen

import pytest

from nsq_conformance.certificates import Certificates
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests import v2_client

NSQD = [sys.executable, "-m", "nsq_compat.nsqd.main"]
Start = Callable[..., NsqdProcess]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start(certificates: Certificates, tmp_path: Path) -> Iterator[Start]:
    """An nsqd with the certificate and more options."""
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(
            NsqdProcess(installed_nsqd(), tmp_path, options=[*certificates.options, *options])
        )


def pings(nsqd: NsqdProcess, context: ssl.SSLContext) -> bool:
    with urlopen(f"https://{nsqd.https_address}/ping", timeout=20, context=context) as answer:
        return bool(answer.read() == b"OK")


class Client(v2_client.Client):
    """A client that may start TLS."""

    def __init__(self, nsqd: NsqdProcess) -> None:
        super().__init__(nsqd.tcp_address)

    def starts_tls(self, context: ssl.SSLContext) -> Self:
        assert b'"tls_v1":true' in self.identifies(feature_negotiation=True, tls_v1=True).answer()
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        return self

    @property
    def server_name(self) -> str:
        assert isinstance(self.socket, ssl.SSLSocket)
        certificate: dict[str, tuple[tuple[tuple[str, str], ...], ...]] = self.socket.getpeercert()  # type: ignore[assignment]
        return dict(part[0] for part in certificate["subject"])["commonName"]


def test_tls_is_offered_and_optional(start, certificates):
    nsqd = start()
    with Client(nsqd) as plain, Client(nsqd) as client:
        plain.publishes(b"x")
        client.starts_tls(certificates.trusting()).hears(b"OK")
        client.publishes(b"x")
        producers = nsqd.stats_document()["producers"]
    assert sorted(producer["tls"] for producer in producers) == [False, True]
    assert {producer["tls_version"] for producer in producers} == {"", "TLS1.3"}


def test_https_serves_the_same_api(start, certificates):
    nsqd = start()
    assert pings(nsqd, certificates.trusting())
    assert nsqd.asks("GET", "/ping").body == b"OK"


@pytest.mark.parametrize("required", ["true", "tcp-https"])
def test_with_tls_required_plain_connections_are_refused(start, certificates, required):
    nsqd = start(f"--tls-required={required}")
    with Client(nsqd) as plain:
        plain.says(b"NOP\n").hears(b"E_INVALID cannot NOP in current state (TLS required)")
    with Client(nsqd) as client:
        client.starts_tls(certificates.trusting()).hears(b"OK")
    assert pings(nsqd, certificates.trusting())
    if required == "tcp-https":
        assert nsqd.asks("GET", "/ping").body == b"OK"
        return
    refusal = nsqd.asks("GET", "/ping")
    port = int(nsqd.https_address.rpartition(":")[2])
    assert (refusal.status, refusal.json()) == (403, {"message": "TLS_REQUIRED", "https_port": port})


def test_a_client_policy_refuses_unknown_certificates_everywhere(start, certificates):
    nsqd = start("--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={certificates.root_ca}")
    with Client(nsqd) as client:
        client.starts_tls(certificates.trusting(certificates.client)).hears(b"OK")
    with Client(nsqd) as plain:
        assert plain.says(b"NOP\n").frame().data.endswith(b"(TLS required)")
    with Client(nsqd) as stranger, pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        stranger.starts_tls(certificates.trusting(certificates.stranger)).frame()
    known = certificates.trusting(certificates.client)
    assert pings(nsqd, known)
    with pytest.raises(OSError, match="ALERT|EOF|reset"):
        pings(nsqd, certificates.trusting())


def test_a_client_policy_for_any_certificate_requires_one(start, certificates):
    nsqd = start("--tls-client-auth-policy=require")
    stranger, anonymous = certificates.trusting(certificates.stranger), certificates.trusting()
    with Client(nsqd) as client:
        client.starts_tls(stranger).hears(b"OK")
        client.publishes(b"x")
    with Client(nsqd) as client, pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        client.starts_tls(anonymous).frame()
    assert pings(nsqd, stranger)
    with pytest.raises(OSError, match="ALERT|EOF|reset"):
        pings(nsqd, anonymous)


def test_sighup_loads_new_certificates_and_keeps_connections(start, certificates):
    nsqd = start()
    with Client(nsqd) as before, Client(nsqd) as after, Client(nsqd) as last:
        before.starts_tls(certificates.trusting()).hears(b"OK")
        certificates.renew("renewed")
        nsqd.send_signal(signal.SIGHUP)
        assert nsqd.logs("TLS: reloaded")
        after.starts_tls(certificates.trusting()).hears(b"OK")
        assert (before.server_name, after.server_name) == ("nsqd", "renewed")
        assert pings(nsqd, certificates.trusting())
        kept = certificates.key.read_bytes()
        certificates.key.write_bytes(b"no key")
        nsqd.send_signal(signal.SIGHUP)
        assert nsqd.logs("ERROR: TLS: keeping the certificates in use - ")
        certificates.key.write_bytes(kept)
        last.starts_tls(certificates.trusting()).hears(b"OK")
        for client in (before, after, last):
            client.publishes(b"x")


def test_sighup_without_certificates_changes_nothing(tmp_path):
    with NsqdProcess(installed_nsqd(), tmp_path) as nsqd, Client(nsqd) as client:
        nsqd.send_signal(signal.SIGHUP)
        assert nsqd.logs("TLS: no certificate to reload")
        client.publishes(b"x")


def test_compressions_can_be_disabled(tmp_path):
    options = ["--deflate=false", "--snappy=false", "--max-deflate-level=3"]
    with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd, Client(nsqd) as client:
        client.identifies(feature_negotiation=True, deflate=True, snappy=True, tls_v1=True)
        answer = json.loads(client.answer())
        assert (answer["deflate"], answer["snappy"], answer["tls_v1"]) == (False, False, False)
        assert (answer["deflate_level"], answer["max_deflate_level"]) == (3, 3)
        client.publishes(b"x")


def test_unusable_certificates_prevent_the_start(certificates, tmp_path):
    options = [f"--tls-cert={certificates.certificate}", f"--tls-key={certificates.client}"]
    fixed = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}"]
    result = subprocess.run([*NSQD, *fixed, *options], capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    reason = "failed to build TLS config - tls: private key does not match public key"
    assert last.endswith(f"FATAL: failed to instantiate nsqd - {reason}")
