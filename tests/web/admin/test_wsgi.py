"""A WSGI application called the way the server calls it."""

import pytest

from nsq_compat.session.http_message import Request
from nsq_compat.web.admin.wsgi import WsgiHandler
from nsq_compat.web.application import error


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
    handler = WsgiHandler(application, base_path=base, body_limit=10, too_large=error(413, "INVALID_VALUE"))
    path, _, query = target.partition("?")
    request = Request(method, target.encode(), path, query.encode(), headers or {}, body, "[::1]:5000")
    return handler.respond(request)


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
    handler = WsgiHandler(application, base_path="/", body_limit=10, too_large=error(413, "INVALID_VALUE"))
    assert handler.admit("POST", "/x").body_limit == 10
