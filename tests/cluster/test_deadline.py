"""One deadline for a whole request, whichever part of the answer is slow."""

import socket
import ssl
import threading
from contextlib import closing

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from nsq_compat.bounded_http import Deadline, _Tls, bounded_session
from nsq_compat.cluster.http_client import HttpClient, call_all
from nsq_compat.cluster.reading import UpstreamError
from tests.cluster.hostile import (
    DEADLINE,
    DRIPPING,
    HostileServer,
    compressed_twice,
    dripping_handshake,
    dripping_header,
    endless_headers,
    redirecting,
    redirecting_with_endless_body,
)


@pytest.fixture
def hasty() -> HttpClient:
    return HttpClient(request_timeout=DEADLINE, tls_skip_verify=True)


@pytest.mark.parametrize("answer", DRIPPING)
def test_a_slow_answer_ends_at_the_deadline(hasty, answer):
    with HostileServer(answer) as server:
        with pytest.raises(UpstreamError, match=": timeout$"):
            hasty.get(server.address, "stats")
        with pytest.raises(UpstreamError, match=": timeout$"):
            hasty.post(server.address, "pub", {"topic": "t"}, b"body")
    with HostileServer(answer, tls=True) as server, pytest.raises(UpstreamError, match=": timeout$"):
        hasty.exchange("GET", f"https://{server.address}/render")


def test_a_slow_tls_handshake_ends_at_the_deadline(hasty):
    with HostileServer(dripping_handshake) as server, pytest.raises(UpstreamError, match=": timeout$"):
        hasty.exchange("GET", f"https://{server.address}/render")


def test_the_deadline_includes_the_request_to_the_https_port(hasty, daemon):
    with HostileServer(dripping_handshake) as server:
        port = int(server.address.rpartition(":")[2])
        daemon.says("info", {"message": "TLS_REQUIRED", "https_port": port}, 403)
        with pytest.raises(UpstreamError, match="https://.*: timeout$"):
            hasty.get(daemon.address, "info")


def test_endless_headers_are_refused(client):
    with HostileServer(endless_headers) as server, pytest.raises(UpstreamError, match="no answer in HTTP"):
        client.get(server.address, "stats")


def test_an_answer_that_is_compressed_more_than_once_is_refused(client):
    """A kilobyte that becomes a megabyte becomes what zlib reads for hours, if it has no output in the end."""
    with HostileServer(compressed_twice) as server, pytest.raises(UpstreamError, match="compressed more than once"):
        client.get(server.address, "stats")


@pytest.mark.parametrize("answer", [redirecting, redirecting_with_endless_body])
def test_a_redirect_is_not_followed_and_its_body_not_read(client, answer):
    with HostileServer(answer) as server:
        with pytest.raises(UpstreamError, match="got response 307"):
            client.get(server.address, "stats")
        assert server.requests == 1


def test_a_name_with_many_addresses_has_one_deadline(hasty, monkeypatch):
    def many(*_, **__):
        return [(2, 1, 6, "", (f"127.0.0.1{number:02}", 1)) for number in range(100)]

    tried = []

    def connect(address, timeout, **_):
        tried.append(timeout)
        threading.Event().wait(min(timeout, 0.1))
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.getaddrinfo", many)
    monkeypatch.setattr("urllib3.util.connection.create_connection", connect)
    with pytest.raises(UpstreamError, match=": timeout$"):
        hasty.get("many.example:1", "stats")
    assert len(tried) < 10
    assert all(timeout <= DEADLINE for timeout in tried)


def test_a_request_in_time_leaves_no_timer(client, daemon):
    daemon.says("info", {"a": 1})
    for _ in range(20):
        assert client.get(daemon.address, "info") == {"a": 1}
    assert sum(thread.name == "http deadlines" for thread in threading.enumerate()) == 1


def test_concurrent_requests_end_at_the_deadline(hasty):
    with HostileServer(dripping_header) as server:
        answer = call_all([server.address] * 20, lambda address: hasty.get(address, "stats"), 20)
    assert len(answer.errors) == 20
    assert all(error.endswith(": timeout") for error in answer.errors)


def test_a_request_needs_a_deadline(daemon):
    with bounded_session() as session:
        with pytest.raises(Exception, match="outside a Deadline"):
            session.get(f"http://{daemon.address}/info")
        with Deadline(20):
            assert session.get(f"http://{daemon.address}/info").status_code == 404


def test_a_deadline_entered_inside_its_own_block_ends_with_the_outer_block(daemon):
    with bounded_session() as session:
        with Deadline(20) as deadline:
            with deadline:
                session.get(f"http://{daemon.address}/info")
            assert session.get(f"http://{daemon.address}/info").status_code == 404
        with pytest.raises(Exception, match="outside a Deadline"):
            session.get(f"http://{daemon.address}/info")


def test_an_error_before_the_deadline_is_unchanged():
    with pytest.raises(ValueError, match="mine"), Deadline(20):
        raise ValueError("mine")


def test_an_error_after_the_deadline_is_a_timeout():
    with pytest.raises(TimeoutError), Deadline(0):
        raise ValueError("mine")


def test_with_tls_what_a_server_sent_before_it_closed_the_connection_is_read():
    """As without: an answer to a request that is refused before all of it was sent, or why a certificate is missing."""
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("nsqd.example").configure_cert(server)
    authority.configure_trust(client)
    near, far = socket.socketpair()

    def answer() -> None:
        with server.wrap_socket(far, server_side=True) as connected:
            connected.sendall(b"413")

    answering = threading.Thread(target=answer)
    answering.start()
    with Deadline(20), closing(_Tls(near, client, "nsqd.example")) as connected:
        answering.join()
        with pytest.raises(BrokenPipeError):
            connected.sendall(b"the rest of a request")
        assert connected.recv() == b"413"


def test_a_server_cannot_ask_for_a_certificate_after_the_handshake():
    """Each time the client would sign with its key, which takes milliseconds with RSA."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.post_handshake_auth, server.verify_mode = True, ssl.CERT_OPTIONAL
    authority.issue_cert("127.0.0.1").configure_cert(server)
    refusals: list[str | None] = []

    def answer() -> None:
        with listener.accept()[0] as accepted, server.wrap_socket(accepted, server_side=True) as connected:
            connected.recv(1000)
            try:
                connected.verify_client_post_handshake()
            except ssl.SSLError as error:
                refusals.append(error.reason)
            connected.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer)
        answering.start()
        client = HttpClient(request_timeout=20, tls_skip_verify=True)
        assert client.get(f"https://127.0.0.1:{listener.getsockname()[1]}", "stats") == {}
        answering.join()
    assert refusals == ["EXTENSION_NOT_RECEIVED"]


def test_the_password_of_an_encrypted_key_is_not_asked_for(tmp_path):
    issued = trustme.CA().issue_cert("client")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    encryption = BestAvailableEncryption(b"secret")
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate")
    client = HttpClient(request_timeout=20, tls_cert=str(tmp_path / "certificate"), tls_key=str(tmp_path / "key"))
    with HostileServer(dripping_header, tls=True) as server, pytest.raises(UpstreamError, match="TLS: "):
        client.get(f"https://{server.address}", "stats")
