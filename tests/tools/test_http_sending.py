"""Messages to a real HTTP server: what it is sent, and what counts as arrived."""

import pytest

from nsq_compat.tools.http_sending import HttpSender, NotSent, parse_headers
from tests.cluster.hostile import (
    DEADLINE,
    DRIPPING,
    HostileServer,
    continuing,
    dripping_handshake,
    dripping_header,
    dripping_headers,
    dripping_redirects,
    dripping_status,
    endless_headers,
    redirecting,
    redirecting_with_endless_body,
    silent,
)

_BEFORE_THE_END_OF_HEADERS = [dripping_status, dripping_header, dripping_headers, continuing, silent]


def sender(method="POST", headers=(), request_timeout=10.0):
    return HttpSender(method, headers, connect_timeout=2.0, request_timeout=request_timeout, connections=2)


def test_a_message_is_the_body_of_a_post(target):
    sender(headers=[("Content-Type", "a/b"), ("User-Agent", "me")]).send(target.url, b"\xff\0")
    (request,) = target.requests
    assert (request.method, request.body) == ("POST", b"\xff\0")
    assert request.headers == {
        "Host": target.address,
        "User-Agent": "me",
        "Content-Type": "a/b",
        "Content-Length": "2",
        "Accept-Encoding": "gzip",
    }


def test_the_last_of_several_headers_is_sent_whatever_its_case(target):
    sender(headers=[("User-Agent", "one"), ("user-agent", "two")]).send(target.url, b"x")
    assert [value for name, value in target.requests[0].headers.items() if name.lower() == "user-agent"] == ["two"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("a b&c/é%".encode(), "/a+b%26c%2F%C3%A9%25/x%20y"),
        (b"\xff\n", "/%FF%0A/x%20y"),
        (b"-_.~", "/-_.~/x%20y"),
        (b"%s", "/%25s/x%20y"),
    ],
)
@pytest.mark.parametrize("address", ["/%s/x%20y", "/%s/x%%20y"])
def test_a_message_is_put_into_the_url_of_a_get(target, address, body, path):
    sender("GET").send(target.url + address, body)
    assert (target.requests[0].method, target.requests[0].path) == ("GET", path)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_accepts_the_message(target, method, status):
    target.status = status
    sender(method).send(f"{target.url}/%s", b"x")
    assert len(target.requests) == 1


@pytest.mark.parametrize("status", [300, 304, 400, 404, 429, 500, 503])
def test_any_other_status_does_not_accept_it(target, status):
    target.status = status
    with pytest.raises(NotSent, match=f"^got status code {status}$"):
        sender().send(target.url, b"x")
    assert len(target.requests) == 1


def test_a_redirect_that_keeps_the_body_is_followed(target, make_target):
    elsewhere = make_target()
    target.status, target.headers = 307, {"Location": f"{elsewhere.url}/there"}
    sender().send(target.url, b"x")
    assert [(each.method, each.path, each.body) for each in elsewhere.requests] == [("POST", "/there", b"x")]


def test_a_connection_is_used_again_whatever_the_answer_is(target):
    posting = sender()
    for status, answer in ((200, b"x" * 100_000), (500, b"no"), (204, b""), (200, b"")):
        target.status, target.answer = status, answer
        try:
            posting.send(target.url, b"x")
        except NotSent:
            assert status == 500
    assert len({request.client for request in target.requests}) == 1


def test_an_endless_answer_is_not_read_to_its_end(target):
    target.answer = b"x" * 5_000_000
    posting = sender()
    for _ in range(2):
        posting.send(target.url, b"x")
    assert len({request.client for request in target.requests}) == 2


def test_no_cookies_are_kept(target):
    target.headers = {"Set-Cookie": "a=b; Path=/"}
    posting = sender()
    for _ in range(2):
        posting.send(target.url, b"x")
    assert "Cookie" not in target.requests[1].headers


def test_a_connection_that_ends_without_an_answer_is_replaced_once(target):
    target.closing_count = 1
    sender().send(target.url, b"x")
    assert target.bodies == [b"x", b"x"]
    target.closing_count = 2
    with pytest.raises(NotSent):
        sender().send(target.url, b"y")


def test_a_server_that_does_not_answer_in_time_has_not_accepted_it(target):
    target.gate.clear()
    with pytest.raises(NotSent, match="^timeout$"):
        sender(request_timeout=0.1).send(target.url, b"x")


def test_an_error_does_not_show_the_message(target):
    target.close()
    with pytest.raises(NotSent, match="^connection refused$"):
        sender("GET").send(f"{target.url}/%s", b"secret")


@pytest.mark.parametrize("address", ["", "x", "ftp://x/", "http://", "http://[::1", "http://h:x/"])
def test_a_wrong_address_is_refused_at_the_start(address):
    with pytest.raises(NotSent):
        sender().check(address)


def test_a_wrong_header_is_refused_at_the_start():
    with pytest.raises(NotSent):
        sender(headers=[("A", "b\nc")]).check("http://h/")


def test_errors_do_not_show_secrets():
    with pytest.raises(NotSent) as caught:
        sender().check("http://me:secret@h:x/?key=secret")
    assert "secret" not in str(caught.value)


def test_a_check_sends_nothing(target):
    sender().check(target.url)
    assert not target.requests


def test_headers_are_split_at_their_first_colon():
    assert parse_headers([" A : b:c ", "A:d"]) == [("A", "b:c"), ("A", "d")]


@pytest.mark.parametrize("word", ["", "A", "A:", ":b", "A: "])
def test_a_header_has_a_name_and_a_value(word):
    with pytest.raises(ValueError, match="invalid header"):
        parse_headers([word])


@pytest.mark.parametrize("answer", [*_BEFORE_THE_END_OF_HEADERS, dripping_redirects])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_answer_whose_headers_are_drawn_out_is_a_timeout(answer, method):
    with HostileServer(answer) as server, pytest.raises(NotSent, match="^timeout$"):
        sender(method, request_timeout=DEADLINE).send(f"http://{server.address}/%s", b"x")


@pytest.mark.parametrize("answer", [each for each in DRIPPING if each not in _BEFORE_THE_END_OF_HEADERS])
def test_a_drawn_out_body_is_not_waited_for(answer):
    with HostileServer(answer) as server:
        sender(request_timeout=DEADLINE).send(f"http://{server.address}/", b"x")


def test_a_tls_handshake_that_is_drawn_out_is_a_timeout():
    with HostileServer(dripping_handshake) as server, pytest.raises(NotSent, match="^timeout$"):
        sender(request_timeout=DEADLINE).send(f"https://{server.address}/", b"x")


@pytest.mark.parametrize("answer", [redirecting, redirecting_with_endless_body])
def test_redirects_in_a_loop_end_after_ten_and_their_bodies_are_not_read(answer):
    with HostileServer(answer) as server:
        with pytest.raises(NotSent, match="TooManyRedirects"):
            sender(request_timeout=20).send(f"http://{server.address}/", b"x")
        assert server.requests == 11


def test_headers_without_end_are_refused():
    with HostileServer(endless_headers) as server, pytest.raises(NotSent, match="HTTPException"):
        sender(request_timeout=20).send(f"http://{server.address}/", b"x")
