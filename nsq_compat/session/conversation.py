"""The interface between a connection and its session, which implements a protocol."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from nsq_compat.protocol.compression import Codec

HANDSHAKE_SECONDS = 5.0
"""nsqd: the time a client has for the TLS handshake."""


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """TLS as /stats describes it. `common_name` is that of the client certificate, "" without one.

    `names` are the common names and DNS names of a verified certificate of the other side.
    """

    version: str
    cipher_suite: str
    common_name: str = ""
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Upgrade:
    """The next codec between socket and session, which the connection adds after it has sent all earlier replies.

    `codec` is None for TLS, which the connection creates. `received` are bytes for the new codec. When the codec is in
    place, the connection calls `done` with the facts about TLS and with `now`; on failure, `failed` with the reason.
    """

    codec: Codec | None
    received: bytes
    done: Callable[[TlsFacts | None, float], None]
    failed: Callable[[str], None]


class Conversation:
    """One client's session: it is fed received bytes and asked for bytes to send, and does no I/O.

    The connection sends what `data_to_send` returns, calls it again at `next_wakeup` at the latest, closes the socket
    when `closing` is set and everything is sent, and then calls `closed`.

    One call of `receive_data` does a bounded amount of work for any number of bytes. While `has_unread` is set, the
    connection calls `read_on` instead of feeding more, and other connections run before each call.

    A class and not a ``Protocol``: compiled code then finds its attributes faster, a dozen for every command.
    """

    reads_at_once: ClassVar[bool] = False
    """The connection may call `receive_at_once`."""

    def __init__(self) -> None:
        self.closing = False
        """Nothing more is read; replies that wait are still sent."""
        self.has_more = False
        """There is more to send than `data_to_send` returned; call it again soon."""
        self.has_unread = False
        """Received commands wait for `read_on`."""
        self.awaits_publish = False
        """The last `receive_data` left a publish, and its reply, to the end of the event-loop iteration."""
        self.next_wakeup = float("inf")
        """When to call `data_to_send`, which changes it, even if nothing happens; monotonic seconds."""
        self.upgrade: Upgrade | None = None
        """The next codec to push; until it is in place nothing is sent or received."""
        self._replies: list[bytes] = []
        """Those that `data_to_send` returns next."""

    def receive_data(self, data: bytes, now: float, now_ns: int) -> None:
        """Feed received bytes. `now` is monotonic seconds, `now_ns` nanoseconds since 1970."""
        raise NotImplementedError

    def receive_at_once(self, data: bytes, now: float, now_ns: int) -> bool:
        """Process received bytes as `receive_data` does, if that needs no wait; otherwise return False.

        Then nothing has happened. It is called in the event loop, where nothing may wait.
        """
        return False

    def read_on(self, now: float, now_ns: int) -> None:
        """Execute a bounded number of the waiting commands; only called while `has_unread`."""
        raise NotImplementedError

    def end_of_input(self) -> None:
        """Note that the client sends no more."""
        raise NotImplementedError

    def input_failed(self, reason: str) -> bool:
        """Note that nothing more can be decoded. Returns whether the session has ended and reports the reason."""
        return False

    def data_to_send(self, now: float) -> bytes | list[bytes]:
        """The bytes to send to the client now, large ones in pieces."""
        raise NotImplementedError

    def stalled(self) -> None:
        """Note that the socket accepts no more bytes for now."""

    def closed(self) -> None:
        """Note that the connection is closed. May be called twice."""
        self.closing = True

    def freed(self) -> None:
        """Forget the connection, which calls nothing any more.

        Both are then freed at once. In a cycle they would wait for the garbage collector, which holds up all clients
        when it frees the connections of ten thousands of them.
        """
        self.upgrade = None

    # Properties, because Python looks up attributes faster in an object that has no more than thirty.

    @property
    def write_timeout(self) -> float | None:
        """Seconds that a write may wait for the client to receive bytes; None without a limit."""
        return None

    @property
    def slowest_rate(self) -> float:
        """Bytes per second that extend the write timeout; slower clients use it up."""
        return 1024.0

    @property
    def linger_seconds(self) -> float:
        """How long received bytes are dropped after the last reply, so that the client can read that."""
        return 1.0

    @property
    def lost_level(self) -> int:
        """The log level for a broken connection."""
        return logging.ERROR

    @property
    def owed_replies(self) -> int:
        """The number of bytes of replies that wait to be sent."""
        return sum(map(len, self._replies))
