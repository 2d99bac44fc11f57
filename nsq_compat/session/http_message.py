"""HTTP requests and responses as values, and the bytes of a response.

What the server (`http_server`) and the applications above it (`nsq_compat.web`) tell each other. Pure: no socket, no
greenlet, so that an application is tested by calling it.
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
    """As sent: path, query and all."""
    path: str
    """Without query and with %-escapes decoded."""
    query: bytes
    headers: Mapping[bytes, bytes]
    """Names in lower case; the values of a repeated header are joined by commas."""
    body: bytes
    remote_address: str
    """``ip:port``, ``[ip6]:port``, or ``@`` for a unix socket."""
    keep_alive: bool = True
    version: str = "1.1"


class Response(NamedTuple):
    """A reply before it is bytes. The server adds Date, Content-Length and Connection."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False
    """The connection ends with this reply."""
    reason: str = ""
    """The text behind the status, where it is not the usual one."""
    rest: tuple[bytes, ...] = ()
    """What follows `body`, if that is long: it is sent piece by piece, and other clients are served in between."""


class Admission(NamedTuple):
    """How much body a request may bring, and what it hears when it brings more."""

    body_limit: int
    refusal: Response


class HttpHandler(Protocol):
    """What the server asks of an application."""

    def admit(self, method: str, path: str) -> Admission:
        """Called when the head of a request with a body is complete, before the body is read. Must not block."""

    def respond(self, request: Request) -> Response:
        """Answer a complete request; may block its greenlet. Whatever it raises becomes a 500."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client may take of us. Sizes in bytes, times in seconds.

    A body and a reply get their time plus what `slowest_rate` allows for the bytes that did move: slow links pass,
    a byte now and then does not.
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
    """How long what a refused client still sends is read and dropped, so that it gets to read the refusal."""


def encode_response(
    response: Response, date: bytes, *, version: str, keep_alive: bool, bodiless: bool = False
) -> bytes:
    """The reply to a request of this `version`, as far as `response.rest`.

    `date` is `http_date`'s; `keep_alive` says whether the connection goes on; `bodiless` is for HEAD, whose reply has
    the length of a body but not the body.
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
    """Everything before the date's value. Remembered: almost every reply is one of a handful."""
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
    """The Date header's value for a second."""
    return formatdate(unix_seconds, usegmt=True).encode("ascii")


def transport_error(status: int, detail: str = "") -> Response:
    """What a request that never became one hears: plain text, then the end of the connection.

    nsqd: the text repeats the status line, a detail included.
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
"""How many heads are remembered in vain before that is given up."""


class Phase(Enum):
    """How far the connection is with its next request."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class _Refused(Exception):
    """Carries nothing: leaves the parser once the refusal is noted."""


class _Known(NamedTuple):
    """A head before and behind the digits of its Content-Length, and what it means."""

    before: bytes
    behind: bytes
    request: Request
    body_limit: int


class RequestReader:
    """One connection's input, from accept to close. The public ``on_...`` methods are the parser's callbacks."""

    __deletable__: Final = ("_parser",)  # compiled classes must say so

    def __init__(self, admit: Callable[[str, str], Admission], limits: HttpLimits, remote_address: str) -> None:
        self.phase = Phase.IDLE
        self.finished = False
        """No further request will come out, whatever is fed."""
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
        # Bytes since the parser last gave us a whole head or a piece of body: what hides in its own buffers.
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
        """What these bytes complete, in order: requests to answer; a response is a refusal, and the last item.

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
            # llhttp objects to bytes behind the last request of a connection; they are simply not read.
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
        """The client waits for ``100 Continue`` before it sends the body."""
        return self._expects_continue and self.phase is Phase.BODY and not self.body_size

    def continue_sent(self) -> None:
        self._expects_continue = False

    def close(self) -> None:
        """Break the cycle with the parser, so that a closed connection needs no garbage collector."""
        self.finished = True
        del self._parser

    @property
    def known_path(self) -> str:
        """Where the known head goes; "" if none is."""
        return self._known.request.path if self._known is not None else ""

    def read_known(self, data: bytes) -> Request | None:
        """What ``receive_data`` gives, if that is one request with the known head; else None, and nothing is done."""
        # Hot: runs for every message published over HTTP, and spares it the parser with its ten calls.
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
        """Know the head of the request that is all there is in `data`, if it says how long its body is."""
        if b"content-length" not in request.headers or not request.keep_alive:
            return
        self._patience -= 1
        head = data[: len(data) - len(request.body)]
        lengths = list(_find_lengths(head))
        # The first empty line is the end of the head: nothing else, like a line break behind the body, was in between.
        if len(lengths) == 1 and len(head) <= _LONGEST_KNOWN_HEAD and head.find(b"\r\n\r\n") == len(head) - 4:
            begin, end = lengths[0].span(1)
            self._known = _Known(head[:begin], head[end:], request._replace(body=b""), self._body_limit)

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                # nsqd: speaks HTTP/1.1 only, a wish to upgrade (Java's client has it by default) is ignored.
                data = data[upgrade.args[0] :]
                self._resume_plain()

    def _resume_plain(self) -> None:
        """A fresh parser where the old one left; it takes every upgrade for the end of HTTP, even before a body."""
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

    def _stop(self, refusal: Response) -> _Refused:
        self._refusal = refusal
        return _Refused()

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
        if self.phase is Phase.BODY:  # a trailer: counted, not kept
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
        elif host != self._known_host:  # the same one with every request of a connection
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
        # A bytearray from the second piece on: a million small pieces in a list would take many times their size.
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece

    def on_message_complete(self) -> None:
        if self._upgrade_ignored:  # without its body, which the parser takes for another protocol
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
    """The path of ``http://host/path``; of ``*`` and CONNECT's ``host:port`` what no route is named."""
    _, separator, rest = target.partition("://")
    if not separator or method == "CONNECT":
        return target
    _, slash, path = rest.partition("/")
    return slash + path
