"""GET /channel/peek: what a channel would give next, without giving it; GET /topic/recent: what was published last.

Ours alone (docs/differences.md: peek).
"""

import base64
from itertools import islice
from typing import Final

from nsq_compat.net.http_message import Request, Response
from nsq_compat.protocol.message import attempts, body, message_id, timestamp_ns
from nsq_compat.web import responses
from nsq_compat.web.administration import Administration
from nsq_compat.web.query import parse_query
from nsq_compat.web.responses import ApiError

MOST_MESSAGES: Final = 100
LONGEST_BODY: Final = 16 * 1024
"""Bytes of a body that are shown."""
_USUAL: Final = 10


class Peeking:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    def peek(self, request: Request) -> Response:
        limit = _limit(parse_query(request.query).get("limit", str(_USUAL)))
        channel = self._administration.channel_of(request)
        try:
            frames = list(islice(channel.look(), limit))
        except OSError:
            raise ApiError(500, "INTERNAL_ERROR") from None
        return responses.json({"depth": channel.depth, "messages": [_shown(frame) for frame in frames]})

    def recent(self, request: Request) -> Response:
        limit = _limit(parse_query(request.query).get("limit", str(_USUAL)))
        topic = self._administration.topic_of(request)
        try:
            frames = topic.recent(limit)
        except OSError:
            raise ApiError(500, "INTERNAL_ERROR") from None
        shown = {"message_count": topic.message_count, "messages": [_shown(frame) for frame in frames]}
        return responses.json(shown)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MOST_MESSAGES):
        raise ApiError(400, "INVALID_ARG_LIMIT")
    return int(text[:9])


def _shown(frame: bytes) -> dict[str, object]:
    whole = body(frame)
    return {
        "id": message_id(frame).decode("ascii"),
        "timestamp": timestamp_ns(frame),
        "attempts": attempts(frame),
        "size": len(whole),
        "body": base64.b64encode(whole[:LONGEST_BODY]).decode("ascii"),
    }
