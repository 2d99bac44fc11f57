"""Requests on the event loop, to servers that behave and to servers that do not."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from nsq_compat.bounded_http import FAILURES, AnswerTooLarge, reason_of
from nsq_compat.client.aio.http import HttpClient, ask
from nsq_compat.client.link import TlsStream
from nsq_compat.client.settings import SubscriptionSettings
from tests.cluster.hostile import (
    DEADLINE,
    DRIPPING,
    HostileServer,
    dripping_redirects,
    redirecting,
    redirecting_with_endless_body,
    tls_context,
)

Serve = Callable[..., str]


@pytest.fixture
def requests() -> list[dict[str, str]]:
    """The headers of each request, and its target as `path`; and `peer`, the client's port."""
    return []


@pytest.fixture
def serve(requests) -> Iterator[Serve]:
    """A server that sends these bytes for each request, on connections that it keeps; returns its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: bytes, keeps: bool = True) -> str:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                requests.append({**self.headers, "path": self.path, "peer": str(self.client_address[1])})
                self.wfile.write(left.pop(0) if len(left) > 1 else left[0])
                self.close_connection = not keeps

            def log_message(self, format: str, *arguments: object) -> None: ...

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def make_client(**options) -> HttpClient:
    return HttpClient(ssl.create_default_context, **{"connect_timeout": 5.0, "max_body": 1000, **options})


async def get(url: str, **options):
    client = make_client(**options)
    try:
        return await client.get(url, {"Authorization": "Bearer secret"}, timeout=20)
    finally:
        client.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "


async def test_an_answer_has_status_headers_and_body(serve, requests):
    address = serve(b"HTTP/1.1 418 No\r\nX-One: 1\r\nContent-Type: a/b\r\nContent-Length: 3\r\n\r\nabc")
    answer = await get(f"http://{address}/a/b?c=d%20e")
    assert (answer.status, answer.content_type, answer.body, answer.headers["x-one"]) == (418, "a/b", b"abc", "1")
    assert requests[0]["path"] == "/a/b?c=d%20e"
    assert requests[0]["Host"] == address
    assert requests[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "raw",
    [
        OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nok",
    ],
    ids=["length", "continue", "chunked", "eof"],
)
async def test_a_body_ends_by_its_length_a_last_chunk_or_eof(serve, raw):
    assert (await get(f"http://{serve(raw, keeps=False)}/")).body == b"ok"


async def test_a_connection_is_used_again_and_made_again_if_the_server_closed_it(serve, requests):
    client, address = make_client(), serve(OK)
    for _ in range(2):
        await client.get(f"http://{address}/", {}, timeout=20)
    assert requests[0]["peer"] == requests[1]["peer"]
    assert client._stream is not None
    client._stream.abort()  # as if the server had closed it
    await asyncio.sleep(0.01)
    assert (await client.get(f"http://{address}/", {}, timeout=20)).body == b"ok"
    client.close()
    assert requests[2]["peer"] != requests[0]["peer"]


async def test_a_redirect_is_followed_and_its_secret_kept_to_the_server(serve, requests):
    other = serve(OK)
    here = serve(b"HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n", OK)
    assert (await get(f"http://{here}/", follow_redirects=True)).body == b"ok"
    assert [(each["path"], "Authorization" in each) for each in requests] == [("/", True), ("/next", True)]
    away = serve(f"HTTP/1.1 307 Away\r\nLocation: http://{other}/x\r\nContent-Length: 0\r\n\r\n".encode())
    assert (await get(f"http://{away}/", follow_redirects=True)).body == b"ok"
    assert (requests[-1]["path"], "Authorization" in requests[-1]) == ("/x", False)
    assert (await get(f"http://{away}/")).status == 307


async def test_user_and_password_of_a_url_are_sent(serve, requests):
    await get(f"http://me:p%40ss@{serve(OK)}/")
    assert requests[0]["Authorization"] == "Basic bWU6cEBzcw=="


@pytest.mark.parametrize(
    ("raw", "error", "reason"),
    [
        (b"SSH-2.0-x\r\n", HTTPException, "no answer in HTTP; is this an HTTP port?"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", HTTPException, "no answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", HTTPException, "no answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2000), AnswerTooLarge, "larger than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, AnswerTooLarge, "the headers are larger"),
        (TRAILERS + b"x" * 100_000, AnswerTooLarge, "the headers are larger"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nx", HTTPException, "no answer in HTTP"),
    ],
    ids=["ssh", "cut body", "cut headers", "large body", "large headers", "large trailers", "another protocol"],
)
async def test_an_invalid_answer_is_a_failure_with_a_reason(serve, raw, error, reason):
    with pytest.raises(error) as failure:
        await get(f"http://{serve(raw, keeps=False)}/")
    assert isinstance(failure.value, FAILURES)
    assert reason in reason_of(failure.value)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http:///x", "nonsense"])
async def test_another_url_is_a_failure(url):
    with pytest.raises(ValueError, match="not a URL of HTTP"):
        await get(url)


async def test_a_refused_connection_is_a_failure():
    with pytest.raises(FAILURES) as failure:
        await get("http://127.0.0.1:1/")
    assert reason_of(failure.value) == "connection refused"


def settings(**options: float) -> SubscriptionSettings:
    return SubscriptionSettings(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [*DRIPPING, dripping_redirects])
async def test_an_answer_sent_slowly_is_given_up_at_the_deadline(answer):
    with HostileServer(answer) as server:
        with pytest.raises(FAILURES) as failure:
            await ask(server.address, "t", settings(lookupd_request_timeout=DEADLINE))
        assert reason_of(failure.value) == "timeout"


@pytest.mark.parametrize("answer", [redirecting, redirecting_with_endless_body])
async def test_redirects_in_a_loop_are_followed_ten_times_and_their_bodies_not_read(answer):
    with HostileServer(answer) as server:
        with pytest.raises(FAILURES, match="more than 10 redirects"):
            await ask(server.address, "t", settings(lookupd_request_timeout=20))
        assert server.requests == 11


async def test_a_lookup_returns_the_nsqd_of_a_topic(lookupd):
    lookupd.addresses = ["one.example:4150", "127.0.0.2:4250"]
    assert (await ask(lookupd.address, "orders", settings())).nodes == {"one.example:4150", "127.0.0.2:4250"}
    assert lookupd.asked == ["orders"]
    lookupd.reply = (404, b'{"message":"TOPIC_NOT_FOUND"}')
    assert (await ask(lookupd.address, "orders", settings())).nodes == set()


@pytest.mark.interpreted
async def test_with_tls_little_is_decoded_at_once(monkeypatch):
    """A read may consist of thousands of updates of the key, which take 20 us each."""
    sizes: list[int] = []
    decode = TlsStream.decode

    def noted(stream: TlsStream, data: bytes) -> bytes:
        sizes.append(len(data))
        return decode(stream, data)

    monkeypatch.setattr(TlsStream, "decode", noted)
    body = bytes(range(256)) * 4000
    answer = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body]
    with HostileServer(lambda _: iter(answer), tls=True) as server:
        client = HttpClient(accept_any, connect_timeout=20, max_body=len(body))
        assert (await client.get(f"https://{server.address}/", {}, timeout=20)).body == body
        client.close()
    assert max(sizes) <= 1 << 14


async def test_an_answer_may_end_with_tls_though_the_server_does_not_close_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connected = tls_context().wrap_socket(listener.accept()[0], server_side=True)
            connected.recv(1 << 16)
            connected.sendall(b"HTTP/1.1 200 OK\r\n\r\nbody")
            with suppress(OSError):
                connected.unwrap()  # waits for the client to do the same
            connected.close()

        server = Thread(target=serve, daemon=True)
        server.start()
        client = HttpClient(accept_any, connect_timeout=20, max_body=1000)
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        assert (await client.get(url, {}, timeout=20)).body == b"body"
        client.close()
        server.join(20)


def accept_any() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_the_end_of_a_tls_handshake_by_the_server_is_an_error(serve):
    client = HttpClient(accept_any, connect_timeout=20, max_body=1000)
    with pytest.raises(FAILURES):
        await client.get(f"https://{serve(OK, keeps=False)}/", {}, timeout=20)
    client.close()
