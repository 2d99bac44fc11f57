"""The commands of the V2 protocol: their grammar as a table, and the values that the command reader makes of them.

The table says in which states a command is allowed, which parameters it has and which body follows its line. Error
texts are NSQ's, including their inconsistencies, because clients match on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nsq_compat.protocol.errors import E_BAD_BODY, E_BAD_MESSAGE

# States of a connection, numbered as in /stats. Integers, because every command looks one up, and an enum member takes
# ten times as long to hash.
INIT: Final = 0
SUBSCRIBED: Final = 3
CLOSING: Final = 4


@dataclass(frozen=True, slots=True)
class BodySpec:
    """The sized body that follows a line.

    `code`, `noun` and `whole` word its errors ("invalid {noun} size", "{whole} too big"). `is_message` selects the
    limit: --max-msg-size or --max-body-size.
    """

    code: str
    noun: str
    whole: str
    is_message: bool
    multiple: bool = False


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command. `tokens` is the number of tokens in its line, including the name. A topic is the second, a channel the
    third."""

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
"""By name as on the wire; names are case-sensitive."""


class Finish(NamedTuple):
    """Consecutive well-formed ``FIN <id>`` lines. `ids` are 16 bytes each."""

    ids: Sequence[bytes]


class Publish:
    """Consecutive PUBs to one topic, each with a reply of its own; or one MPUB, with a single reply."""

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
    """Any other command: its line, split at the spaces, and its sized body, if it has one."""

    spec: CommandSpec
    tokens: list[bytes]
    body: bytes


Command = Finish | Publish | SimpleCommand

BEYOND_64_BITS: Final = 1 << 64
"""Any number that does not fit 64 bits; larger than every limit (docs/differences.md: numbers)."""

_MAX_DIGITS: Final = 19


def parse_number(raw: bytes) -> int | None:
    """A decimal parameter: digits only, 0 if empty, None for anything else.

    A number that does not fit 64 bits becomes ``BEYOND_64_BITS``; in NSQ's nsqd it wraps around.
    """
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    digits = raw.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _MAX_DIGITS else BEYOND_64_BITS
