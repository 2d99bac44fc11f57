"""One request: it always ends, and errors have texts."""

import re
import time

import pytest

from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions, UpstreamError


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


def test_a_refused_connection_has_gos_error_text(client, no_listener):
    with pytest.raises(UpstreamError) as error:
        client.get(no_listener, "topics")
    assert str(error.value) == f'Get "http://{no_listener}/topics": dial tcp {no_listener}: connect: connection refused'


def test_a_daemon_that_requires_tls_is_asked_at_its_https_port(client, daemon, no_listener):
    port = int(no_listener.rpartition(":")[2])
    daemon.says("info", {"message": "TLS_REQUIRED", "https_port": port}, 403)
    with pytest.raises(UpstreamError, match=re.escape(f'Get "https://{no_listener}/info": dial tcp {no_listener}')):
        client.get(daemon.address, "info")


def test_a_403_without_a_port_is_an_error(client, daemon):
    daemon.says("info", b"<html>", 403)
    with pytest.raises(UpstreamError, match='got response 403 Forbidden "<html>"'):
        client.get(daemon.address, "info")


def test_an_endless_answer_is_cut_off(daemon):
    client = HttpClient(HttpClientOptions(request_timeout=20), max_answer_bytes=1000)
    daemon.says("stats", b"[" + b"1," * 1000)
    with pytest.raises(UpstreamError, match="larger than 1000 bytes"):
        client.get(daemon.address, "stats")


def test_a_daemon_that_does_not_answer_is_a_timeout(daemon):
    client = HttpClient(HttpClientOptions(request_timeout=0.2))
    daemon.does("stats", lambda handler: time.sleep(5))
    with pytest.raises(UpstreamError, match="timeout"):
        client.get(daemon.address, "stats")


def test_a_daemon_that_answers_byte_by_byte_is_a_timeout(daemon):
    client = HttpClient(HttpClientOptions(request_timeout=0.5))

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b" ")
            time.sleep(0.1)

    daemon.does("stats", drip)
    with pytest.raises(UpstreamError, match="timeout|timed out"):
        client.get(daemon.address, "stats")


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


def test_redirects_are_not_followed_and_cookies_not_kept(client, daemon):
    def redirect(handler):
        handler.send_response(302)
        handler.send_header("Location", "http://example.org/")
        handler.send_header("Set-Cookie", "a=b")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    daemon.does("stats", redirect)
    with pytest.raises(UpstreamError, match="got response 302"):
        client.get(daemon.address, "stats")
    assert not client._session.cookies
