"""nsqlookupd as a process with certificates: which connections may register, refused starts, and SIGHUP."""

import http.client
import json
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import trustme

from nsq_compat.bounded_http import FAILURES
from nsq_compat.client import Consumer, LogReader
from nsq_compat.client.discovery import ask
from nsq_compat.client.settings import SubscriptionSettings
from nsq_conformance.certificates import CLIENT_NAME, Certificates
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from pyspark_nsq.nodes import Nodes, NoNodes
from pyspark_nsq.option_table import STREAM
from pyspark_nsq.options import read_options

NSQLOOKUPD = [sys.executable, "-m", "nsq_compat.nsqlookupd.main"]
NSQD = [sys.executable, "-m", "nsq_compat.nsqd.main"]
ABOUT_NSQD = {"broadcast_address": "n1", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0", "hostname": "h"}
PATIENCE = 30.0
Start = Callable[..., NsqlookupdProcess]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start(certificates: Certificates) -> Iterator[Start]:
    """An nsqlookupd with the certificate, a port with TLS and more options."""
    ports = ["--tls-tcp-address=127.0.0.1:0", "--broadcast-address=127.0.0.1"]
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(
            NsqlookupdProcess(installed_nsqlookupd(), options=[*certificates.options, *ports, *options])
        )


@pytest.fixture
def verifying(certificates: Certificates) -> list[str]:
    return ["--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={certificates.root_ca}"]


class Nsqd:
    """A raw connection to nsqlookupd, with TLS if there is a context for it."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        if tls is not None:
            try:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            except BaseException:
                self.socket.close()
                raise

    def says(self, data: bytes) -> bytes:
        """Send, and return the reply; b"" if the connection is closed instead."""
        self.socket.sendall(data)
        size = self.reads(4)
        return self.reads(*struct.unpack(">i", size)) if size else b""

    def reads(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := self.socket.recv(size - len(data))):
            data += more
        return data

    def identifies(self, **about: object) -> bytes:
        body = json.dumps(ABOUT_NSQD | about).encode()
        return self.says(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)

    def __enter__(self) -> "Nsqd":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def get(address: str, path: str, tls: ssl.SSLContext, method: str = "GET") -> Any:
    with closing(http.client.HTTPSConnection(address, timeout=PATIENCE, context=tls)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read() or b"null")


def nodes(nsqlookupd: NsqlookupdProcess, tls: ssl.SSLContext) -> list[str]:
    return [node["broadcast_address"] for node in get(nsqlookupd.https_address, "/nodes", tls)["producers"]]


def issued(certificates: Certificates, folder: Path, *names: str, **settings: Any) -> Path:
    """A certificate of the authority, with its key."""
    path = folder / "issued.pem"
    certificates._ca.issue_cert(*names, **settings).private_key_and_cert_chain_pem.write_to_path(path)
    return path


# --- Ports ------------------------------------------------------------------------------------------------------------


def test_plain_ports_and_ports_with_tls_serve_one_database(start, certificates):
    nsqlookupd = start()
    tls = certificates.trusting()
    with Nsqd(nsqlookupd.tcp_address) as plain, Nsqd(nsqlookupd.tls_address, tls) as encrypted:
        told = json.loads(plain.identifies(broadcast_address="plain"))
        told_with_tls = json.loads(encrypted.identifies(broadcast_address="encrypted"))
        assert nodes(nsqlookupd, tls) == ["plain", "encrypted"]
        assert [each["broadcast_address"] for each in nsqlookupd.get("/nodes")["producers"]] == ["plain", "encrypted"]
    ports = [int(each.rpartition(":")[2]) for each in (nsqlookupd.tcp_address, nsqlookupd.http_address)]
    assert [told["tcp_port"], told["http_port"]] == ports
    ports = [int(each.rpartition(":")[2]) for each in (nsqlookupd.tls_address, nsqlookupd.https_address)]
    assert [told_with_tls["tcp_port"], told_with_tls["http_port"]] == ports


def test_plain_ports_can_be_left_out(start, certificates):
    nsqlookupd = start("--tcp-address=", "--http-address=")
    assert nsqlookupd._addresses.keys() == {"TLS", "HTTPS"}
    with Nsqd(nsqlookupd.tls_address, certificates.trusting()) as nsqd:
        assert nsqd.identifies().startswith(b"{")
        assert nodes(nsqlookupd, certificates.trusting()) == ["n1"]


# --- Who may register -------------------------------------------------------------------------------------------------


def test_with_client_certificates_required_nobody_else_may_register(start, certificates, verifying, tmp_path):
    nsqlookupd = start(*verifying)
    known = certificates.trusting(certificates.client)
    now = datetime.now(UTC)
    expired = issued(certificates, tmp_path, "client", not_before=now - timedelta(2), not_after=now - timedelta(1))
    strangers = {
        "nobody": certificates.trusting(),
        "stranger": certificates.trusting(certificates.stranger),
        "expired": certificates.trusting(expired),
    }
    for context in strangers.values():
        with Nsqd(nsqlookupd.tls_address, context) as stranger, pytest.raises(OSError, match="ALERT|EOF|reset"):
            stranger.identifies()
        with pytest.raises(OSError, match="ALERT|EOF|reset"):
            get(nsqlookupd.https_address, "/nodes", context)
    with Nsqd(nsqlookupd.tcp_address) as plain:
        assert plain.says(b"  V1PING\n") == b"OK"
    for said in (b"  V1REGISTER t\n", b"  V1UNREGISTER t\n", b"  V1FIN 0123456789abcdef\n"):
        with Nsqd(nsqlookupd.tcp_address) as plain:
            assert plain.says(said).startswith(b"E_INVALID")
    with Nsqd(nsqlookupd.tcp_address) as plain:
        assert plain.identifies() == b"E_UNAUTHORIZED IDENTIFY refused: TLS is required"
        assert plain.reads(1) == b""
    assert nodes(nsqlookupd, known) == []
    assert nsqlookupd.logs("registration refused - TLS is required")
    with Nsqd(nsqlookupd.tls_address, known) as nsqd:
        assert nsqd.identifies().startswith(b"{")
        assert nsqd.says(b"REGISTER t c\n") == b"OK"
        assert nodes(nsqlookupd, known) == ["n1"]


def test_with_client_certificates_required_the_plain_http_port_changes_and_shows_nothing(
    start, certificates, verifying
):
    nsqlookupd = start(*verifying)
    port = int(nsqlookupd.https_address.rpartition(":")[2])
    for method, path in (
        ("GET", "/nodes"),
        ("GET", "/lookup?topic=t"),
        ("POST", "/topic/create?topic=t"),
        ("POST", "/topic/tombstone?topic=t&node=n1:4151"),
        ("POST", "//topic/create?topic=t"),
        ("GET", "/debug/pprof/"),
        ("GET", "/metrics"),
    ):
        answer = nsqlookupd.asks(method, path)
        assert (answer.status, answer.json()) == (403, {"message": "TLS_REQUIRED", "https_port": port})
    assert get(nsqlookupd.https_address, "/topics", certificates.trusting(certificates.client)) == {"topics": []}


def test_plain_http_can_stay_open_for_lookups(start, verifying):
    nsqlookupd = start(*verifying, "--tls-required=tcp-https")
    assert nsqlookupd.get("/topics") == {"topics": []}
    with Nsqd(nsqlookupd.tcp_address) as plain:
        assert plain.identifies() == b"E_UNAUTHORIZED IDENTIFY refused: TLS is required"


def test_patterns_limit_which_addresses_a_certificate_may_claim(start, certificates, verifying, tmp_path):
    nsqlookupd = start(
        *verifying, f"--registration-patterns={CLIENT_NAME}=10.0.0.*", "--registration-patterns=*.nsqd={name}"
    )
    known = certificates.trusting(certificates.client)
    node = certificates.trusting(issued(certificates, tmp_path, "n1.nsqd", "*.nsqd"))
    for context, address, is_allowed in (
        (known, "10.0.0.7", True),
        (known, "10.0.1.7", False),
        (known, "10.0.0.7.evil", False),
        (known, "client", False),
        (node, "n1.nsqd", True),
        (node, "N1.NSQD.", True),
        (node, "n2.nsqd", False),
        (node, "10.0.0.7", False),
    ):
        with Nsqd(nsqlookupd.tls_address, context) as nsqd:
            answer = nsqd.identifies(broadcast_address=address)
            assert answer.startswith(b"{" if is_allowed else b"E_UNAUTHORIZED IDENTIFY refused: a certificate for "), (
                address
            )
    metrics = http.client.HTTPSConnection(nsqlookupd.https_address, timeout=PATIENCE, context=known)
    with closing(metrics):
        metrics.request("GET", "/metrics")
        assert b"nsqlookupd_registrations_refused_total 5.0" in metrics.getresponse().read()


# --- What clients cannot do -------------------------------------------------------------------------------------------


def test_a_plain_client_at_the_port_with_tls_receives_an_error_and_costs_nothing(start, certificates):
    nsqlookupd = start()
    with Nsqd(nsqlookupd.tls_address) as plain:
        assert plain.says(b"  V1PING\n") == b"E_BAD_PROTOCOL this port expects TLS"
        assert plain.reads(1) == b""
    with Nsqd(nsqlookupd.tls_address) as plain:
        assert plain.says(b"GET / HTTP/1.1\r\n\r\n") == b""
    assert nsqlookupd.logs("TLS handshake failed - tls: first record does not look like a TLS handshake")
    with Nsqd(nsqlookupd.tls_address, certificates.trusting()) as nsqd:
        assert nsqd.identifies().startswith(b"{")


def test_a_client_with_tls_at_the_plain_port_receives_an_error_and_costs_nothing(start, certificates):
    nsqlookupd = start()
    with pytest.raises(ssl.SSLError):
        Nsqd(nsqlookupd.tcp_address, certificates.trusting())
    with Nsqd(nsqlookupd.tcp_address) as nsqd:
        assert nsqd.identifies().startswith(b"{")


def test_handshakes_that_take_long_hold_no_other_client(start, certificates):
    nsqlookupd = start()
    host, _, port = nsqlookupd.tls_address.rpartition(":")
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE)) for _ in range(100)]
        for number, each in enumerate(slow):
            each.sendall(b"\x16\x03\x01\x02\x00\x01"[: number % 7])
        with Nsqd(nsqlookupd.tls_address, certificates.trusting()) as nsqd:
            assert nsqd.identifies().startswith(b"{")
        for each in slow:
            while each.recv(100):  # at most an alert, and the end after five seconds
                pass
    assert nsqlookupd.logs("TLS handshake failed - timeout")


def test_a_client_that_never_reads_its_handshake_costs_nothing_else(start, certificates):
    nsqlookupd = start()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = certificates.trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    with Nsqd(nsqlookupd.tls_address) as raw:
        raw.socket.sendall(hello)
        raw.socket.shutdown(socket.SHUT_WR)
        while raw.socket.recv(65536):
            pass
    with Nsqd(nsqlookupd.tls_address, certificates.trusting()) as nsqd:
        assert nsqd.identifies().startswith(b"{")


# --- nsqd -------------------------------------------------------------------------------------------------------------


def nsqd_options(certificates: Certificates, *addresses: str) -> list[str]:
    return [
        *(f"--lookupd-tcp-address={address}" for address in addresses),
        f"--lookupd-tls-root-ca-file={certificates.root_ca}",
        "--broadcast-address=127.0.0.1",
    ]


def test_nsqd_registers_with_plain_nsqlookupds_and_with_tls_at_once(start, certificates, verifying, tmp_path):
    secure, plain = start(*verifying), start()
    get(
        secure.https_address,
        "/channel/create?topic=orders&channel=archive",
        certificates.trusting(certificates.client),
        "POST",
    )
    addresses = (plain.tcp_address, f"tls://{secure.tls_address}")
    client = f"--lookupd-tls-cert={certificates.client}"
    with NsqdProcess(installed_nsqd(), tmp_path, options=[*nsqd_options(certificates, *addresses), client]) as nsqd:
        known = certificates.trusting(certificates.client)
        eventually(lambda: nodes(secure, known) and plain.get("/nodes")["producers"])
        nsqd.asks("POST", "/topic/create?topic=orders")
        # It has asked over HTTPS which channels the topic has.
        eventually(lambda: plain.get("/channels", topic="orders")["channels"] == ["archive"])
        assert "failed to query" not in "".join(nsqd._last_lines)
    eventually(lambda: not nodes(secure, known))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("no certificate", "certificate required"),
        ("another authority", "unable to get local issuer certificate"),
        ("an expired certificate", "certificate has expired"),
        ("another name", "IP address mismatch"),
        ("a plain port", "tls: "),
        ("a port with TLS", "IDENTIFY - not an answer to IDENTIFY: E_BAD_PROTOCOL this port expects TLS"),
    ],
)
def test_nsqd_reports_why_it_cannot_register(start, certificates, verifying, tmp_path, case, reason):
    nsqlookupd = start(*(verifying if case == "no certificate" else ()))
    address = f"tls://{nsqlookupd.tls_address}"
    ca = certificates.root_ca
    if case == "another authority":
        ca = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(ca)
    elif case == "an expired certificate":
        past = datetime.now(UTC) - timedelta(1)
        expired = issued(certificates, tmp_path, "127.0.0.1", not_before=past - timedelta(1), not_after=past)
        nsqlookupd = start(f"--tls-cert={expired}", f"--tls-key={expired}")
        address = f"tls://{nsqlookupd.tls_address}"
    elif case == "another name":
        nsqlookupd = start("--tls-tcp-address=0.0.0.0:0")
        address = f"tls://127.0.0.2:{nsqlookupd.tls_address.rpartition(':')[2]}"
    elif case == "a plain port":
        address = f"tls://{nsqlookupd.tcp_address}"
    elif case == "a port with TLS":
        address = nsqlookupd.tls_address
    options = [f"--lookupd-tcp-address={address}", f"--lookupd-tls-root-ca-file={ca}"]
    (tmp_path / "data").mkdir()
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=options) as nsqd:
        assert nsqd.logs(reason)
        lines = [line for line in nsqd._last_lines if reason in line]
    assert f"ERROR: LOOKUPD({address}): " in lines[0]
    assert nsqlookupd.get("/nodes") == {"producers": []} if case != "no certificate" else True


@pytest.mark.real_start
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--lookupd-tls-key=KEY"], "--lookupd-tls-key needs --lookupd-tls-cert"),
        (["--lookupd-tls-cert=/nothing"], "from /nothing - no such file or directory"),
        (["--lookupd-tls-cert=CA"], "from CA - "),
        (["--lookupd-tls-root-ca-file=KEY"], "from KEY - "),
        (["--lookupd-tcp-address=tls://127.0.0.1:1", "--lookupd-tls-root-ca-file=/nothing"], "from /nothing - no such"),
    ],
)
def test_nsqd_refuses_files_that_it_cannot_use(certificates, tmp_path, options, reason):
    def filled(text: str) -> str:
        return text.replace("KEY", str(certificates.key)).replace("CA", str(certificates.root_ca))

    for check in ([], ["--check-config"]):
        words = [f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *check]
        result = subprocess.run(
            [*NSQD, *words, *map(filled, options)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=50
        )
        assert result.returncode == 1
        assert "FATAL: failed to instantiate nsqd - " in result.stderr.splitlines()[-1]
        assert filled(reason) in result.stderr.splitlines()[-1]


def test_a_refused_registration_reaches_the_log_of_nsqd(start, certificates, verifying, tmp_path):
    nsqlookupd = start(*verifying, "--registration-patterns=other=**")
    options = [
        *nsqd_options(certificates, f"tls://{nsqlookupd.tls_address}"),
        f"--lookupd-tls-cert={certificates.client}",
    ]
    with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd:
        assert nsqd.logs("E_UNAUTHORIZED IDENTIFY refused: a certificate for")
    assert nsqlookupd.logs("registration refused - a certificate for")


def test_sighup_of_nsqd_reads_the_client_certificate_again(start, certificates, verifying, tmp_path):
    nsqlookupd = start(*verifying)
    client = tmp_path / "client.pem"
    client.write_bytes(certificates.stranger.read_bytes())
    options = [*nsqd_options(certificates, f"tls://{nsqlookupd.tls_address}"), f"--lookupd-tls-cert={client}"]
    (tmp_path / "data").mkdir()
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=options) as nsqd:
        assert nsqd.logs("unknown ca")
        client.write_bytes(b"no certificate")
        nsqd.send_signal(signal.SIGHUP)
        assert nsqd.logs("LOOKUP: keeping the certificates in use - ")
        client.write_bytes(certificates.client.read_bytes())
        nsqd.send_signal(signal.SIGHUP)
        eventually(lambda: nodes(nsqlookupd, certificates.trusting(certificates.client)))


# --- Programs that look up --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The HTTPS address of an nsqlookupd without plain ports that requires certificates; an nsqd has the topic `t`."""
    options = [
        *certificates.options, "--tls-tcp-address=127.0.0.1:0", "--broadcast-address=127.0.0.1", "--tcp-address=",
        "--http-address=", "--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={certificates.root_ca}",
    ]  # fmt: skip
    with NsqlookupdProcess(installed_nsqlookupd(), options=options) as nsqlookupd:
        client = f"--lookupd-tls-cert={certificates.client}"
        flags = [*nsqd_options(certificates, f"tls://{nsqlookupd.tls_address}"), client]
        with NsqdProcess(installed_nsqd(), tmp_path_factory.mktemp("data"), options=flags) as nsqd:
            nsqd.create_channel("t", "c")
            known = certificates.trusting(certificates.client)
            eventually(lambda: get(nsqlookupd.https_address, "/channels?topic=t", known)["channels"])
            yield nsqlookupd.https_address


@pytest.fixture
def fill(secured: str, certificates: Certificates) -> None:
    """One message waits in the channel `c` of the topic `t`."""
    known = certificates.trusting(certificates.client)
    (node,) = get(secured, "/lookup?topic=t", known)["producers"]
    with closing(http.client.HTTPConnection("127.0.0.1", node["http_port"], timeout=PATIENCE)) as nsqd:
        for path, body in (("/channel/empty?topic=t&channel=c", b""), ("/pub?topic=t", b"hello")):
            nsqd.request("POST", path, body)
            assert nsqd.getresponse().read() in (b"", b"OK")


def tls_words(certificates: Certificates, flag: str) -> list[str]:
    return [f"--{flag}=tls_root_ca_file,{certificates.root_ca}", f"--{flag}=tls_cert,{certificates.client}"]


def http_words(certificates: Certificates) -> list[str]:
    client = [f"--http-client-tls-cert={certificates.client}", f"--http-client-tls-key={certificates.client}"]
    return [f"--http-client-tls-root-ca-file={certificates.root_ca}", *client]


def run(program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    executable = Path(sys.executable).with_name(program)
    return subprocess.run([executable, *words], capture_output=True, timeout=PATIENCE)


def test_nsqadmin_asks_an_nsqlookupd_with_tls(secured, certificates):
    options = [f"--lookupd-http-address=https://{secured}", *http_words(certificates)]
    with NsqadminProcess(installed_nsqadmin(), options=options) as nsqadmin:
        assert json.loads(nsqadmin.get("/api/topics"))["topics"] == ["t"]
        (node,) = json.loads(nsqadmin.get("/api/nodes"))["nodes"]
        assert node["remote_addresses"][0].startswith(f"https://{secured}/")
        assert f"https://{secured}" in nsqadmin.get("/nodes")
        nsqadmin.send("/api/topics", '{"topic": "by-nsqadmin"}')
        assert "by-nsqadmin" in json.loads(nsqadmin.get("/api/topics"))["topics"]
        nsqadmin.send("/config/nsqlookupd_http_addresses", f'["https://{secured}"]', "PUT")
        assert json.loads(nsqadmin.get("/api/topics"))["topics"]
    known = certificates.trusting(certificates.client)
    get(secured, "/topic/delete?topic=by-nsqadmin", known, "POST")


@pytest.mark.parametrize("lack", ["authority", "certificate"])
def test_nsqadmin_shows_why_an_nsqlookupd_with_tls_refuses_it(secured, certificates, lack):
    words = http_words(certificates)
    given = words[1:] if lack == "authority" else words[:1]
    with (
        NsqadminProcess(
            installed_nsqadmin(), options=[f"--lookupd-http-address=https://{secured}", *given]
        ) as nsqadmin,
        pytest.raises(HTTPError) as failure,
    ):
        nsqadmin.get("/api/topics")
    assert f"https://{secured}/topics" in (message := failure.value.read().decode())
    reason = (
        "self-signed certificate in certificate chain" if lack == "authority" else "tlsv13 alert certificate required"
    )
    assert f"TLS: {reason}" in message


def test_nsq_stat_asks_an_nsqlookupd_with_tls(secured, certificates, fill):
    words = ["--topic=t", "--channel=c", "--count=1", "--interval=100ms", f"--lookupd-http-address=https://{secured}"]
    done = run("nsq_stat", *words, *http_words(certificates))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[2].split(b"|")[1].split()[0]) == 1
    assert run("nsq_stat", *words).returncode == 1


def test_nsq_rewind_asks_an_nsqlookupd_with_tls(secured, certificates):
    words = ["--topic=t", "--channel=c", "--to=latest", f"--lookupd-http-address=https://{secured}"]
    assert run("nsq_rewind", *words, *http_words(certificates)).returncode == 0
    assert run("nsq_rewind", *words).returncode == 1


@pytest.mark.parametrize("from_", [[], ["--from=oldest"]])
def test_nsq_tail_asks_an_nsqlookupd_with_tls(secured, certificates, fill, from_):
    words = ["--topic=t", "--n=1", f"--lookupd-http-address=https://{secured}", *from_]
    done = run("nsq_tail", *([] if from_ else ["--channel=c"]), *words, *tls_words(certificates, "consumer-opt"))
    assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr


def test_nsq_to_file_asks_an_nsqlookupd_with_tls(secured, certificates, fill, tmp_path):
    words = ["--channel=c", f"--output-dir={tmp_path}", f"--lookupd-http-address=https://{secured}"]
    program = Path(sys.executable).with_name("nsq_to_file")
    words += [
        "--topic-pattern=.*",
        "--sync-interval=100ms",
        "--topic-refresh=100ms",
        *tls_words(certificates, "consumer-opt"),
    ]  # it asks for the topics, too
    with subprocess.Popen([program, *words], stderr=subprocess.DEVNULL) as running:
        try:
            eventually(lambda: [path for path in tmp_path.iterdir() if path.read_bytes() == b"hello\n"])
        finally:
            running.terminate()


def test_a_consumer_and_a_reader_ask_an_nsqlookupd_with_tls(secured, certificates, fill):
    tls = {"ca_certs": str(certificates.root_ca), "certfile": str(certificates.client)}
    found = threading.Event()
    address = f"https://{secured}"
    with Consumer("t", "c", lambda message: found.set(), lookupd_http_addresses=address, tls_options=tls):
        assert found.wait(PATIENCE)
    reader = LogReader("t", start="oldest", end="latest", lookupd_http_addresses=address, tls_options=tls)
    with reader:
        assert b"hello" in [message.body for message in reader]


def test_a_lookup_verifies_the_certificate_and_its_name(secured, certificates):
    tls = {"ca_certs": str(certificates.root_ca), "certfile": str(certificates.client)}
    assert ask(f"https://{secured}", "t", SubscriptionSettings(tls_options=tls)).nodes
    for address, options in (
        (f"https://{secured}", None),
        (f"https://{secured}", {"certfile": str(certificates.client)}),
        (f"https://{secured}", {"ca_certs": str(certificates.root_ca)}),
    ):
        with pytest.raises(FAILURES):
            ask(address, "t", SubscriptionSettings(tls_options=options))


def test_spark_asks_an_nsqlookupd_with_tls(secured, certificates):
    written = {
        "subscribe": "t",
        "mode": "log",
        "lookupdHttpAddresses": f"https://{secured}",
        "tlsCaFile": str(certificates.root_ca),
        "tlsCertFile": str(certificates.client),
    }
    assert [node.topic for node in Nodes(read_options(written, STREAM)).all()] == ["t"]
    pattern = {**written, "subscribePattern": "t.*"}
    del pattern["subscribe"]
    assert [node.topic for node in Nodes(read_options(pattern, STREAM)).all()] == ["t"]
    del written["tlsCertFile"]
    with pytest.raises(NoNodes):
        Nodes(read_options(written, STREAM)).all()


# --- Starts and SIGHUP ------------------------------------------------------------------------------------------------


def test_sighup_reads_the_certificates_again_and_keeps_connections(start, certificates):
    nsqlookupd = start()

    def server_name() -> str:
        with Nsqd(nsqlookupd.tls_address, certificates.trusting()) as nsqd:
            assert isinstance(nsqd.socket, ssl.SSLSocket)
            found: Mapping[str, Any] = nsqd.socket.getpeercert() or {}
            return str(dict(part[0] for part in found["subject"])["commonName"])

    with Nsqd(nsqlookupd.tls_address, certificates.trusting()) as before:
        assert server_name() == "nsqd"
        certificates.renew("renewed")
        nsqlookupd.send_signal(signal.SIGHUP)
        assert nsqlookupd.logs("TLS: reloaded")
        assert server_name() == "renewed"
        assert before.identifies().startswith(b"{")
    certificates.renew("nsqd")


@pytest.mark.real_start
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--https-address=127.0.0.1:0"], "--https-address needs --tls-cert and --tls-key"),
        (["--tls-cert=CERT"], "--tls-cert and --tls-key need each other"),
        (["--tls-cert=CERT", "--tls-key=KEY"], "--tls-cert needs --https-address"),
        (["--tls-tcp-address=127.0.0.1:0"], "--tls-tcp-address needs --https-address"),
        (["--tls-required=true"], "--tls-required needs --tls-cert and --tls-key"),
        (["--tls-client-auth-policy=require"], "--tls-required needs --tls-cert and --tls-key"),
        (
            [*("--tls-cert=CERT", "--tls-key=KEY", "--https-address=127.0.0.1:0", "--tls-root-ca-file=CERT")],
            "--tls-root-ca-file needs --tls-client-auth-policy=require-verify",
        ),
        (["--registration-patterns=a=b"], "--registration-patterns needs --tls-client-auth-policy=require-verify"),
        (
            [*("--tls-cert=CERT", "--tls-key=KEY", "--https-address=127.0.0.1:0", "--http-address=")],
            "nsqds at --tcp-address need --http-address",
        ),
        (
            [*("--tls-cert=CERT", "--tls-key=/nothing", "--https-address=127.0.0.1:0")],
            "failed to build TLS config - open /nothing: no such file or directory",
        ),
        (
            [
                *(
                    "--tls-cert=CERT",
                    "--tls-key=KEY",
                    "--https-address=127.0.0.1:0",
                    "--tls-client-auth-policy=require-verify",
                    "--registration-patterns=a",
                )
            ],
            '--registration-patterns: "a" is not NAME=PATTERN',
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused_at_the_start_and_by_the_check(certificates, options, reason):
    files = {"CERT": str(certificates.certificate), "KEY": str(certificates.key)}
    words = [word.replace("CERT", files["CERT"]).replace("KEY", files["KEY"]) for word in options]
    for check in ([], ["--check-config"]):
        result = subprocess.run(
            [*NSQLOOKUPD, "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *words, *check],
            capture_output=True, text=True, timeout=50,
        )  # fmt: skip
        assert result.returncode == 1
        assert result.stderr.splitlines()[-1].endswith(f"FATAL: failed to instantiate nsqlookupd - {reason}")
