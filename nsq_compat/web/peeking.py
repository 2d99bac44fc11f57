"""GET /channel/peek: what a channel would give next, without giving it; GET /topic/recent: what was published last.

Ours alone (docs/differences.md: peek).
"""

import base64
from typing import Final

from nsq_compat.protocol.message import attempts, body, message_id, timestamp_ns
from nsq_compat.queue.recent_messages import MAX_MESSAGES
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web import responses
from nsq_compat.web.administration import Administration
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.query import parse_query
from nsq_compat.web.responses import ApiError

LONGEST_BODY: Final = 16 * 1024
"""Bytes of a body that are shown."""
_USUAL: Final = 10
_NS_PER_SECOND: Final = 1_000_000_000


class Peeking:
    def __init__(self, service: NsqdService, administration: Administration) -> None:
        self._service = service
        self._administration = administration

    def peek(self, request: Request) -> Response:
        limit = _limit(parse_query(request.query).get("limit", str(_USUAL)))
        channel = self._administration.channel_of(request)
        try:
            peek = channel.peek(limit)
        except OSError:
            raise ApiError(500, "INTERNAL_ERROR") from None
        shown = {
            "depth": channel.depth,
            "messages": [_shown(frame) for frame in peek.waiting],
            "deferred": [_shown(frame) | {"due": self._wall_ns(due)} for due, frame in peek.deferred],
            "in_flight": [_shown(frame) | {"deadline": self._wall_ns(over)} for over, frame in peek.in_flight],
        }
        return responses.json(shown)

    def recent(self, request: Request) -> Response:
        limit = _limit(parse_query(request.query).get("limit", str(_USUAL)))
        topic = self._administration.topic_of(request)
        try:
            published = topic.recent(limit, self._service.now(), self._service.now_ns())
        except OSError:
            raise ApiError(500, "INTERNAL_ERROR") from None
        messages = [_shown(frame) | ({"due": due_ns} if due_ns else {}) for frame, due_ns in published]
        return responses.json({"message_count": topic.message_count, "messages": messages})

    def _wall_ns(self, moment: float) -> int:
        return self._service.now_ns() + int((moment - self._service.now()) * _NS_PER_SECOND)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MAX_MESSAGES):
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
