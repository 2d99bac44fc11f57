"""What a producer sends for a call: the command, after a check of what nsqd would refuse."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.headers import ID, NO_HEADERS, Headers, encode, with_no_headers
from nsq_compat.protocol.names import is_valid_name

_BYTES: Final = frozenset({bytes, bytearray, memoryview})
_A_DICT: Final = "the headers of a message must be a dict"


class Publish(NamedTuple):
    """A command that publishes, and whether it has headers, which not every nsqd takes."""

    command: bytes
    has_headers: bool


class _Payload(bytes):
    """A header block and a body, in a list of bodies."""


def checked(topic: str, bodies: Sequence[bytes], headers: Sequence[Headers], with_ids: bool = False) -> Sequence[bytes]:
    """The bodies, or payloads for those that have headers. Raises ``TypeError`` and ``ValueError``.

    `with_ids`: a message without an id gets one.
    """
    # nsqd would close the connection, which other publishes share.
    if type(topic) is not str:
        _check_type(topic, str, "a topic must be str")
    if not is_valid_name(topic):
        raise ValueError(f"{topic!r} is not a valid topic name")
    if type(bodies) is not list:
        _check_list(bodies, "bodies must be a list of messages")
    if not bodies:
        raise ValueError("bodies is empty: there is no message to publish")
    if not _BYTES.issuperset(map(type, bodies)):
        for body in cast(Sequence[object], bodies):
            how = "body.encode()" if isinstance(body, str) else "json.dumps(body).encode()"
            _check_type(body, (bytes, bytearray, memoryview), f"a message body must be bytes, such as {how}")
    if not all(bodies):
        raise ValueError("an NSQ message cannot be empty")
    if headers and type(headers) is not list:
        _check_list(headers, "headers must be a list with a dict for each message")
    if with_ids:
        headers = [_with_id(each) for each in headers or [NO_HEADERS] * len(bodies)]
    if not headers or not any(headers):
        return bodies
    if len(headers) != len(bodies):
        raise ValueError(f"{len(bodies)} messages cannot have {len(headers)} sets of headers")
    return [_Payload(_block(each) + body) if each else body for body, each in zip(bodies, headers, strict=True)]


def _block(headers: Headers) -> bytes:
    _check_type(headers, Mapping, _A_DICT)
    for name, value in headers.items():
        _check_type(name, str, "the name of a header must be str")
        _check_type(value, str, f"the value of header {name!r:.80} must be str")
    return encode(headers.items())


def _check_list(value: object, rule: str) -> None:
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{rule}, not {type(value).__name__}")
    _check_type(value, Sequence, rule)


def _check_type(value: object, kinds: Any, rule: str) -> None:
    if not isinstance(value, kinds):
        raise TypeError(f"{rule}, not {type(value).__name__}")


def _with_id(headers: Headers) -> Headers:
    _check_type(headers, Mapping, _A_DICT)
    if any(str(name).lower() == ID for name in headers):
        return headers
    return {**headers, ID: os.urandom(16).hex()}  # no counter: a producer may be copied by a fork


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
