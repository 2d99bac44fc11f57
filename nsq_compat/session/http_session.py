"""One HTTP client's conversation with a daemon, without sockets, greenlets or clocks.

In an `HttpSession`, `receive_data` does not call the handler's `respond`, which may wait. The requests are kept,
`has_unread` is set, and each call of `read_on` answers one, or adds a piece to a long reply. An `ImmediateHandler`
never waits, so its requests are answered within `receive_data`. One that came alone may be answered at the end of the
event-loop iteration instead, together with the publishes of other clients. Without an `ImmediateHandler`, `read_on`
also reads the requests, because a handler's `admit` may take milliseconds.

Invariants:

- Replies leave in the order of their requests.
- After the reply to a refusal, to a failure of the handler or to a request without keep-alive the connection closes.
- No deadline runs while received bytes wait to be read or a request is answered, because that time is ours.
- A stream is the last reply of its connection: further requests are dropped. It is asked for data only when the client
  has taken the data before. It ends with the connection, or when the client sends no more.
"""

import logging
from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final, Protocol

from nsq_compat.protocol.errors import target_without_secrets
from nsq_compat.queue.schedule import NEVER
from nsq_compat.session.conversation import Conversation, TlsFacts, Upgrade
from nsq_compat.session.http_message import (
    INTERNAL_ERROR,
    Admission,
    BodyStream,
    HttpHandler,
    HttpLimits,
    Request,
    Response,
    encode_response,
    has_message_headers,
    has_publish_id,
    http_date,
)
from nsq_compat.session.http_request_reader import Phase, RequestReader

if TYPE_CHECKING:
    from nsq_compat.queue.publish_batch import Producer  # nsqlookupd has no queue

log = logging.getLogger(__name__)

_NS_PER_SECOND: Final = 1_000_000_000
MAX_IMMEDIATE_BODY: Final = 8 * 1024
"""Bytes. Publishing larger bodies may take long, which only `read_on` may. It publishes messages with headers, too."""
MAX_REQUESTS: Final = 128
"""Immediate requests answered in one call of `receive_data` or `read_on`."""

_MAX_LINES: Final = 128
"""Lines in what is read at once, unless they are in a body of known size. A request of a few lines takes 10 us to read,
and 64 KiB can have thousands of them, or of chunks."""
FIRST_BYTES: Final = 1024
NEXT_BYTES: Final = 8 * 1024
"""Of what has more lines: many connections may receive such bytes in one iteration, and take turns afterwards."""

_UNREADABLE: Final = Request("", b"", "", b"", {}, b"", "", keep_alive=False)
"""In place of a request that is refused."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


class ImmediateHandler(Protocol):
    """Answers POST requests to some paths without waiting."""

    @property
    def paths(self) -> Container[str]: ...

    def begin(self, request: Request, producer: "Producer | None", now: float, now_ns: int) -> Response | None:
        """The response, or None if `producer` is notified at the end of this event-loop iteration."""

    def outcome(self, error: Exception | None) -> Response:
        """The response to a request for which `begin` returned None."""

    def publish_posted(self) -> None:
        """Notify all waiting producers now."""


def _ignored() -> None: ...


class HttpConversation(Conversation):
    """The reading half of an HTTP conversation, and the time that the client has for each phase of a request."""

    def __init__(
        self, admit: Callable[[Request], Admission], limits: HttpLimits, remote_address: str, now: float
    ) -> None:
        super().__init__()
        self._limits = limits
        self._reader = RequestReader(admit, limits, remote_address)
        self._unread_input = b""  # received after what was read
        self._phase_began = now
        self._is_closed = False

    def _part_to_read(self, data: bytes, size: int) -> bytes:
        """These bytes, or if they have many lines the first ones; the rest is kept."""
        self._unread_input = b""
        if data.count(b"\n") > _MAX_LINES:
            size += self._reader.body_left
            data, self._unread_input = data[:size], data[size:]
        return data

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

    It is the ``queue.publish_batch.Producer`` of the message it has posted. `remote_address` and `client_is_gone` are
    passed to handlers. `wake` asks the connection to call `data_to_send` soon. With `tls` the conversation begins with
    a handshake.
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
        client_is_gone: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(handler.admit, limits, remote_address, now)
        self._handler = handler
        self._remote_address = remote_address
        self._wake = wake
        self._client_is_gone = client_is_gone
        self._immediate = immediate
        self._paths: Container[str] = immediate.paths if immediate is not None else ()
        self._requests: deque[Request | Response] = deque()
        self._posted: Request | None = None
        self._rest: deque[bytes] = deque()  # of the last reply
        self._closes_after_rest = False
        self._stream: BodyStream | None = None  # the last reply
        self._is_chunked = False
        self._last_plain: tuple[Response, int, bytes] | None = None  # response, second of its date, encoded reply
        self._now_ns = now_ns
        self._finishing = False
        self._input_ended = False
        self._last_read = now
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
        if self._immediate is None:
            self._unread_input += data
            self._last_read = now
            self.has_unread = True
            return
        known = self._reader.read_known(data)  # which has no message headers
        if known is not None:
            if known.path in self._paths and known.method == "POST" and len(known.body) <= MAX_IMMEDIATE_BODY:
                self._publish(known, now, now_ns, is_alone=True)
                self._deadline = now + self._idle_seconds
                return
            self._requests.append(known)
        else:
            self._read_requests(self._unread_input + data, FIRST_BYTES)
        self._last_read = now
        self._answer_immediate(now, now_ns)

    def read_on(self, now: float, now_ns: int) -> None:
        self._now_ns = now_ns
        if self._rest:
            self._replies.append(self._rest.popleft())
            if not self._rest:
                self.closing = self._closes_after_rest
            self._deadline_is_due = True
        elif self._requests:
            self._answer(self._requests.popleft())
            self._deadline_is_due = True
        else:
            waited = now - self._last_read
            self._deadline += waited
            self._phase_began += waited
            self._read_requests(self._unread_input, NEXT_BYTES)
        self._last_read = now
        self._answer_immediate(now, now_ns)

    def end_of_input(self) -> None:
        """Answer the requests that were received, and then close."""
        self._input_ended = True
        if self._posted is not None and self._immediate is not None:
            self._immediate.publish_posted()
        if self._stream is not None:
            if self._stream.is_whole:
                self._end_stream()
        elif self.upgrade is not None:
            self._upgrade_failed("EOF")
        elif not self.has_unread:
            self.closing = True

    def finish(self) -> bool:
        """Make the current request the last one, because the server stops; return whether to close at once."""
        self._finishing = True
        self._paths = ()  # `respond` answers the rest
        if self._stream is not None:
            if self._stream.is_whole:
                self._end_stream()
                self._wake()
            return False
        return not self.has_unread and self._posted is None and self._reader.phase is not Phase.BODY

    def data_to_send(self, now: float) -> bytes:
        if self._stream is not None:
            self._read_stream(self._stream, now)
        elif self._deadline_is_due:
            if not self.has_unread:
                self._move_deadline(now, answered=True)
        elif now >= self._deadline and not self.has_unread:
            log.debug("[%s] - deadline passed (%s)", self._remote_address, self._reader.phase.name)
            if self.upgrade is not None:
                self._upgrade_failed("timeout")
            self.closing = True
        if self._stream is None:
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
        if self._stream is not None:
            self._stream.stalled()

    def freed(self) -> None:
        super().freed()
        self._wake, self._client_is_gone = _ignored, None

    def closed(self) -> None:
        super().closed()
        self._forget_requests()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def published(self, error: Exception | None) -> None:
        """Answer the posted request; `error` says why publishing failed, if it did."""
        request, self._posted = self._posted, None
        assert request is not None, "a message was posted"
        assert self._immediate is not None, "it posted the message"
        self._reply(request, self._immediate.outcome(error))
        self.closing = self.closing or self._finishing or self._input_ended
        self._wake()

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _read_requests(self, data: bytes, size: int) -> None:
        """Read these bytes, or if they have many lines the first ones, and keep the rest."""
        try:
            self._requests.extend(self._reader.receive_data(self._part_to_read(data, size)))
        except Exception:
            log.exception("panic in HTTP handler")
            self._requests.append(INTERNAL_ERROR)
        if self._reader.finished:
            self._unread_input = b""

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
            elif self._is_immediate(request):
                requests.popleft()
                is_alone = not (requests or count or self._unread_input) and request.keep_alive
                self._publish(request, now, now_ns, is_alone=is_alone)
            else:
                break
            count += 1
        if self.closing:
            self._forget_requests()
        self.has_unread = bool(requests or self._rest or self._unread_input)
        if count:
            self._deadline_is_due = True
        if self.has_unread or self.closing or self._posted is not None or self._stream is not None:
            return
        if self._input_ended or self._reader.finished or (self._finishing and self._deadline_is_due):
            self.closing = True
            return
        if self._reader.owes_continue:
            self._replies.append(CONTINUE)
            self._reader.expects_continue = False
        if not self._deadline_is_due:
            self._move_deadline(now, answered=False)

    def _is_immediate(self, request: Request) -> bool:
        return (
            request.path in self._paths
            and request.method == "POST"
            and len(request.body) <= MAX_IMMEDIATE_BODY
            and not has_message_headers(request.headers)
            and not has_publish_id(request.query)
        )

    def _forget_requests(self) -> None:
        self.has_unread = False
        self._requests.clear()
        self._rest.clear()
        self._unread_input = b""

    def _answer(self, request: Request | Response) -> None:
        if isinstance(request, Response):  # a refusal
            self._reply(_UNREADABLE, request)
            return
        if self._client_is_gone is not None:
            request = request._replace(client_is_gone=self._client_is_gone)
        try:
            response = self._handler.respond(request)
        except Exception as failure:
            response = _failed(request, failure)
        self._reply(request, response)

    def _reply(self, request: Request, response: Response) -> None:
        second = self._now_ns // _NS_PER_SECOND
        stream = response.stream
        keep_alive = request.keep_alive and not response.close and stream is None
        keep_alive = keep_alive and not (self._finishing and not self._requests)
        is_plain = keep_alive and request.version == "1.1" and request.method == "POST"
        if is_plain:
            last = self._last_plain  # within a second all replies to a publisher are the same
            if last is not None and last[0] is response and last[1] == second:
                self._replies.append(last[2])
                return
        if isinstance(response.rest, deque) and response.rest and request.method != "HEAD":
            self._rest = response.rest
            self._closes_after_rest = not keep_alive
        elif stream is None:
            self.closing = self.closing or not keep_alive
        date = http_date(second)
        try:
            reply = encode_response(
                response, date, version=request.version, keep_alive=keep_alive, bodiless=request.method == "HEAD"
            )
        except Exception:
            log.exception("panic in HTTP handler - %s %s", request.method, target_without_secrets(request.target))
            self.closing = True
            self._rest.clear()
            reply = encode_response(INTERNAL_ERROR, date, version=request.version, keep_alive=False)
        else:
            if is_plain:
                self._last_plain = response, second, reply
        self._replies.append(reply)
        if stream is not None:
            self._begin_stream(stream, request)

    def _begin_stream(self, stream: BodyStream, request: Request) -> None:
        has_body = request.method != "HEAD" and not self.closing  # because it could not be encoded
        self._stream, self._is_chunked = stream, has_body and request.version != "1.0"
        self._reader.finished = True
        self._requests.clear()
        self._unread_input = b""
        if not has_body or (stream.is_whole and (self._finishing or self._input_ended)):
            self._end_stream()
        else:
            stream.start(self._wake)

    def _read_stream(self, stream: BodyStream, now: float) -> None:
        data = stream.data_to_send(now)
        if data:
            self._replies.append(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        self.next_wakeup = stream.next_wakeup
        if stream.is_over:
            self._end_stream()

    def _end_stream(self) -> None:
        """Complete the reply if its body is whole, and close."""
        assert self._stream is not None, "there is one to end"
        stream, self._stream = self._stream, None
        stream.close()
        if self._is_chunked and stream.is_whole:
            self._replies.append(_LAST_CHUNK)
        self.closing = True

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
    target = target_without_secrets(request.target)
    log.error("panic in HTTP handler - %s %s", request.method, target, exc_info=failure)
    return INTERNAL_ERROR._replace(close=True)
