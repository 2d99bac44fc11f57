"""Calls to real servers on loopback, most of them failing. A fixture ends only when its clients have closed."""

import gc
import gzip
import itertools
import logging
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import gevent
import pytest

from nsq_compat.nsqd.http_calls import MAX_ANSWER_BYTES, THREADS_PER_SERVER, CallFailed, HttpCalls, client_tls
from nsq_conformance.certificates import Certificates
from tests.cluster.hostile import DEADLINE, DRIPPING, HostileServer, dripping_handshake, dripping_redirects

PATIENCE = 30.0
"""Seconds for answers that should come at once."""
SHORT = 0.3
"""Seconds to wait for an answer that never comes."""
SECRET = "s3cret"
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
TLS_1_2, TLS_1_3 = 0x0303, 0x0304

Answer = Callable[[socket.socket, bytes], object]


class Server(socketserver.ThreadingTCPServer):
    """Answers the request on a connection, and then waits for the client to close."""

    request_queue_size = 512

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.tls = tls
        self.heard: list[bytes] = []
        self.port = self.server_address[1]
        self.url = f"http{'s' if tls else ''}://localhost:{self.port}/auth?secret={SECRET}"


class Handler(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        with suppress(OSError):
            client = self.request
            client.settimeout(PATIENCE)
            if self.server.tls:
                client = self.server.tls.wrap_socket(client, server_side=True)
            with client:
                heard = client.recv(65536)
                if heard:
                    self.server.heard.append(heard)
                    self.server.answer(client, heard)
                    while client.recv(65536):
                        pass


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(answer: bytes | Answer, tls: ssl.SSLContext | None = None) -> Server:
        server = Server((lambda client, _: client.sendall(answer)) if isinstance(answer, bytes) else answer, tls)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()  # waits for its threads


def calls(request_timeout: float = PATIENCE, tls: ssl.SSLContext | None = None) -> HttpCalls:
    return HttpCalls(
        connect_timeout=PATIENCE, request_timeout=request_timeout, make_tls=lambda: tls or client_tls("", TLS_1_2)
    )


def failure(url: str, request_timeout: float = PATIENCE, tls: ssl.SSLContext | None = None) -> str:
    return failure_of(calls(request_timeout, tls), url)


def failure_of(these: HttpCalls, url: str) -> str:
    with pytest.raises(CallFailed) as caught:
        these.call(url)
    return str(caught.value)


def nothing(client: socket.socket, heard: bytes) -> None:
    pass


def endlessly(begin: bytes, piece: bytes, pause: float = 0.0) -> Answer:
    def answer(client: socket.socket, heard: bytes) -> None:
        client.sendall(begin)
        for stop in itertools.repeat(threading.Event()):
            client.sendall(piece)
            stop.wait(pause)

    return answer


def redirect(status: int, location: str) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


# --- Answers ----------------------------------------------------------------------------------------------------------


def test_a_get_is_nsqs_and_returns_the_body(serve):
    server = serve(HELLO)
    assert calls().call(server.url) == b"hello"
    assert server.heard == [
        b"GET /auth?secret=s3cret HTTP/1.1\r\n"
        b"Host: localhost:%d\r\n"
        b"Accept: application/vnd.nsq; version=1.0\r\n"
        b"Accept-Encoding: identity\r\n"
        b"Connection: close\r\n"
        b"User-Agent: nsq_compat/0.1.0\r\n\r\n" % server.port
    ]


def test_a_post_sends_json(serve):
    server = serve(HELLO)
    assert calls().call(server.url, b'{"a":1}') == b"hello"
    head, _, body = b"".join(server.heard).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /auth?secret=s3cret HTTP/1.1\r\n")
    assert b"\r\nContent-Type: application/json" in head
    assert body in (b"", b'{"a":1}')  # it may come later


def test_the_query_of_an_address_is_kept_as_it_is(serve):
    server = serve(HELLO)
    calls().call(f"http://127.0.0.1:{server.port}/custom?x=1?secret=a%26b&tls=false")
    assert server.heard[0].startswith(b"GET /custom?x=1?secret=a%26b&tls=false HTTP/1.1\r\n")


def test_a_query_follows_that_of_the_address_and_is_not_for_a_redirect(serve):
    there = serve(HELLO)
    here = serve(redirect(302, there.url))
    assert calls().call(f"http://127.0.0.1:{here.port}/custom?x=1", query="secret=a%26b&tls=false") == b"hello"
    assert here.heard[0].startswith(b"GET /custom?x=1?secret=a%26b&tls=false HTTP/1.1\r\n")
    assert there.heard[0].startswith(b"GET /auth?secret=s3cret HTTP/1.1\r\n")


def test_an_answer_in_chunks_is_put_together(serve):
    server = serve(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")
    assert calls().call(server.url) == b"hello"


def test_compressed_answers_are_not_decompressed(serve):
    bomb = gzip.compress(bytes(50_000_000))
    server = serve(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
    assert calls().call(server.url) == bomb


@pytest.mark.parametrize("status", [201, 204, 304, 400, 401, 404, 500, 503])
def test_a_status_other_than_200_is_a_failure(serve, status):
    server = serve(b"HTTP/1.1 %d Hm\r\nContent-Length: 0\r\n\r\n" % status)
    assert failure(server.url) == f"answered with status {status}"


# --- Other places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "method"), [(301, b"GET"), (302, b"GET"), (303, b"GET"), (307, b"POST"), (308, b"POST")]
)
def test_a_redirect_is_followed_with_or_without_the_body(serve, status, method):
    there = serve(HELLO)
    here = serve(redirect(status, there.url))
    assert calls().call(here.url, b"{}") == b"hello"
    assert there.heard[0].startswith(method + b" /auth")


def test_redirects_in_a_circle_end(serve):
    server = serve(redirect(302, "/again"))
    assert failure(server.url) == "more than 10 redirects"
    assert len(server.heard) == 11


def test_a_redirect_to_another_scheme_is_a_failure(serve):
    assert failure(serve(redirect(302, "file:///etc/passwd")).url) == "not a URL of HTTP"


def test_a_server_that_requires_tls_is_asked_again_over_tls(serve, certificate):
    secure = serve(HELLO, tls=certificate.server_side)
    plain = serve(
        b'HTTP/1.1 403 Forbidden\r\nContent-Length: 47\r\n\r\n{"message":"TLS_REQUIRED", "https_port": %05d}  '
        % secure.port
    )
    assert calls(tls=certificate.client_side()).call(plain.url) == b"hello"
    assert secure.heard[0].startswith(b"GET /auth?secret=s3cret HTTP/1.1\r\nHost: localhost:%d" % secure.port)
    assert calls(tls=certificate.client_side()).call(plain.url, query="a=b") == b"hello"
    assert secure.heard[1].startswith(b"GET /auth?secret=s3cret?a=b HTTP/1.1\r\n")


def test_a_403_for_another_reason_is_a_failure(serve):
    assert failure(serve(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno").url) == "answered with status 403"


def test_the_environment_names_no_proxy(serve, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert calls().call(serve(HELLO).url) == b"hello"


# --- TLS --------------------------------------------------------------------------------------------------------------


class Certificate:
    """For the names localhost and 127.0.0.1, and the two sides of TLS with it."""

    def __init__(self, folder: Path) -> None:
        files = Certificates(folder)
        self.root_ca = files.root_ca
        self.server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_side.load_cert_chain(files.certificate, files.key)

    def client_side(self, min_version: int = TLS_1_2) -> ssl.SSLContext:
        return client_tls(str(self.root_ca), min_version)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("certificate"))


def test_a_certificate_signed_by_the_given_authority_is_trusted(serve, certificate):
    server = serve(HELLO, tls=certificate.server_side)
    assert calls(tls=certificate.client_side()).call(server.url) == b"hello"


def test_a_certificate_of_an_unknown_authority_is_not_trusted(serve, certificate):
    server = serve(HELLO, tls=certificate.server_side)
    assert failure(server.url) == "TLS: unable to get local issuer certificate"
    assert server.heard == []


def test_a_certificate_for_another_name_is_not_trusted(serve, certificate):
    server = serve(HELLO, tls=certificate.server_side)
    text = failure(server.url.replace("localhost", "127.1"), tls=certificate.client_side())
    assert text.startswith("TLS: Hostname mismatch")
    assert server.heard == []


def test_a_server_with_an_older_tls_than_asked_for_is_refused(serve, certificate):
    certificate.server_side.maximum_version = ssl.TLSVersion.TLSv1_2
    server = serve(HELLO, tls=certificate.server_side)
    assert calls(tls=certificate.client_side(TLS_1_2)).call(server.url) == b"hello"
    assert failure(server.url, tls=certificate.client_side(TLS_1_3)).startswith("TLS: ")
    certificate.server_side.maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED


def test_a_file_without_authorities_is_an_error(tmp_path):
    (tmp_path / "empty.pem").touch()
    with pytest.raises(OSError, match="no certificate"):
        client_tls(str(tmp_path / "empty.pem"), TLS_1_2)
    with pytest.raises(FileNotFoundError):
        client_tls(str(tmp_path / "none.pem"), TLS_1_2)


# --- Sick servers -----------------------------------------------------------------------------------------------------

SICK: dict[str, tuple[bytes | Answer, str]] = {
    "silent": (nothing, "no answer within 0.3s"),
    "says too little": (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi", "no answer within 0.3s"),
}
WRONG: dict[str, tuple[bytes | Answer, str]] = {
    "body without end": (endlessly(b"HTTP/1.1 200 OK\r\n\r\n", bytes(65536)), "more than 4194304 bytes"),
    "chunks without end": (
        endlessly(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(65536) + b"\r\n"),
        "more than 4194304 bytes",
    ),
    "huge redirect": (
        endlessly(b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", bytes(65536)),
        "more than 10 redirects",
    ),
    "line without end": (endlessly(b"HTTP/1.1 200 OK\r\nA: ", b"a" * 65536), "no answer in HTTP"),
    "headers without end": (endlessly(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"), "no answer in HTTP"),
    "garbage": (b"\x00\xff\x00garbage\r\n\r\n", "no answer in HTTP; is this an HTTP port?"),
    "garbled headers": (b"HTTP/1.1 404 x\r\n: no name\r\nContent-Length: 0\r\n\r\n", "status 404"),
    "hangs up": (lambda client, heard: client.shutdown(socket.SHUT_RDWR), "no answer in HTTP"),
    "wrong chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no answer in HTTP"),
}


@pytest.mark.parametrize(("answer", "text"), SICK.values(), ids=SICK)
def test_a_server_that_takes_too_long_is_a_failure_and_its_connection_shut(serve, answer, text):
    assert failure(serve(answer).url, SHORT) == text


@pytest.mark.parametrize(("answer", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_a_failure(serve, answer, text):
    assert text in failure(serve(answer).url)


def test_an_answer_of_the_largest_size_is_taken(serve):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % MAX_ANSWER_BYTES
    assert calls().call(serve(head + bytes(MAX_ANSWER_BYTES)).url) == bytes(MAX_ANSWER_BYTES)


def test_a_refused_connection_is_a_failure():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert failure(f"http://127.0.0.1:{unused.getsockname()[1]}/") == "connection refused"


@pytest.mark.parametrize("url", ["", "localhost", "ftp://localhost/", "http://", "http://[::1/", "http://a b:x/"])
def test_other_urls_are_a_failure(url):
    assert "URL" in failure(url)


# --- Others -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [*DRIPPING, dripping_redirects, dripping_handshake])
def test_an_answer_that_is_drawn_out_ends_at_the_deadline(answer):
    scheme = "https" if answer is dripping_handshake else "http"
    with HostileServer(answer) as server:
        assert failure(f"{scheme}://{server.address}/auth", DEADLINE) == f"no answer within {DEADLINE}s"


def test_only_the_calling_greenlet_waits(serve):
    go_on = threading.Event()
    slow = serve(lambda client, heard: go_on.wait(PATIENCE) and client.sendall(HELLO))
    healthy = serve(HELLO)
    shared = calls()
    waiting = gevent.spawn(shared.call, slow.url)
    assert shared.call(healthy.url) == b"hello"
    assert not waiting.ready()
    go_on.set()
    assert waiting.get() == b"hello"


def test_a_server_that_hangs_uses_only_its_own_threads(serve):
    hangs, healthy = serve(nothing), serve(HELLO)
    shared = calls()
    victims = [gevent.spawn(shared.call, hangs.url) for _ in range(THREADS_PER_SERVER + 20)]
    while len(hangs.heard) < THREADS_PER_SERVER:
        gevent.sleep(0.01)
    assert shared.call(healthy.url) == b"hello"
    hangs.answer = lambda client, heard: client.sendall(HELLO)
    gevent.killall(victims)
    assert shared.call(hangs.url) == b"hello"


def test_a_greenlet_that_is_killed_shuts_its_connection(serve):
    server = serve(nothing)
    waiting = gevent.spawn(calls().call, server.url)
    while not server.heard:
        gevent.sleep(0.01)
    waiting.kill()
    assert waiting.ready()


def test_a_stop_ends_waiting_calls(serve):
    server = serve(nothing)
    shared = calls()
    victims = [gevent.spawn(failure_of, shared, server.url) for _ in range(THREADS_PER_SERVER + 1)]
    while not server.heard:
        gevent.sleep(0.01)
    shared.stop()
    gevent.joinall(victims, raise_error=True)
    assert {victim.value for victim in victims} == {"the daemon stops"}


def test_idle_servers_are_forgotten():
    many = calls()
    for port in range(200):
        with pytest.raises(CallFailed):
            many.call(f"ftp://127.0.0.1:{port}/")
        for pool in many._pools.values():
            pool.size = 0  # as after ten idle seconds
    assert len(many._pools) <= 64


# --- Secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [answer for answer, _ in WRONG.values()], ids=WRONG)
def test_no_text_and_no_log_line_shows_the_query(serve, answer, caplog):
    caplog.set_level(logging.DEBUG)
    text = failure(serve(answer).url)
    assert SECRET not in text + caplog.text


@pytest.mark.parametrize("largest", [MAX_ANSWER_BYTES, 3])
@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["127.0.0.2", "127.0.0.1"]], ids=len)
def test_a_call_leaves_nothing_behind_for_the_garbage_collector(serve, monkeypatch, largest, addresses):
    """Freeing what a thousand refused answers left held the event loop for 80 ms."""
    calls = HttpCalls(connect_timeout=PATIENCE, request_timeout=PATIENCE, make_tls=lambda: client_tls("", TLS_1_2))
    server = serve(HELLO)
    url, resolve = server.url, socket.getaddrinfo
    # Nothing listens on the first of the two addresses.
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda name, *more, **named: [
            found
            for address in (addresses if name == "localhost" else [name])
            for found in resolve(address, *more, **named)
        ],
    )

    def call() -> None:
        with suppress(CallFailed):
            calls.call(url, max_answer=largest)

    call()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            call()
        assert gc.collect() < 20
    finally:
        gc.enable()
