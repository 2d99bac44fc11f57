"""Dispatch, the error boundary, the access log and the TLS gate."""

import logging
import re

import pytest

from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.application import Application, TlsRequired
from nsq_compat.web.responses import ApiError
from nsq_compat.web.routing import IGNORED_BODY_LIMIT, Route


def refuse(request):
    raise ApiError(400, "A<B")


def fail(request):
    raise RuntimeError("oops")


def request(path, method="GET"):
    return Request(method, path.encode() + b"?q=1", path, b"q=1", {}, b"", "127.0.0.1:5")


@pytest.fixture
def application():
    routes = {"/ok": lambda request: Response(200, b"fine"), "/refuse": refuse, "/fail": fail}
    quiet = {"/quiet": {"GET": Route(routes["/ok"], logged=False)}}
    return Application({path: {"GET": Route(answer)} for path, answer in routes.items()} | quiet)


def test_a_route_answers(application):
    assert application.respond(request("/ok")).body == b"fine"


def test_a_refusal_is_json_with_gos_escapes(application):
    response = application.respond(request("/refuse"))
    assert (response.status, response.body) == (400, b'{"message":"A\\u003cB"}')
    assert ("X-Nsq-Content-Type", "nsq; version=1.0") in response.headers


def test_a_failure_is_an_internal_error_with_a_traceback(application, caplog):
    response = application.respond(request("/fail"))
    assert (response.status, response.body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert caplog.records[0].exc_info


@pytest.mark.parametrize(
    ("path", "method", "line"),
    [
        ("/ok", "GET", r"200 GET /ok\?q=1 \(127.0.0.1:5\) [0-9.]+(ns|µs|ms)"),
        ("/refuse", "GET", r"400 GET /refuse\?q=1 "),
        ("/nope", "GET", r"404 GET /nope\?q=1 "),
        ("/ok", "POST", r"405 POST /ok\?q=1 "),
    ],
)
def test_requests_are_logged(application, caplog, path, method, line):
    with caplog.at_level(logging.INFO):
        application.respond(request(path, method))
    (record,) = caplog.records
    assert re.match(line, record.getMessage())


@pytest.mark.parametrize(("path", "method"), [("/quiet", "GET"), ("/ok/", "GET"), ("/ok", "OPTIONS")])
def test_what_nsqd_does_not_log_is_not_logged(application, caplog, path, method):
    with caplog.at_level(logging.INFO):
        application.respond(request(path, method))
    assert not caplog.records


def test_a_large_body_for_nothing_hears_what_a_small_one_would(application):
    limit, refusal = application.admit("POST", "/nope")
    assert (limit, refusal.status) == (IGNORED_BODY_LIMIT, 404)
    assert application.admit("POST", "/ok").refusal.status == 405
    assert application.admit("GET", "/ok").refusal.status == 413


def test_behind_the_tls_gate_nothing_is_answered():
    gate = TlsRequired(4152)
    for path, method in (("/ping", "GET"), ("/pub", "POST"), ("/nope", "HEAD")):
        response = gate.respond(request(path, method))
        assert response.status == 403
        assert response.body == b'{"message": "TLS_REQUIRED", "https_port": 4152}'
        assert gate.admit(method, path).refusal == response
