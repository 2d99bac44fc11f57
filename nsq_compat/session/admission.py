"""What can be judged of a command from its line: before its body has come, and before memory is taken for it."""

from collections.abc import Sequence

from nsq_compat.protocol import commands as table
from nsq_compat.protocol.commands import COMMANDS, CommandSpec, parse_number
from nsq_compat.protocol.errors import E_BAD_CHANNEL, E_BAD_TOPIC, E_INVALID, FatalClientError
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.protocol.schema import MESSAGE_ID_LENGTH
from nsq_compat.session.refusals import bad_name, wrong_state


def judge(tokens: Sequence[bytes], state: int, *, heartbeats: bool) -> CommandSpec:
    """Which command it is, where it has its place in this state and its words are as they should be; in nsqd's order.

    Raises ``FatalClientError``.
    """
    spec = COMMANDS.get(tokens[0])
    if spec is None:
        raise FatalClientError(E_INVALID, b"invalid command " + tokens[0])
    if state not in spec.states:
        raise wrong_state(spec)
    if spec is table.SUB and not heartbeats:
        raise FatalClientError(E_INVALID, "cannot SUB with heartbeats disabled")
    if len(tokens) < spec.tokens:
        raise FatalClientError(E_INVALID, f"{spec.name} {spec.missing_params}")
    if spec is table.AUTH and len(tokens) > 1:
        raise FatalClientError(E_INVALID, "AUTH invalid number of parameters")
    if spec.has_topic and not is_valid_name(tokens[1]):
        raise bad_name(spec, E_BAD_TOPIC, "topic", tokens[1])
    if spec.has_channel and not is_valid_name(tokens[2]):
        raise bad_name(spec, E_BAD_CHANNEL, "channel", tokens[2])
    if spec.has_message_id and len(tokens[1]) != MESSAGE_ID_LENGTH:
        raise FatalClientError(E_INVALID, "invalid message ID")
    return spec


def delay_of(tokens: Sequence[bytes], limit_ms: int) -> float:
    """A DPUB's delay in seconds. Raises ``FatalClientError`` for one beyond the limit."""
    delay_ms = parse_number(tokens[2])
    if delay_ms is None:
        raise FatalClientError(E_INVALID, b"DPUB could not parse timeout " + tokens[2])
    if delay_ms > limit_ms:
        raise FatalClientError(E_INVALID, f"DPUB timeout {delay_ms} out of range 0-{limit_ms}")
    return delay_ms / 1000
