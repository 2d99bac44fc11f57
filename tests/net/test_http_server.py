"""The HTTP server on real sockets: what a client sees, and what it may not do to others."""

import contextlib
import gc
import os
import resource
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

import gevent
import pytest
from gevent import socket as gevent_socket
from gevent.event import Event

from nsq_compat.net.certificates import Certificates
from nsq_compat.net.server import HttpServer
from nsq_compat.queue.publish_batch import Producer
from nsq_compat.session.http_message import Admission, HttpLimits, Request, Response
from nsq_compat.session.http_session import HttpSession

BODY_LIMIT = 1000
MEGABYTE = 1 << 20
TOO_BIG = Response(413, b"too big")
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
PROMPT = 60.0
"""Longer than anything here takes; only a failure waits for it."""


class Endless:
    """A stream that always has more."""

    def __init__(self) -> None:
        self.is_over, self.is_whole = False, True
        self.next_wakeup = float("inf")
        self.asked = 0

    def start(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def data_to_send(self, now: float) -> bytes:
        self.asked += 1
        self.wake()
        return b"x" * MEGABYTE

    def stalled(self) -> None: ...

    def close(self) -> None:
        self.is_over = True


class Echo:
    """Answers with method, path and body; some paths misbehave, /wait waits for `go`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.in_the_loop: list[bool] = []
        self.is_well = False
        self.paths: Container[str] = ()
        self.go = Event()
        self.waiting = Event()
        self.stream = Endless()

    def admit(self, head: Request) -> Admission:
        if head.path == "/admit-fails":
            raise RuntimeError("admit")
        return Admission(10_000_000 if head.path == "/large" else BODY_LIMIT, TOO_BIG)

    def begin(self, request: Request, producer: Producer | None, now: float, now_ns: int) -> Response:
        return self.respond(request)

    def outcome(self, error: Exception | None) -> Response:
        raise AssertionError("nothing is left open")

    def publish_posted(self) -> None:
        raise AssertionError("nothing is left open")

    def respond(self, request: Request) -> Response:
        self.requests.append(request)
        self.in_the_loop.append(gevent.getcurrent() is gevent.get_hub())
        if self.is_well:
            return Response(200)
        if request.path == "/fails":
            raise RuntimeError("respond")
        if request.path == "/bad-header":
            return Response(200, headers=(("X-Bad", "a\r\nb"),))
        if request.path == "/huge":
            return Response(200, b"x" * 8_000_000)
        if request.path == "/long":
            return Response(200, b"0", rest=deque(b"%d" % (number % 10) * 8_000 for number in range(1000)))
        if request.path == "/stream":
            return Response(200, stream=self.stream)
        if request.path == "/wait":
            self.waiting.set()
            self.go.wait()
        return Response(200, f"{request.method} {request.path} ".encode() + request.body)


class Client:
    """A socket that talks HTTP by hand."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = gevent_socket.socket(family)
        self.socket.settimeout(PROMPT)
        self.received = b""
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise

    def says(self, data: bytes) -> "Client":
        self.socket.sendall(data)
        return self

    def hears_reply(self, *, bodiless: bool = False) -> "Reply":
        while b"\r\n\r\n" not in self.received:
            self._receive()
        head, self.received = self.received.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        length = 0 if bodiless else int(headers.get("content-length", "0"))
        while len(self.received) < length:
            self._receive()
        body, self.received = self.received[:length], self.received[length:]
        return Reply(lines[0], headers, body)

    def hears_end(self) -> None:
        assert self.received + self._read() == b""

    def hears_all(self) -> bytes:
        while data := self._read():
            self.received += data
        return self.received

    def _receive(self) -> None:
        data = self._read()
        assert data, f"the server closed after {self.received!r}"
        self.received += data

    def _read(self) -> bytes:
        data: bytes = self.socket.recv(65536)
        return data


class Reply(NamedTuple):
    status_line: str
    headers: dict[str, str]
    body: bytes


Connect = Callable[[], Client]
Open = Callable[[tuple[str, int] | str], Client]
Serve = Callable[..., Connect]


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.go.set()


@pytest.fixture
def servers() -> Iterator[list[HttpServer]]:
    servers: list[HttpServer] = []
    yield servers
    for server in servers:
        server.stop(0.1)


@pytest.fixture
def open_client() -> Iterator[Open]:
    clients: list[Client] = []

    def connect(address: tuple[str, int] | str) -> Client:
        clients.append(Client(address))
        return clients[-1]

    yield connect
    for client in clients:
        client.socket.close()


@pytest.fixture
def serve(echo: Echo, servers: list[HttpServer], open_client: Open) -> Serve:
    def start(immediate: Container[str] = (), **limits: float) -> Connect:
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        echo.paths = immediate
        server = HttpServer(listener, echo, HttpLimits(**limits), immediate=echo)  # type: ignore[arg-type]
        server.start()
        servers.append(server)
        return lambda: open_client(address)

    return start


@pytest.fixture
def connect(serve: Serve) -> Connect:
    return serve()


# --- Requests and replies -----------------------------------------------------------------------------------------


def test_closed_connections_do_not_wait_for_the_garbage_collector(connect, echo, eventually):
    def sessions() -> int:
        return sum(type(each) is HttpSession for each in gc.get_objects())

    gc.collect()
    before = sessions()
    gc.disable()
    try:
        said = [b"", b"GET /ping HT", b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe", PING]
        clients = [connect().says(each) for each in said]
        clients[-1].hears_reply()
        eventually(lambda: sessions() == before + len(clients))
        for client in clients:
            client.socket.close()
        echo.requests.clear()
        eventually(lambda: sessions() == before)
    finally:
        gc.enable()


def test_a_request_is_answered_and_the_connection_stays(connect):
    client = connect()
    for _ in range(3):
        reply = client.says(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello").hears_reply()
        assert reply.status_line == "HTTP/1.1 200 OK"
        assert reply.body == b"POST /pub hello"
        assert "connection" not in reply.headers
        assert reply.headers["date"].endswith("GMT")


def test_pipelined_requests_are_answered_in_order_and_in_one_piece(connect):
    client = connect()
    client.says(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(100)))
    assert [client.hears_reply().body for _ in range(100)] == [b"GET /%d " % number for number in range(100)]


def test_a_chunked_body_is_put_together(connect):
    head = b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    client = connect().says(head + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n" + PING)
    assert client.hears_reply().body == b"POST /pub abcde"
    assert client.hears_reply().body == b"GET /ping "


def test_continue_is_sent_when_the_client_waits_for_it(connect):
    client = connect()
    client.says(b"POST /pub HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert client.hears_reply().status_line == "HTTP/1.1 100 Continue"
    assert client.says(b"abc").hears_reply().body == b"POST /pub abc"


def test_continue_is_not_sent_for_a_body_that_will_not_be_read(connect):
    client = connect()
    client.says(b"POST /pub HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3000\r\n\r\n")
    assert client.hears_reply().body == b"too big"
    client.hears_end()


def test_http_1_0_closes_unless_asked_to_stay(connect):
    client = connect()
    reply = client.says(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").hears_reply()
    assert (reply.status_line, reply.headers["connection"]) == ("HTTP/1.0 200 OK", "keep-alive")
    reply = client.says(b"GET /b HTTP/1.0\r\n\r\n").hears_reply()
    assert (reply.status_line, reply.body) == ("HTTP/1.0 200 OK", b"GET /b ")
    client.hears_end()


def test_connection_close_is_confirmed_and_done(connect, echo):
    client = connect().says(b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + PING)
    assert client.hears_reply().headers["connection"] == "close"
    client.hears_end()
    assert [request.path for request in echo.requests] == ["/a"]


def test_head_has_the_length_but_not_the_body(connect):
    client = connect().says(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n" + PING)
    assert client.hears_reply(bodiless=True).headers["content-length"] == "8"
    assert client.hears_reply().body == b"GET /ping "


def test_a_half_closed_client_still_gets_its_replies(connect):
    client = connect().says(PING * 3)
    client.socket.shutdown(socket.SHUT_WR)
    assert client.hears_all().count(b"GET /ping ") == 3


def test_a_reply_of_many_megabytes_arrives_whole(connect):
    client = connect().says(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
    assert len(client.hears_reply().body) == 8_000_000


LONG = b"0" + b"".join(b"%d" % (number % 10) * 8_000 for number in range(1000))


def test_a_reply_in_pieces_arrives_whole_before_that_to_the_next_request(connect):
    client = connect().says(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + PING)
    assert client.hears_reply().body == LONG
    assert client.hears_reply().body == LONG
    assert client.hears_reply().body == b"GET /ping "


def test_head_of_a_reply_in_pieces_has_its_length_only(connect):
    client = connect().says(b"HEAD /long HTTP/1.1\r\nHost: x\r\n\r\n" + PING)
    assert client.hears_reply(bodiless=True).headers["content-length"] == str(len(LONG))
    assert client.hears_reply().body == b"GET /ping "


def test_the_connection_closes_after_the_last_piece(connect):
    client = connect().says(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + PING)
    assert client.hears_reply().body == LONG
    client.hears_end()
    half_closed = connect().says(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    half_closed.socket.shutdown(socket.SHUT_WR)
    assert half_closed.hears_reply().body == LONG
    half_closed.hears_end()


def test_others_are_answered_between_two_pieces(connect):
    long, other = connect().says(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n"), connect()
    long._receive()  # it has begun
    answered = 0
    while len(long.received) < len(LONG):
        assert other.says(PING).hears_reply().body == b"GET /ping "
        answered += 1
        long._receive()
    assert answered >= 10


def test_a_client_that_does_not_read_the_pieces_is_closed(serve, servers, echo, eventually):
    serve(write_seconds=0.05, slowest_rate=1e9)().says(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    eventually(lambda: echo.requests)
    eventually(lambda: not servers[0].sessions)


GET_STREAM = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_stream_is_asked_for_no_more_than_its_client_takes(serve, servers, echo, eventually):
    connect = serve(write_seconds=0.2, slowest_rate=1e9)
    connect().says(GET_STREAM)
    eventually(lambda: echo.stream.asked)
    assert connect().says(PING).hears_reply().body == b"GET /ping "
    eventually(lambda: echo.stream.is_over)  # the client took nothing for too long
    assert echo.stream.asked * MEGABYTE < 64 * MEGABYTE  # what the kernel keeps for a connection


def test_a_client_that_leaves_ends_its_stream(connect, servers, echo, eventually):
    client = connect().says(GET_STREAM)
    client._receive()
    client.socket.close()
    eventually(lambda: echo.stream.is_over and not servers[0].sessions)


def test_a_stop_completes_a_stream(connect, servers, echo):
    client = connect().says(GET_STREAM)
    reader = gevent.spawn(client.hears_all)
    while not client.received:
        gevent.sleep(0)
    servers[0].stop(PROMPT)
    assert reader.get(timeout=PROMPT).endswith(b"x\r\n0\r\n\r\n")
    assert echo.stream.is_over


def post(path: str, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def test_a_request_that_never_waits_is_answered_in_the_event_loop(serve, echo):
    client = serve(immediate={"/pub"})()
    for number, path in enumerate(("/pub", "/pub", "/other", "/other", "/pub", "/pub")):
        client.says(post(path, b"x" * number))
        assert client.hears_reply().body == b"POST %b %b" % (path.encode(), b"x" * number)
    assert echo.in_the_loop == [True, True, False, False, True, True]


def test_a_reply_of_many_megabytes_from_the_event_loop_arrives_whole(serve, echo):
    client = serve(immediate={"/huge"})()
    for _ in range(3):
        assert len(client.says(post("/huge", b"x")).hears_reply().body) == 8_000_000
    assert echo.in_the_loop == [True, True, True]


@pytest.mark.parametrize("path", ["/fails", "/bad-header"])
def test_an_exception_in_the_event_loop_ends_the_connection_too(serve, echo, caplog, path):
    client = serve(immediate={path})()
    echo.is_well = True
    assert client.says(post(path, b"x")).hears_reply().status_line == "HTTP/1.1 200 OK"
    echo.is_well = False
    assert client.says(post(path, b"x")).hears_reply().status_line == "HTTP/1.1 500 Internal Server Error"
    client.hears_end()
    assert echo.in_the_loop == [True, True]
    assert "panic in HTTP handler" in caplog.text


def test_a_client_that_resets_the_connection_is_forgotten(serve, servers):
    client = serve(immediate={"/pub"})()
    client.says(post("/pub", b"x")).hears_reply()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()
    with gevent.Timeout(PROMPT):
        while servers[0].sessions:
            gevent.sleep(0.001)


def test_a_body_of_many_megabytes_arrives_whole(connect, echo):
    client = connect()
    client.says(b"POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n" + b"y" * 5_000_000)
    assert len(client.hears_reply().body) == len(b"POST /large ") + 5_000_000


def test_the_application_sees_where_a_request_came_from(connect, echo):
    client = connect()
    client.says(PING).hears_reply()
    host, port = client.socket.getsockname()
    assert echo.requests[0].remote_address == f"{host}:{port}"


def test_a_unix_socket_is_served_and_its_clients_are_at_sign(tmp_path, echo, servers, open_client):
    path = str(tmp_path / "http.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    servers.append(HttpServer(listener, echo))
    servers[0].start()
    assert open_client(path).says(PING).hears_reply().body == b"GET /ping "
    assert echo.requests[0].remote_address == "@"


class Https(NamedTuple):
    address: tuple[str, int]
    client_context: ssl.SSLContext

    def in_thread(self, conversation: Callable[[ssl.SSLSocket], bytes]) -> bytes:
        """Blocking TLS belongs in a thread: the server runs in this one."""

        def talk() -> bytes:
            with (
                socket.create_connection(self.address, PROMPT) as plain,
                self.client_context.wrap_socket(plain, server_hostname="localhost") as client,
            ):
                return conversation(client)

        result: bytes = gevent.get_hub().threadpool.apply(talk)
        return result


@pytest.fixture
def https(authority: Any, echo: Echo, servers: list[HttpServer]) -> Https:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    make_tls = Certificates(authority.files()).make_tls
    servers.append(HttpServer(listener, echo, HttpLimits(head_seconds=5.0), name="HTTPS", tls=make_tls))
    servers[0].start()
    return Https(address, authority.trusting())


def test_https_is_http_over_tls(https):
    def conversation(client: ssl.SSLSocket) -> bytes:
        client.sendall(b"POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"z" * 100_000)
        client.sendall(b"GET /huge HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while data := client.recv(65536):
            received += data
        return received

    received = https.in_thread(conversation)
    assert b"POST /large " + b"z" * 100_000 in received
    assert received.count(b"x") >= 8_000_000


def test_a_failed_or_missing_handshake_costs_only_its_own_connection(https, open_client):
    silent = open_client(https.address)
    plain = open_client(https.address).says(PING)
    for _ in range(3):
        gone = open_client(https.address).says(b"\x16\x03")
        gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.socket.close()  # with a reset

    def conversation(client: ssl.SSLSocket) -> bytes:
        client.sendall(PING)
        return client.recv(1000)

    assert https.in_thread(conversation).endswith(b"GET /ping ")
    with contextlib.suppress(ConnectionResetError):
        plain.hears_all()
    silent.hears_end()


def test_garbage_inside_https_costs_only_its_own_connection(https):
    def garbage(client: ssl.SSLSocket) -> bytes:
        client.sendall(PING)
        answer = client.recv(1000)
        with socket.socket(fileno=os.dup(client.fileno())) as bare:
            bare.sendall(b"this is no record at all" * 3)
            bare.settimeout(PROMPT)
            with contextlib.suppress(ConnectionResetError):
                while bare.recv(65536):
                    pass
        return answer

    def conversation(client: ssl.SSLSocket) -> bytes:
        client.sendall(PING)
        return client.recv(1000)

    assert https.in_thread(garbage).endswith(b"GET /ping ")
    assert https.in_thread(conversation).endswith(b"GET /ping ")


# --- What is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GARBAGE\r\n\r\n", "400 Bad Request"),
        (b"GET / HTTP/1.1\r\n\r\n", "400 Bad Request: missing required Host header"),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400 Bad Request: malformed Host header"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400 Bad Request"),
        (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", "400 Bad Request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "400 Bad Request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400 Bad Request"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "400 Bad Request",
        ),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505 HTTP Version Not Supported: unsupported protocol version"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 70_000 + b"\r\n\r\n", "431 Request Header Fields Too Large"),
        (b"GET /" + b"x" * 200_000, "431 Request Header Fields Too Large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200, "431 Request Header Fields Too Large"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: " + b"x" * 200_000,
            "431 Request Header Fields Too Large",
        ),
    ],
)
def test_a_malformed_request_gets_a_plain_refusal_and_a_close(connect, data, text):
    client = connect().says(data)
    reply = client.hears_reply()
    assert reply.status_line == f"HTTP/1.1 {text}"
    assert reply.body == text.encode()
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["connection"] == "close"
    client.hears_end()


def test_requests_before_a_malformed_one_are_answered(connect):
    client = connect().says(PING + b"GARBAGE\r\n\r\n")
    assert client.hears_reply().body == b"GET /ping "
    assert client.hears_reply().body == b"400 Bad Request"
    client.hears_end()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Transfer-Encoding: gzip\r\n", "501 Not Implemented"),
        (b"Expect: x\r\nContent-Length: 1\r\n", "417 Expectation Failed"),
    ],
)
def test_unsupported_features_are_refused_with_their_status(connect, head, status):
    client = connect().says(b"POST / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
    assert client.hears_reply().status_line == f"HTTP/1.1 {status}"
    client.hears_end()


def test_a_content_length_above_the_limit_is_refused_before_the_body(connect, echo):
    client = connect().says(b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
    reply = client.hears_reply()
    assert (reply.status_line, reply.body) == ("HTTP/1.1 413 Request Entity Too Large", b"too big")
    assert reply.headers["connection"] == "close"
    client.hears_end()
    assert echo.requests == []


def test_a_client_that_sends_its_large_body_anyway_still_reads_the_refusal(connect):
    client = connect().says(b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
    assert client.hears_reply().body == b"too big"


def test_chunks_are_counted_as_they_arrive(connect, echo):
    client = connect().says(b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    client.says(b"1f4\r\n" + b"x" * 500 + b"\r\n").says(b"1f5\r\n" + b"x" * 501)
    assert client.hears_reply().body == b"too big"
    client.hears_end()
    assert echo.requests == []


# --- When the application fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [b"/fails", b"/bad-header", b"/admit-fails"])
def test_an_exception_is_a_500_with_a_traceback_in_the_log(connect, path, caplog):
    reply = connect().says(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx" % path).hears_reply()
    assert reply.status_line == "HTTP/1.1 500 Internal Server Error"
    assert reply.body == b'{"message":"INTERNAL_ERROR"}'
    assert any(record.exc_info for record in caplog.records)
    assert connect().says(PING).hears_reply().body == b"GET /ping "


# --- Slow clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /pi",
        b"GET /ping HTTP/1.1\r\nHost: x\r\n",
        b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
        b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha",
        PING + b"GET /pi",
    ],
)
def test_an_incomplete_request_is_closed_after_its_deadline(serve, beginning):
    client = serve(head_seconds=0.05, body_seconds=0.05)().says(beginning)
    client.hears_all()  # returns at the end


def test_a_byte_now_and_then_does_not_extend_the_deadline(serve):
    client = serve(head_seconds=0.1, linger_seconds=0.1)()

    def drip() -> None:
        client.says(b"GET /")
        with contextlib.suppress(OSError):
            while True:
                client.says(b"x")
                gevent.sleep(0.01)

    dripping = gevent.spawn(drip)
    try:
        with contextlib.suppress(ConnectionResetError):
            client.hears_all()
    finally:
        dripping.kill()


def test_a_client_that_does_not_read_is_closed(serve, servers, echo, eventually):
    client = serve(write_seconds=0.05, slowest_rate=1e9)()
    client.says(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
    eventually(lambda: echo.requests)
    eventually(lambda: not servers[0].sessions)
    assert len(client.received) == 0


def test_slow_clients_do_not_slow_others(connect, echo):
    stuck = [connect().says(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"), connect().says(b"GET /hu"), connect()]
    stuck.append(connect().says(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n" * 3))
    client = connect()
    for _ in range(10):
        assert client.says(PING).hears_reply().body == b"GET /ping "
    echo.go.set()
    assert stuck[0].hears_reply().body == b"GET /wait "


# --- Accepting and stopping ---------------------------------------------------------------------------------------


def test_running_out_of_descriptors_is_survived(connect, caplog, eventually):
    connect().says(PING).hears_reply()
    waiting = connect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.socket.fileno() + 1, hard))
    try:
        eventually(lambda: failures_to_accept(caplog) > 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert waiting.says(PING).hears_reply().body == b"GET /ping "
    assert failures_to_accept(caplog) < 5


def failures_to_accept(caplog: pytest.LogCaptureFixture) -> int:
    return sum("Accept() failure" in record.getMessage() for record in caplog.records)


def test_stop_closes_idle_connections_at_once(connect, servers):
    idle = [connect(), connect().says(PING), connect().says(b"GET /pi")]
    idle[1].hears_reply()
    with gevent.Timeout(PROMPT / 2):
        servers[0].stop(PROMPT)
    for client in idle:
        client.hears_end()
    assert not servers[0].sessions


def test_stop_lets_the_current_request_finish(connect, servers, echo):
    client = connect().says(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    echo.waiting.wait(PROMPT)
    stopping = gevent.spawn(servers[0].stop, PROMPT)
    gevent.idle()
    echo.go.set()
    reply = client.hears_reply()
    assert (reply.body, reply.headers["connection"]) == (b"GET /wait ", "close")
    client.socket.close()
    stopping.get(timeout=PROMPT)


def test_stop_aborts_requests_that_do_not_finish_in_time(connect, servers, echo):
    client = connect().says(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    echo.waiting.wait(PROMPT)
    servers[0].stop(0.01)
    client.hears_end()
    assert not servers[0].sessions


def test_a_stopped_server_does_not_accept(connect, servers):
    servers[0].stop(0.1)
    with pytest.raises(OSError, match="refused|descriptor"):
        connect()
