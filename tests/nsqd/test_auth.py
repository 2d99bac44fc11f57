"""Auth servers: requests by themselves, and then of an nsqd with clients that wait for them."""

import gc
import json
import signal
import socket
import socketserver
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import gevent
import pytest
import requests
import urllib3

from nsq_compat.nsqd.http_calls import THREADS_PER_SERVER, AuthServers, HttpCalls, Turns, client_tls
from nsq_compat.session.authorization import MAX_ANSWER_BYTES, AuthFailed, Credentials
from nsq_conformance.auth_server import EVERYTHING, AuthServer
from nsq_conformance.certificates import Certificates
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.v2_client import Client, pub

PATIENCE = 30.0
SECRET = "s3cr&t \N{SNOWMAN}"
CREDENTIALS = Credentials(SECRET.encode(), "10.0.0.7", tls=True, common_name="me")


@pytest.fixture
def calls() -> HttpCalls:
    return HttpCalls(connect_timeout=PATIENCE, request_timeout=PATIENCE, make_tls=lambda: client_tls("", 0x0303))


@pytest.fixture
def server() -> Iterator[AuthServer]:
    with AuthServer({SECRET: EVERYTHING, "s3cret": EVERYTHING}) as server:
        yield server


def unused_address() -> str:
    """An address without a listener."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{unused.getsockname()[1]}"


class SlowForStrangers(AuthServer):
    """Takes its time to refuse an unknown secret, as a brake on guessing."""

    may_refuse = Event()

    def answer_to(self, question: Mapping[str, list[str]]) -> tuple[int, bytes]:
        if question["secret"] != [SECRET]:
            self.may_refuse.wait(PATIENCE)
        return super().answer_to(question)


def test_strangers_that_are_refused_slowly_do_not_hold_up_those_that_are_known(calls):
    with SlowForStrangers({SECRET: EVERYTHING}) as server:
        auth = AuthServers([server.address], "get", calls)

        def is_refused() -> bool:
            with pytest.raises(AuthFailed):
                auth.authorize(Credentials(b"wrong", "10.0.0.9", tls=False, common_name=""))
            return True

        strangers = [gevent.spawn(is_refused) for _ in range(THREADS_PER_SERVER + 1)]
        gevent.sleep(0)
        assert auth.authorize(replace(CREDENTIALS, remote_ip="10.0.0.9", renews=True)).authorizations
        assert not any(each.ready() for each in strangers)
        server.may_refuse.set()
        assert all(each.get() for each in strangers)


def test_addresses_take_turns():
    turns, order = Turns(1), list[str]()

    def take(address: str) -> None:
        with turns.turn(address, PATIENCE):
            order.append(address)

    with turns.turn("a", PATIENCE):
        waiting = [gevent.spawn(take, address) for address in "aaabbc"]
        gevent.sleep(0)
        with (
            pytest.raises(AuthFailed, match="too many clients authenticate: no turn within 0.01s"),
            turns.turn("d", 0.01),
        ):
            pass
    gevent.joinall(waiting, raise_error=True)
    assert "".join(order) == "abcaba"
    take("d")
    assert turns._waiting == {}


# --- Asking -----------------------------------------------------------------------------------------------------------


class FourMegabytes(socketserver.StreamRequestHandler):
    """An answer of HTTP that is larger than an auth server's may be."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        with suppress(OSError):  # the other side closes before it has everything
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n" + b" " * 4_000_000)


@pytest.fixture
def long_winded() -> Iterator[str]:
    """The address of a server that sends too long answers."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), FourMegabytes) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.socket.getsockname()
        yield f"{host}:{port}"
        server.shutdown()


def test_refused_answers_leave_nothing_behind_for_the_garbage_collector(long_winded, server, calls):
    """Freeing what hundreds of them left held the event loop for 80 ms."""
    server.answer = (200, b"{}")

    def ask() -> None:
        for address in (long_winded, server.address):
            with pytest.raises(AuthFailed):
                AuthServers([address], "get", calls).authorize(Credentials(b"s3cret", "10.0.0.7", False, ""))

    ask()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            ask()
        assert gc.collect() < 5
    finally:
        gc.enable()


def test_an_answer_that_is_too_long_is_not_read_to_its_end(long_winded, calls, monkeypatch):
    sizes = []
    read1 = urllib3.HTTPResponse.read1

    def counting_read(response, *args, **kwargs):
        body = read1(response, *args, **kwargs)
        sizes.append(len(body))
        return body

    monkeypatch.setattr(urllib3.HTTPResponse, "read1", counting_read)
    with pytest.raises(AuthFailed, match=f"more than {MAX_ANSWER_BYTES} bytes"):
        AuthServers([long_winded], "get", calls).authorize(CREDENTIALS)
    assert MAX_ANSWER_BYTES < sum(sizes) <= MAX_ANSWER_BYTES + 65536


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_request_is_that_of_nsq(server, calls, method):
    grants = AuthServers([server.address], method, calls).authorize(CREDENTIALS)
    assert grants.allow("t", "c")
    assert server.requests == [f"{method.upper()} /auth"]
    assert server.questions == [{"common_name": ["me"], "remote_ip": ["10.0.0.7"], "secret": [SECRET], "tls": ["true"]}]


def test_an_address_with_a_scheme_is_the_whole_url(server, calls):
    AuthServers([f"http://{server.address}/who/is"], "get", calls).authorize(CREDENTIALS)
    assert server.requests == ["GET /who/is"]


def test_a_secret_that_is_not_text_is_sent_too(server, calls):
    with pytest.raises(AuthFailed):
        AuthServers([server.address], "post", calls).authorize(Credentials(b"a\xff\xfe", "", tls=False, common_name=""))
    assert server.questions == [{"common_name": [""], "remote_ip": [""], "secret": ["a\ufffd\ufffd"], "tls": ["false"]}]


def test_a_long_secret_is_not_checked_as_part_of_a_url(server, calls, monkeypatch):
    # requests and urllib3 take 55 ms for 32 KiB, in which the other clients of nsqd wait: a stranger may send that.
    sizes = []
    request = requests.Session.request

    def measuring_request(session, method, url, *args, **kwargs):
        sizes.append(len(url))
        return request(session, method, url, *args, **kwargs)

    monkeypatch.setattr(requests.Session, "request", measuring_request)
    with pytest.raises(AuthFailed, match="answered with status"):
        AuthServers([server.address], "get", calls).authorize(replace(CREDENTIALS, secret=b"\xff" * 20_000))
    assert len(sizes) == 1
    assert sizes[0] < 100
    assert server.questions[0]["secret"] == ["\ufffd" * 20_000]


def test_a_server_that_does_not_answer_is_replaced_by_another(server, calls):
    servers = AuthServers([unused_address(), server.address, unused_address()], "get", calls)
    for _ in range(20):
        assert servers.authorize(CREDENTIALS).identity == "holder of 8 characters"


def test_the_first_server_is_chosen_at_random(server, calls):
    with AuthServer({SECRET: EVERYTHING}) as other:
        servers = AuthServers([server.address, other.address], "get", calls)
        while not (server.requests and other.requests):
            servers.authorize(CREDENTIALS)


def test_when_none_answers_the_log_has_every_reason(server, calls):
    server.answer = 500, b"s3cr&t"
    silent = unused_address()
    with pytest.raises(AuthFailed) as caught:
        AuthServers([silent, f"http://user:pass@{server.address}/auth?key=1"], "get", calls).authorize(CREDENTIALS)
    assert set(str(caught.value).split("; ")) == {
        f"failed to auth against {silent} - connection refused",
        f"failed to auth against http://{server.address}/auth - answered with status 500",
    }


def test_an_answer_that_makes_no_sense_is_a_failure(server, calls):
    server.answer = 200, b'{"ttl":0}'
    with pytest.raises(AuthFailed, match=r"invalid TTL 0 \(must be >0\)"):
        AuthServers([server.address], "get", calls).authorize(CREDENTIALS)


# --- A whole nsqd -----------------------------------------------------------------------------------------------------


@contextmanager
def nsqd_asking(server: AuthServer, data_path: Path, *options: str) -> Iterator[NsqdProcess]:
    arguments = [f"--auth-http-address={server.address}", "--log-level=debug", *options]
    with NsqdProcess(installed_nsqd(), data_path, options=arguments) as process:
        yield process


@pytest.fixture
def nsqd(server: AuthServer, tmp_path: Path) -> Iterator[NsqdProcess]:
    with nsqd_asking(server, tmp_path) as process:
        yield process


def test_a_client_authenticates_publishes_and_consumes(nsqd, server):
    with Client(nsqd.tcp_address) as client:
        assert json.loads(client.identifies(feature_negotiation=True).answer())["auth_required"] is True
        assert json.loads(client.says_with_body(b"AUTH", SECRET.encode()).answer())["permission_count"] == 1
        [message] = client.publishes(b"x").subscribes(ready=1).takes(1)
        assert message.body == b"x"
        [shown] = nsqd.channel_stats("t", "c")["clients"]
        assert (shown["authed"], shown["auth_identity"]) == (True, "holder of 8 characters")
        assert shown["auth_identity_url"] == "http://example.com/holder"
    assert server.questions[0] == {
        "common_name": [""],
        "remote_ip": ["127.0.0.1"],
        "secret": [SECRET],
        "tls": ["false"],
    }


def test_a_server_that_hangs_delays_only_its_client(nsqd, server):
    with ExitStack() as stack:
        working, waiting = (stack.enter_context(Client(nsqd.tcp_address)) for _ in range(2))
        working.says_with_body(b"AUTH", SECRET.encode()).answer()
        server.is_open.clear()
        waiting.says_with_body(b"AUTH", SECRET.encode()).says(pub(b"late"))
        while len(server.questions) < 2:
            gevent.sleep(0.01)
        for _ in range(100):
            working.publishes(b"x")
        assert nsqd.asks("GET", "/ping").body == b"OK"
        server.is_open.set()
        assert json.loads(waiting.answer())["permission_count"] == 1
        waiting.hears(b"OK")


def test_a_server_that_does_not_answer_in_time_is_a_failed_auth(server, tmp_path):
    server.is_open.clear()
    with (
        nsqd_asking(server, tmp_path, "--http-client-request-timeout=200ms") as nsqd,
        Client(nsqd.tcp_address) as client,
    ):
        client.says_with_body(b"AUTH", SECRET.encode()).hears(b"E_AUTH_FAILED AUTH failed")
        assert client.rest() == b""


def test_an_auth_server_over_tls_needs_a_certificate_of_the_given_authority(tmp_path):
    certificates = Certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.certificate, certificates.key)
    with AuthServer({SECRET: EVERYTHING}, tls=tls) as server:
        options = [f"--auth-http-address=https://{server.address}/auth"]
        with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd, Client(nsqd.tcp_address) as client:
            client.says_with_body(b"AUTH", SECRET.encode()).hears(b"E_AUTH_FAILED AUTH failed")
        assert server.questions == []
        options.append(f"--tls-root-ca-file={certificates.root_ca}")
        with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd, Client(nsqd.tcp_address) as client:
            assert b"permission_count" in client.says_with_body(b"AUTH", SECRET.encode()).answer()


def test_clients_that_wait_for_an_auth_server_do_not_hold_up_a_stop(nsqd, server):
    server.is_open.clear()
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(Client(nsqd.tcp_address)).says_with_body(b"AUTH", SECRET.encode()).says(pub(b"x"))
        while not server.questions:
            gevent.sleep(0.01)
        nsqd._process.send_signal(signal.SIGTERM)
        assert nsqd._process.wait(PATIENCE) == 0
    nsqd._reader.join()
    log = "".join(nsqd._last_lines)
    assert "NSQ: bye" in log
    assert "internal error" not in log


def test_a_client_that_leaves_while_it_waits_is_forgotten(nsqd, server):
    server.is_open.clear()
    with Client(nsqd.tcp_address) as client:
        client.says_with_body(b"AUTH", SECRET.encode()).says(b"SUB t c\n")
        while not server.questions:
            gevent.sleep(0.01)
    server.is_open.set()
    while True:
        try:
            if not nsqd.channel_stats("t", "c")["clients"]:
                break
        except LookupError:  # not subscribed yet
            gevent.sleep(0.01)


def test_publishing_over_http_is_refused_with_auth_servers(nsqd):
    for path in ("pub", "mpub"):
        refusal = nsqd.asks("POST", f"/{path}?topic=t", b"x")
        assert refusal.status == 403
        assert b"--http-publish-without-auth" in refusal.body
    assert nsqd.asks("POST", "/topic/create?topic=t").status == 200


def test_publishing_over_http_can_be_allowed(server, tmp_path):
    with nsqd_asking(server, tmp_path, "--http-publish-without-auth") as nsqd:
        assert nsqd.asks("POST", "/pub?topic=t", b"x").body == b"OK"


def test_no_endpoint_or_log_line_shows_the_secret(server, tmp_path):
    address = f"http://me:passw0rd@{server.address}/auth?key=passw0rd"
    with (
        NsqdProcess(
            installed_nsqd(), tmp_path, options=[f"--auth-http-address={address}", "--log-level=debug"]
        ) as nsqd,
        Client(nsqd.tcp_address) as client,
        ExitStack() as stack,
    ):
        assert b"permission_count" in client.says_with_body(b"AUTH", b"s3cret").answer()
        server.is_open.clear()
        waiting = stack.enter_context(Client(nsqd.tcp_address)).says_with_body(b"AUTH", b"s3cret of another")
        while len(server.questions) < 2:
            gevent.sleep(0.01)
        pages = ("stats", "stats?format=json", "config/auth_http_addresses", "debug/pprof/cmdline")
        for page in (*pages, "debug/pprof/goroutine", "debug/pprof/heap"):
            text = nsqd.asks("GET", f"/{page}").body
            assert b"passw0rd" not in text
            assert b"s3cret" not in text
        server.is_open.set()
        waiting.hears(b"E_AUTH_FAILED AUTH failed")
        assert waiting.rest() == b""
    nsqd._reader.join()
    log = "".join(nsqd._last_lines)
    assert f"AUTH failed failed to auth against http://{server.address}/auth - answered with status 403" in log
    assert "passw0rd" not in log
    assert "s3cret" not in log
