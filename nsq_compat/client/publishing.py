"""What a producer sends for a call: the command, after a check of what nsqd would refuse."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from nsq_compat.client.link import Link
from nsq_compat.client.settings import check_number
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.frames import NO_WINDOW
from nsq_compat.protocol.headers import ID, NO_HEADERS, HeaderError, Headers, body_begin, encode, with_no_headers
from nsq_compat.protocol.names import is_valid_name

log: Final = logging.getLogger(__name__)

_BYTES: Final = frozenset({bytes})
_MAX_LINE: Final = 128
"""Bytes of a command that contain its topic."""
_A_DICT: Final = "the headers of a message must be a dict"


class Publish(NamedTuple):
    """A command that publishes, and whether it has headers, which not every nsqd takes."""

    command: bytes
    has_headers: bool
    plain: Callable[[], bytes] | None = None
    """The same without headers, if only the client itself has added some."""

    def command_for(self, link: Link) -> bytes | None:
        """The command for this nsqd; None if it does not take the message."""
        if not self.has_headers or link.has_headers:
            return self.command
        if self.plain is None:
            return None
        _note_lost_contexts(link.address)
        return self.plain()


class _Payload(bytes):
    """A header block and a body, in a list of bodies."""


class _Optional(bytes):
    """A payload that has only headers that the client itself has added."""


def checked(
    topic: str,
    bodies: Sequence[bytes],
    headers: Sequence[Headers],
    with_ids: bool = False,
    added: Headers = NO_HEADERS,
) -> Sequence[bytes]:
    """The bodies, or payloads for those that have headers. Raises ``TypeError`` and ``ValueError``.

    `with_ids`: a message without an id gets one. Messages get the headers `added`, too; one that has any of them
    itself, or that has no room, keeps its own.
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
        bodies = [_as_bytes(body) for body in cast(Sequence[object], bodies)]
    if not all(bodies):
        raise ValueError("an NSQ message cannot be empty")
    if headers and type(headers) is not list:
        _check_list(headers, "headers must be a list with a dict for each message")
    if with_ids:
        headers = [_with_id(each) for each in headers or [NO_HEADERS] * len(bodies)]
    if not headers or not any(headers):
        block = _block_if_valid(added)
        return [_Optional(block + body) for body in bodies] if block else bodies
    if len(headers) != len(bodies):
        raise ValueError(f"{len(bodies)} messages cannot have {len(headers)} sets of headers")
    return [_payload(body, each, added) for body, each in zip(bodies, headers, strict=True)]


def _as_bytes(body: object) -> bytes:
    """The body, copied if it is a buffer that may change while the message waits."""
    how = "body.encode()" if isinstance(body, str) else "json.dumps(body).encode()"
    _check_type(body, (bytes, bytearray, memoryview), f"a message body must be bytes, such as {how}")
    return body if isinstance(body, bytes) else bytes(cast(bytearray, body))


def _payload(body: bytes, own: Headers, added: Headers) -> bytes:
    if not own:
        block = _block_if_valid(added)
        return _Optional(block + body) if block else body
    block = _block(own)
    if added and not any(name.lower() in added for name in own):
        block = _block_if_valid({**own, **added}) or block
    return _Payload(block + body)


def _block(headers: Headers) -> bytes:
    _check_type(headers, Mapping, _A_DICT)
    for name, value in headers.items():
        _check_type(name, str, "the name of a header must be str")
        _check_type(value, str, f"the value of header {name!r:.80} must be str")
    return encode(headers.items())


def _block_if_valid(headers: Headers) -> bytes:
    """The block of headers that the program did not give; empty without any, or if they break a rule or a limit."""
    try:
        return encode(headers.items()) if headers else b""
    except HeaderError:
        return b""


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
    """PUB, DPUB or MPUB, or with headers HPUB or HMPUB, of checked bodies; only a single one can be deferred.

    Raises ``TypeError`` for a `defer` that is not a number.
    """
    if defer:
        check_number("defer", defer)
    kinds = set(map(type, bodies))
    if _Payload in kinds or _Optional in kinds:
        plain = None if _Payload in kinds else lambda: _command(topic, list(map(_without_headers, bodies)), defer)
        payloads = [body if type(body) in (_Payload, _Optional) else with_no_headers(body) for body in bodies]
        if len(payloads) == 1:
            return Publish(command_writer.publish_with_headers(topic, payloads[0], int(defer * 1000)), True, plain)
        return Publish(command_writer.publish_many_with_headers(topic, payloads), True, plain)
    return Publish(_command(topic, bodies, defer), False)


def _command(topic: str, bodies: Sequence[bytes], defer: float) -> bytes:
    if defer:
        (body,) = bodies
        return command_writer.publish_deferred(topic, body, int(defer * 1000))
    if len(bodies) == 1:
        return command_writer.publish(topic, bodies[0])
    return command_writer.publish_many(topic, bodies)


def _without_headers(body: bytes) -> bytes:
    return body[body_begin(body, 0) :] if type(body) is _Optional else body


def note_answer(publish: Publish, address: str, answer: bytes) -> None:
    """Warn if nsqd has published messages with ids at a topic where they have no effect."""
    if answer == NO_WINDOW:
        _note_no_window(address, publish.command[:_MAX_LINE].split(maxsplit=2)[1].decode("ascii"))


@lru_cache(maxsize=1024)  # once for each topic of each nsqd
def _note_no_window(address: str, topic: str) -> None:
    log.warning(
        "[%s] no policy sets dedup_window for the topic %s: if a publish is repeated, its messages may be there twice",
        address,
        topic,
    )


@lru_cache(maxsize=1024)  # once for each nsqd
def _note_lost_contexts(address: str) -> None:
    log.warning("[%s] takes no headers: messages are published there without the context of their traces", address)
