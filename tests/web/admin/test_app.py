"""Headers, errors, redirects, compression, static files; and the application called the way our server calls it."""

import gzip
import zlib
from base64 import b64encode
from functools import partial

import pytest

from nsq_compat.session.http_message import Request
from nsq_compat.web.admin.app import MAX_BODY_BYTES, WsgiHandler, body_limit, create_app


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topics/orders", "/topics/orders/mail", "/nodes", "/counter", "/lookup"]
)
def test_pages_have_a_strict_security_policy_and_load_nothing_that_it_forbids(browser, path):
    page = browser.get(path)
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "'unsafe-inline'" not in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["X-Frame-Options"] == "DENY"
    assert page.headers["Cache-Control"] == "no-store"
    assert '<link rel="stylesheet" href="/static/' in page.text
    for forbidden in ('src="http', " style=", "<style", "onclick", "javascript:"):
        assert forbidden not in page.text
    assert page.text.count("<h1") == 1
    assert '<html lang="en">' in page.text


@pytest.mark.parametrize(
    ("method", "path", "status", "location"),
    [
        ("GET", "/ping/", 301, "/ping"),
        ("GET", "/api/topics/?x=1", 301, "/api/topics?x=1"),
        ("GET", "/API/topics", 301, "/api/topics"),
        ("POST", "/api/topics/orders/", 307, "/api/topics/orders"),
        ("GET", "/api//topics", 301, "/api/topics"),
    ],
)
def test_a_path_wrong_only_in_slashes_or_case_is_redirected(browser, method, path, status, location):
    answer = browser.open(path, method=method)
    assert (answer.status_code, answer.headers["Location"]) == (status, location)


def test_programs_get_nsqs_errors(browser):
    assert browser.get("/nope").get_json(force=True) == {"message": "NOT_FOUND"}
    answer = browser.put("/api/topics")
    assert (answer.status_code, answer.text, answer.headers["Allow"]) == (
        405,
        '{"message":"METHOD_NOT_ALLOWED"}',
        "GET, OPTIONS, POST",
    )
    answer = browser.options("/api/topics")
    assert (answer.status_code, answer.text, answer.headers["Allow"]) == (200, "", "GET, OPTIONS, POST")


def test_a_browser_that_opens_the_address_of_an_action_gets_a_page(browser):
    answer = browser.get("/logout", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["Allow"]) == (405, "OPTIONS, POST")
    assert "This address performs an action, and has no page." in answer.text


def test_links_are_below_the_base_path(service):
    client = create_app(service).test_client()
    page = client.get("/topics", base_url="http://x/nsq/ui", environ_overrides={"SCRIPT_NAME": "/nsq/ui"}).text
    assert 'href="/nsq/ui/static/nsqadmin.css"' in page
    assert 'href="/nsq/ui/topics/orders"' in page


def test_a_cookie_set_over_https_is_secure(browser):
    assert "Secure" in browser.get("/create", headers={"X-Scheme": "https"}).headers["Set-Cookie"]
    assert "Secure" not in browser.get("/create").headers.get("Set-Cookie", "")


def test_an_exception_is_an_internal_error_and_logged(browser, service, monkeypatch, caplog):
    monkeypatch.setattr(service.cluster, "topics", lambda: 1 // 0)
    answer = browser.get("/api/topics")
    assert (answer.status_code, answer.text) == (500, '{"message":"INTERNAL_ERROR"}')
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, deflate, gzip", "deflate"),
        ("gzip;q=1.0", None),
        ("br", None),
        ("", None),
    ],
)
def test_the_first_known_encoding_is_used(browser, accepted, encoding):
    answer = browser.get("/ping", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("Content-Encoding") == encoding
    read = {None: bytes, "gzip": gzip.decompress, "deflate": lambda data: zlib.decompress(data, -zlib.MAX_WBITS)}
    assert read[encoding](answer.data) == b"OK"
    assert answer.headers.get("Vary") == ("Accept-Encoding" if encoding else None)


def test_files_are_served_under_both_paths(browser):
    for prefix in ("static", "fonts"):
        answer = browser.get(f"/{prefix}/nsqadmin.css")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "text/css; charset=utf-8"


def test_other_files_are_not_found(browser):
    for name in ("nope", "..", ".hidden", "%2e%2e%2fsetup.cfg", "a%00b"):
        answer = browser.get(f"/static/{name}")
        assert answer.status_code == 404, name
    assert browser.get("/static/nope").text == "NOT_FOUND"


def test_dev_static_dir_replaces_the_folder(browser, service, tmp_path):
    (tmp_path / "nsqadmin.css").write_text("body {}")
    service.options.dev_static_dir = str(tmp_path)
    assert browser.get("/static/nsqadmin.css").text == "body {}"
    assert browser.get("/static/favicon.svg").status_code == 404


def test_ping(browser):
    answer = browser.get("/ping")
    assert (answer.status_code, answer.text, answer.headers["Content-Type"]) == (200, "OK", "text/plain; charset=utf-8")


# --- WSGI -------------------------------------------------------------------------------------------------------------


class Application:
    def __init__(self):
        self.environ = {}
        self.closed = 0

    def __call__(self, environ, start_response):
        self.environ = environ
        start_response("302 FOUND", [("Location", "/x"), ("Content-Length", "5")])
        return self

    def __iter__(self):
        yield from (b"he", b"llo")

    def close(self):
        self.closed += 1


@pytest.fixture
def application():
    return Application()


def ask(application, target, base="/", method="GET", body=b"", headers=None):
    path, _, query = target.partition("?")
    request = Request(method, target.encode(), path, query.encode(), headers or {}, body, "[::1]:5000")
    return WsgiHandler(application, base).respond(request)


def test_the_body_for_head_is_that_for_get(application):
    assert ask(application, "/", method="HEAD").body == b"hello"
    assert application.environ["REQUEST_METHOD"] == "GET"


def test_the_response_is_joined_without_content_length(application):
    response = ask(application, "/")
    assert (response.status, response.reason, response.body) == (302, "Found", b"hello")
    assert response.headers == (("Location", "/x"),)
    assert application.closed == 1


def test_the_request_becomes_an_environ(application):
    headers = {b"host": b"h:81", b"content-type": b"text/x", b"x-a": b"1", b"x_b": b"2"}
    ask(application, "/a%2Fb%C3%A4?q=1", method="POST", body=b"body", headers=headers)
    environ = application.environ
    assert (environ["REQUEST_METHOD"], environ["QUERY_STRING"]) == ("POST", "q=1")
    assert environ["PATH_INFO"].encode("latin-1").decode() == "/a/bä"
    assert (environ["SERVER_NAME"], environ["SERVER_PORT"], environ["CONTENT_TYPE"]) == ("h", "81", "text/x")
    assert (environ["REMOTE_ADDR"], environ["nsqadmin.remote_address"]) == ("::1", "[::1]:5000")
    assert environ["wsgi.input"].read() == b"body"
    assert environ["HTTP_X_A"] == "1"
    assert "HTTP_X_B" not in environ


@pytest.mark.parametrize(
    ("target", "script", "path"), [("/ui", "/ui", "/"), ("/ui/", "/ui", "/"), ("/ui/topics", "/ui", "/topics")]
)
def test_the_base_path_becomes_the_script_name(application, target, script, path):
    ask(application, target, base="/ui")
    assert (application.environ["SCRIPT_NAME"], application.environ["PATH_INFO"]) == (script, path)


@pytest.mark.parametrize("target", ["/", "/topics", "/uix", "/UI"])
def test_paths_outside_the_base_path_are_not_found(application, target):
    assert ask(application, target, base="/ui").status == 404
    assert application.environ == {}


def test_an_exception_of_the_application_is_an_internal_error(caplog):
    def falls_over(environ, start_response):
        raise ZeroDivisionError

    assert ask(falls_over, "/").status == 500
    assert "panic in HTTP handler" in caplog.text


def test_every_body_has_a_limit(application):
    assert (
        WsgiHandler(application, "/").admit(Request("POST", b"/x", "/x", b"", {}, b"", "")).body_limit == MAX_BODY_BYTES
    )


def test_only_visitors_that_may_change_something_send_large_bodies(service, behind_login):
    app = behind_login.application
    handler = WsgiHandler(app, "/", partial(body_limit, app))

    def may_send_large(**headers):
        encoded = {name.lower().encode(): value.encode() for name, value in headers.items()}
        limit = handler.admit(Request("POST", b"/topics", "/topics", b"", encoded, b"", "127.0.0.1:1")).body_limit
        return limit == MAX_BODY_BYTES

    assert not may_send_large()
    assert not may_send_large(Cookie="nsqadmin=forged")
    # Whether a password is right is not told here, where attempts are not limited.
    basic = "Basic " + b64encode(b"ada:ada-pw").decode()
    assert behind_login.get("/api/topics", headers={"Authorization": basic}).status_code == 200
    assert not may_send_large(Authorization=basic)
    service.users = None
    assert may_send_large()


def test_a_login_of_an_operator_may_send_large_bodies(behind_login):
    for name, expected in (("vic", 16 * 1024), ("olga", MAX_BODY_BYTES)):
        visitor = behind_login.application.test_client()
        page = visitor.get("/login").text
        token = page.partition('name="csrf" value="')[2].partition('"')[0]
        assert visitor.post("/login", data={"csrf": token, "name": name, "password": f"{name}-pw"}).status_code == 303
        cookie = f"nsqadmin={visitor.get_cookie('nsqadmin').value}"
        handler = WsgiHandler(visitor.application, "/", partial(body_limit, visitor.application))
        head = Request("POST", b"/topics", "/topics", b"", {b"cookie": cookie.encode()}, b"", "127.0.0.1:1")
        assert handler.admit(head).body_limit == expected
