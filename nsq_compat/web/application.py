"""An HTTP API made of routes: dispatch, redirects, error responses and the access log.

Dispatch follows nsqd's router (httprouter): a path that is wrong only in a trailing slash, in letter case or in
repeated slashes is redirected, but only for a method that the corrected path serves.
"""

import html
import logging
import posixpath
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from nsq_compat.protocol.durations import format_duration
from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.web.responses import HTML, JSON, V1, ApiError, error

log = logging.getLogger(__name__)

Handler = Callable[[Request], Response]

IGNORED_BODY_LIMIT: Final = 256 * 1024
"""Bytes of an unexpected body that are read and dropped, so that the connection can stay open (nsqd)."""


class Route(NamedTuple):
    handler: Handler
    admission: Admission = Admission(IGNORED_BODY_LIMIT, error(413, "BODY_TOO_BIG"))
    logged: bool = True


Routes = Mapping[str, Mapping[str, Route]]
"""Routes by path and method. A path that ends in ``:name`` matches any non-empty last segment."""


class Router:
    def __init__(self, routes: Routes) -> None:
        self._paths = {path: methods for path, methods in routes.items() if "/:" not in path}
        self._families = {path.partition(":")[0]: methods for path, methods in routes.items() if "/:" in path}
        self._canonical = {path.lower(): path for path in (*self._paths, *self._families)}
        self._all_methods = {method for methods in routes.values() for method in methods}

    def methods(self, path: str) -> Mapping[str, Route]:
        """The routes of a path, by method. Empty for an unknown path."""
        found = self._paths.get(path)
        if found is not None:
            return found
        prefix, segment = _split_last(path)
        return self._families.get(prefix, {}) if segment else {}

    def unmatched(self, method: str, path: str, query: bytes) -> Response:
        """The response to a request that no route serves."""
        location = self._corrected(method, path)
        if location is not None:
            return moved(method, location, query)
        allowed = self._all_methods if path == "*" else set(self.methods(path))
        if not allowed:
            return Response(200) if (method, path) == ("OPTIONS", "*") else error(404, "NOT_FOUND")
        allow = ("Allow", ", ".join(sorted({*allowed, "OPTIONS"})))
        if method == "OPTIONS":
            # nsqd: Go's server answers for "*" itself, without methods.
            return Response(200, headers=() if path == "*" else (allow,))
        return error(405, "METHOD_NOT_ALLOWED", (allow,))

    def _corrected(self, method: str, path: str) -> str | None:
        """The corrected path, if it serves this method."""
        if method not in self._all_methods or not path.startswith("/") or path == "/":
            return None
        for candidate in (_toggle_slash(path), *self._in_right_case(_clean(path))):
            if method in self.methods(candidate):
                return candidate
        return None

    def _in_right_case(self, path: str) -> list[str]:
        spellings = []
        for candidate in (path, _toggle_slash(path)):
            prefix, segment = _split_last(candidate)
            for begin, rest in ((candidate, ""), (prefix, segment)):
                canonical = self._canonical.get(begin.lower())
                if canonical is not None:
                    spellings.append(canonical + rest)
        return spellings


def _split_last(path: str) -> tuple[str, str]:
    prefix, slash, segment = path.rpartition("/")
    return prefix + slash, segment


def _toggle_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") and len(path) > 1 else path + "/"


def _clean(path: str) -> str:
    """Remove repeated slashes, ``.`` and ``..``; keep a trailing slash."""
    clean = "/" + posixpath.normpath(path).lstrip("/")
    return clean + "/" if path.endswith("/") and clean != "/" else clean


def moved(method: str, path: str, query: bytes) -> Response:
    """A redirect to the corrected path."""
    location = quote(path, safe="/:@!$&'()*+,;=~", errors="surrogateescape")
    if query:
        location += "?" + query.decode("latin-1")
    header = ("Location", location)
    if method != "GET":
        # nsqd: a code that keeps the method, and no body.
        return Response(307, headers=(header,))
    page = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
    return Response(301, page.encode("latin-1"), (HTML, header))


INTERNAL_ERROR: Final = error(500, "INTERNAL_ERROR")
# nsqd: of the router's own responses, only errors are logged.
_LOGGED_UNMATCHED: Final = frozenset({404, 405})


class Application:
    """An HTTP handler that dispatches to routes."""

    def __init__(self, routes: Routes) -> None:
        self._router = Router(routes)

    def admit(self, method: str, path: str) -> Admission:
        route = self._router.methods(path).get(method)
        if route is not None:
            return route.admission
        return Admission(IGNORED_BODY_LIMIT, self._router.unmatched(method, path, b""))

    def respond(self, request: Request) -> Response:
        route = self._router.methods(request.path).get(request.method)
        if route is not None and not route.logged:
            return _respond(request, route.handler)
        began = time.monotonic_ns()
        if route is None:
            response = self._router.unmatched(request.method, request.path, request.query)
            if response.status not in _LOGGED_UNMATCHED:
                return response
        else:
            response = _respond(request, route.handler)
        log_access(request, response.status, time.monotonic_ns() - began)
        return response

    __call__ = respond


class TlsRequired:
    """The handler of the plain port when TLS is required: every response names the HTTPS port."""

    def __init__(self, https_port: int) -> None:
        # nsqd: formatted with blanks, unlike all other JSON. nsqadmin and nsq_stat read it.
        body = f'{{"message": "TLS_REQUIRED", "https_port": {https_port}}}'
        self._response = Response(403, body.encode("ascii"), (JSON, V1))

    def admit(self, method: str, path: str) -> Admission:
        return Admission(IGNORED_BODY_LIMIT, self._response)

    def respond(self, request: Request) -> Response:
        return self._response


def _respond(request: Request, handler: Handler) -> Response:
    try:
        return handler(request)
    except ApiError as failure:
        return error(failure.status, failure.code)
    except Exception:
        log.exception("panic in HTTP handler - %s %r", request.method, request.target)
        return INTERNAL_ERROR


def log_access(request: Request, status: int, elapsed_ns: int) -> None:
    target = request.target.decode("ascii", errors="backslashreplace")
    elapsed = format_duration(elapsed_ns)
    log.info("%d %s %s (%s) %s", status, request.method, target, request.remote_address, elapsed)
