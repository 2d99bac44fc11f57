"""The grammar of the V2 protocol as data: which command may come when, with which parameters and which body.

The reader asks the table what follows a line, the session what it has to check. The wording of each complaint is NSQ's,
uneven as it is, because clients and logs hold it.
"""

from dataclasses import dataclass
from typing import Final

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
    shortage: str = ""
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
