"""What a connection asks of a session, whichever protocol it speaks."""

from typing import Protocol

from nsq_compat.session.upgrade import Upgrade


class Conversation(Protocol):
    """One client, fed with received bytes and asked for bytes to send; see `nsqd_session` for a whole one.

    The shell sends what `data_to_send` returns, comes back at `next_wakeup` at the latest, and closes the socket when
    `closing` is set and everything is sent; then it calls `closed`.
    """

    closing: bool
    """Nothing is read any more; what is owed still goes out."""

    has_more: bool
    """There is more than `data_to_send` gave; ask again soon."""

    @property
    def posted(self) -> object | None:
        """What was received and is answered later in this turn, by a flush of its own; None for nothing."""

    @property
    def upgrade(self) -> Upgrade | None:
        """What is to come between socket and session next; until it is there nothing is sent or received."""

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        """Feed what the socket gave."""

    def end_of_input(self) -> None:
        """The client will send no more."""

    def data_to_send(self, now: float) -> bytes:
        """What the client is to get now; `now` in monotonic seconds."""

    def next_wakeup(self) -> float:
        """When `data_to_send` is to be asked even if nothing happens; monotonic seconds, infinity for never."""

    @property
    def write_timeout(self) -> float | None:
        """How long, in seconds, the client may take nothing of what is sent; None for as long as it likes."""

    @property
    def owed_replies(self) -> int:
        """Bytes of replies that wait to be sent."""

    def stalled(self) -> None:
        """The socket takes no more for now."""

    def closed(self) -> None:
        """The connection is over. May be called twice."""
