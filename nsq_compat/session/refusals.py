"""What a client hears when it may not have what it asked for: errors in NSQ's words, made of their parts."""

from nsq_compat.log.data_path import reason
from nsq_compat.protocol import commands as table
from nsq_compat.protocol.commands import CommandSpec
from nsq_compat.protocol.errors import E_INVALID, ClientError, FatalClientError, quote


def wrong_state(spec: CommandSpec) -> FatalClientError:
    """The command exists, and has no place here."""
    return FatalClientError(E_INVALID, f"cannot {spec.name} in current state")


def tls_missing(name: bytes) -> FatalClientError:
    """TLS is required, and the connection has none yet."""
    return FatalClientError(E_INVALID, b"cannot " + name + b" in current state (TLS required)")


def bad_name(spec: CommandSpec, code: str, noun: str, name: bytes) -> FatalClientError:
    """`noun` is ``topic`` or ``channel``."""
    # nsqd: MPUB alone says its code twice.
    again = f"{code} " if spec is table.MPUB else ""
    return FatalClientError(code, f"{again}{spec.name} {noun} name {quote(name)} is not valid")


def failed(spec: CommandSpec, error: Exception) -> FatalClientError:
    """The queue refused, or the system did."""
    # Of what the system refused the reason alone: clients need not know paths.
    text = reason(error) if isinstance(error, OSError) else str(error)
    return FatalClientError(f"E_{spec.name}_FAILED", f"{spec.name} failed {text}")


def not_in_flight(code: str, name: str, message_id: bytes, why: str) -> ClientError:
    """FIN, REQ and TOUCH of a message the client does not have; these alone are not fatal."""
    return ClientError(code, f"{name} ".encode("ascii") + message_id + f" failed {why}".encode("ascii"))
