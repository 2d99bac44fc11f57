"""TLS without a socket, by both libraries: valid streams, invalid ones, and NSQ's names."""

import ssl
import subprocess
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given, settings
from hypothesis import strategies as st
from OpenSSL import SSL

from nsq_compat.net.certificates import Certificates
from nsq_compat.net.tls import failure, suite_name, version_name
from nsq_compat.net.tls_codec import MAX_HANDSHAKE_RECORDS, TlsError
from nsq_compat.net.tls_lenient import LenientTls, lenient_context
from tests.net.conftest import TlsClient

V2, V3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
MEGABYTE = 1 << 20


@pytest.fixture(scope="module", params=["none", "require", "require-verify"])
def policy(request):
    return request.param


@pytest.fixture(scope="module")
def certificates(authority, policy):
    return Certificates(authority.files(client_policy=policy))


class Pair:
    """A client and the server's TLS, with nothing between them."""

    def __init__(self, certificates, client):
        self.server = certificates.make_tls()
        self.client = client

    def do_handshake(self):
        said = self.client.do_handshake()
        while not self.server.do_handshake(said):
            said = self.client.do_handshake(self.server.encode(b""))
        self.client.do_handshake(self.server.encode(b""))
        return self

    def end_of_handshake(self):
        """The last bytes of the client's handshake, which the server has not received."""
        said = self.client.do_handshake()
        while not self.client.is_complete:
            self.server.do_handshake(said)
            said = self.client.do_handshake(self.server.encode(b""))
        return said

    def server_hears(self, wire):
        return list(self.server.decode(wire))

    def client_hears(self, wire):
        return b"".join(self.client.decode(wire))


@pytest.fixture
def pair(authority, certificates):
    return Pair(certificates, authority.client_tls(authority.client, authority.client_key)).do_handshake()


def test_bytes_of_one_side_reach_the_other(pair):
    assert pair.server_hears(pair.client.encode(b"NOP\n")) == [b"NOP\n"]
    assert pair.client_hears(pair.server.encode(b"OK")) == b"OK"


def test_megabytes_go_both_ways(pair):
    data = bytes(range(256)) * (5 * MEGABYTE // 256)
    assert b"".join(pair.server_hears(pair.client.encode(data))) == data
    assert pair.client_hears(pair.server.encode(data)) == data


def test_decoded_pieces_have_a_bounded_size(pair):
    wire = pair.client.encode(bytes(MEGABYTE))
    assert max(len(piece) for piece in pair.server.decode(wire)) <= 1 << 16


@settings(max_examples=20)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.lists(st.integers(0, 400), max_size=6))
def test_any_cut_of_the_stream_gives_the_same_bytes(authority, bodies, cuts):
    pair = Pair(Certificates(authority.files()), authority.client_tls()).do_handshake()
    wire = b"".join([pair.client.encode(body) for body in bodies])
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    heard = [pair.server_hears(wire[begin:end]) for begin, end in pairwise(edges)]
    assert b"".join(piece for pieces in heard for piece in pieces) == b"".join(bodies)


def test_a_handshake_may_come_byte_by_byte(authority, certificates):
    pair = Pair(certificates, authority.client_tls(authority.client, authority.client_key))
    said, done = pair.client.do_handshake(), False
    while not done:
        for byte in said:
            done = pair.server.do_handshake(bytes([byte]))
        said = pair.client.do_handshake(pair.server.encode(b""))
    assert pair.server_hears(pair.client.encode(b"NOP\n")) == [b"NOP\n"]


def test_bytes_received_with_the_end_of_the_handshake_are_not_lost(authority, certificates):
    pair = Pair(certificates, authority.client_tls(authority.client, authority.client_key))
    last_of_the_handshake = pair.end_of_handshake()
    assert pair.server.do_handshake(last_of_the_handshake + pair.client.encode(b"NOP\n"))
    assert pair.server_hears(b"") == [b"NOP\n"]


def test_hundreds_of_records_with_the_end_of_the_handshake_are_not_lost(authority, certificates):
    pair = Pair(certificates, authority.client_tls(authority.client, authority.client_key))
    last_of_the_handshake = pair.end_of_handshake()
    commands = b"".join(pair.client.encode(b"NOP\n") for _ in range(2 * MAX_HANDSHAKE_RECORDS))
    assert pair.server.do_handshake(last_of_the_handshake + commands)
    assert b"".join(pair.server_hears(b"")) == b"NOP\n" * 2 * MAX_HANDSHAKE_RECORDS


def test_the_facts_are_those_of_the_connection(pair, policy):
    facts = pair.server.facts()
    assert facts.version == "TLS1.3"
    assert facts.cipher_suite in {"Unknown 4865", "Unknown 4866", "Unknown 4867"}
    assert facts.common_name == ("" if policy == "none" else "somebody")


def test_the_first_cipher_suite_of_the_client_is_chosen(authority, certificates):
    context = authority.trusting(authority.client, authority.client_key, version=V2)
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384")
    facts = Pair(certificates, type(authority.client_tls())(context)).do_handshake().server.facts()
    assert (facts.version, facts.cipher_suite) == ("TLS1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
    context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256")
    facts = Pair(certificates, type(authority.client_tls())(context)).do_handshake().server.facts()
    assert facts.cipher_suite == "Unknown 49196"


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["ffdhe4096", "ffdhe6144", "ffdhe8192"])
@pytest.mark.parametrize(
    "options", [{}, {"client_policy": "require"}, {"client_policy": "require-verify", "min_version": V3}]
)
def test_a_client_cannot_choose_a_key_exchange_that_takes_long(authority, group, options):
    # With the largest, a handshake held up all other clients for 150 ms.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ecdh_curve(group)
    with pytest.raises(TlsError, match="no suitable key share|no shared group"):
        Certificates(authority.files(**options)).make_tls().do_handshake(TlsClient(context).do_handshake())


@pytest.mark.parametrize("version", [V2, V3])
def test_a_client_certificate_may_be_on_any_curve(authority, tmp_path, version):
    key, certificate = tmp_path / "384.key", tmp_path / "384.crt"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj /CN=client -days 2"
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    files = replace(authority.files(client_policy="require-verify"), root_ca=str(certificate))
    Pair(Certificates(files), authority.client_tls(certificate, key, version=version)).do_handshake()


@pytest.mark.parametrize("cut", [1 << 16, 999, 6])
def test_a_handshake_in_thousands_of_records_is_refused_before_all_are_read(certificates, cut):
    begin = bytes.fromhex("01 01fffc") + bytes(10_000)  # of a message of 128 KiB
    wire = b"".join(b"\x16\x03\x01\0\1" + begin[at : at + 1] for at in range(len(begin)))
    fed: list[bytes] = []

    def feed_all(server):
        for begin in range(0, len(wire), cut):
            server.do_handshake(wire[begin : begin + cut])
            fed.append(wire[begin : begin + cut])

    with pytest.raises(TlsError, match="^tls: too many records in a handshake$"):
        feed_all(certificates.make_tls())
    assert len(b"".join(fed)) < 6 * 2 * MAX_HANDSHAKE_RECORDS


def test_no_chain_of_a_certificate_that_need_not_be_trusted_is_verified(authority):
    files = authority.files(client_policy="require")
    assert lenient_context(files.certificate, files.key, 0x0303, "ECDHE+AESGCM").get_verify_depth() == 0


@pytest.mark.parametrize("noise", [b"  V2NOP\nNOP\nNOP\n", b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 100])
def test_bytes_that_are_no_handshake_are_refused_with_an_alert(certificates, noise):
    server = certificates.make_tls()
    with pytest.raises(TlsError, match="^tls: "):
        server.do_handshake(noise)
    assert server.encode(b"lost")[:1] in (b"", b"\x15")


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_a_handshake_or_none(authority, noise):
    server = Certificates(authority.files()).make_tls()
    with suppress(TlsError):
        assert not server.do_handshake(noise)


def test_garbage_in_the_stream_is_refused_and_the_bytes_before_it_are_decoded(pair):
    pieces = pair.server.decode(pair.client.encode(b"NOP\n") + b"garbage, certainly" * 10)
    assert next(pieces) == b"NOP\n"
    with pytest.raises(TlsError):
        next(pieces)
    assert pair.server.pending
    alert = pair.server.encode(b"not received")
    assert len(alert) < 60
    assert pair.server.encode(b"nor this") == b""


def test_a_changed_byte_is_refused(pair):
    wire = bytearray(pair.client.encode(b"PUB t\n\0\0\0\1x"))
    wire[-1] ^= 1
    with pytest.raises(TlsError):
        pair.server_hears(bytes(wire))


def test_the_end_of_the_clients_stream_is_an_empty_piece(pair):
    wire = pair.client.encode(b"NOP\n")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.tls.unwrap()
    assert pair.server_hears(wire + pair.client.encode(b"")) == [b"NOP\n", b""]


@pytest.mark.parametrize("version", [V2, V3])
def test_a_policy_accepts_the_clients_it_names(authority, policy, certificates, version):
    for shown, taken in (
        ((), policy == "none"),
        ((authority.stranger,), policy != "require-verify"),
        ((authority.client, authority.client_key), True),
    ):
        pair = Pair(certificates, authority.client_tls(*shown, version=version))
        if taken:
            assert pair.do_handshake().server_hears(pair.client.encode(b"NOP\n")) == [b"NOP\n"]
            continue
        words = "tls: failed to verify certificate: x509: " if shown else "tls: client didn't provide a certificate"
        with pytest.raises(TlsError, match=words):
            pair.do_handshake()
        with pytest.raises(ssl.SSLError, match="ALERT"):
            pair.client_hears(pair.server.encode(b""))


def again_with(authority, policy, version):
    """Another connection of a client that resumes the session of its first one, and that one, which is not closed."""
    certificates = Certificates(authority.files(client_policy=policy))
    context = authority.trusting(authority.client, authority.client_key, version=version)
    first = Pair(certificates, TlsClient(context)).do_handshake()
    first.client_hears(first.server.encode(b"OK"))
    return Pair(certificates, TlsClient(context, first.client.tls.session)), first


@pytest.mark.parametrize("policy", ["none", "require-verify"])
@pytest.mark.parametrize("version", [V2, V3])
def test_a_session_of_tls_1_3_is_not_resumed_if_certificates_are_verified(authority, policy, version):
    again, _first = again_with(authority, policy, version)
    assert again.do_handshake().client.tls.session_reused == (policy == "none" or version is V2)


def test_a_session_is_not_resumed_with_a_certificate_that_has_expired(authority, monkeypatch):
    again, _first = again_with(authority, "require-verify", V2)
    monkeypatch.setattr("time.time", lambda: 1e11)
    with pytest.raises(TlsError, match="certificate has expired"):
        again.do_handshake()


def test_renegotiation_is_refused(authority, certificates):
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    context.use_certificate_file(str(authority.client))
    context.use_privatekey_file(str(authority.client_key))
    client = SSL.Connection(context, None)
    client.set_connect_state()
    server = certificates.make_tls()
    done = False
    while not done:
        with suppress(SSL.WantReadError):
            client.do_handshake()
        done = server.do_handshake(client.bio_read(1 << 16))
        client.bio_write(server.encode(b""))
    client.do_handshake()
    client.renegotiate()
    with pytest.raises(SSL.WantReadError):
        client.do_handshake()
    assert list(server.decode(client.bio_read(1 << 16))) == []
    client.bio_write(server.encode(b""))
    with pytest.raises(SSL.Error, match="no renegotiation"):
        client.do_handshake()


class KeyUpdates:
    """Records in which a client of TLS 1.3 updates its key, which the standard library cannot write."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._hash = hashes.SHA384() if len(secret) == 48 else hashes.SHA256()

    def write(self) -> bytes:
        # An update asks for one of the server's, and is the first record with its key (RFC 8446, 4.6.3, 5.2, 7.2).
        cipher = AESGCM(self._expand(b"key", 32 if len(self._secret) == 48 else 16))
        body = bytes.fromhex("18 000001 01 16")
        head = b"\x17\x03\x03" + (len(body) + 16).to_bytes(2, "big")
        record = head + cipher.encrypt(self._expand(b"iv", 12), body, head)
        self._secret = self._expand(b"traffic upd", len(self._secret))
        return record

    def _expand(self, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)


@pytest.fixture
def updates(authority, certificates, tmp_path):
    """A server's TLS, and records of its client."""
    context = authority.trusting(authority.client, authority.client_key, version=V3)
    context.keylog_filename = str(tmp_path / "keys")
    client = TlsClient(context)
    pair = Pair(certificates, client).do_handshake()
    (line,) = (each for each in (tmp_path / "keys").read_text().splitlines() if "CLIENT_TRAFFIC_SECRET_0" in each)
    return pair.server, KeyUpdates(bytes.fromhex(line.split()[2]))


def test_a_client_may_update_its_key(updates):
    server, records = updates
    for _ in range(3):
        assert list(server.decode(b"".join(records.write() for _ in range(32)))) == []


def heard_in_cuts(tls, wire: bytes, cut: int) -> bytes:
    """What is decoded from reads of this size."""
    return b"".join(piece for begin in range(0, len(wire), cut) for piece in tls.decode(wire[begin : begin + cut]))


@pytest.mark.parametrize("cut", [1 << 16, 999])
def test_thousands_of_short_records_are_read(pair, cut):
    wire = b"".join(pair.client.encode(b"NOP\n") for _ in range(1000))
    assert heard_in_cuts(pair.server, wire, cut) == b"NOP\n" * 1000


@pytest.mark.parametrize("cut", [1 << 16, 999])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1 is deprecated")
def test_empty_records_of_tls_1_0_before_each_with_data_are_read(authority, certificates, cut):
    """OpenSSL's clients send them, against an attack on CBC."""
    context = authority.trusting(authority.client, authority.client_key)
    context.set_ciphers("ECDHE+AES:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1
    pair = Pair(certificates, TlsClient(context)).do_handshake()
    wire = b"".join(pair.client.encode(b"NOP\n") for _ in range(1000))
    assert heard_in_cuts(pair.server, wire, cut) == b"NOP\n" * 1000


@pytest.mark.parametrize("cut", [27 * 1000, 27 * 48])
def test_a_client_that_updates_its_key_again_and_again_is_refused_before_all_is_read(updates, cut):
    server, records = updates
    wire = b"".join(records.write() for _ in range(1000))
    with pytest.raises(TlsError, match="tls: too many non-advancing records"):
        heard_in_cuts(server, wire, cut)
    assert len(server.encode(b"")) < 27 * 50  # its own updates


def test_only_the_policy_require_loads_pyopenssl(certificates, policy):
    assert isinstance(certificates.make_tls(), LenientTls) == (policy == "require")


@pytest.mark.parametrize(
    ("openssl", "nsq"),
    [("TLSv1", "TLS1.0"), ("TLSv1.1", "TLS1.1"), ("TLSv1.2", "TLS1.2"), ("TLSv1.3", "TLS1.3"), (None, "Unknown None")],
)
def test_versions(openssl, nsq):
    assert version_name(openssl) == nsq


@pytest.mark.parametrize(
    ("openssl", "nsq"),
    [
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES256-SHA", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
        ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
        ("TLS_AES_128_GCM_SHA256", "Unknown 4865"),
        ("TLS_AES_256_GCM_SHA384", "Unknown 4866"),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "Unknown 49196"),
        ("something new", "Unknown 0"),
    ],
)
def test_cipher_suites(openssl, nsq):
    assert suite_name(openssl) == nsq


@pytest.mark.parametrize(
    ("reason", "detail", "text"),
    [
        ("WRONG_VERSION_NUMBER", "", "tls: first record does not look like a TLS handshake"),
        ("HTTP_REQUEST", "", "tls: first record does not look like a TLS handshake"),
        ("UNSUPPORTED_PROTOCOL", "", "tls: client offered only unsupported versions"),
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "", "tls: client didn't provide a certificate"),
        ("CERTIFICATE_VERIFY_FAILED", "expired", "tls: failed to verify certificate: x509: expired"),
        ("TLSV1_ALERT_UNKNOWN_CA", "", "remote error: tls: unknown ca"),
        ("DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "", "tls: decryption failed or bad record mac"),
    ],
)
def test_failures(reason, detail, text):
    assert failure(reason, detail) == text
