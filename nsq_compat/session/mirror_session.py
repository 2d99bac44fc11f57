"""A primary's connection to its standby, without I/O: commands and changes of files out, answers in."""

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol, cast

from nsq_compat.log.mirrored_files import Changes
from nsq_compat.protocol.frames import OK
from nsq_compat.protocol.identify import IdentifyRequest
from nsq_compat.protocol.mirror import Change, encode_changes
from nsq_compat.session.client_session import (
    Answered,
    ClientSession,
    Event,
    Failed,
    Opened,
    ProtocolError,
)
from nsq_compat.session.conversation import Conversation, TlsFacts, Upgrade

_BATCH_BYTES: Final = 1 << 18
_WINDOW: Final = 16
"""Unanswered commands with changes."""
_MAX_FRAME: Final = 1 << 28
_SILENT_HEARTBEATS: Final = 3
_ANSWER_SECONDS: Final = 30.0
"""How long a command may take: its file may be large, and its disk slow. A publish waits less, see `nsqd.mirror`."""


class Ended(Exception):
    """The connection has ended; the text says why."""


class Answer(Protocol):
    """What becomes of a command."""

    def set(self, value: bytes) -> None:
        """nsqd's answer."""

    def set_exception(self, error: Exception) -> None:
        """``NsqError``, or ``Ended``."""


class MirrorSession(Conversation):
    """Takes from `changes` once `sends_changes` is set, and calls `on_acknowledged` with the position of each answer.

    `request` has a heartbeat interval. The connection has to be open after `timeout` seconds, and a command that is not
    answered within 30 seconds ends it.
    """

    def __init__(
        self,
        request: IdentifyRequest,
        changes: Changes,
        *,
        auth_secret: bytes,
        wake: Callable[[], None],
        on_acknowledged: Callable[[int], None],
        timeout: float,
        now: float,
    ) -> None:
        super().__init__()
        self.failure = ""
        self.sends_changes = False
        self._changes = changes
        self._unanswered = 0
        self._wake = wake
        self._on_acknowledged = on_acknowledged
        self._client = ClientSession(request, auth_secret=auth_secret, max_frame_size=_MAX_FRAME)
        self._silence = _SILENT_HEARTBEATS * request.heartbeat_interval / 1000
        self._is_open = False
        self._waits_since: float | None = None  # for the answer to the oldest command
        self.next_wakeup = now + timeout

    def ask(self, request: bytes, answer: Answer) -> None:
        """Send a command."""
        if self.closing:
            answer.set_exception(Ended(self.failure))
        else:
            self._client.ask(request, answer)
            self._wake()

    def ask_to_apply(self, changes: Sequence[Change], answer: Answer) -> None:
        """Send changes of a unit that is not live yet."""
        if self.closing:
            answer.set_exception(Ended(self.failure))
        else:
            self._send(changes, answer)
            self._wake()

    def _send(self, changes: Sequence[Change], ticket: object) -> None:
        self._client.ask_in_pieces(encode_changes(changes), ticket)

    def end(self, failure: str) -> None:
        """Close the connection; commands without an answer fail."""
        if not self.closing:
            self.closing = True
            self.failure = failure
            for ticket in self._client.unanswered:
                if not isinstance(ticket, int):
                    cast(Answer, ticket).set_exception(Ended(failure))

    # --- Called by the connection -------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        if self.closing:
            return
        if self._take_oks(data):
            self.next_wakeup = now + self._silence
            return
        try:
            for event in self._client.receive_data(data):
                self._on_event(event)
        except ProtocolError as error:
            self.end(str(error))
            return
        if self._is_open:
            self.next_wakeup = now + self._silence
        if self._client.tls_wanted and self.upgrade is None:
            self.upgrade = Upgrade(None, b"", self._secured, self.end)

    def _take_oks(self, data: bytes) -> bool:
        """Whether the bytes are answers to changes, and nothing else, which take effect together then."""
        # Hot: runs for every group of publishes.
        client = self._client
        count, tickets, position = len(data) // len(OK), client.unanswered, 0
        if data != (OK if count == 1 else OK * count) or count > client.answers_due or not client.is_between_answers:
            return False
        for ticket in islice(tickets, count):
            if not isinstance(ticket, int):
                return False
            position = ticket
        for _ in range(count):
            tickets.popleft()
        self._waits_since = None
        self._acknowledged(count, position)
        return True

    def _acknowledged(self, count: int, position: int) -> None:
        self._unanswered -= count
        self._on_acknowledged(position)
        if self._changes.has_pending:
            self._wake()  # there is room for more

    def end_of_input(self) -> None:
        self.end("closed by nsqd")

    def data_to_send(self, now: float) -> bytes:
        if now >= self.next_wakeup:
            self.end("no sign of life" if self._is_open else "no answer; is this nsqd's TCP port?")
        self._end_if_unanswered(now)
        client = self._client
        if self.sends_changes and not self.closing:
            changes = self._changes
            while self._unanswered < _WINDOW and changes.has_pending:
                self._unanswered += 1
                self._send(changes.take(_BATCH_BYTES), changes.position_taken)
        return client.data_to_send()

    def closed(self) -> None:
        self.end("closed")

    def _end_if_unanswered(self, now: float) -> None:
        """Called once a second at least, because heartbeats arrive. A standby may answer these and nothing else."""
        if not self._client.unanswered or not self._is_open:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since > _ANSWER_SECONDS:
            self.end(f"a command has no answer after {_ANSWER_SECONDS:g} s")

    def _secured(self, facts: TlsFacts | None, now: float) -> None:
        self.upgrade = None
        self._client.tls_established()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Answered):
            ticket = event.ticket
            self._waits_since = None
            if isinstance(ticket, int):
                self._acknowledged(1, ticket)
            else:
                cast(Answer, ticket).set(event.data)
        elif isinstance(event, Failed):
            if event.ticket is not None and not isinstance(event.ticket, int):
                cast(Answer, event.ticket).set_exception(event.error)
            self.end(str(event.error))
        elif isinstance(event, Opened):
            self._is_open = True

    @property
    def write_timeout(self) -> float | None:
        return self._silence

    @property
    def linger_seconds(self) -> float:
        return 0.0  # there is no reply that the standby should read

    @property
    def lost_level(self) -> int:
        return logging.DEBUG  # `nsqd.mirror` logs why the connection ended
