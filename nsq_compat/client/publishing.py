"""What a producer sends for a call: the command, after a check of what nsqd would refuse."""

from collections.abc import Sequence
from typing import NamedTuple

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.headers import Headers, encode, with_no_headers
from nsq_compat.protocol.names import is_valid_name


class Publish(NamedTuple):
    """A command that publishes, and whether it has headers, which not every nsqd takes."""

    command: bytes
    has_headers: bool


class _Payload(bytes):
    """A header block and a body, in a list of bodies."""


def checked(topic: str, bodies: Sequence[bytes], headers: Sequence[Headers]) -> Sequence[bytes]:
    """The bodies, or payloads for those that have headers. Raises ``ValueError``."""
    # nsqd would close the connection, which other publishes share.
    if not is_valid_name(topic):
        raise ValueError(f"{topic!r} is not a valid topic name")
    if not bodies or not all(bodies):
        raise ValueError("an NSQ message cannot be empty")
    if not any(headers):
        return bodies
    if len(headers) != len(bodies):
        raise ValueError(f"{len(bodies)} messages cannot have {len(headers)} sets of headers")
    return [_Payload(encode(each.items()) + body) if each else body for body, each in zip(bodies, headers, strict=True)]


def publish_of(topic: str, bodies: Sequence[bytes], defer: float) -> Publish:
    """PUB, DPUB or MPUB, or with headers HPUB or HMPUB, of checked bodies; only a single one can be deferred."""
    delay_ms = int(defer * 1000)
    if any(type(body) is _Payload for body in bodies):
        payloads = [body if isinstance(body, _Payload) else with_no_headers(body) for body in bodies]
        if len(payloads) == 1:
            return Publish(command_writer.publish_with_headers(topic, payloads[0], delay_ms), True)
        return Publish(command_writer.publish_many_with_headers(topic, payloads), True)
    if defer:
        (body,) = bodies
        return Publish(command_writer.publish_deferred(topic, body, delay_ms), False)
    if len(bodies) == 1:
        return Publish(command_writer.publish(topic, bodies[0]), False)
    return Publish(command_writer.publish_many(topic, bodies), False)
