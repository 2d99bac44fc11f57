"""HTTP requests and responses as values, and the bytes of a response.

What the server (`http_server`) and the applications above it (`nsq_compat.web`) tell each other. Pure: no socket, no
greenlet, so that an application is tested by calling it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

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
