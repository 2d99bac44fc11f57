"""The reading half of an HTTP conversation whose handler writes its answers to the socket by itself.

For programs that must know what of an answer has arrived (`tools.http_consumers.ack_http`). Requests are queued, also
while one is answered, so that the handler learns at once that its client has left or sent something else.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from nsq_compat.queue.in_flight import NEVER
from nsq_compat.session.conversation import Conversation
from nsq_compat.session.http_message import Admission, HttpLimits, Phase, Request, RequestReader, Response

MAX_REQUESTS_AHEAD: Final = 8
"""Requests that one client may send ahead of their answers."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class AckSession(Conversation):
    """One client, from accept to close. `notify` is called whenever one of the attributes has changed."""

    def __init__(
        self,
        admit: Callable[[str, str], Admission],
        limits: HttpLimits,
        remote_address: str,
        notify: Callable[[], object],
        now: float,
    ) -> None:
        super().__init__()
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
        self._limits = limits
        self._notify = notify
        self._reader = RequestReader(admit, limits, remote_address)
        self._phase_began = now
        self._is_closed = False
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
        reader = self._reader
        phase = reader.phase
        self.read_count += 1
        self.requests.extend(reader.receive_data(data))
        if len(self.requests) > MAX_REQUESTS_AHEAD:
            raise ConnectionError("too many requests ahead of their answers")
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
        self._reader.continue_sent()
        self.sent += len(_CONTINUE)
        return _CONTINUE

    def _deadline(self) -> float:
        if self.is_answering or self.requests:
            return NEVER
        limits, phase = self._limits, self._reader.phase
        if phase is Phase.BODY:
            allowed = limits.body_seconds + self._reader.body_size / limits.slowest_rate
        else:
            allowed = limits.idle_seconds if phase is Phase.IDLE else limits.head_seconds
        return self._phase_began + allowed

    @property
    def linger_seconds(self) -> float:
        return self._limits.linger_seconds

    @property
    def lost_level(self) -> int:
        return logging.DEBUG

    def closed(self) -> None:
        self.is_gone = True
        self.is_broken = self.is_broken or not self.closing
        self.closing = True
        if not self._is_closed:
            self._is_closed = True
            self._reader.close()
        self._notify()
