"""Messages of a topic or channel, without delivering them, and actions on them. Only our nsqd supports it; Go's answers
404.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nsq_compat.cluster import reading
from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.http_client import HttpClient, call_all, explained
from nsq_compat.cluster.reading import InvalidAnswer, UpstreamError
from nsq_compat.cluster.stats import ClientStats, Key

MAX_CHANNELS: Final = 10
"""Channels that are queried for their oldest message."""
MAX_NODES: Final = 5
"""Nodes queried for each of these channels."""
_NO_SUCH_PATH: Final = r"{\"message\":\"NOT_FOUND\"}"


@dataclass(frozen=True, slots=True)
class Message:
    id: str = ""
    timestamp: float = 0.0
    """Unix seconds."""
    attempts: int = 0
    body: bytes = b""
    """The first bytes of the body."""
    size: int = 0
    """Of the complete body."""
    until: float | None = None
    """Unix seconds when a deferred message is due, or a message in flight times out."""
    offset: int | None = None
    """Its number on its node; None if it is not in the log, or if nsqd does not tell."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names and values."""
    segment: int | None = None
    """The number of its segment in the log, if nsqd was asked for this message alone."""

    @property
    def text(self) -> str | None:
        """None if the body is not text."""
        try:
            text = self.body.decode("utf-8")
        except UnicodeDecodeError as error:
            # The body may be cut off within a character.
            if error.start < len(self.body) - 3 or self.size == len(self.body):
                return None
            text = self.body[: error.start].decode("utf-8")
        return text if all(character.isprintable() or character in "\t\r\n" for character in text) else None


@dataclass(frozen=True, slots=True)
class Peek:
    """The messages of one node, or its error."""

    node: str
    messages: tuple[Message, ...] = ()
    deferred: tuple[Message, ...] = ()
    in_flight: tuple[Message, ...] = ()
    error: str = ""
    supported: bool = True
    """False if this nsqd cannot show messages."""


def peek(client: HttpClient, nodes: Sequence[str], limit: int, topic: str, channel: str = "") -> list[Peek]:
    """The messages of a channel that each node delivers next, and those deferred and in flight.

    Without a channel, those published to the topic last, oldest first. Never raises.
    """
    path = "channel/peek" if channel else "topic/recent"
    names = {"topic": topic, "channel": channel} if channel else {"topic": topic}

    def query(node: str) -> Peek:
        answer = reading.mapping(client.get(node, path, **names, limit=str(limit)))
        waiting, deferred, in_flight = (
            tuple(reading.array(_read_message, answer.get(key))) for key in ("messages", "deferred", "in_flight")
        )
        return Peek(node, waiting, deferred, in_flight)

    answer = call_all(nodes, query, client.timeout)
    found = dict(answer.value)
    for node, error in zip(answer.unreachable, answer.errors, strict=True):
        # Go's nsqd does not have the path; ours would name the missing topic or channel.
        found[node] = Peek(node, error=error.removeprefix(f"{node}: "), supported=_NO_SUCH_PATH not in error)
    return [found[node] for node in nodes]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a node did with the messages of an action."""

    done: int = 0
    not_found: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    """Those that the dead-letter topic has refused for now; nsqd tries again."""
    topic: str = ""
    """The dead-letter topic."""
    error: str = ""


DONE: Final[Mapping[str, str]] = {"finish": "finished", "requeue": "requeued", "dead_letter": "dead_lettered"}
"""The actions on messages, and the name of their count in an answer."""


def act_on_messages(
    client: HttpClient, node: str, action: str, topic: str, channel: str, ids: Sequence[str], delay_ms: int = 0
) -> Outcome:
    """Perform an action of ``DONE`` on messages of a channel. Raises ``UpstreamError``."""
    parameters = {"topic": topic, "channel": channel} | ({"delay": str(delay_ms)} if delay_ms else {})
    answer = client.post_for_answer(node, f"channel/{action}", parameters, "\n".join(ids).encode("utf-8", "replace"))
    fields = reading.mapping(answer)
    return Outcome(
        reading.integer(fields.get(DONE[action])),
        tuple(reading.array(reading.text, fields.get("not_found"))),
        tuple(reading.array(reading.text, fields.get("pending"))),
        reading.text(fields.get("topic")),
        reading.text(fields.get("error")),
    )


def redrive(client: HttpClient, node: str, topic: str, channel: str, to: str, limit: int) -> tuple[int, int]:
    """Move the next messages to another topic of the node; returns their number, and that of those left.

    Raises ``UpstreamError``.
    """
    parameters = {"topic": topic, "channel": channel, "to": to, "limit": str(limit)}
    answer = reading.mapping(client.post_for_answer(node, "channel/redrive", parameters))
    return reading.integer(answer.get("moved")), reading.integer(answer.get("depth"))


def oldest_messages(client: HttpClient, snapshot: Snapshot) -> Mapping[Key, float]:
    """The times, in Unix seconds, at which the next messages of the deepest channels were published. Never raises.

    /stats does not contain it, and peeks at all channels would cost the nodes too much.
    """
    waiting = [channel for topic in snapshot.topics for channel in topic.channels if channel.depth]
    # Channels without consumers have the oldest messages.
    waiting.sort(key=lambda channel: (channel.client_count > 0, -channel.depth))
    found = {}
    for channel in waiting[:MAX_CHANNELS]:
        deepest = sorted((part for part in channel.nodes if part.depth), key=lambda part: -part.depth)
        peeks = peek(client, [part.node for part in deepest[:MAX_NODES]], 1, *channel.key)
        published = [message.timestamp for each in peeks for message in each.messages]
        if published:
            found[channel.key] = min(published)
    return found


def _read_message(value: object) -> Message:
    fields = reading.mapping(value)
    try:
        body = base64.b64decode(reading.text(fields.get("body")), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidAnswer("invalid answer: a body that is not base64") from None
    offset, segment = (
        None if fields.get(name) is None else reading.integer(fields[name]) for name in ("offset", "segment")
    )
    return reading.record(
        Message,
        fields,
        timestamp=reading.integer(fields.get("timestamp")) / 1e9,
        body=body,
        until=_seconds(fields.get("due") or fields.get("deadline")),
        offset=offset,
        segment=segment,
        headers=tuple(
            (reading.text(name), reading.text(value)) for name, value in reading.mapping(fields.get("headers")).items()
        ),
    )


def _seconds(ns: object) -> float | None:
    return reading.integer(ns) / 1e9 if ns else None


# --- One message ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelState:
    """Where a message is in a channel. Times are Unix seconds."""

    channel_name: str = ""
    state: str = ""
    """One of nsqd's: waiting, deferred, in_flight, dead_lettering, held, gone, unknown."""
    attempts: int = 0
    since: float | None = None
    """When it was delivered."""
    until: float | None = None
    """When it times out, or is due."""
    client: ClientStats | None = None
    returned: "Returned | None" = None
    """Why it came back last, if this nsqd knows."""


@dataclass(frozen=True, slots=True)
class Returned:
    reason: str = ""
    """One of nsqd's: requeued, timed_out, disconnected, operator."""
    at: float | None = None
    """Unix seconds; None if it has not come back yet, because its consumer has only left."""
    client: ClientStats | None = None


@dataclass(frozen=True, slots=True)
class MessageState:
    """A message of a node, and where it is; or the node's error."""

    node: str
    message: Message | None = None
    """None if it is not in the log any more."""
    channels: tuple[ChannelState, ...] = ()
    held: bool = False
    """The topic has it, and gives it to its channels later."""
    error: str = ""
    supported: bool = True
    """False if this nsqd cannot tell."""


def query_message(client: HttpClient, node: str, topic: str, message_id: str) -> MessageState:
    """Never raises."""
    try:
        answer = reading.mapping(client.get(node, "topic/message", topic=topic, id=message_id))
        found = None if answer.get("message") is None else _read_message(answer["message"])
        channels = reading.array(_read_state, answer.get("channels"))
        return MessageState(node, found, tuple(channels), reading.boolean(answer.get("held")))
    except UpstreamError as failure:
        error = str(failure)
        return MessageState(node, error=explained(error), supported=_NO_SUCH_PATH not in error)


def find_message(client: HttpClient, places: Sequence[tuple[str, str]], message_id: str) -> tuple[str, str] | None:
    """The first of these pairs of a node and a topic that has the message, in its log or in a channel. Never raises."""
    answers = call_all(places, lambda place: query_message(client, *place, message_id), client.timeout)
    return next((place for place, state in answers.value if state.supported and not state.error), None)


def _read_state(value: object) -> ChannelState:
    fields = reading.mapping(value)
    client = fields.get("client")
    return reading.record(
        ChannelState,
        fields,
        since=_seconds(fields.get("since")),
        until=_seconds(fields.get("due") or fields.get("deadline")),
        client=None if client is None else reading.record(ClientStats, reading.mapping(client)),
        returned=None if fields.get("returned") is None else _read_returned(fields["returned"]),
    )


def _read_returned(value: object) -> Returned:
    fields = reading.mapping(value)
    client = fields.get("client")
    return reading.record(
        Returned,
        fields,
        at=_seconds(fields.get("at")),
        client=None if client is None else reading.record(ClientStats, reading.mapping(client)),
    )
