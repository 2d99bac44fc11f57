"""HTTP/1.1 messages as values, and responses as bytes: the interface of sessions with the applications of ``web``."""

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")


def _nothing() -> None: ...


def _never() -> bool:
    return False


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
    client_is_gone: Callable[[], bool] = _never
    """Whether the client has closed the connection or its sending side, also if nothing has been read since, or may not
    make the request any more."""
    recheck: Callable[[], None] = _nothing
    """Raises an exception if the client may not make the request any more. To be called after each wait, before a
    change."""
    lost_body: bool = False
    """There was a body, which was dropped (`Admission.is_dropped`)."""


class BodyStream(Protocol):
    """A body of unknown length that is produced while it is sent, such as a stream of events.

    After `start`, `data_to_send` is called when `wake` was called, and at `next_wakeup`, but only when the client has
    taken what was sent before. The response ends when the stream `is_over`.
    """

    is_over: bool
    is_whole: bool
    """Whether the body may end with what was sent; a stream of events may at any time. Until then the stream goes on
    although the client sends no more, or the server stops. If it is closed, the response is not completed."""
    next_wakeup: float
    """Monotonic seconds."""

    def start(self, wake: Callable[[], None]) -> None:
        """Note that the body is sent from now on."""

    def data_to_send(self, now: float) -> bytes:
        """The next piece, possibly empty."""

    def stalled(self) -> None:
        """Note that the client takes no more for now. When it does, `data_to_send` is called."""

    def close(self) -> None:
        """End the stream, because the connection ends. May be called before `start`, and twice."""


class Response(NamedTuple):
    """A response. Encoding adds Date, Connection, and Content-Length or, for a `stream`, Transfer-Encoding."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False
    """The connection closes after this response."""
    reason: str = ""
    """The text after the status, if it is not the usual one."""
    rest: deque[bytes] | tuple[()] = ()
    """The rest of a long body, sent in pieces with other clients served in between. What is sent is removed."""
    stream: BodyStream | None = None
    """The body, in place of `body` and `rest`. The connection closes after it."""


class Admission(NamedTuple):
    """The largest body of a route, and the response to a larger one."""

    body_limit: int
    refusal: Response
    is_dropped: bool = False
    """The body is dropped as it is received, because the response does not depend on it."""


class HttpHandler(Protocol):
    """An application, as a session calls it: `admit` for the head of a request, `respond` for a complete one.

    `admit` is given a request without its body, and must not block. `respond` may block its greenlet; an exception
    becomes a 500.
    """

    def admit(self, head: Request) -> Admission: ...
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


# --- Headers of messages ----------------------------------------------------------------------------------------------

HEADER_PREFIX: Final = b"x-nsq-header-"
_TRACE_HEADERS: Final = (b"traceparent", b"tracestate")
_CONTENT_TYPE: Final = b"content-type"
_find_id: Final = re.compile(rb"(?:^|&)(?:i|%69)(?:d|%64)(?:=|&|$)").search
_FORM_TYPES: Final = (b"application/x-www-form-urlencoded", b"multipart/form-data")
"""The types of forms, the first of which curl sends with every body."""


def has_message_headers(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request to /pub has headers for its message."""
    return any(name.startswith(HEADER_PREFIX) or name in _TRACE_HEADERS for name in headers)


def has_publish_id(query: bytes) -> bool:
    """Whether the query of a request has a publish id for its message, `id`."""
    return _find_id(query) is not None


def message_headers(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """The headers for the message of a request to /pub, which may be invalid.

    A content type is one of them only beside others: HTTP libraries send one unasked.
    """
    found = [(name, headers[name].strip()) for name in _TRACE_HEADERS if name in headers]
    for name in headers:
        if name.startswith(HEADER_PREFIX):
            found.append((name[len(HEADER_PREFIX) :], headers[name].strip()))
    content_type = headers.get(_CONTENT_TYPE, b"")
    is_named = any(name == _CONTENT_TYPE for name, _ in found)
    if found and content_type and not is_named and not content_type.lower().startswith(_FORM_TYPES):
        found.append((_CONTENT_TYPE, content_type))
    return found


# --- Responses as bytes -----------------------------------------------------------------------------------------------

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus} | {413: "Request Entity Too Large"}
"""NSQ's words, which Python changed in 3.13."""


def encode_response(
    response: Response, date: bytes, *, version: str, keep_alive: bool, bodiless: bool = False
) -> bytes:
    """The bytes of a response to a request of this `version`, without `response.rest`.

    `bodiless` is for HEAD: the response has the length of the body but no body.
    """
    length = -1 if response.stream is not None else len(response.body) + sum(map(len, response.rest))
    # A redirect repeats the query of its request, 64 KiB at most, of which the cache would keep hundreds.
    encode = _head if 300 <= response.status < 400 else _encode_head
    head = encode(response.status, response.reason, response.headers, length, version, keep_alive)
    return b"%b%b\r\n\r\n%b" % (head, date, b"" if bodiless else response.body)


def _head(
    status: int, reason: str, headers: tuple[tuple[str, str], ...], length: int, version: str, keep_alive: bool
) -> bytes:
    """The head up to the date's value.

    A body of unknown length (-1) has chunks, and in HTTP/1.0 it ends with the connection.
    """
    lines = [f"HTTP/{version} {status} {reason or _REASONS.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if length >= 0:
        lines.append(f"Content-Length: {length}")
    elif version != "1.0":
        lines.append("Transfer-Encoding: chunked")
    if keep_alive == (version == "1.0"):  # not what this version does by itself
        lines.append("Connection: keep-alive" if keep_alive else "Connection: close")
    lines.append("Date: ")
    if any("\n" in line or "\r" in line for line in lines):
        raise ValueError("a header must not contain a line break")
    return "\r\n".join(lines).encode("latin-1")


_encode_head = lru_cache(maxsize=512)(_head)
"""Almost all responses have one of a few heads."""

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@lru_cache(maxsize=4)
def http_date(unix_seconds: int) -> bytes:
    """The value of the Date header."""
    # Not with email.utils, which takes 0.6 MB and 3 ms of the start.
    date = time.gmtime(unix_seconds)
    day, month = _DAYS[date.tm_wday], _MONTHS[date.tm_mon - 1]
    clock = f"{date.tm_hour:02}:{date.tm_min:02}:{date.tm_sec:02}"
    return f"{day}, {date.tm_mday:02} {month} {date.tm_year:04} {clock} GMT".encode("ascii")


def transport_error(status: int, detail: str = "") -> Response:
    """The response to malformed input: plain text, then the connection closes.

    nsqd: the text repeats the status line with the detail.
    """
    reason = f"{_REASONS[status]}: {detail}" if detail else ""
    text = f"{status} {reason or _REASONS[status]}"
    return Response(status, text.encode("ascii"), (TEXT,), close=True, reason=reason)


INTERNAL_ERROR: Final = Response(
    500,
    b'{"message":"INTERNAL_ERROR"}',
    (("Content-Type", "application/json; charset=utf-8"), ("X-Nsq-Content-Type", "nsq; version=1.0")),
)
