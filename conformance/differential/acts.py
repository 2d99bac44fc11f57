"""What happens in a conversation.

An act names its connection by a number; ``TOPIC`` in its bytes stands for a name that is new in every play.
"""

from dataclasses import dataclass
from typing import Final

TOPIC: Final = b"TOPIC"
"""As long as what replaces it, so that a mutated size means the same."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send bytes, then wait for so many replies (messages and heartbeats are none), or for the end."""

    connection: int
    data: bytes
    replies: int = 1


NOBODY: Final = b"0123456789abcdef"
"""The id of no message."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Send bytes of a consumer, and a FIN of no message, whose error shows that what was said before has been heard."""

    connection: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Take:
    """Wait until this many more messages have come."""

    connection: int
    count: int


@dataclass(frozen=True, slots=True)
class Answer:
    """FIN, REQ or TOUCH the message with that body, when it has come; `tail` is what follows the id."""

    connection: int
    verb: bytes
    body: bytes
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class Hang:
    """Send bytes, then nothing more, and read until nsqd closes."""

    connection: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Ask:
    """An HTTP request."""

    method: str
    target: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Rest:
    """Give an nsqd that ends ephemeral things in the background the time to do so."""


@dataclass(frozen=True, slots=True)
class Look:
    """The end: what ``/stats`` says of the topics of the stream, which are then deleted."""


Act = Rest | Look | Say | Sync | Take | Answer | Hang | Ask
