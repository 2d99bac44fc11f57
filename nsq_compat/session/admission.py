"""Checks of a command's line, before its body is received or memory is allocated for it, and NSQ's error texts."""

from collections.abc import Sequence

from nsq_compat.log.data_path import reason
from nsq_compat.protocol import commands as table
from nsq_compat.protocol.commands import COMMANDS, CommandSpec, parse_number
from nsq_compat.protocol.errors import (
    E_BAD_CHANNEL,
    E_BAD_TOPIC,
    E_INVALID,
    ClientError,
    FatalClientError,
    quote,
)
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.protocol.schema import MESSAGE_ID_LENGTH


def wrong_state(spec: CommandSpec) -> FatalClientError:
    """The error of a known command that is not allowed in this state."""
    return FatalClientError(E_INVALID, f"cannot {spec.name} in current state")


def tls_missing(name: bytes) -> FatalClientError:
    """The error of a command on a connection without the required TLS."""
    return FatalClientError(E_INVALID, b"cannot " + name + b" in current state (TLS required)")


def bad_name(spec: CommandSpec, code: str, noun: str, name: bytes) -> FatalClientError:
    """The error of an invalid name; `noun` is ``topic`` or ``channel``."""
    # nsqd: only MPUB repeats its code.
    again = f"{code} " if spec is table.MPUB else ""
    return FatalClientError(code, f"{again}{spec.name} {noun} name {quote(name)} is not valid")


def failed(spec: CommandSpec, error: Exception) -> FatalClientError:
    """The error of a command that the queue or the operating system refused."""
    # Of a system error only the reason: clients need not know paths.
    text = reason(error) if isinstance(error, OSError) else str(error)
    return FatalClientError(f"E_{spec.name}_FAILED", f"{spec.name} failed {text}")


def not_in_flight(code: str, name: str, message_id: bytes, why: str) -> ClientError:
    """The error of a FIN, REQ or TOUCH of a message that the client does not have; these are not fatal."""
    return ClientError(code, f"{name} ".encode("ascii") + message_id + f" failed {why}".encode("ascii"))


def check(tokens: Sequence[bytes], state: int, *, heartbeats: bool) -> CommandSpec:
    """The command, if it is allowed in this state and its parameters are valid; checked in nsqd's order.

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
    """A DPUB's delay in seconds. Raises ``FatalClientError`` if it is not a number or beyond the limit."""
    delay_ms = parse_number(tokens[2])
    if delay_ms is None:
        raise FatalClientError(E_INVALID, b"DPUB could not parse timeout " + tokens[2])
    if delay_ms > limit_ms:
        raise FatalClientError(E_INVALID, f"DPUB timeout {delay_ms} out of range 0-{limit_ms}")
    return delay_ms / 1000
