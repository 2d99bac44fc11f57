"""Common parts of all HTTP APIs: query strings, responses, routes, redirects and the access log.

Query strings are parsed as Go's url.ParseQuery parses them: which queries are malformed is part of the API.

Most routes respond in V1: text or compact JSON, errors as ``{"message":"<CODE>"}``, marked by a header. The few others
are plain: text without the header, errors too.

Dispatch follows nsqd's router (httprouter): a path that is wrong only in a trailing slash, in letter case or in
repeated slashes is redirected, but only for a method that the corrected path serves.
"""

import logging
import posixpath
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote_to_bytes
from weakref import WeakKeyDictionary

from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.protocol.durations import format_duration
from nsq_compat.protocol.errors import shortened, target_without_secrets
from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.session.http_message import TEXT, Admission, BodyStream, Request, Response

log = logging.getLogger(__name__)

T = TypeVar("T")
Read = TypeVar("Read")

MAX_CACHED_LENGTH: Final = 256
_NS_PER_MS: Final = 1_000_000
MAX_IDS: Final = 1000
"""Messages of one request that names them by their ids."""
_ID: Final = re.compile(rb"[0-9a-f]{16}")
_MAX_PARAMETERS: Final = 2000
"""Of a query: twice as many as there may be ids of messages. Parsing them takes ten milliseconds."""
_has_bad_escape: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})").search
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}

JSON: Final = ("Content-Type", "application/json; charset=utf-8")
HTML: Final = ("Content-Type", "text/html; charset=utf-8")
# nsqd: Go sends the name in its canonical spelling.
V1: Final = ("X-Nsq-Content-Type", "nsq; version=1.0")
MIN_PIECE_BYTES: Final = 64 * 1024


class ApiError(Exception):
    """Ends a request with an error response. Clients match on the code; people read the explanation."""

    def __init__(
        self, status: int, code: str, explanation: str = "", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.explanation = explanation
        self.headers = headers


# --- Queries ----------------------------------------------------------------------------------------------------------


def parse_query(query: bytes) -> Mapping[str, str]:
    """The first value of every parameter, read-only. Raises ``ApiError`` for a malformed query.

    Bytes that are not UTF-8 become surrogates, which no valid name contains.
    """
    # A publisher sends the same short query with every message.
    return _parse_cached(query) if len(query) <= MAX_CACHED_LENGTH else _parse_long(query)


def _parse(query: bytes) -> Mapping[str, str]:
    parameters: dict[str, str] = {}
    pairs = query.split(b"&")
    if len(pairs) > _MAX_PARAMETERS:
        raise ApiError(400, "INVALID_REQUEST")
    for pair in pairs:
        if not pair:
            continue
        if b";" in pair:
            raise ApiError(400, "INVALID_REQUEST")
        name, _, value = pair.partition(b"=")
        parameters.setdefault(_unescape(name), _unescape(value))
    return parameters


_parse_cached = lru_cache(maxsize=1024)(_parse)
_parse_long = lru_cache(maxsize=2)(_parse)
"""For long queries, because a request reads its query up to six times, and parsing may take ten milliseconds."""


def _unescape(text: bytes) -> str:
    if _has_bad_escape(text):
        raise ApiError(400, "INVALID_REQUEST")
    if b"+" in text:
        text = text.replace(b"+", b" ")
    return unquote_to_bytes(text).decode("utf-8", errors="surrogateescape")


def required(request: Request, key: str) -> str:
    """The value of a query's parameter. Raises ``ApiError`` if it is missing."""
    value = parse_query(request.query).get(key)
    if value is None:
        raise ApiError(400, f"MISSING_ARG_{key.upper()}")
    return value


def required_name(request: Request, key: str) -> str:
    """A topic's or channel's name. Raises ``ApiError`` if it is missing or invalid."""
    name = required(request, key)
    if not is_valid_name(name):
        raise ApiError(400, f"INVALID_ARG_{key.upper()}")
    return name


_ID_RULE: Final = (
    "id is a message's id, 16 digits 0-9 and a-f; several as id=...&id=... or in the body, one in a line, "
    f"{MAX_IDS} at most"
)


def ids_of(request: Request) -> list[bytes]:
    """The message ids of the query and of the body, which has one in a line. Raises ``ApiError``."""
    ids = [value for name, _, value in (pair.partition(b"=") for pair in request.query.split(b"&")) if name == b"id"]
    ids += request.body.split()
    if not ids:
        raise ApiError(400, "MISSING_ARG_ID", _ID_RULE)
    if len(ids) > MAX_IDS or not all(_ID.fullmatch(each) for each in ids):
        raise ApiError(400, "INVALID_ARG_ID", _ID_RULE)
    return ids


def delay_of(request: Request, limit_ns: int) -> float:
    """The parameter `delay`, milliseconds, in seconds; 0 if it is missing. Raises ``ApiError``."""
    delay = parse_query(request.query).get("delay", "0")
    if not (delay.isascii() and delay.isdigit() and len(delay) < 16) or int(delay) * _NS_PER_MS > limit_ns:
        limit = f"delay is a number of milliseconds, up to {limit_ns // _NS_PER_MS}"
        raise ApiError(400, "INVALID_ARG_DELAY", limit)
    return int(delay) / 1000


def read_in_steps(read: Callable[[], Read]) -> Read:
    """Read from a log, in as many steps as it needs. Raises ``ApiError`` if it cannot be read.

    Each begins in the client's turn, because it may take long: a publish of a million messages can be one group.
    """
    while True:
        yield_to_loop()
        try:
            return read()
        except BlockingIOError:
            continue
        except OSError:
            raise ApiError(500, "INTERNAL_ERROR") from None


def parse_boolean(value: str) -> bool | None:
    """None for anything but NSQ's four spellings. Each route decides how to treat that."""
    return _BOOLEANS.get(value)


# --- Responses --------------------------------------------------------------------------------------------------------


def text_response(body: bytes) -> Response:
    # nsqd: an empty body has no type.
    return Response(200, body, (TEXT, V1) if body else (V1,))


def picked(value: object, keys: str) -> dict[str, Any]:
    """These attributes of a value, in order. A key with "?" is left out if its value is empty, 0 or false."""
    return {name: found for name, optional in _parsed(keys) if (found := getattr(value, name)) or not optional}


@lru_cache(maxsize=32)
def _parsed(keys: str) -> tuple[tuple[str, bool], ...]:
    return tuple((key.rstrip("?"), key.endswith("?")) for key in keys.split())


def json_response(value: Any) -> Response:
    return encoded_json(dumps(value).encode("utf-8"))


def encoded_json(body: bytes) -> Response:
    """As `json_response`, for encoded JSON."""
    return Response(200, body, (JSON, V1))


def long_response(pieces: Iterable[bytes], content_type: tuple[str, str]) -> Response:
    """A response in V1 made of pieces. Short ones are joined into fewer; long ones, which may be shared, are kept."""
    body, *rest = _joined(pieces)
    return Response(200, body, (content_type, V1), rest=deque(rest))


def cooperatively(items: Iterable[T], per_step: int, weigh: Callable[[T], int] = lambda item: 1) -> Iterator[T]:
    """The same items, with other work in between. An item may count for several in a step."""
    left = 0
    for item in items:
        if left <= 0:
            yield_to_loop()
            left = per_step
        left -= weigh(item)
        yield item


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        if waiting and len(piece) >= MIN_PIECE_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
        waiting.append(piece)
        size += len(piece)
        if size >= MIN_PIECE_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    yield b"".join(waiting)


def error(status: int, code: str, extra: Iterable[tuple[str, str]] = (), explanation: str = "") -> Response:
    # nsqd: an object with the message alone.
    answer = {"message": code} | ({"explanation": explanation} if explanation else {})
    return Response(status, dumps(answer).encode("utf-8"), (*extra, JSON, V1))


def plain(body: str, status: int = 200) -> Response:
    return Response(status, body.encode("utf-8", errors="surrogateescape"), (TEXT,) if body else ())


OK: Final = text_response(b"OK")
EMPTY: Final = text_response(b"")


# --- Routes -----------------------------------------------------------------------------------------------------------

Handler = Callable[[Request], Response]
OPEN: Final = ""
TOPIC: Final = ("topic",)

IGNORED_BODY_LIMIT: Final = 256 * 1024
"""Bytes of an unexpected body that are read and dropped, so that the connection can stay open (nsqd)."""
INTERNAL_ERROR: Final = error(500, "INTERNAL_ERROR")


class Route(NamedTuple):
    handler: Handler
    permission: str
    """What a token must permit, if the daemon has an access file; `OPEN` for no token."""
    admission: Admission = Admission(IGNORED_BODY_LIMIT, error(413, "BODY_TOO_BIG"))
    logged: bool = True
    topics_in: tuple[str, ...] = ()
    """The parameters that name the topics that the request is about, and about nothing else. A value may have several
    names, separated by commas. A token that is limited to topics permits no request for a route without them."""


Refusal = Callable[[Request, Route], Response | None]
"""Returns the response to a request for a route, if it may not be made. Raises ``ApiError``."""

Routes = Mapping[str, Mapping[str, Route]]
"""Routes by path and method. A path that ends in ``:name`` matches any non-empty last segment."""


class Application:
    """An HTTP handler that dispatches to routes, of those requests that `refuse` has no response to."""

    def __init__(self, routes: Routes, refuse: Refusal | None = None) -> None:
        self.routes = routes
        self.refused = 0
        """Requests so far that `refuse` had a response to."""
        self._refuse = refuse
        self._streams: WeakKeyDictionary[BodyStream, tuple[Request, Route]] = WeakKeyDictionary()
        self._paths = {path: methods for path, methods in routes.items() if "/:" not in path}
        self._families = {path.partition(":")[0]: methods for path, methods in routes.items() if "/:" in path}
        self._canonical = {path.lower(): path for path in (*self._paths, *self._families)}
        self._all_methods = {method for methods in routes.values() for method in methods}

    def admit(self, head: Request) -> Admission:
        route = self.methods(head.path).get(head.method)
        if route is None:
            return Admission(IGNORED_BODY_LIMIT, self.unmatched(head.method, head.path, b""), is_dropped=True)
        refusal = self._refusal(head, route)
        if refusal is not None:
            return Admission(IGNORED_BODY_LIMIT, refusal, is_dropped=True)
        # Without a token, no client can have the daemon keep a body.
        return route.admission if route.permission else route.admission._replace(is_dropped=True)

    def respond(self, request: Request) -> Response:
        began = time.monotonic_ns()
        route = self.methods(request.path).get(request.method)
        if route is None:
            response = self.unmatched(request.method, request.path, request.query)
            logged = response.status in (404, 405)  # nsqd: of the router's own responses, only errors are logged
        elif (refusal := self._refusal(request, route)) is not None:
            response, logged = refusal, True
            self.refused += 1
        elif request.lost_body and route.permission:  # its token came into force while the body was received
            response, logged = error(401, "UNAUTHORIZED"), True
            self.refused += 1
        else:
            response, logged = _respond(self._while_permitted(request, route), route.handler), route.logged
            stream = response.stream
            if request.method == "GET":  # it may have waited, and its token been revoked meanwhile
                late = self._refusal(request, route)
                self.refused += late is not None
                response = late or response
            if stream is not None:
                self._streams[stream] = request, route
                if response.stream is None:
                    stream.close()
        if logged:
            log_access(request, response.status, time.monotonic_ns() - began)
        return response

    def end_refused(self) -> None:
        """End the streams of clients that `refuse` no longer permits."""
        for stream, (request, route) in list(self._streams.items()):
            if not stream.is_over and self._refusal(request, route) is not None:
                log.warning(
                    "HTTP: ending the stream of %s, because its token does not permit it any more",
                    request.remote_address,
                )
                stream.close()

    def _while_permitted(self, request: Request, route: Route) -> Request:
        """A request that takes and changes nothing if the client's token is revoked while it waits."""
        if self._refuse is None:
            return request
        is_gone = request.client_is_gone
        return request._replace(
            client_is_gone=lambda: is_gone() or self._refusal(request, route) is not None,
            recheck=partial(self._recheck, request, route),
        )

    def _recheck(self, request: Request, route: Route) -> None:
        refusal = self._refusal(request, route)
        if refusal is not None:
            self.refused += 1
            raise _Revoked(refusal)

    def _refusal(self, request: Request, route: Route) -> Response | None:
        if self._refuse is None:
            return None
        try:
            return self._refuse(request, route)
        except ApiError as failure:
            return error(failure.status, failure.code)

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
    import html  # its table of entities takes 0.3 MB

    page = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
    return Response(301, page.encode("latin-1"), (HTML, header))


class TlsRequired:
    """The handler of the plain port when TLS is required: every response names the HTTPS port."""

    def __init__(self, https_port: int) -> None:
        # nsqd: formatted with blanks, unlike all other JSON. nsqadmin and nsq_stat read it.
        body = f'{{"message": "TLS_REQUIRED", "https_port": {https_port}}}'
        self._response = Response(403, body.encode("ascii"), (JSON, V1))

    def admit(self, head: Request) -> Admission:
        return Admission(IGNORED_BODY_LIMIT, self._response, is_dropped=True)

    def respond(self, request: Request) -> Response:
        return self._response


class _Revoked(Exception):
    """A request is not permitted any more, which gets this response."""

    def __init__(self, response: Response) -> None:
        self.response = response


def _respond(request: Request, handler: Handler) -> Response:
    try:
        return handler(request)
    except _Revoked as revoked:
        return revoked.response
    except ApiError as failure:
        return error(failure.status, failure.code, failure.headers, failure.explanation)
    except Exception:
        log.exception("panic in HTTP handler - %s %s", request.method, target_without_secrets(request.target))
        return INTERNAL_ERROR


def log_access(request: Request, status: int, elapsed_ns: int) -> None:
    target = shortened(target_without_secrets(request.target))
    elapsed = format_duration(elapsed_ns)
    log.info("%d %s %s (%s) %s", status, request.method, target, request.remote_address, elapsed)
