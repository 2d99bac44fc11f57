"""The logs of a topic: what its nodes retain, messages by offset, and rewinds of channels. Only our nsqd supports it.

An offset is the number of a message on one node (docs/http-api.md: reading by offset).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nsq_compat.cluster import reading
from nsq_compat.cluster.http_client import HttpClient, call_all, explained, refusal_of
from nsq_compat.cluster.peek import Message
from nsq_compat.cluster.reading import InvalidAnswer, UpstreamError
from nsq_compat.cluster.stats import Retained, read_retained
from nsq_compat.protocol.frames import FRAME_HEADER, FrameError, FrameReader, parse_message
from nsq_compat.protocol.frames import Message as Parsed

LATEST: Final = "latest"
READ_BYTES: Final = 256 * 1024
"""What a page asks a node for. nsqd answers with one message at least, and with about so much."""
MAX_READ_BYTES: Final = 2 * READ_BYTES
"""What is read of an answer."""
MAX_BODY_BYTES: Final = 16 * 1024
"""What is kept of a body; as of nsqd's /topic/recent."""
_MAX_FRAME_SIZE: Final = 2**31 - 1
_SIZE_BYTES: Final = 4
"""The size field of a frame does not count itself."""


def query_retained(client: HttpClient, nodes: Sequence[str], topic: str, **parameters: str) -> list[Retained]:
    """What each node retains. `parameters` are those of /topic/offsets: at, channel, drop_pending. Never raises."""

    def query(node: str) -> Retained:
        return read_retained(node, client.get(node, "topic/offsets", topic=topic, **parameters))

    answer = call_all(nodes, query, client.timeout)
    found = dict(answer.value)
    for node, error in zip(answer.unreachable, answer.errors, strict=True):
        refusal = refusal_of(error)
        supported = refusal is None or refusal.code != "NOT_FOUND"
        found[node] = Retained(node, error=explained(error), supported=supported)
    return [found[node] for node in nodes]


# --- Reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of a node that follow each other, in the order of its log."""

    messages: tuple[Message, ...]
    next: int
    """The offset after them."""
    gap: tuple[int, int] | None = None
    """The first and the last offset of messages before them that are lost, or were never written."""


def read_messages(client: HttpClient, node: str, topic: str, begin: int, end: int) -> Part:
    """Messages from the offset `begin` up to `end` at most. Raises ``UpstreamError``."""
    limits = {"from": str(begin), "to": str(end), "max_bytes": str(READ_BYTES)}
    try:
        answer = client.read(node, "topic/read", MAX_READ_BYTES, topic=topic, **limits)
    except UpstreamError as failure:
        refusal = refusal_of(str(failure))
        if refusal is not None and refusal.code == "NOT_FOUND":
            text = "it does not show messages over HTTP, because it authorizes clients (--auth-http-address)"
            raise UpstreamError(text) from None
        raise
    try:
        first, following = (int(answer.headers[f"X-NSQ-{name}-Offset"]) for name in ("First", "Next"))
        gap = answer.headers.get("X-NSQ-Gap", "").partition("-")
        lost = (int(gap[0]), int(gap[2])) if gap[0] else None
        messages = tuple(_messages(answer.body, first))
    except (KeyError, ValueError, FrameError) as error:
        raise InvalidAnswer(f"invalid answer: {error}") from None
    # What was not read is on the next page.
    reached = first + len(messages) if messages else following
    return Part(messages, max(begin, reached), lost)


def _messages(data: bytes, offset: int) -> Iterator[Message]:
    """The messages of an answer. The last one may be cut off within its body."""
    reader = FrameReader(_MAX_FRAME_SIZE)
    for frame in reader.receive_data(data):
        yield _message(parse_message(frame.data, frame.type), 0, offset)
        offset += 1
    rest = reader.hand_back()
    if len(rest) > FRAME_HEADER.size:
        size, frame_type = FRAME_HEADER.unpack_from(rest)
        with suppress(FrameError):  # not even its header was read
            parsed = parse_message(rest[FRAME_HEADER.size :], frame_type)
            yield _message(parsed, _SIZE_BYTES + size - len(rest), offset)


def _message(parsed: Parsed, missing: int, offset: int) -> Message:
    """`missing` is the number of bytes of the body that were not read."""
    return Message(
        id=parsed.id.decode("ascii", "replace"),
        timestamp=parsed.timestamp_ns / 1e9,
        attempts=parsed.attempts,
        body=parsed.body[:MAX_BODY_BYTES],
        size=len(parsed.body) + missing,
        offset=offset,
        headers=tuple(parsed.headers.items()),
    )


# --- Rewinds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moved:
    """What a rewind did on a node; or its error."""

    node: str = ""
    offset: int = 0
    depth: int = 0
    """Messages that the channel will deliver."""
    error: str = ""

    @property
    def timed_out(self) -> bool:
        """Whether the channel may be moved when the node answers again."""
        return self.error.endswith("timeout")


def rewind(
    client: HttpClient, nodes: Sequence[str], topic: str, channel: str, to: str, *, drops_pending: bool
) -> list[Moved]:
    """Move a channel on these nodes. Never raises."""
    parameters = {"topic": topic, "channel": channel, "to": to}
    parameters |= {"drop_pending": "true"} if drops_pending else {}

    def move(node: str) -> Moved:
        fields = reading.mapping(client.post_for_answer(node, "channel/rewind", parameters))
        return reading.record(Moved, fields, node=node, error="")

    answer = call_all(nodes, move, client.timeout)
    found = dict(answer.value)
    for node, error in zip(answer.unreachable, answer.errors, strict=True):
        found[node] = Moved(node, error=explained(error))
    return [found[node] for node in nodes]
