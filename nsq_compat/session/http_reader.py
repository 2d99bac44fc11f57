"""Received bytes to complete requests: llhttp (httptools) with everything bounded. Sans-IO.

The server feeds what the socket gave and is told what to answer, in order. Invariants:

- What is held for one connection is at most a head, a body of the size its route allows, and one read.
- A refusal ends the input: nothing behind it is read as a request, and the connection closes after it.
- How the input is cut never changes what comes out.

Who publishes over a connection that is kept sends the same head every time, but for the length of the body. A head that
the parser has read once is known from then on: a request that is all there in one read, and whose head differs in that
number only, is made without the parser, just as it would have made it.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import unquote

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from nsq_compat.session.http_message import TEXT, Admission, HttpLimits, Request, Response, transport_error

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
