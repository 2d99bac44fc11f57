"""Commands as values: what the command reader makes of a client's bytes.

Commands that come in runs are one value for the whole run: a consumer sends hundreds of FINs between two reads, and a
producer may pipeline as many PUBs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nsq_compat.protocol.errors import E_BAD_BODY, E_BAD_MESSAGE

# Where a conversation stands; the numbers are those shown in /stats. Plain numbers, because one is looked up for every
# command and an enum hashes ten times slower.
INIT: Final = 0
SUBSCRIBED: Final = 3
CLOSING: Final = 4


@dataclass(frozen=True, slots=True)
class BodySpec:
    """The sized body behind a line: how its errors are worded, and which limit it has."""

    code: str
    noun: str
    whole: str
    is_message: bool
    multiple: bool = False


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """One command. `tokens` counts the name; names stand at fixed places: the topic first, the channel second."""

    name: str
    states: frozenset[int]
    tokens: int = 1
    missing_params: str = ""
    has_topic: bool = False
    has_channel: bool = False
    has_message_id: bool = False
    body: BodySpec | None = None


_ONE_MESSAGE = BodySpec(E_BAD_MESSAGE, "message body", "message", is_message=True)
_MESSAGES = BodySpec(E_BAD_BODY, "body", "body", is_message=False, multiple=True)
_DOCUMENT = BodySpec(E_BAD_BODY, "body", "body", is_message=False)

_ANY = frozenset({INIT, SUBSCRIBED, CLOSING})
_INIT = frozenset({INIT})
_CONSUMING = frozenset({SUBSCRIBED, CLOSING})
_PARAMETERS = "insufficient number of parameters"
_PARAMS = "insufficient number of params"

IDENTIFY: Final = CommandSpec("IDENTIFY", _INIT, body=_DOCUMENT)
AUTH: Final = CommandSpec("AUTH", _INIT, body=_DOCUMENT)
SUB: Final = CommandSpec("SUB", _INIT, 3, _PARAMETERS, has_topic=True, has_channel=True)
PUB: Final = CommandSpec("PUB", _ANY, 2, _PARAMETERS, has_topic=True, body=_ONE_MESSAGE)
MPUB: Final = CommandSpec("MPUB", _ANY, 2, _PARAMETERS, has_topic=True, body=_MESSAGES)
DPUB: Final = CommandSpec("DPUB", _ANY, 3, _PARAMETERS, has_topic=True, body=_ONE_MESSAGE)
RDY: Final = CommandSpec("RDY", _CONSUMING)
FIN: Final = CommandSpec("FIN", _CONSUMING, 2, _PARAMS, has_message_id=True)
REQ: Final = CommandSpec("REQ", _CONSUMING, 3, _PARAMS, has_message_id=True)
TOUCH: Final = CommandSpec("TOUCH", _CONSUMING, 2, _PARAMS, has_message_id=True)
CLS: Final = CommandSpec("CLS", frozenset({SUBSCRIBED}))
NOP: Final = CommandSpec("NOP", _ANY)

COMMANDS = {
    spec.name.encode("ascii"): spec for spec in (IDENTIFY, AUTH, SUB, PUB, MPUB, DPUB, RDY, FIN, REQ, TOUCH, CLS, NOP)
}
"""By the name as it stands on the wire; names are case-sensitive."""


class Finish(NamedTuple):
    """A run of well-formed ``FIN <id>`` lines; `ids` are the 16 ASCII bytes each."""

    ids: Sequence[bytes]


class Publish:
    """A run of PUBs to one topic, each of which is owed its own reply; or one MPUB, which is owed a single one."""

    # Hot: one is made for every synchronous PUB. Compiled, a dataclass takes eight times the instructions.
    __slots__ = ("bodies", "spec", "tokens")

    def __init__(self, spec: CommandSpec, tokens: list[bytes], bodies: Sequence[bytes]) -> None:
        self.spec = spec
        self.tokens = tokens
        self.bodies = bodies

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Publish):
            return NotImplemented
        return (self.spec, self.tokens, self.bodies) == (other.spec, other.tokens, other.bodies)


class SimpleCommand(NamedTuple):
    """Any other command: its line cut at the spaces, and the sized body behind it where the command has one."""

    spec: CommandSpec
    tokens: list[bytes]
    body: bytes


Command = Finish | Publish | SimpleCommand


BEYOND_64_BITS: Final = 1 << 64
"""Stands for every value that does not fit; too big for every limit (docs/differences.md: numbers)."""

_MAX_DIGITS: Final = 19


def parse_number(raw: bytes) -> int | None:
    """A decimal parameter: digits only, an empty one is 0; None for anything else.

    What does not fit 64 bits becomes ``BEYOND_64_BITS``, where nsqd lets it wrap around.
    """
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    digits = raw.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _MAX_DIGITS else BEYOND_64_BITS
