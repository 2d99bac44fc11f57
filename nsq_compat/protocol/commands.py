"""The commands of the V2 protocol: their grammar as a table, and the checks of a line that follow from it.

The table says in which states a command is allowed, which parameters it has and which body follows its line. A line is
checked before its body is received or memory is allocated for it. Error texts are NSQ's, including their
inconsistencies, because clients match on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nsq_compat.protocol.errors import (
    E_BAD_BODY,
    E_BAD_CHANNEL,
    E_BAD_MESSAGE,
    E_BAD_TOPIC,
    E_INVALID,
    ClientError,
    FatalClientError,
    quote,
)
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.protocol.schema import MESSAGE_ID_LENGTH

# States of a connection, numbered as in /stats. An enum member takes ten times as long to hash.
INIT: Final = 0
SUBSCRIBED: Final = 3
CLOSING: Final = 4


@dataclass(frozen=True, slots=True)
class BodySpec:
    """The sized body that follows a line.

    `code`, `noun` and `whole` form its error texts. `is_message` selects the limit: `max_msg_size` or `max_body_size`.
    """

    code: str
    noun: str
    whole: str
    is_message: bool
    multiple: bool = False
    may_be_empty: bool = False
    document_limit: int = 0
    """A limit within those of nsqd's options, because it is decoded at once."""
    max_size: int = 0
    """A limit of its own, instead of those of nsqd's options."""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command. `tokens` counts those of its line, with the name. A topic is the second."""

    name: str
    states: frozenset[int]
    tokens: int = 1
    missing_params: str = ""
    has_topic: bool = False
    has_message_id: bool = False
    body: BodySpec | None = None


_ONE_MESSAGE = BodySpec(E_BAD_MESSAGE, "message body", "message", is_message=True)
_MESSAGES = BodySpec(E_BAD_BODY, "body", "body", is_message=False, multiple=True)
_PAYLOADS = BodySpec(E_BAD_BODY, "body", "body", is_message=False)
_SETTINGS = BodySpec(E_BAD_BODY, "body", "body", is_message=False, document_limit=1 << 13)
_SECRET = BodySpec(E_BAD_BODY, "body", "body", is_message=False, document_limit=1 << 15)
_CHANGES = BodySpec(E_BAD_BODY, "body", "body", is_message=False, max_size=1 << 20)

_ANY = frozenset({INIT, SUBSCRIBED, CLOSING})
_INIT = frozenset({INIT})
_CONSUMING = frozenset({SUBSCRIBED, CLOSING})
_PARAMETERS = "insufficient number of parameters"
_PARAMS = "insufficient number of params"

# docs/differences.md: document-size. Decoding 8 KiB of JSON takes up to 0.3 ms.
IDENTIFY: Final = CommandSpec("IDENTIFY", _INIT, body=_SETTINGS)
AUTH: Final = CommandSpec("AUTH", _INIT, body=_SECRET)
SUB: Final = CommandSpec("SUB", _INIT, 3, _PARAMETERS, has_topic=True)
PUB: Final = CommandSpec("PUB", _ANY, 2, _PARAMETERS, has_topic=True, body=_ONE_MESSAGE)
MPUB: Final = CommandSpec("MPUB", _ANY, 2, _PARAMETERS, has_topic=True, body=_MESSAGES)
DPUB: Final = CommandSpec("DPUB", _ANY, 3, _PARAMETERS, has_topic=True, body=_ONE_MESSAGE)
RDY: Final = CommandSpec("RDY", _CONSUMING)
FIN: Final = CommandSpec("FIN", _CONSUMING, 2, _PARAMS, has_message_id=True)
REQ: Final = CommandSpec("REQ", _CONSUMING, 3, _PARAMS, has_message_id=True)
TOUCH: Final = CommandSpec("TOUCH", _CONSUMING, 2, _PARAMS, has_message_id=True)
CLS: Final = CommandSpec("CLS", frozenset({SUBSCRIBED}))
NOP: Final = CommandSpec("NOP", _ANY)
MIRROR: Final = CommandSpec("MIRROR", _INIT, 2, _PARAMETERS, body=_CHANGES)
"""Not in NSQ: see ``protocol.mirror``."""
HPUB: Final = CommandSpec("HPUB", _ANY, 2, _PARAMETERS, has_topic=True, body=_ONE_MESSAGE)
"""Not in NSQ, as the next one: a PUB or, with a delay as third parameter, a DPUB of a message with headers."""
HMPUB: Final = CommandSpec("HMPUB", _ANY, 2, _PARAMETERS, has_topic=True, body=_PAYLOADS)

COMMANDS = {
    spec.name.encode("ascii"): spec
    for spec in (IDENTIFY, AUTH, SUB, PUB, MPUB, DPUB, RDY, FIN, REQ, TOUCH, CLS, NOP, MIRROR, HPUB, HMPUB)
}
"""By name as on the wire; names are case-sensitive."""
WITHOUT_HEADERS: Final = {name: spec for name, spec in COMMANDS.items() if name not in (b"HPUB", b"HMPUB")}
"""Those for clients that did not ask for headers."""

BEYOND_64_BITS: Final = 1 << 64
"""Any number that does not fit 64 bits, and would wrap around in NSQ's nsqd (docs/differences.md: numbers)."""

_MAX_DIGITS: Final = 19


def parse_number(raw: bytes) -> int | None:
    """A decimal parameter: digits only, 0 if empty, ``BEYOND_64_BITS`` if too large, None for anything else."""
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    digits = raw.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _MAX_DIGITS else BEYOND_64_BITS


# --- Checks -----------------------------------------------------------------------------------------------------------


def wrong_state(spec: CommandSpec) -> FatalClientError:
    return FatalClientError(E_INVALID, f"cannot {spec.name} in current state")


def tls_missing(name: bytes) -> FatalClientError:
    return FatalClientError(E_INVALID, b"cannot " + name + b" in current state (TLS required)")


def not_in_flight(spec: CommandSpec, message_id: bytes, why: str) -> ClientError:
    """The error of a FIN, REQ or TOUCH of a message that the client does not have; these are not fatal."""
    return ClientError(f"E_{spec.name}_FAILED", b"%b %b failed %b" % (spec.name.encode(), message_id, why.encode()))


def check(tokens: Sequence[bytes], state: int, *, heartbeats: bool, headers: bool) -> CommandSpec:
    """The command, if it and its parameters are valid in this state. Raises ``FatalClientError``, in nsqd's order.

    `heartbeats` and `headers` say what the client has negotiated.
    """
    spec = (COMMANDS if headers else WITHOUT_HEADERS).get(tokens[0])
    if spec is None:
        raise FatalClientError(E_INVALID, b"invalid command " + tokens[0])
    if state not in spec.states:
        raise wrong_state(spec)
    if spec is SUB and not heartbeats:
        raise FatalClientError(E_INVALID, "cannot SUB with heartbeats disabled")
    if len(tokens) < spec.tokens:
        raise FatalClientError(E_INVALID, f"{spec.name} {spec.missing_params}")
    if spec is AUTH and len(tokens) > 1:
        raise FatalClientError(E_INVALID, "AUTH invalid number of parameters")
    if spec.has_topic and not is_valid_name(tokens[1]):
        again = f"{E_BAD_TOPIC} " if spec is MPUB else ""  # nsqd: only MPUB repeats its code
        raise FatalClientError(E_BAD_TOPIC, f"{again}{spec.name} topic name {quote(tokens[1])} is not valid")
    if spec is SUB and not is_valid_name(tokens[2]):
        raise FatalClientError(E_BAD_CHANNEL, f"{spec.name} channel name {quote(tokens[2])} is not valid")
    if spec.has_message_id and len(tokens[1]) != MESSAGE_ID_LENGTH:
        raise FatalClientError(E_INVALID, "invalid message ID")
    return spec


def delay_of(tokens: Sequence[bytes], limit_ms: int) -> float:
    """The delay of a DPUB or HPUB in seconds. Raises ``FatalClientError`` if it is not a number or beyond the limit."""
    delay_ms = parse_number(tokens[2])
    if delay_ms is None:
        raise FatalClientError(E_INVALID, tokens[0] + b" could not parse timeout " + tokens[2])
    if delay_ms > limit_ms:
        raise FatalClientError(E_INVALID, f"{tokens[0].decode()} timeout {delay_ms} out of range 0-{limit_ms}")
    return delay_ms / 1000
