"""What a connection asks of a session, whichever protocol it speaks."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from nsq_compat.protocol.compression import Codec

HANDSHAKE_SECONDS = 5.0
"""nsqd: how long a client may take to shake hands."""


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What is known of a TLS connection, in NSQ's words. `common_name` is the client certificate's, "" without one."""

    version: str
    cipher_suite: str
    common_name: str = ""


@dataclass(slots=True)
class Upgrade:
    """The next layer, for the shell to put on as soon as everything so far is sent.

    `codec` is None for TLS, which is the shell's to make. `received` are bytes that have come for the new layer
    already. When it is in place the shell calls `done` with what is known of TLS and with `now`; if it cannot be,
    `failed` with the reason.
    """

    codec: Codec | None
    received: bytes
    done: Callable[[TlsFacts | None, float], None]
    failed: Callable[[str], None]


class Conversation:
    """One client, fed with received bytes and asked for bytes to send; see `nsqd_session` for a whole one.

    The shell sends what `data_to_send` returns, comes back at `next_wakeup` at the latest, and closes the socket when
    `closing` is set and everything is sent; then it calls `closed`.

    One call of `receive_data` does a bounded amount of work, however much it is given. While `has_unread` is set the
    shell calls `read_on` instead of reading from the socket, and lets others run before each call.

    A class and no ``Protocol``, because a connection asks a dozen things for every command: compiled, it knows where
    they are.
    """

    def __init__(self) -> None:
        self.closing = False
        """Nothing is read any more; what is owed still goes out."""
        self.has_more = False
        """There is more than `data_to_send` gave; ask again soon."""
        self.has_unread = False
        """Commands that were received wait to be executed: call `read_on` until none do, and feed nothing before."""
        self.upgrade: Upgrade | None = None
        """What is to come between socket and session next; until it is there nothing is sent or received."""

    @property
    def posted(self) -> object | None:
        """What was received and is answered later in this turn, by a flush of its own; None for nothing."""
        return None

    @property
    def amid_command(self) -> bool:
        """Whether what was received ends with a part of a command."""
        return False

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        """Feed what the socket gave."""
        raise NotImplementedError

    def read_on(self, now: float, now_ns: int) -> None:
        """Execute a bounded number of the commands that wait; only called while `has_unread`."""
        raise NotImplementedError

    def end_of_input(self) -> None:
        """The client will send no more."""
        raise NotImplementedError

    def data_to_send(self, now: float) -> bytes:
        """What the client is to get now; `now` in monotonic seconds."""
        raise NotImplementedError

    def next_wakeup(self) -> float:
        """When `data_to_send` is to be asked even if nothing happens; monotonic seconds, infinity for never."""
        raise NotImplementedError

    @property
    def write_timeout(self) -> float | None:
        """How long, in seconds, the client may take nothing of what is sent; None for as long as it likes."""
        return None

    # Properties, because Python looks up attributes faster in an object that has no more than thirty.

    @property
    def slowest_rate(self) -> float:
        """Bytes per second; slower clients use up their write timeout."""
        return 1024.0

    @property
    def linger_seconds(self) -> float:
        """How long what the client still sends after the last reply is dropped, so that it gets to read that reply."""
        return 1.0

    @property
    def lost_level(self) -> int:
        """The level at which a connection that breaks is logged."""
        return logging.ERROR

    @property
    def owed_replies(self) -> int:
        """Bytes of replies that wait to be sent."""
        return 0

    def stalled(self) -> None:
        """The socket takes no more for now."""

    def closed(self) -> None:
        """The connection is over. May be called twice."""
