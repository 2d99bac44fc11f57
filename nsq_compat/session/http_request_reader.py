"""Requests from the bytes that an HTTP client sends, without sockets.

They are read with llhttp (httptools). A publisher sends the same head with every request, except for the length of the
body. The reader remembers a head that the parser has read. If a read is one whole request with the same head except for
that number, the request is made without the parser, exactly as the parser would have made it.

Invariants:

- The result does not depend on how the input is cut into reads.
- A connection holds at most a head, a body of the size that its route allows, and one read.
- A refusal ends the input: nothing after it is read as a request.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import unquote

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from nsq_compat.session.http_message import (
    TEXT,
    Admission,
    HttpLimits,
    Request,
    Response,
    has_message_headers,
    has_publish_id,
    transport_error,
)

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
_LONGEST_ESCAPED: Final = 4096
"""Characters of a path with escapes; longer ones match no route. To decode 60 KB takes 3 ms, in which others wait."""
_MOST_DIGITS: Final = 9
_MAX_UNUSED_HEADS: Final = 8
"""The reader stops remembering heads after this many were not used."""


class Phase(Enum):
    """How much of the next request has been received."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class _Refused(Exception):
    """Leaves the parser's callbacks, with the refusal as its argument."""


_NO_HEAD: Final = Request("", b"", "", b"", {}, b"", "")


class _RememberedHead(NamedTuple):
    """A remembered head: the bytes before and after the digits of its Content-Length, and its request."""

    before: bytes
    after: bytes
    request: Request
    body_limit: int


class RequestReader:
    """The input of one connection. The public ``on_...`` methods are the parser's callbacks."""

    __deletable__: Final = ("_parser",)  # mypyc requires this for an attribute that is deleted

    def __init__(self, admit: Callable[[Request], Admission], limits: HttpLimits, remote_address: str) -> None:
        self.phase = Phase.IDLE
        self.finished = False
        """No further request follows; later input is ignored."""
        self.body_size = 0
        self._admit = admit
        self._limits = limits
        self._remote_address = remote_address
        self._parser = HttpRequestParser(self)
        self._known_host = b""
        self._known: _RememberedHead | None = None
        self._unused_heads_left = _MAX_UNUSED_HEADS
        self._ready: list[Request | Response] = []
        # Bytes fed since the parser last reported a whole head or a piece of a body; it buffers at most these.
        self._unseen = 0
        self._advanced = False
        self._upgrade_ignored = False
        self._resuming = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._head_size = 0
        self._head = _NO_HEAD
        self._body: bytes | bytearray = b""
        self._body_limit = 0
        self._too_big = BAD_REQUEST
        self._drops_body = False
        self.expects_continue = False

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
            if not isinstance(error.__context__, _Refused):
                raise error.__context__ or error from None
            self._refuse(error.__context__.args[0])
        except HttpParserError:
            # llhttp refuses bytes after the last request of a connection; they are ignored.
            if not self.finished:
                self._refuse(BAD_REQUEST)
        self._unseen = 0 if self._advanced else self._unseen + len(data)
        if self._unseen > self._limits.max_head_bytes and not self.finished:
            self._refuse(HEAD_TOO_LARGE)
        if begins_here and self._unused_heads_left and len(ready) == 1 and isinstance(ready[0], Request):
            self._remember(data, ready[0])
        self._ready = []  # an idle connection must not keep the body of its last request
        return ready

    @property
    def owes_continue(self) -> bool:
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        return self.expects_continue and self.phase is Phase.BODY and not self.body_size

    @property
    def body_left(self) -> int:
        """The bytes that are still to come of a body of known size, and otherwise 0."""
        if self.phase is not Phase.BODY:
            return 0
        return max(0, int(self._headers.get(b"content-length", 0)) - self.body_size)

    def close(self) -> None:
        """Break the reference cycle with the parser, and forget what was received."""
        self.finished = True
        del self._parser
        self._ready = []
        self._headers = {}
        self._head = _NO_HEAD
        self._target = self._body = b""

    def read_known(self, data: bytes) -> Request | None:
        """The request, if `data` is exactly one with the remembered head; None, without any effect, otherwise."""
        # Hot: runs for every message published over HTTP, and saves the parser with its ten calls.
        if self._known is None or self.phase is not Phase.IDLE or self._unseen or self.finished:
            return None
        before, after, like, body_limit = self._known
        at = len(before)
        end = data.find(b"\r", at, at + _MOST_DIGITS + 1) if data.startswith(before) else -1
        if end < 0 or not data.startswith(after, end):
            return None
        digits = data[at:end]
        if not digits.isdigit():
            return None
        begin = end + len(after)
        size = int(digits)
        if size != len(data) - begin or size > body_limit:
            return None
        self.body_size = size
        self._unused_heads_left = _MAX_UNUSED_HEADS
        headers = like.headers
        if headers[b"content-length"] != digits:
            headers = {**headers, b"content-length": digits}
        body = data[begin:]
        # A NamedTuple's own constructor is a Python function, which takes three times as long.
        return tuple.__new__(
            Request,
            (like.method, like.target, like.path, like.query, headers, body, like.remote_address, True, *like[8:]),
        )

    def _remember(self, data: bytes, request: Request) -> None:
        """Remember the head of `request`, which is all of `data`, unless its message has headers or an id."""
        if b"content-length" not in request.headers or not request.keep_alive or self._drops_body:
            return
        if has_message_headers(request.headers) or has_publish_id(request.query):
            return
        self._unused_heads_left -= 1
        head = data[: len(data) - len(request.body)]
        lengths = list(_find_lengths(head))
        # The first empty line must end the head: then `data` has nothing else, such as a line break after the body.
        if len(lengths) == 1 and len(head) <= _LONGEST_KNOWN_HEAD and head.find(b"\r\n\r\n") == len(head) - 4:
            begin, end = lengths[0].span(1)
            self._known = _RememberedHead(head[:begin], head[end:], request._replace(body=b""), self._body_limit)

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                # nsqd: HTTP/1.1 only; a request to upgrade, which Java's client makes by default, is ignored.
                # The parser takes every upgrade for the end of HTTP, even before a body, so a new one continues.
                data = data[upgrade.args[0] :]
                keeps_alive = self._parser.should_keep_alive()
                self._parser = HttpRequestParser(self)
                if self.finished:
                    return
                if self._upgrade_ignored:
                    self._upgrade_ignored = False
                    self._resuming = True
                    names = (b"content-length", b"transfer-encoding")
                    framing = [name + b": " + self._headers[name] for name in names if name in self._headers]
                    framing += [] if keeps_alive else [b"connection: close"]
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n" + b"\r\n".join(framing) + b"\r\n\r\n")

    def _refuse(self, refusal: Response) -> None:
        self._ready.append(refusal)
        self.finished = True
        self.phase = Phase.IDLE
        self._body = b""

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
            raise _Refused(HEAD_TOO_LARGE)
        if self.phase is Phase.BODY:  # a trailer: counted and dropped
            return
        name = name.lower()
        headers = self._headers
        if name not in headers:
            headers[name] = value
        elif name == b"host":
            raise _Refused(BAD_REQUEST)
        else:
            headers[name] += b", " + value

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._limits.max_head_bytes:
            raise _Refused(HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._advanced = True
        if self._resuming:
            self._resuming = False
            return
        self.phase = Phase.BODY
        self._body = b""
        self.body_size = 0
        self.expects_continue = False
        method, version = self._parser.get_method().decode("ascii"), self._parser.get_http_version()
        headers = self._headers
        self._check_host(version)
        path, query = self._split_target(method)
        address = self._remote_address
        self._head = Request(method, self._target, path, query, headers, b"", address, version=version)
        if b"content-length" in headers or b"transfer-encoding" in headers:
            self._prepare_body()

    def _check_host(self, version: str) -> None:
        host = self._headers.get(b"host")
        if version not in ("1.1", "1.0"):
            raise _Refused(UNKNOWN_VERSION if version != "0.9" else BAD_REQUEST)
        if host is None:
            if version == "1.1":
                raise _Refused(MISSING_HOST)
        elif host != self._known_host:  # it is the same with every request of a connection
            if not _is_host(host):
                raise _Refused(MALFORMED_HOST)
            self._known_host = host

    def _split_target(self, method: str) -> tuple[str, bytes]:
        path, _, query = self._target.partition(b"?")
        text = path.decode("latin-1")
        # Not ``/path``: ``http://host/path``; or ``*`` or CONNECT's ``host:port``, which match no route.
        if text[:1] != "/" and method != "CONNECT" and "://" in text:
            text = "".join(text.partition("://")[2].partition("/")[1:])
        if "%" in text and len(text) <= _LONGEST_ESCAPED:
            if _has_bad_escape(text):
                raise _Refused(BAD_REQUEST)
            text = unquote(text, errors="surrogateescape")
        return text, query

    def _prepare_body(self) -> None:
        headers = self._headers
        encoding = headers.get(b"transfer-encoding")
        # RFC 9112, 6.1: HTTP/1.0 has no chunks, so a proxy may see another end of the body.
        if encoding is not None and (encoding.lower() != b"chunked" or self._head.version == "1.0"):
            raise _Refused(UNKNOWN_ENCODING)
        length = int(headers.get(b"content-length", 0))
        self._body_limit, self._too_big, self._drops_body = self._admit(self._head)
        if length > self._body_limit:
            raise _Refused(self._too_big)
        expectation = headers.get(b"expect")
        if expectation and self._head.version == "1.1" and (length or encoding):
            if b"100-continue" not in expectation.lower():
                raise _Refused(UNKNOWN_EXPECTATION)
            self.expects_continue = True
        self._upgrade_ignored = self._parser.should_upgrade() and bool(length or encoding)

    def on_body(self, piece: bytes) -> None:
        self._advanced = True
        self.body_size += len(piece)
        if self.body_size > self._body_limit:
            raise _Refused(self._too_big)
        # A bytearray from the second piece on: a list of a million small pieces would take many times their size.
        if self._drops_body:
            return
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
        lost_body = self._drops_body and self.body_size > 0
        self._ready.append(self._head._replace(body=bytes(self._body), keep_alive=keep_alive, lost_body=lost_body))
        self._body = b""
