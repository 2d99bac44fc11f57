"""Paths that are routes, and what those that are none hear."""

import pytest

from nsq_compat.session.http_message import Response
from nsq_compat.web.routing import Route, Router


@pytest.fixture
def router():
    route = Route(lambda request: Response(200))
    return Router(
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
def test_a_path_nearly_right_is_redirected(router, method, path, query, location):
    response = router.unmatched(method, path, query)
    assert response.status == (301 if method == "GET" else 307)
    assert ("Location", location) in response.headers


def test_a_location_cannot_break_out_of_its_header_or_page(router):
    response = router.unmatched("GET", '/config/"<\r\nX: y/', b"")
    assert ("Location", "/config/%22%3C%0D%0AX:%20y") in response.headers


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/pub/"), ("HEAD", "/ping/"), ("OPTIONS", "/ping/"), ("DELETE", "/nope"), ("GET", "/")]
)
def test_what_no_route_would_serve_is_not_found(router, method, path):
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
def test_a_wrong_method_hears_which_are_allowed(router, path, allow):
    response = router.unmatched("DELETE", path, b"")
    assert (response.status, response.body) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert ("Allow", allow) in response.headers


def test_options_names_the_methods_and_nothing_else(router):
    assert router.unmatched("OPTIONS", "/pub", b"") == Response(200, headers=(("Allow", "OPTIONS, POST"),))
    assert router.unmatched("OPTIONS", "*", b"") == Response(200)
    assert router.unmatched("OPTIONS", "/nope", b"").status == 404
