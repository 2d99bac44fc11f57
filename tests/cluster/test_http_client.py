"""One request: whatever the other side does, it ends, and in words."""

import re
import time

import pytest

from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions, UpstreamError


def test_an_answer_is_the_value_it_says(client, daemon):
    daemon.says("stats", {"topics": [1, 2]})
    assert client.get(daemon.address, "stats", format="json", topic="a#b&c") == {"topics": [1, 2]}
    assert daemon.heard == ["GET stats?format=json&topic=a%23b%26c"]


def test_a_post_carries_its_body_and_takes_any_success(client, daemon):
    daemon.says("pub", b"OK")
    client.post(daemon.address, "pub", {"topic": "t"}, b"body")
    assert daemon.heard == ["POST pub?topic=t body"]


def test_a_refusal_is_shown_as_it_was_said(client, daemon):
    daemon.says("lookup", {"message": "TOPIC_NOT_FOUND"}, 404)
    with pytest.raises(UpstreamError) as error:
        client.get(daemon.address, "lookup")
    assert str(error.value) == r'got response 404 Not Found "{\"message\":\"TOPIC_NOT_FOUND\"}"'


def test_nobody_there_is_said_in_gos_words(client, nobody):
    with pytest.raises(UpstreamError) as error:
        client.get(nobody, "topics")
    assert str(error.value) == f'Get "http://{nobody}/topics": dial tcp {nobody}: connect: connection refused'


def test_a_daemon_that_wants_tls_is_asked_at_its_other_port(client, daemon, nobody):
    port = int(nobody.rpartition(":")[2])
    daemon.says("info", {"message": "TLS_REQUIRED", "https_port": port}, 403)
    with pytest.raises(UpstreamError, match=re.escape(f'Get "https://{nobody}/info": dial tcp {nobody}')):
        client.get(daemon.address, "info")


def test_a_forbidden_without_a_port_is_a_refusal(client, daemon):
    daemon.says("info", b"<html>", 403)
    with pytest.raises(UpstreamError, match='got response 403 Forbidden "<html>"'):
        client.get(daemon.address, "info")


def test_an_answer_without_end_is_cut_off(daemon):
    client = HttpClient(HttpClientOptions(request_timeout=20), max_answer=1000)
    daemon.says("stats", b"[" + b"1," * 1000)
    with pytest.raises(UpstreamError, match="larger than 1000 bytes"):
        client.get(daemon.address, "stats")


def test_a_daemon_that_says_nothing_is_given_up(daemon):
    client = HttpClient(HttpClientOptions(request_timeout=0.2))
    daemon.does("stats", lambda handler: time.sleep(5))
    with pytest.raises(UpstreamError, match="timeout"):
        client.get(daemon.address, "stats")


def test_a_daemon_that_answers_drop_by_drop_is_given_up(daemon):
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


def test_a_daemon_that_hangs_up_is_said_to(client, daemon):
    daemon.does("stats", lambda handler: handler.connection.close())
    with pytest.raises(UpstreamError, match=r'^Get "http://\S+": [\w ]+'):
        client.get(daemon.address, "stats")


@pytest.mark.parametrize("body", [b"", b"<html>", b"{", b"\xff", b"NaN"])
def test_what_is_not_json_is_an_error_of_that_daemon(client, daemon, body):
    daemon.says("stats", body)
    with pytest.raises(UpstreamError, match="invalid JSON"):
        client.get(daemon.address, "stats")


@pytest.mark.parametrize("address", ["", "no port", "[::1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_an_error_too(client, address):
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
