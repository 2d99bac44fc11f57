"""The door by itself, with real sockets and threads: what its handler learns of a caller."""

import contextlib
import queue
import socket

import pytest

from nsq_compat.net.listeners import listen
from nsq_compat.session.http_message import Admission, HttpLimits, Response
from nsq_compat.tools.http_consumers.ack_http import Door, Gone
from tests.client.waiting import wait_until

LARGE = b"x" * 20_000_000
WITHIN = 20


class Handler:
    """Answers by path, and writes down how that went."""

    def __init__(self):
        self.heard: queue.Queue[str] = queue.Queue()

    def admit(self, method, path):
        return Admission(1000, Response(413, b"too large", close=True))

    def answer(self, request, caller):
        answer = getattr(self, request.path.lstrip("/"))
        return answer(request, caller)

    def small(self, request, caller):
        return caller.reply(request, Response(200, request.body or b"small"))

    def large(self, request, caller):
        due = caller.due()
        try:
            goes_on = caller.reply(request, Response(200, LARGE), due)
            self.heard.put("written")
            caller.wait_until_taken(due)
        except Gone:
            self.heard.put("gone")
            raise
        self.heard.put("taken")
        return goes_on

    def waits(self, request, caller):
        self.heard.put("waits")
        reads = caller.reads
        while not (caller.is_gone or caller.is_leaving or caller.reads > reads):
            caller.wake.clear()
            caller.wake.wait(0.1)
        self.heard.put("gone" if caller.is_gone else "leaving" if caller.is_leaving else "said more")
        return caller.reply(request, Response(200))

    def fails(self, request, caller):
        raise ZeroDivisionError


@pytest.fixture
def handler():
    return Handler()


@pytest.fixture
def limits():
    return HttpLimits(linger_seconds=0.1)


@pytest.fixture
def door(handler, limits):
    door = Door(listen("127.0.0.1:0"), handler, limits)
    door.start()
    yield door
    door.stop(0)


@pytest.fixture
def caller(door):
    host, port = door.address.split(":")
    with socket.create_connection((host, int(port)), timeout=WITHIN) as caller:
        yield caller


def ask(caller, path, body=b"", version="1.1"):
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    caller.sendall(f"GET {path} HTTP/{version}\r\nHost: h\r\n".encode() + length + b"\r\n" + body)


def hear(caller, end):
    """What comes until it ends like this."""
    heard = b""
    while not heard.endswith(end):
        data = caller.recv(65536)
        assert data, heard
        heard += data
    return heard


def test_a_connection_carries_one_request_after_another(caller):
    for body in (b"one", b"two"):
        ask(caller, "/small", body)
        assert b"HTTP/1.1 200 OK" in hear(caller, b"\r\n\r\n" + body)


def test_requests_sent_ahead_are_answered_in_order(caller):
    for body in (b"one", b"two", b"three"):
        ask(caller, "/small", body)
    heard = hear(caller, b"three")
    assert heard.index(b"one") < heard.index(b"two")


def test_who_sends_too_many_ahead_is_not_served(caller, handler):
    ask(caller, "/waits")
    assert handler.heard.get(timeout=WITHIN) == "waits"
    caller.sendall(b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n" * 10)
    assert handler.heard.get(timeout=WITHIN) in ("gone", "said more")
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := caller.recv(65536):
            heard += data
    assert b"small" not in heard


def test_an_older_client_is_answered_and_the_connection_closed(caller):
    ask(caller, "/small", version="1.0")
    hear(caller, b"small")
    assert caller.recv(1) == b""


def test_what_has_arrived_is_known(caller, handler):
    ask(caller, "/large")
    with caller.makefile("rb") as answer:
        while answer.readline() != b"\r\n":
            assert handler.heard.empty()
        assert len(answer.read(len(LARGE))) == len(LARGE)
    assert handler.heard.get(timeout=WITHIN) == "written"
    assert handler.heard.get(timeout=WITHIN) == "taken"


@pytest.mark.parametrize("reads", [0, 100_000])
def test_what_was_not_read_by_one_who_leaves_has_not_arrived(caller, handler, reads):
    ask(caller, "/large")
    while reads > 0:
        reads -= len(caller.recv(reads))
    caller.close()
    assert handler.heard.get(timeout=WITHIN) == "gone"


class TestImpatient:
    """With limits that are over at once."""

    @pytest.fixture
    def limits(self):
        return HttpLimits(head_seconds=0, idle_seconds=0, write_seconds=0, linger_seconds=0)

    def test_who_reads_nothing_is_given_up(self, caller, handler):
        ask(caller, "/large")
        assert handler.heard.get(timeout=WITHIN) == "gone"

    def test_who_reads_too_slowly_is_given_up_though_he_reads(self, caller, handler):
        ask(caller, "/large")
        with contextlib.suppress(ConnectionResetError):
            while caller.recv(1000):
                pass
        assert handler.heard.get(timeout=WITHIN) == "gone"

    def test_who_does_not_finish_his_request_is_given_up(self, caller):
        caller.sendall(b"GET /small HTTP/1.1\r\n")
        assert caller.recv(1) == b""

    def test_who_says_nothing_is_given_up(self, caller):
        assert caller.recv(1) == b""


def test_the_handler_learns_at_once_that_a_caller_has_left(caller, handler):
    ask(caller, "/waits")
    assert handler.heard.get(timeout=WITHIN) == "waits"
    caller.close()
    assert handler.heard.get(timeout=WITHIN) == "gone"


def test_the_handler_learns_that_a_caller_says_more(caller, handler):
    ask(caller, "/waits")
    assert handler.heard.get(timeout=WITHIN) == "waits"
    caller.sendall(b"G")
    assert handler.heard.get(timeout=WITHIN) == "said more"


def test_stopping_lets_what_is_under_way_end(caller, handler, door):
    ask(caller, "/waits")
    assert handler.heard.get(timeout=WITHIN) == "waits"
    door.stop()
    assert handler.heard.get(timeout=WITHIN) == "leaving"
    assert b"Connection: close\r\n" in hear(caller, b"\r\n\r\n")
    assert caller.recv(1) == b""


def test_a_body_is_taken_up_to_its_limit(caller):
    ask(caller, "/small", b"x" * 1001)
    assert b"HTTP/1.1 413" in hear(caller, b"too large")


def test_who_asks_before_he_sends_a_body_is_told_to_go_on(caller):
    caller.sendall(b"PUT /small HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert hear(caller, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    caller.sendall(b"body")
    hear(caller, b"\r\n\r\nbody")


def test_any_bytes_are_answered_or_refused(caller):
    caller.sendall(b"\0\xff nonsense\r\n\r\n")
    assert hear(caller, b"400 Bad Request").startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert caller.recv(1) == b""


def test_a_handler_that_fails_fails_one_connection(caller, door, caplog):
    ask(caller, "/fails")
    assert hear(caller, b"INTERNAL_ERROR\n").startswith(b"HTTP/1.1 500 ")
    assert caller.recv(1) == b""
    wait_until(lambda: "ZeroDivisionError" in caplog.text)
