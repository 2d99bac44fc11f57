"""Queries, dispatch, redirects, errors, the access log and required TLS."""

import contextlib
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.session import http_message
from nsq_compat.session.http_message import Request, Response, encode_response
from nsq_compat.web.application import (
    IGNORED_BODY_LIMIT,
    OPEN,
    ApiError,
    Application,
    Route,
    TlsRequired,
    moved,
    parse_boolean,
    parse_query,
    required,
    required_name,
)


def refuse(request):
    raise ApiError(400, "A<B")


def fail(request):
    raise RuntimeError("oops")


def request(path, method="GET", query=b"q=1"):
    return Request(method, path.encode() + b"?" + query, path, query, {}, b"", "127.0.0.1:5")


@pytest.fixture
def application():
    routes = {"/ok": lambda request: Response(200, b"fine"), "/refuse": refuse, "/fail": fail}
    quiet = {"/quiet": {"GET": Route(routes["/ok"], OPEN, logged=False)}}
    return Application({path: {"GET": Route(answer, OPEN)} for path, answer in routes.items()} | quiet)


def test_a_route_answers(application):
    assert application.respond(request("/ok")).body == b"fine"


def test_an_api_error_is_json_with_gos_escapes(application):
    response = application.respond(request("/refuse"))
    assert (response.status, response.body) == (400, b'{"message":"A\\u003cB"}')
    assert ("X-Nsq-Content-Type", "nsq; version=1.0") in response.headers


def test_an_exception_is_an_internal_error_with_a_traceback(application, caplog):
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


def test_the_log_line_of_a_long_request_is_limited(application, caplog):
    with caplog.at_level(logging.INFO):
        application.respond(request("/" + "x" * 60_000))
    assert len(caplog.messages[0]) < 1100


@pytest.mark.parametrize(("path", "method"), [("/quiet", "GET"), ("/ok/", "GET"), ("/ok", "OPTIONS")])
def test_requests_that_nsqd_does_not_log_are_not_logged(application, caplog, path, method):
    with caplog.at_level(logging.INFO):
        application.respond(request(path, method))
    assert not caplog.records


def test_a_large_unexpected_body_gets_the_response_of_a_small_one(application):
    limit, refusal, is_dropped = application.admit(request("/nope", "POST"))
    assert (limit, refusal.status) == (IGNORED_BODY_LIMIT, 404)
    assert is_dropped
    assert application.admit(request("/ok", "POST")).refusal.status == 405
    assert application.admit(request("/ok")).refusal.status == 413


def test_with_tls_required_every_response_names_the_https_port():
    gate = TlsRequired(4152)
    for path, method in (("/ping", "GET"), ("/pub", "POST"), ("/nope", "HEAD")):
        response = gate.respond(request(path, method))
        assert response.status == 403
        assert response.body == b'{"message": "TLS_REQUIRED", "https_port": 4152}'
        assert gate.admit(request(path, method)).refusal == response


@pytest.fixture
def router():
    route = Route(lambda request: Response(200), OPEN)
    return Application(
        {
            "/ping": {"GET": route},
            "/pub": {"POST": route},
            "/config/:opt": {"GET": route, "PUT": route},
            "/debug/pprof/": {"GET": route},
        }
    )


@pytest.mark.parametrize("path", ["/ping", "/pub", "/config/x", "/debug/pprof/"])
def test_known_paths_have_methods(router, path):
    assert router.methods(path)


@pytest.mark.parametrize("path", ["", "/", "/pin", "/ping/", "/config", "/config/", "/config/a/b", "*", "host:80"])
def test_other_paths_have_none(router, path):
    assert not router.methods(path)


@pytest.mark.parametrize(
    ("method", "path", "query", "location"),
    [
        ("GET", "/ping/", b"", "/ping"),
        ("GET", "/PING", b"a=%20b", "/ping?a=%20b"),
        ("GET", "//ping", b"", "/ping"),
        ("GET", "/x/../Ping/", b"", "/ping"),
        ("GET", "/./ping", b"", "/ping"),
        ("GET", "/../ping", b"", "/ping"),
        ("GET", "/debug/pprof", b"", "/debug/pprof/"),
        ("GET", "/Debug//PPROF", b"", "/debug/pprof/"),
        ("GET", "/CONFIG/Id", b"", "/config/Id"),
        ("PUT", "/config/id/", b"", "/config/id"),
        ("POST", "/PUB/", b"topic=t", "/pub?topic=t"),
    ],
)
def test_a_nearly_correct_path_is_redirected(router, method, path, query, location):
    response = router.unmatched(method, path, query)
    assert response.status == (301 if method == "GET" else 307)
    assert ("Location", location) in response.headers


def test_a_location_is_escaped_in_header_and_page(router):
    response = router.unmatched("GET", '/config/"<\r\nX: y/', b"")
    assert ("Location", "/config/%22%3C%0D%0AX:%20y") in response.headers


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/pub/"), ("HEAD", "/ping/"), ("OPTIONS", "/ping/"), ("DELETE", "/nope"), ("GET", "/")]
)
def test_paths_without_a_route_are_not_found(router, method, path):
    response = router.unmatched(method, path, b"")
    assert (response.status, response.body) == (404, b'{"message":"NOT_FOUND"}')


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/ping", "GET, OPTIONS"),
        ("/pub", "OPTIONS, POST"),
        ("/config/x", "GET, OPTIONS, PUT"),
        ("*", "GET, OPTIONS, POST, PUT"),
    ],
)
def test_a_wrong_method_is_405_with_the_allowed_methods(router, path, allow):
    response = router.unmatched("DELETE", path, b"")
    assert (response.status, response.body) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert ("Allow", allow) in response.headers


def test_options_returns_only_the_methods(router):
    assert router.unmatched("OPTIONS", "/pub", b"") == Response(200, headers=(("Allow", "OPTIONS, POST"),))
    assert router.unmatched("OPTIONS", "*", b"") == Response(200)
    assert router.unmatched("OPTIONS", "/nope", b"").status == 404


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        (b"", {}),
        (b"topic=a", {"topic": "a"}),
        (b"topic=a&topic=b", {"topic": "a"}),
        (b"&&topic=a&", {"topic": "a"}),
        (b"topic", {"topic": ""}),
        (b"topic=", {"topic": ""}),
        (b"=x", {"": "x"}),
        (b"a=b=c", {"a": "b=c"}),
        (b"t%6fpic=a%23b", {"topic": "a#b"}),
        (b"a=b+c%2B", {"a": "b c+"}),
        (b"a=%C3%A9", {"a": "é"}),
        (b"a=%ff", {"a": "\udcff"}),
    ],
)
def test_the_first_value_of_a_parameter_is_used(query, parameters):
    assert parse_query(query) == parameters


@pytest.mark.parametrize("query", [b"a=%", b"a=%zz", b"a=%4", b"%g0=a", b"topic=a&x=%", b"a;b", b"topic=a;b=c"])
def test_a_malformed_query_is_an_invalid_request(query):
    with pytest.raises(ApiError, match="INVALID_REQUEST") as refusal:
        parse_query(query)
    assert refusal.value.status == 400


def test_redirects_are_not_kept_in_memory():
    http_message._encode_head.cache_clear()
    for number in range(10):
        response = moved("POST", "/pub", b"%d" % number + b"q" * 60_000)
        assert b"Location: /pub?%d" % number in encode_response(response, b"", version="1.1", keep_alive=True)
    assert http_message._encode_head.cache_info().currsize == 0


def test_a_long_query_is_parsed_once_for_all_that_read_it():
    query = b"&".join(b"%%41%d=%%42" % number for number in range(1000))
    assert parse_query(query) is parse_query(query)


def test_a_query_has_2000_parameters():
    assert len(parse_query(b"&".join(b"%d" % number for number in range(2000)))) == 2000
    with pytest.raises(ApiError, match="INVALID_REQUEST"):
        parse_query(b"&" * 2000)


@given(st.binary(max_size=600))
def test_any_bytes_are_parameters_or_an_invalid_request(query):
    with contextlib.suppress(ApiError):
        assert all(isinstance(value, str) for value in parse_query(query).values())


def test_booleans_have_four_spellings():
    spellings = ("true", "1", "false", "0", "", "TRUE", "yes")
    assert [parse_boolean(each) for each in spellings] == [True, True, False, False, None, None, None]


def test_a_missing_or_invalid_parameter_is_named_in_the_error():
    asked = request("/", query=b"topic=t&channel=&node=anything+at+all")
    assert required(asked, "node") == "anything at all"
    assert required(asked, "channel") == ""
    assert required_name(asked, "topic") == "t"
    for ask, key, code in (
        (required, "secret", "MISSING_ARG_SECRET"),
        (required_name, "secret", "MISSING_ARG_SECRET"),
        (required_name, "channel", "INVALID_ARG_CHANNEL"),
        (required_name, "node", "INVALID_ARG_NODE"),
    ):
        with pytest.raises(ApiError, match=code):
            ask(asked, key)
