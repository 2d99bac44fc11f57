"""Messages that wait in a channel, or were published last, looked at without taking them. Only our nsqd shows them."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nsq_compat.cluster import reading
from nsq_compat.cluster.fan_out import tell_all
from nsq_compat.cluster.http_client import HttpClient, UpstreamError
from nsq_compat.cluster.reading import BadAnswer

_NO_SUCH_PATH: Final = r"{\"message\":\"NOT_FOUND\"}"


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    timestamp: float
    """Unix seconds."""
    attempts: int
    body: bytes
    size: int
    """Of the whole body, of which `body` may be the beginning."""
    until: float | None = None
    """Unix seconds: when a deferred one may be delivered, or the time for one in flight is over."""

    @property
    def text(self) -> str | None:
        """None for a body that is not text."""
        try:
            text = self.body.decode("utf-8")
        except UnicodeDecodeError as error:
            # The end may be cut off within a character.
            if error.start < len(self.body) - 3 or self.size == len(self.body):
                return None
            text = self.body[: error.start].decode("utf-8")
        return text if all(character.isprintable() or character in "\t\r\n" for character in text) else None


@dataclass(frozen=True, slots=True)
class Look:
    node: str
    messages: tuple[Message, ...] = ()
    deferred: tuple[Message, ...] = ()
    in_flight: tuple[Message, ...] = ()
    error: str = ""
    able: bool = True
    """False: this nsqd has no way to show messages."""


def peek(client: HttpClient, nodes: Sequence[str], topic: str, channel: str, limit: int) -> list[Look]:
    """What each node's channel would give next, and what it holds besides. Raises nothing."""
    return _look(client, nodes, "channel/peek", topic=topic, channel=channel, limit=str(limit))


def recent(client: HttpClient, nodes: Sequence[str], topic: str, limit: int) -> list[Look]:
    """What was published to each node last, oldest first. Raises nothing."""
    return _look(client, nodes, "topic/recent", topic=topic, limit=str(limit))


def _look(client: HttpClient, nodes: Sequence[str], path: str, **parameters: str) -> list[Look]:
    def look(node: str) -> Look:
        try:
            answer = reading.mapping(client.get(node, path, **parameters))
            waiting, deferred, in_flight = (
                tuple(reading.each(_read, answer.get(key))) for key in ("messages", "deferred", "in_flight")
            )
            return Look(node, waiting, deferred, in_flight)
        except (UpstreamError, BadAnswer) as error:
            # Go's nsqd knows no such path; ours would say what is missing.
            return Look(node, error=str(error), able=_NO_SUCH_PATH not in str(error))

    answer = tell_all(nodes, look, client.timeout)
    seen = dict(answer.value)
    return [seen.get(node, Look(node, error="timeout")) for node in nodes]


def _read(value: object) -> Message:
    fields = reading.mapping(value)
    try:
        body = base64.b64decode(reading.text(fields.get("body")), validate=True)
    except (binascii.Error, ValueError):
        raise BadAnswer("invalid answer: a body that is not base64") from None
    until = fields.get("due") or fields.get("deadline")
    return Message(
        id=reading.text(fields.get("id")),
        timestamp=reading.integer(fields.get("timestamp")) / 1e9,
        attempts=reading.integer(fields.get("attempts")),
        body=body,
        size=reading.integer(fields.get("size")),
        until=reading.integer(until) / 1e9 if until else None,
    )
