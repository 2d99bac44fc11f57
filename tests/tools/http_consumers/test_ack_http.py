"""The server by itself, with real sockets: what its handler learns of a client."""

import contextlib

import gevent
import gevent.socket
import pytest
from gevent.queue import Queue

from nsq_compat.net.server import ConnectionLimits
from nsq_compat.net.sockets import listen
from nsq_compat.session.http_message import HttpLimits, Response
from nsq_compat.tools.http_consumers.ack_http import AckHttpServer, ClientGone

LARGE = b"x" * 20_000_000
WITHIN = 20


class Handler:
    """Answers by path, and records the outcome."""

    def __init__(self):
        self.heard: Queue[str] = Queue()
        self.answered: list[str] = []

    def max_body(self, path):
        return 1000

    def answer(self, request, client):
        self.answered.append(client.address.partition(":")[0])
        answer = getattr(self, request.path.lstrip("/"))
        return answer(request, client)

    def small(self, request, client):
        return client.reply(request, Response(200, request.body or b"small"))

    def large(self, request, client):
        deadline = client.write_deadline()
        try:
            is_kept = client.reply(request, Response(200, LARGE), deadline)
            self.heard.put("written")
            client.wait_until_acknowledged(deadline)
        except ClientGone:
            self.heard.put("gone")
            raise
        self.heard.put("acknowledged")
        return is_kept

    def waits(self, request, client):
        self.heard.put("waits")
        read_count = client.session.read_count
        while not (client.session.is_gone or client.is_stopping or client.session.read_count > read_count):
            client.wake.clear()
            client.wake.wait(0.1)
        self.heard.put("gone" if client.session.is_gone else "stopping" if client.is_stopping else "sent more")
        return client.reply(request, Response(200))

    def fails(self, request, client):
        raise ZeroDivisionError


@pytest.fixture
def handler():
    return Handler()


@pytest.fixture
def limits():
    return HttpLimits(linger_seconds=0.1)


@pytest.fixture
def server(handler, limits):
    server = AckHttpServer(listen("127.0.0.1:0"), handler, limits)
    server.start()
    yield server
    server.stop(0)


@pytest.fixture
def caller(server):
    host, port = server.address.split(":")
    with gevent.socket.create_connection((host, int(port)), timeout=WITHIN) as caller:
        yield caller


def ask(caller, path, body=b"", version="1.1"):
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    caller.sendall(f"GET {path} HTTP/{version}\r\nHost: h\r\n".encode() + length + b"\r\n" + body)


def hear(caller, end):
    """Receive until the data ends with `end`."""
    heard = b""
    while not heard.endswith(end):
        data = caller.recv(65536)
        assert data, heard
        heard += data
    return heard


def test_an_address_has_so_many_connections(handler, limits):
    server = AckHttpServer(listen("127.0.0.1:0"), handler, limits, ConnectionLimits(per_address=2))
    server.start()
    host, port = server.address.split(":")

    def call() -> gevent.socket.socket:
        caller = gevent.socket.create_connection((host, int(port)), timeout=WITHIN)
        ask(caller, "/small")
        return caller

    try:
        with call() as first, call() as second:
            for caller in (first, second):
                assert hear(caller, b"small").startswith(b"HTTP/1.1 200")
            with call() as third:
                assert hear(third, b"}").startswith(b"HTTP/1.1 429 Too Many Requests")
            first.close()
            with gevent.Timeout(WITHIN):
                while True:
                    with call() as next_one:
                        if next_one.recv(12) == b"HTTP/1.1 200":
                            break
    finally:
        server.stop(0)


def test_a_connection_carries_one_request_after_another(caller):
    for body in (b"one", b"two"):
        ask(caller, "/small", body)
        assert b"HTTP/1.1 200 OK" in hear(caller, b"\r\n\r\n" + body)


def test_requests_sent_ahead_are_answered_in_order(caller):
    for body in (b"one", b"two", b"three"):
        ask(caller, "/small", body)
    heard = hear(caller, b"three")
    assert heard.index(b"one") < heard.index(b"two")


def test_addresses_take_turns_with_requests_that_arrive_at_the_same_moment(server, handler):
    host, port = server.address.split(":")
    callers = [
        gevent.socket.create_connection((host, int(port)), WITHIN, (source, 0))
        for source in ["127.0.0.1"] * 20 + ["127.0.0.2"] + ["127.0.0.1"] * 20  # they are served in some order
    ]
    for _ in range(2):  # the first time, they connect
        handler.answered.clear()
        for caller in callers:
            ask(caller, "/small")
        for caller in callers:
            hear(caller, b"small")
    for caller in callers:
        caller.close()
    assert handler.answered.index("127.0.0.2") <= 2, "requests of the other address were in front of it"


def test_a_client_that_sends_too_many_requests_ahead_is_disconnected(caller, handler):
    ask(caller, "/waits")
    assert handler.heard.get(timeout=WITHIN) == "waits"
    caller.sendall(b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n" * 10)
    assert handler.heard.get(timeout=WITHIN) in ("gone", "sent more")
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := caller.recv(65536):
            heard += data
    assert b"small" not in heard


def test_an_older_client_is_answered_and_the_connection_closed(caller):
    ask(caller, "/small", version="1.0")
    hear(caller, b"small")
    assert caller.recv(1) == b""


def test_the_handler_learns_when_an_answer_has_arrived(caller, handler):
    ask(caller, "/large")
    with caller.makefile("rb") as answer:
        while answer.readline() != b"\r\n":
            assert handler.heard.empty()
        assert len(answer.read(len(LARGE))) == len(LARGE)
    assert handler.heard.get(timeout=WITHIN) == "written"
    assert handler.heard.get(timeout=WITHIN) == "acknowledged"


@pytest.mark.parametrize("reads", [0, 100_000])
def test_an_answer_that_a_leaving_client_has_not_read_has_not_arrived(caller, handler, reads):
    ask(caller, "/large")
    while reads > 0:
        reads -= len(caller.recv(reads))
    caller.close()
    assert handler.heard.get(timeout=WITHIN) == "gone"


class TestImpatient:
    """Limits that are over soon, but leave time to send a request."""

    @pytest.fixture
    def limits(self):
        return HttpLimits(head_seconds=3, idle_seconds=3, write_seconds=0, linger_seconds=0)

    def test_a_client_that_reads_nothing_is_disconnected(self, caller, handler):
        ask(caller, "/large")
        assert handler.heard.get(timeout=WITHIN) == "gone"

    def test_a_client_that_reads_too_slowly_is_disconnected(self, caller, handler):
        ask(caller, "/large")
        with contextlib.suppress(ConnectionResetError):
            while caller.recv(1000):
                pass
        assert handler.heard.get(timeout=WITHIN) == "gone"

    def test_a_client_that_does_not_finish_its_request_is_disconnected(self, caller):
        caller.sendall(b"GET /small HTTP/1.1\r\n")
        assert caller.recv(1) == b""

    def test_a_client_that_sends_nothing_is_disconnected(self, caller):
        assert caller.recv(1) == b""


def test_the_handler_learns_at_once_that_a_client_has_left(caller, handler):
    ask(caller, "/waits")
    assert handler.heard.get(timeout=WITHIN) == "waits"
    caller.close()
    assert handler.heard.get(timeout=WITHIN) == "gone"


def test_the_handler_learns_that_a_client_sends_more(caller, handler):
    ask(caller, "/waits")
    assert handler.heard.get(timeout=WITHIN) == "waits"
    caller.sendall(b"G")
    assert handler.heard.get(timeout=WITHIN) == "sent more"


def test_stopping_lets_requests_under_way_end(caller, handler, server):
    ask(caller, "/waits")
    assert handler.heard.get(timeout=WITHIN) == "waits"
    stopping = gevent.spawn(server.stop)
    assert handler.heard.get(timeout=WITHIN) == "stopping"
    assert b"Connection: close\r\n" in hear(caller, b"\r\n\r\n")
    assert caller.recv(1) == b""
    stopping.join()


def test_a_body_is_accepted_up_to_its_limit(caller):
    ask(caller, "/small", b"x" * 1001)
    assert b"HTTP/1.1 413" in hear(caller, b"too large\n")


def test_a_client_that_asks_before_it_sends_a_body_is_told_to_continue(caller):
    caller.sendall(b"PUT /small HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert hear(caller, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    caller.sendall(b"body")
    hear(caller, b"\r\n\r\nbody")


def test_any_bytes_are_answered_or_refused(caller):
    caller.sendall(b"\0\xff nonsense\r\n\r\n")
    assert hear(caller, b"400 Bad Request").startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert caller.recv(1) == b""


def test_a_handler_that_fails_fails_one_connection(caller, caplog):
    ask(caller, "/fails")
    assert hear(caller, b"INTERNAL_ERROR\n").startswith(b"HTTP/1.1 500 ")
    assert caller.recv(1) == b""
    assert "ZeroDivisionError" in caplog.text
