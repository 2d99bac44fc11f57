"""An HTTP client, and how much of an answer has arrived there; for ``tools.http_consumers.ack_http``."""

from collections import deque
from collections.abc import Callable
from typing import Final

from nsq_compat.queue.schedule import NEVER
from nsq_compat.session.http_message import Admission, HttpLimits, Request, Response
from nsq_compat.session.http_session import CONTINUE, FIRST_BYTES, NEXT_BYTES, HttpConversation

MAX_REQUESTS_AHEAD: Final = 8
"""Requests that the client of an ``AckSession`` may send ahead of their answers."""


class AckSession(HttpConversation):
    """One client, from accept to close.

    For programs that must know what of an answer has arrived (`tools.http_consumers.ack_http`). Requests are queued,
    also while one is answered, so that the handler learns at once that its client has left or sent something else.
    `notify` is called whenever one of the attributes has changed.
    """

    def __init__(
        self,
        admit: Callable[[Request], Admission],
        limits: HttpLimits,
        remote_address: str,
        notify: Callable[[], object],
        now: float,
    ) -> None:
        super().__init__(admit, limits, remote_address, now)
        self.requests: deque[Request | Response] = deque()
        """To be answered, in order; a response is a refusal, and the last item."""
        self.read_count = 0
        self.sent = 0
        """Bytes, counted by the handler as well."""
        self.is_gone = False
        """The client sends no more, or the connection broke."""
        self.is_broken = False
        """The connection broke: bytes that the client had not acknowledged by then are lost."""
        self.is_answering = False
        self._notify = notify
        self.next_wakeup = self._deadline()

    @property
    def expects_requests(self) -> bool:
        return not (self.is_gone or self._reader.finished)

    def answered(self, now: float) -> None:
        """The handler has answered a request."""
        self.is_answering = False
        self._phase_began = now
        self.next_wakeup = self._deadline()

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        if self.closing:
            return
        self.read_count += 1
        self._read(self._unread_input + data, FIRST_BYTES, now)

    def read_on(self, now: float, now_ns: int) -> None:
        self._read(self._unread_input, NEXT_BYTES, now)

    def _read(self, data: bytes, size: int, now: float) -> None:
        reader = self._reader
        phase = reader.phase
        self.requests.extend(reader.receive_data(self._part_to_read(data, size)))
        if len(self.requests) > MAX_REQUESTS_AHEAD:
            raise ConnectionError("too many requests ahead of their answers")
        self.has_unread = bool(self._unread_input) and not (reader.finished or self.closing)
        if reader.phase is not phase:
            self._phase_began = now
        self.next_wakeup = self._deadline()
        self._notify()

    def end_of_input(self) -> None:
        self.is_gone = True
        self._notify()

    def data_to_send(self, now: float) -> bytes:
        """Only ``100 Continue``, when the handler does not write."""
        self.next_wakeup = self._deadline()
        if now >= self.next_wakeup:
            self.closing = True
        if self.is_answering or self.requests or not self._reader.owes_continue:
            return b""
        self._reader.expects_continue = False
        self.sent += len(CONTINUE)
        return CONTINUE

    def _deadline(self) -> float:
        return NEVER if self.is_answering or self.requests else self._phase_deadline()

    def closed(self) -> None:
        self.is_gone = True
        self.has_unread = False
        self._unread_input = b""
        self.requests.clear()  # with bodies of megabytes; this object may be in a cycle for hours
        self.is_broken = self.is_broken or not self.closing
        super().closed()
        self._notify()
