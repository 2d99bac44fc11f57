"""HTTP/1.1 messages: requests and responses as values, bytes to requests (`RequestReader`), responses to bytes.

The values are the interface between a session and the applications of `nsq_compat.web`. The reader uses llhttp
(httptools). Its invariants:

- A connection holds at most a head, a body of the size that its route allows, and one read.
- A refusal ends the input: nothing after it is read as a request, and the connection closes.
- The result does not depend on how the input is cut into reads.

A publisher sends the same head with every request, except for the length of the body. The reader remembers a head that
the parser has read. If a read is one whole request with the same head except for that number, the request is made
without the parser, exactly as the parser would have made it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")

_REASONS: Final = MappingProxyType(
    {
        200: "OK",
        301: "Moved Permanently",
        307: "Temporary Redirect",
        400: "Bad Request",
        403: "Forbidden",
        404: "Not Found",
        405: "Method Not Allowed",
        413: "Request Entity Too Large",
        417: "Expectation Failed",
        431: "Request Header Fields Too Large",
        500: "Internal Server Error",
        501: "Not Implemented",
        503: "Service Unavailable",
        505: "HTTP Version Not Supported",
    }
)


class Request(NamedTuple):
    """One complete request. A NamedTuple, because one is made for every message published over HTTP."""

    method: str
    target: bytes
    """As sent, with path and query."""
    path: str
    """Without the query, with %-escapes decoded."""
    query: bytes
    headers: Mapping[bytes, bytes]
    """Names in lower case; the values of a repeated header are joined by commas."""
    body: bytes
    remote_address: str
    """``ip:port``, ``[ip6]:port``, or ``@`` for a unix socket."""
    keep_alive: bool = True
    version: str = "1.1"


class Response(NamedTuple):
    """A response. Encoding adds Date, Content-Length and Connection."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False
    """The connection closes after this response."""
    reason: str = ""
    """The text after the status, if it is not the usual one."""
    rest: tuple[bytes, ...] = ()
    """The rest of a long body, sent in pieces with other clients served in between."""


class Admission(NamedTuple):
    """The largest body of a route, and the response to a larger one."""

    body_limit: int
    refusal: Response


class HttpHandler(Protocol):
    """An application, as a session calls it."""

    def admit(self, method: str, path: str) -> Admission:
        """The limit for the body, once the head of a request is complete. Must not block."""

    def respond(self, request: Request) -> Response:
        """Answer a complete request; may block its greenlet. An exception becomes a 500."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits for a client. Sizes in bytes, times in seconds.

    The time for a body or a reply grows with the bytes that were transferred, at `slowest_rate`. So slow links pass,
    and a client that sends a byte now and then does not.
    """

    max_head_bytes: int = 64 * 1024
    """Request line and headers together, or the trailers of a chunked body."""
    max_headers: int = 128
    head_seconds: float = 30.0
    """From the first byte of a request to the end of its headers; also from accept to the first byte."""
    body_seconds: float = 30.0
    write_seconds: float = 30.0
    slowest_rate: float = 1024.0
    """Bytes per second."""
    idle_seconds: float = 600.0
    """Between two requests on one connection."""
    linger_seconds: float = 1.0
    """How long a refused client's input is read and dropped, so that it can read the refusal."""


def encode_response(
    response: Response, date: bytes, *, version: str, keep_alive: bool, bodiless: bool = False
) -> bytes:
    """The bytes of a response to a request of this `version`, without `response.rest`.

    `date` is from `http_date`; `keep_alive` says whether the connection stays open; `bodiless` is for HEAD: the
    response has the length of the body but no body.
    """
    length = len(response.body) + sum(map(len, response.rest))
    head = _encode_head(response.status, response.reason, response.headers, length, version, keep_alive)
    if bodiless:
        return b"%b%b\r\n\r\n" % (head, date)
    return b"%b%b\r\n\r\n%b" % (head, date, response.body)


@lru_cache(maxsize=512)
def _encode_head(
    status: int, reason: str, headers: tuple[tuple[str, str], ...], length: int, version: str, keep_alive: bool
) -> bytes:
    """The head up to the date's value. Cached, because almost all responses have one of a few heads."""
    lines = [f"HTTP/{version} {status} {reason or _REASONS.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(f"Content-Length: {length}")
    if not keep_alive:
        if version != "1.0":
            lines.append("Connection: close")
    elif version == "1.0":
        lines.append("Connection: keep-alive")
    lines.append("Date: ")
    if any("\n" in line or "\r" in line for line in lines):
        raise ValueError("a header must not contain a line break")
    return "\r\n".join(lines).encode("latin-1")


@lru_cache(maxsize=4)
def http_date(unix_seconds: int) -> bytes:
    """The value of the Date header."""
    return formatdate(unix_seconds, usegmt=True).encode("ascii")


def transport_error(status: int, detail: str = "") -> Response:
    """The response to malformed input: plain text, then the connection closes.

    nsqd: the text repeats the status line with the detail.
    """
    reason = f"{_REASONS[status]}: {detail}" if detail else ""
    text = f"{status} {reason or _REASONS[status]}"
    return Response(status, text.encode("ascii"), (TEXT,), close=True, reason=reason)


BAD_REQUEST: Final = transport_error(400)
MISSING_HOST: Final = transport_error(400, "missing required Host header")
MALFORMED_HOST: Final = transport_error(400, "malformed Host header")
HEAD_TOO_LARGE: Final = transport_error(431)
UNKNOWN_VERSION: Final = transport_error(505, "unsupported protocol version")
UNKNOWN_ENCODING: Final = Response(501, b"Unsupported transfer encoding", (TEXT,), close=True)
UNKNOWN_EXPECTATION: Final = Response(417, close=True)

_is_host: Final = re.compile(rb"[0-9A-Za-z!$%&'()*+,./:;=@\[\]_~-]*").fullmatch
_has_bad_escape: Final = re.compile(r"%(?![0-9A-Fa-f]{2})").search


_find_lengths: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})\r\n", re.IGNORECASE).finditer
_LONGEST_KNOWN_HEAD: Final = 4096
_MOST_DIGITS: Final = 9
_PATIENCE: Final = 8
"""Heads remembered without use before the reader stops remembering them."""


class Phase(Enum):
    """How much of the next request has been received."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class _StopParsing(Exception):
    """Leaves the parser's callbacks; the refusal is noted before."""


class _Known(NamedTuple):
    """A remembered head: the bytes before and after the digits of its Content-Length, and the request it means."""

    before: bytes
    behind: bytes
    request: Request
    body_limit: int


class RequestReader:
    """The input of one connection. The public ``on_...`` methods are the parser's callbacks."""

    __deletable__: Final = ("_parser",)  # compiled classes must say so

    def __init__(self, admit: Callable[[str, str], Admission], limits: HttpLimits, remote_address: str) -> None:
        self.phase = Phase.IDLE
        self.finished = False
        """No further request follows, whatever is fed."""
        self.body_size = 0
        self._admit = admit
        self._limits = limits
        self._remote_address = remote_address
        self._parser = HttpRequestParser(self)
        self._known_host = b""
        self._known: _Known | None = None
        self._patience = _PATIENCE
        self._ready: list[Request | Response] = []
        self._refusal: Response | None = None
        # Bytes fed since the parser last reported a whole head or a piece of a body; it buffers at most these.
        self._unseen = 0
        self._advanced = False
        self._upgrade_ignored = False
        self._resuming = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._head_size = 0
        self._method = ""
        self._path = ""
        self._query = b""
        self._version = "1.1"
        self._body: bytes | bytearray = b""
        self._body_limit = 0
        self._too_big = BAD_REQUEST
        self._expects_continue = False

    def receive_data(self, data: bytes) -> list[Request | Response]:
        """The requests that these bytes complete, in order. A response is a refusal, and the last item.

        Raises only what `admit` raises.
        """
        if self.finished:
            return []
        begins_here = self.phase is Phase.IDLE and not self._unseen
        if begins_here and self._known is not None:
            known = self.read_known(data)
            if known is not None:
                return [known]
        ready = self._ready = []
        self._advanced = False
        try:
            self._feed(data)
        except HttpParserCallbackError as error:
            if self._refusal is None:
                raise error.__context__ or error from None
            self._refuse(self._refusal)
        except HttpParserError:
            # llhttp refuses bytes after the last request of a connection; they are ignored.
            if not self.finished:
                self._refuse(BAD_REQUEST)
        self._unseen = 0 if self._advanced else self._unseen + len(data)
        if self._unseen > self._limits.max_head_bytes and not self.finished:
            self._refuse(HEAD_TOO_LARGE)
        if begins_here and self._patience and len(ready) == 1 and isinstance(ready[0], Request):
            self._remember(data, ready[0])
        return ready

    @property
    def owes_continue(self) -> bool:
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        return self._expects_continue and self.phase is Phase.BODY and not self.body_size

    def continue_sent(self) -> None:
        self._expects_continue = False

    def close(self) -> None:
        """Break the reference cycle with the parser, so that a closed connection needs no garbage collection."""
        self.finished = True
        del self._parser

    def read_known(self, data: bytes) -> Request | None:
        """The request, if `data` is exactly one with the remembered head; None, without any effect, otherwise."""
        # Hot: runs for every message published over HTTP, and saves the parser with its ten calls.
        if self._known is None or self.phase is not Phase.IDLE or self._unseen or self.finished:
            return None
        before, behind, like, body_limit = self._known
        at = len(before)
        end = data.find(b"\r", at, at + _MOST_DIGITS + 1) if data.startswith(before) else -1
        if end < 0 or not data.startswith(behind, end):
            return None
        digits = data[at:end]
        if not digits.isdigit():
            return None
        begin = end + len(behind)
        size = int(digits)
        if size != len(data) - begin or size > body_limit:
            return None
        self.body_size = size
        self._patience = _PATIENCE
        headers = like.headers
        if headers[b"content-length"] != digits:
            headers = {**headers, b"content-length": digits}
        body = data[begin:]
        # A NamedTuple's own constructor is a Python function, which takes three times as long.
        return tuple.__new__(
            Request,
            (like.method, like.target, like.path, like.query, headers, body, like.remote_address, True, like.version),
        )

    def _remember(self, data: bytes, request: Request) -> None:
        """Remember the head of `request`, which is all of `data`, if it has a Content-Length."""
        if b"content-length" not in request.headers or not request.keep_alive:
            return
        self._patience -= 1
        head = data[: len(data) - len(request.body)]
        lengths = list(_find_lengths(head))
        # The first empty line must end the head: then `data` has nothing else, such as a line break after the body.
        if len(lengths) == 1 and len(head) <= _LONGEST_KNOWN_HEAD and head.find(b"\r\n\r\n") == len(head) - 4:
            begin, end = lengths[0].span(1)
            self._known = _Known(head[:begin], head[end:], request._replace(body=b""), self._body_limit)

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                # nsqd: HTTP/1.1 only; a request to upgrade, which Java's client makes by default, is ignored.
                data = data[upgrade.args[0] :]
                self._resume_plain()

    def _resume_plain(self) -> None:
        """Continue with a new parser: it takes every upgrade for the end of HTTP, even before a body."""
        self._parser = HttpRequestParser(self)
        if not self._upgrade_ignored:
            return
        self._upgrade_ignored = False
        self._resuming = True
        framing = [name + b": " + self._headers[name] for name in _FRAMING if name in self._headers]
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"\r\n".join(framing) + b"\r\n\r\n")

    def _refuse(self, refusal: Response) -> None:
        self._ready.append(refusal)
        self.finished = True
        self.phase = Phase.IDLE
        self._body = b""

    def _stop(self, refusal: Response) -> _StopParsing:
        self._refusal = refusal
        return _StopParsing()

    # --- Callbacks of the parser --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        self.phase = Phase.HEAD
        self._target = b""
        self._headers = {}
        self._header_count = self._head_size = 0

    def on_url(self, url: bytes) -> None:
        if self._resuming:
            return
        self._target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._resuming:
            return
        self._header_count += 1
        self._count_head(len(name) + len(value))
        if self._header_count > self._limits.max_headers:
            raise self._stop(HEAD_TOO_LARGE)
        if self.phase is Phase.BODY:  # a trailer: counted and dropped
            return
        name = name.lower()
        headers = self._headers
        if name not in headers:
            headers[name] = value
        elif name == b"host":
            raise self._stop(BAD_REQUEST)
        else:
            headers[name] += b", " + value

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._limits.max_head_bytes:
            raise self._stop(HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._advanced = True
        if self._resuming:
            self._resuming = False
            return
        self.phase = Phase.BODY
        self._body = b""
        self.body_size = 0
        self._expects_continue = False
        self._method = self._parser.get_method().decode("ascii")
        self._version = self._parser.get_http_version()
        self._check_host()
        self._split_target()
        headers = self._headers
        if b"content-length" in headers or b"transfer-encoding" in headers:
            self._prepare_body()

    def _check_host(self) -> None:
        host = self._headers.get(b"host")
        if self._version not in ("1.1", "1.0"):
            raise self._stop(UNKNOWN_VERSION if self._version != "0.9" else BAD_REQUEST)
        if host is None:
            if self._version == "1.1":
                raise self._stop(MISSING_HOST)
        elif host != self._known_host:  # it is the same with every request of a connection
            if not _is_host(host):
                raise self._stop(MALFORMED_HOST)
            self._known_host = host

    def _split_target(self) -> None:
        path, _, self._query = self._target.partition(b"?")
        text = path.decode("latin-1")
        if text[:1] != "/":
            text = _path_of_unusual_target(text, self._method)
        if "%" in text:
            if _has_bad_escape(text):
                raise self._stop(BAD_REQUEST)
            text = unquote(text, errors="surrogateescape")
        self._path = text

    def _prepare_body(self) -> None:
        headers = self._headers
        encoding = headers.get(b"transfer-encoding")
        if encoding is not None and encoding.lower() != b"chunked":
            raise self._stop(UNKNOWN_ENCODING)
        length = int(headers.get(b"content-length", 0))
        self._body_limit, self._too_big = self._admit(self._method, self._path)
        if length > self._body_limit:
            raise self._stop(self._too_big)
        expectation = headers.get(b"expect")
        if expectation and self._version == "1.1" and (length or encoding):
            if b"100-continue" not in expectation.lower():
                raise self._stop(UNKNOWN_EXPECTATION)
            self._expects_continue = True
        self._upgrade_ignored = self._parser.should_upgrade() and bool(length or encoding)

    def on_body(self, piece: bytes) -> None:
        self._advanced = True
        self.body_size += len(piece)
        if self.body_size > self._body_limit:
            raise self._stop(self._too_big)
        # A bytearray from the second piece on: a list of a million small pieces would take many times their size.
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece

    def on_message_complete(self) -> None:
        if self._upgrade_ignored:  # the parser takes the body for another protocol
            return
        self._advanced = True
        self.phase = Phase.IDLE
        keep_alive = self._parser.should_keep_alive()
        self.finished = not keep_alive
        body = self._body
        self._body = b""
        self._ready.append(
            Request(
                self._method,
                self._target,
                self._path,
                self._query,
                self._headers,
                bytes(body),
                self._remote_address,
                keep_alive,
                self._version,
            )
        )


_FRAMING: Final = (b"content-length", b"transfer-encoding")


def _path_of_unusual_target(target: str, method: str) -> str:
    """The path of ``http://host/path``; ``*`` and CONNECT's ``host:port`` unchanged, which match no route."""
    _, separator, rest = target.partition("://")
    if not separator or method == "CONNECT":
        return target
    _, slash, path = rest.partition("/")
    return slash + path
