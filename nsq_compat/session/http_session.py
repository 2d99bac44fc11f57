"""One HTTP client's conversation with a daemon, without sockets, greenlets or clocks.

In an `HttpSession`, `receive_data` does not call the handler's `respond`, which may wait. The requests are kept,
`has_unread` is set, and each call of `read_on` answers one, or adds a piece to a long reply. An `ImmediateHandler`
never waits, so its requests are answered within `receive_data`. One that came alone may be answered at the end of the
event-loop iteration instead, together with the publishes of other clients.

The requests are read with llhttp (httptools). A publisher sends the same head with every request, except for the length
of the body. The reader remembers a head that the parser has read. If a read is one whole request with the same head
except for that number, the request is made without the parser, exactly as the parser would have made it.

Invariants:

- The result does not depend on how the input is cut into reads.
- A connection holds at most a head, a body of the size that its route allows, and one read.
- A refusal ends the input: nothing after it is read as a request.
- Replies leave in the order of their requests.
- After the reply to a refusal, to a failure of the handler or to a request without keep-alive the connection closes.
- No deadline runs while a request is answered, because that time is ours.
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Container
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.publish_batch import Producer
from nsq_compat.session.conversation import Conversation, TlsFacts, Upgrade
from nsq_compat.session.http_message import (
    INTERNAL_ERROR,
    TEXT,
    Admission,
    HttpHandler,
    HttpLimits,
    Request,
    Response,
    encode_response,
    http_date,
    transport_error,
)

log = logging.getLogger(__name__)

_NS_PER_SECOND: Final = 1_000_000_000
MAX_IMMEDIATE_BODY: Final = 8 * 1024
"""Bytes. Publishing larger bodies may take long, which only `read_on` may."""
MAX_REQUESTS: Final = 128
"""Immediate requests answered in one call of `receive_data` or `read_on`."""

_UNREADABLE: Final = Request("", b"", "", b"", {}, b"", "", keep_alive=False)
"""In place of a request that is refused."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ImmediateHandler(Protocol):
    """Answers POST requests to some paths without waiting."""

    @property
    def paths(self) -> Container[str]: ...

    def begin(self, request: Request, producer: Producer | None, now: float, now_ns: int) -> Response | None:
        """The response, or None if `producer` is notified at the end of this event-loop iteration."""

    def outcome(self, error: Exception | None) -> Response:
        """The response to a request for which `begin` returned None."""

    def publish_posted(self) -> None:
        """Notify all waiting producers now."""


# --- Requests ---------------------------------------------------------------------------------------------------------

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
_MAX_UNUSED_HEADS: Final = 8
"""The reader stops remembering heads after this many were not used."""


class Phase(Enum):
    """How much of the next request has been received."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class _Refused(Exception):
    """Leaves the parser's callbacks, with the refusal as its argument."""


class _RememberedHead(NamedTuple):
    """A remembered head: the bytes before and after the digits of its Content-Length, and its request."""

    before: bytes
    after: bytes
    request: Request
    body_limit: int


class RequestReader:
    """The input of one connection. The public ``on_...`` methods are the parser's callbacks."""

    __deletable__: Final = ("_parser",)  # mypyc requires this for an attribute that is deleted

    def __init__(self, admit: Callable[[str, str], Admission], limits: HttpLimits, remote_address: str) -> None:
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
        self._head = Request("", b"", "", b"", {}, b"", "")
        self._body: bytes | bytearray = b""
        self._body_limit = 0
        self._too_big = BAD_REQUEST
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
        return ready

    @property
    def owes_continue(self) -> bool:
        """Whether the client waits for ``100 Continue`` before it sends the body."""
        return self.expects_continue and self.phase is Phase.BODY and not self.body_size

    def close(self) -> None:
        """Break the reference cycle with the parser, so that a closed connection needs no garbage collection."""
        self.finished = True
        del self._parser

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
            (like.method, like.target, like.path, like.query, headers, body, like.remote_address, True, like.version),
        )

    def _remember(self, data: bytes, request: Request) -> None:
        """Remember the head of `request`, which is all of `data`, if it has a Content-Length."""
        if b"content-length" not in request.headers or not request.keep_alive:
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
                self._parser = HttpRequestParser(self)
                if self._upgrade_ignored:
                    self._upgrade_ignored = False
                    self._resuming = True
                    names = (b"content-length", b"transfer-encoding")
                    framing = [name + b": " + self._headers[name] for name in names if name in self._headers]
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
        if "%" in text:
            if _has_bad_escape(text):
                raise _Refused(BAD_REQUEST)
            text = unquote(text, errors="surrogateescape")
        return text, query

    def _prepare_body(self) -> None:
        headers = self._headers
        encoding = headers.get(b"transfer-encoding")
        if encoding is not None and encoding.lower() != b"chunked":
            raise _Refused(UNKNOWN_ENCODING)
        length = int(headers.get(b"content-length", 0))
        self._body_limit, self._too_big = self._admit(self._head.method, self._head.path)
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
        self._ready.append(self._head._replace(body=bytes(self._body), keep_alive=keep_alive))
        self._body = b""


# --- The conversation -------------------------------------------------------------------------------------------------


class HttpConversation(Conversation):
    """The reading half of an HTTP conversation, and the time that the client has for each phase of a request."""

    def __init__(
        self, admit: Callable[[str, str], Admission], limits: HttpLimits, remote_address: str, now: float
    ) -> None:
        super().__init__()
        self._limits = limits
        self._reader = RequestReader(admit, limits, remote_address)
        self._phase_began = now
        self._is_closed = False

    def _phase_deadline(self) -> float:
        limits, phase = self._limits, self._reader.phase
        if phase is Phase.BODY:
            return self._phase_began + limits.body_seconds + self._reader.body_size / limits.slowest_rate
        return self._phase_began + (limits.idle_seconds if phase is Phase.IDLE else limits.head_seconds)

    @property
    def linger_seconds(self) -> float:
        return self._limits.linger_seconds

    @property
    def lost_level(self) -> int:
        return logging.DEBUG  # HTTP clients often disconnect

    def closed(self) -> None:
        super().closed()
        if not self._is_closed:
            self._is_closed = True
            self._reader.close()


class HttpSession(HttpConversation):
    """One HTTP client, from accept to close.

    It is the ``queue.publish_batch.Producer`` of the message it has posted. `remote_address` is passed to handlers.
    `wake` asks the connection to call `data_to_send` soon. With `tls` the conversation begins with a handshake.
    """

    def __init__(
        self,
        handler: HttpHandler,
        limits: HttpLimits,
        *,
        remote_address: str,
        wake: Callable[[], None],
        now: float,
        now_ns: int,
        immediate: ImmediateHandler | None = None,
        tls: bool = False,
    ) -> None:
        super().__init__(handler.admit, limits, remote_address, now)
        self._handler = handler
        self._remote_address = remote_address
        self._wake = wake
        self._immediate = immediate
        self._paths: Container[str] = immediate.paths if immediate is not None else ()
        self._requests: deque[Request | Response] = deque()
        self._posted: Request | None = None
        self._rest: deque[bytes] = deque()  # of the last reply
        self._closes_after_rest = False
        self._last_plain: tuple[Response, int, bytes] | None = None  # response, second of its date, encoded reply
        self._now_ns = now_ns
        self._finishing = False
        self._input_ended = False
        self._idle_seconds = limits.idle_seconds
        self._deadline = self.next_wakeup = now + limits.head_seconds
        self._deadline_is_due = False  # to be set when the replies are sent
        self._phase = Phase.IDLE
        if tls:
            self.upgrade = Upgrade(None, b"", self._upgraded, self._upgrade_failed)

    # --- Called by the connection -------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        # Hot: runs for every message published over HTTP.
        if self._posted is not None and self._immediate is not None:
            self._immediate.publish_posted()
        self.awaits_publish = False
        if self.closing:
            return
        if self.upgrade is not None:
            self.upgrade.received += data
            return
        self._now_ns = now_ns
        known = self._reader.read_known(data)
        if known is not None:
            if known.path in self._paths and known.method == "POST" and len(known.body) <= MAX_IMMEDIATE_BODY:
                self._publish(known, now, now_ns, is_alone=True)
                self._deadline = now + self._idle_seconds
                return
            self._requests.append(known)
        else:
            try:
                self._requests.extend(self._reader.receive_data(data))
            except Exception:
                log.exception("panic in HTTP handler")
                self._requests.append(INTERNAL_ERROR)
        self._answer_immediate(now, now_ns)

    def read_on(self, now: float, now_ns: int) -> None:
        self._now_ns = now_ns
        if self._rest:
            self._replies.append(self._rest.popleft())
            if not self._rest:
                self.closing = self._closes_after_rest
        else:
            self._answer(self._requests.popleft())
        self._deadline_is_due = True
        self._answer_immediate(now, now_ns)

    def end_of_input(self) -> None:
        """Answer the requests that were received, and then close."""
        self._input_ended = True
        if self._posted is not None and self._immediate is not None:
            self._immediate.publish_posted()
        if self.upgrade is not None:
            self._upgrade_failed("EOF")
        elif not self.has_unread:
            self.closing = True

    def finish(self) -> bool:
        """Make the current request the last one, because the server stops; return whether to close at once."""
        self._finishing = True
        self._paths = ()  # `respond` answers the rest
        return not self.has_unread and self._posted is None and self._reader.phase is not Phase.BODY

    def data_to_send(self, now: float) -> bytes:
        if self._deadline_is_due:
            if not self.has_unread:
                self._move_deadline(now, answered=True)
        elif now >= self._deadline and not self.has_unread:
            log.debug("[%s] - deadline passed (%s)", self._remote_address, self._reader.phase.name)
            if self.upgrade is not None:
                self._upgrade_failed("timeout")
            self.closing = True
        self.next_wakeup = NEVER if self.has_unread else self._deadline
        replies = self._replies
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        replies.clear()
        return data

    @property
    def write_timeout(self) -> float | None:
        return self._limits.write_seconds

    @property
    def slowest_rate(self) -> float:
        return self._limits.slowest_rate

    def stalled(self) -> None:
        self._deadline_is_due = True  # now the write timeout applies

    def closed(self) -> None:
        super().closed()
        self._forget_requests()

    def published(self, error: Exception | None) -> None:
        """Answer the posted request; `error` says why publishing failed, if it did."""
        request, self._posted = self._posted, None
        assert request is not None, "a message was posted"
        assert self._immediate is not None, "it posted the message"
        self._reply(request, self._immediate.outcome(error))
        self.closing = self.closing or self._finishing or self._input_ended
        self._wake()

    # --- Answering ----------------------------------------------------------------------------------------------------

    def _publish(self, request: Request, now: float, now_ns: int, *, is_alone: bool) -> None:
        """Answer an immediate request; one that came alone perhaps at the end of this event-loop iteration."""
        # Hot: runs for every message published over HTTP.
        assert self._immediate is not None, "it has the path"
        self._posted = request if is_alone else None
        try:
            response = self._immediate.begin(request, self if is_alone else None, now, now_ns)
        except Exception as failure:
            response = _failed(request, failure)
        if response is None:
            self.awaits_publish = True
        else:
            self._posted = None
            self._reply(request, response)

    def _answer_immediate(self, now: float, now_ns: int) -> None:
        """Answer the immediate requests at the front; `has_unread` says whether others are left.

        If none is, close, or wait for the next request.
        """
        requests, count = self._requests, 0
        while requests and not self.closing and not self._rest and count < MAX_REQUESTS:
            request = requests[0]
            if isinstance(request, Response):
                self._answer(requests.popleft())
            elif request.path in self._paths and request.method == "POST" and len(request.body) <= MAX_IMMEDIATE_BODY:
                requests.popleft()
                is_alone = not requests and not count and request.keep_alive
                self._publish(request, now, now_ns, is_alone=is_alone)
            else:
                break
            count += 1
        if self.closing:
            self._forget_requests()
        self.has_unread = bool(requests or self._rest)
        if count:
            self._deadline_is_due = True
        if self.has_unread or self.closing or self._posted is not None:
            return
        if self._input_ended or self._reader.finished or (self._finishing and self._deadline_is_due):
            self.closing = True
            return
        if self._reader.owes_continue:
            self._replies.append(CONTINUE)
            self._reader.expects_continue = False
        if not self._deadline_is_due:
            self._move_deadline(now, answered=False)

    def _forget_requests(self) -> None:
        self.has_unread = False
        self._requests.clear()
        self._rest.clear()

    def _answer(self, request: Request | Response) -> None:
        if isinstance(request, Response):  # a refusal
            self._reply(_UNREADABLE, request)
            return
        try:
            response = self._handler.respond(request)
        except Exception as failure:
            response = _failed(request, failure)
        self._reply(request, response)

    def _reply(self, request: Request, response: Response) -> None:
        second = self._now_ns // _NS_PER_SECOND
        keep_alive = request.keep_alive and not response.close and not (self._finishing and not self._requests)
        is_plain = keep_alive and request.version == "1.1" and request.method == "POST"
        if is_plain:
            last = self._last_plain  # within a second all replies to a publisher are the same
            if last is not None and last[0] is response and last[1] == second:
                self._replies.append(last[2])
                return
        if response.rest and request.method != "HEAD":
            self._rest.extend(response.rest)
            self._closes_after_rest = not keep_alive
        else:
            self.closing = self.closing or not keep_alive
        date = http_date(second)
        try:
            reply = encode_response(
                response, date, version=request.version, keep_alive=keep_alive, bodiless=request.method == "HEAD"
            )
        except Exception:
            log.exception("panic in HTTP handler - %s %r", request.method, request.target)
            self.closing = True
            self._rest.clear()
            reply = encode_response(INTERNAL_ERROR, date, version=request.version, keep_alive=False)
        else:
            if is_plain:
                self._last_plain = response, second, reply
        self._replies.append(reply)

    # --- TLS ----------------------------------------------------------------------------------------------------------

    def _upgraded(self, tls: TlsFacts | None, now: float) -> None:
        self.upgrade = None

    def _upgrade_failed(self, reason: str) -> None:
        log.warning("http: TLS handshake error from %s: %s", self._remote_address, reason)
        self.upgrade = None
        self.closing = True

    # --- Deadlines ----------------------------------------------------------------------------------------------------

    def _move_deadline(self, now: float, *, answered: bool) -> None:
        """Set the client's deadline for its current phase, after a read."""
        self._deadline_is_due = False
        phase = self._reader.phase
        changed = answered or phase is not self._phase
        if changed:
            self._phase_began = now
        if changed or phase is Phase.BODY:  # a body has more time the more of it was received
            self._deadline = self._phase_deadline()
        self._phase = phase


def _failed(request: Request, failure: Exception) -> Response:
    log.error("panic in HTTP handler - %s %r", request.method, request.target, exc_info=failure)
    return INTERNAL_ERROR._replace(close=True)
