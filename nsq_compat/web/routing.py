"""Which route a path means, and what a path that is none hears: redirects, OPTIONS, 405, 404.

The rules are those of the router in nsqd (httprouter): a path that is wrong only in a trailing slash, in letter case or
in its slashes is redirected, but only for a method that the corrected path serves.
"""

import html
import posixpath
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.web.responses import HTML, error

Answer = Callable[[Request], Response]

IGNORED_BODY_LIMIT: Final = 256 * 1024
"""How much body is taken, and dropped, where none is wanted (nsqd: read on, up to this, to keep the connection)."""


class Route(NamedTuple):
    answer: Answer
    admission: Admission = Admission(IGNORED_BODY_LIMIT, error(413, "BODY_TOO_BIG"))
    logged: bool = True


Routes = Mapping[str, Mapping[str, Route]]
"""Path to method to route. A path that ends in ``:name`` stands for all with one more, non-empty segment."""


class Router:
    def __init__(self, routes: Routes) -> None:
        self._paths = {path: methods for path, methods in routes.items() if "/:" not in path}
        self._families = {path.partition(":")[0]: methods for path, methods in routes.items() if "/:" in path}
        self._canonical = {path.lower(): path for path in (*self._paths, *self._families)}
        self._all_methods = {method for methods in routes.values() for method in methods}

    def methods(self, path: str) -> Mapping[str, Route]:
        """The routes of a path by method; empty for an unknown path."""
        found = self._paths.get(path)
        if found is not None:
            return found
        prefix, segment = _split_last(path)
        return self._families.get(prefix, {}) if segment else {}

    def unmatched(self, method: str, path: str, query: bytes) -> Response:
        """What a request without a route hears."""
        location = self._corrected(method, path)
        if location is not None:
            return moved(method, location, query)
        allowed = self._all_methods if path == "*" else set(self.methods(path))
        if not allowed:
            return Response(200) if (method, path) == ("OPTIONS", "*") else error(404, "NOT_FOUND")
        allow = ("Allow", ", ".join(sorted({*allowed, "OPTIONS"})))
        if method == "OPTIONS":
            # nsqd: Go's server answers for "*" itself, and names nothing.
            return Response(200, headers=() if path == "*" else (allow,))
        return error(405, "METHOD_NOT_ALLOWED", (allow,))

    def _corrected(self, method: str, path: str) -> str | None:
        """The path that was meant, if it serves this method."""
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
    """Without doubled slashes, ``.`` and ``..``, a trailing slash kept."""
    clean = "/" + posixpath.normpath(path).lstrip("/")
    return clean + "/" if path.endswith("/") and clean != "/" else clean


def moved(method: str, path: str, query: bytes) -> Response:
    """The way to the path that was meant."""
    location = quote(path, safe="/:@!$&'()*+,;=~", errors="surrogateescape")
    if query:
        location += "?" + query.decode("latin-1")
    header = ("Location", location)
    if method != "GET":
        # nsqd: a code that keeps the method, and no body.
        return Response(307, headers=(header,))
    page = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
    return Response(301, page.encode("latin-1"), (HTML, header))
