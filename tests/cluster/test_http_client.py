"""One request always ends, and errors have texts; concurrent ones do not delay each other."""

import re
import threading
from contextlib import suppress

import pytest

from nsq_compat.cluster.http_client import (
    MAX_CONCURRENT,
    AllFailed,
    DaemonError,
    HttpClient,
    TimedOut,
    call_all,
    named,
    query_all,
)
from nsq_compat.cluster.reading import InvalidAnswer, UpstreamError
from tests.cluster.hostile import DEADLINE, HostileServer, plain, silent


def test_an_answer_is_a_json_value(client, daemon):
    daemon.says("stats", {"topics": [1, 2]})
    assert client.get(daemon.address, "stats", format="json", topic="a#b&c") == {"topics": [1, 2]}
    assert daemon.heard == ["GET stats?format=json&topic=a%23b%26c"]


def test_a_post_has_a_body_and_ignores_the_answer(client, daemon):
    daemon.says("pub", b"OK")
    client.post(daemon.address, "pub", {"topic": "t"}, b"body")
    assert daemon.heard == ["POST pub?topic=t body"]


def test_an_error_has_the_daemons_text(client, daemon):
    daemon.says("lookup", {"message": "TOPIC_NOT_FOUND"}, 404)
    with pytest.raises(UpstreamError) as error:
        client.get(daemon.address, "lookup")
    assert str(error.value) == r'got response 404 Not Found "{\"message\":\"TOPIC_NOT_FOUND\"}"'


def test_a_refused_connection_is_named_once_with_the_reason_of_the_system(client, no_listener):
    with pytest.raises(UpstreamError) as error:
        client.get(no_listener, "topics")
    assert str(error.value) == f'Get "http://{no_listener}/topics": connection refused'


def test_a_daemon_that_requires_tls_is_asked_at_its_https_port(client, daemon, no_listener):
    port = int(no_listener.rpartition(":")[2])
    daemon.says("info", {"message": "TLS_REQUIRED", "https_port": port}, 403)
    with pytest.raises(UpstreamError, match=re.escape(f'Get "https://{no_listener}/info": connection refused')):
        client.get(daemon.address, "info")


def test_a_403_without_a_port_is_an_error(client, daemon):
    daemon.says("info", b"<html>", 403)
    with pytest.raises(UpstreamError, match='got response 403 Forbidden "<html>"'):
        client.get(daemon.address, "info")


def test_an_endless_answer_is_cut_off(daemon):
    client = HttpClient(request_timeout=20, max_answer_bytes=1000)
    daemon.says("stats", b"[" + b"1," * 1000)
    with pytest.raises(UpstreamError, match="larger than 1000 bytes"):
        client.get(daemon.address, "stats")


def test_a_server_learns_why_its_certificate_was_refused():
    with HostileServer(silent, tls=True) as server, pytest.raises(UpstreamError, match="TLS: "):
        HttpClient(request_timeout=20).exchange("GET", f"https://{server.address}/")
    assert "UNKNOWN_CA" in str(server.error)


def test_a_closed_connection_is_an_error(client, daemon):
    daemon.does("stats", lambda handler: handler.connection.close())
    with pytest.raises(UpstreamError, match=r'^Get "http://\S+": [\w ]+'):
        client.get(daemon.address, "stats")


@pytest.mark.parametrize("body", [b"", b"<html>", b"{", b"\xff", b"NaN"])
def test_invalid_json_is_an_error(client, daemon, body):
    daemon.says("stats", body)
    with pytest.raises(UpstreamError, match="invalid JSON"):
        client.get(daemon.address, "stats")


@pytest.mark.parametrize("address", ["", "no port", "[::1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_invalid_address_is_an_error(client, address):
    with pytest.raises(UpstreamError):
        client.get(address, "stats")


def test_cookies_are_not_kept(client, daemon):
    def bake(handler):
        handler.send_response(200)
        handler.send_header("Set-Cookie", "a=b")
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    client.get(daemon.does("stats", bake).address, "stats")
    assert not client._session.cookies


@pytest.mark.parametrize("says_close", [False, True])
def test_a_connection_has_one_request_also_if_the_server_does_not_say_that_it_closes_it(client, daemon, says_close):
    ports = []

    def answer(handler):
        ports.append(handler.client_address[1])
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Content-Length", "2")
        if says_close:
            handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(b"{}")
        handler.close_connection = False  # it would answer another request

    daemon.does("stats", answer)
    for _ in range(3):
        client.get(daemon.address, "stats")
    assert len(set(ports)) == 3


# --- Concurrent requests ----------------------------------------------------------------------------------------------


def test_answers_have_the_order_of_the_items():
    answer = query_all("nsqd", list(range(1000)), lambda number: number * 2, 20)
    assert answer.value == [(number, number * 2) for number in range(1000)]
    assert answer.errors == ()


def test_calls_are_concurrent():
    together = threading.Barrier(MAX_CONCURRENT, timeout=20)
    answer = query_all("nsqd", list(range(MAX_CONCURRENT)), lambda _: together.wait() >= 0, 20)
    assert len(answer.value) == MAX_CONCURRENT


def test_a_failed_call_costs_only_its_own_answer():
    def ask(name):
        if name == "b":
            raise UpstreamError("b is gone")
        if name == "c":
            raise InvalidAnswer("c lies")
        return name

    answer = query_all("nsqd", ["a", "b", "c"], ask, 20)
    assert answer.value == [("a", "a")]
    assert answer.errors == ("b is gone", "c lies")


def test_if_all_calls_fail_the_error_has_all_reasons():
    def ask(name):
        raise UpstreamError(f"{name} is gone")

    with pytest.raises(AllFailed, match="failed to query any nsqlookupd: a is gone\nb is gone"):
        query_all("nsqlookupd", ["a", "b"], ask, 20)


def test_no_items_are_a_failed_query_but_a_successful_call():
    with pytest.raises(AllFailed, match="failed to query any nsqd: $"):
        query_all("nsqd", [], str, 20)
    assert call_all([], str, 20).errors == ()


def test_a_call_that_never_returns_is_a_timeout():
    never = threading.Event()
    answer = query_all("nsqd", ["a", "b"], lambda name: name == "a" or never.wait(50), 2)
    never.set()
    assert answer.value == [("a", True)]
    assert answer.errors == ("b: timeout",)


def test_other_exceptions_are_raised():
    with pytest.raises(ZeroDivisionError):
        query_all("nsqd", [0], lambda number: 1 // number, 20)


def test_more_calls_start_while_all_concurrent_calls_hang(monkeypatch):
    monkeypatch.setattr("nsq_compat.cluster.http_client._STUCK_SECONDS", 0.05)
    last_was_asked = threading.Event()

    def ask(item: int) -> bool:
        if item == 9:
            last_was_asked.set()
        return last_was_asked.wait(20)

    answer = call_all(range(10), ask, 20, max_concurrent=4)
    assert answer.value == [(item, True) for item in range(10)]


def test_a_client_of_a_page_asks_a_daemon_that_hangs_only_once(client):
    with HostileServer(silent) as server:
        bounded = client.within(DEADLINE)
        for _ in range(3):
            with pytest.raises(UpstreamError, match=": timeout$"):
                bounded.get(server.address, "stats")
        assert server.requests == 1
        assert client.timeout == 20


def test_when_the_time_of_a_page_is_over_not_even_names_are_resolved(client, monkeypatch):
    resolved = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *name, **_: resolved.append(name))
    bounded = client.within(0)
    for _ in range(3):
        with pytest.raises(UpstreamError, match=": timeout$"):
            bounded.get("node.example:4151", "stats")
    assert resolved == []


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (r'got response 404 Not Found "{\"message\":\"TOPIC_NOT_FOUND\"}"', "h:1: answered 404 TOPIC_NOT_FOUND"),
        ('got response 500 Internal Server Error "oops"', 'h:1: got response 500 Internal Server Error "oops"'),
        ('Post "http://h:1/pub?topic=t": timeout', "h:1: timeout"),
        ("http://h:1/stats: invalid answer: not JSON", "h:1: invalid answer: not JSON"),
        ("h:1: timeout", "h:1: timeout"),
    ],
)
def test_an_error_on_a_page_begins_with_the_daemon(error, shown):
    assert named(DaemonError("h:1", error)) == shown
    assert named("text") == "text"


def test_the_token_goes_to_daemons_and_to_no_other_server(daemon):
    client = HttpClient(request_timeout=DEADLINE, token="nsq_secret")
    daemon.says("stats", {})
    client.get(daemon.address, "stats")
    client.get(daemon.address, "stats")
    client.exchange("GET", f"http://{daemon.address}/render")
    assert daemon.heard == ["GET ping", "GET stats", "GET stats", "GET render"]
    assert daemon.tokens == ["", "Bearer nsq_secret", "Bearer nsq_secret", ""]


def test_the_token_is_not_sent_over_plain_http_to_a_daemon_that_requires_tls(daemon, no_listener):
    client = HttpClient(request_timeout=DEADLINE, token="nsq_secret")
    refusal = {"message": "TLS_REQUIRED", "https_port": int(no_listener.rpartition(":")[2])}
    daemon.says("ping", refusal, 403).says("pub", refusal, 403)
    for _ in range(2):
        with pytest.raises(
            UpstreamError, match=re.escape(f'Post "https://{no_listener}/pub?topic=t": connection refused')
        ):
            client.post(daemon.address, "pub", {"topic": "t"}, b"body")
    # Asked again after the failure: it may have another port.
    assert daemon.heard == ["GET ping", "GET ping"]
    assert daemon.tokens == ["", ""]


def test_a_daemon_that_requires_tls_since_its_restart_gets_the_token_there(daemon, no_listener):
    client = HttpClient(request_timeout=DEADLINE, token="nsq_secret")
    daemon.says("stats", {})
    client.get(daemon.address, "stats")
    port = int(no_listener.rpartition(":")[2])
    daemon.says("stats", {"message": "TLS_REQUIRED", "https_port": port}, 403)
    with pytest.raises(UpstreamError, match=f"https://{no_listener}"):
        client.get(daemon.address, "stats")


def test_a_daemon_that_requires_tls_since_its_restart_gets_one_token_over_plain_http(daemon):
    client = HttpClient(request_timeout=DEADLINE, token="nsq_secret", tls_skip_verify=True)
    daemon.says("stats", {})
    client.get(daemon.address, "stats")
    with HostileServer(plain, tls=True) as server:
        port = int(server.address.rpartition(":")[2])
        daemon.says("stats", {"message": "TLS_REQUIRED", "https_port": port}, 403)
        assert client.get(daemon.address, "stats") == {}
        assert daemon.heard == ["GET ping", "GET stats", "GET stats"]
    with suppress(UpstreamError):  # the server answers once
        client.get(daemon.address, "stats")
    assert daemon.heard == ["GET ping", "GET stats", "GET stats"]


def test_a_client_with_a_bounded_time_tells_when_that_is_over():
    client = HttpClient()
    client.check()
    client.within(60).check()
    with pytest.raises(TimedOut):
        client.within(0).check()
