"""HTTP/1.1 messages as values: the interface of sessions with the applications of ``web``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")


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
    """An application, as a session calls it: `admit` for the head of a request, `respond` for a complete one.

    `admit` must not block. `respond` may block its greenlet; an exception becomes a 500.
    """

    def admit(self, method: str, path: str) -> Admission: ...
    def respond(self, request: Request) -> Response: ...


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
