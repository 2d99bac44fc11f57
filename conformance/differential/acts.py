"""The acts of a session.

An act identifies its connection by a number. ``TOPIC`` in its bytes is replaced by a new name in every play.
"""

from dataclasses import dataclass
from typing import Final

TOPIC: Final = b"TOPIC"
"""As long as its replacements, so that sizes in a stream stay valid."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send bytes, then wait for this number of replies (not messages or heartbeats), or EOF."""

    connection: int
    data: bytes
    replies: int = 1


UNKNOWN_ID: Final = b"0123456789abcdef"
"""An id that no message has."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Send bytes of a consumer, and a FIN with an unknown id: its error shows that earlier commands were executed."""

    connection: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Take:
    """Wait for this number of further messages."""

    connection: int
    count: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Wait for the message with this body and FIN, REQ or TOUCH it; `tail` follows the id."""

    connection: int
    verb: bytes
    body: bytes
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Send bytes, shut down sending, and read until nsqd closes."""

    connection: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request."""

    method: str
    target: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait, because nsqd may delete ephemeral topics and channels in the background."""


@dataclass(frozen=True, slots=True)
class ReadStats:
    """The last act: read ``/stats`` of the stream's topics."""


Act = Wait | ReadStats | Send | Sync | Take | Answer | ShutDown | Request
