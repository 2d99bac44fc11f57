"""/topic/... and /channel/...: create, delete, empty, pause and unpause (POST); peek and recent (GET).

The order of the checks and both spellings of their codes (INVALID_TOPIC for topics, INVALID_ARG_TOPIC for channels) are
nsqd's. peek and recent do not exist in NSQ (docs/differences.md: peek).
"""

import base64
from collections.abc import Callable
from typing import Final, TypeVar

from nsq_compat.protocol.message import attempts, body, message_id, timestamp_ns
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.limits import Exiting
from nsq_compat.queue.recent_messages import MAX_MESSAGES
from nsq_compat.queue.topic import Topic
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web import responses
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.publishing import topic_of
from nsq_compat.web.query import parse_query, required, required_name
from nsq_compat.web.responses import EMPTY, ApiError

MAX_SHOWN_BODY_BYTES: Final = 16 * 1024
_DEFAULT_LIMIT: Final = "10"
_NS_PER_SECOND: Final = 1_000_000_000

_Target = TypeVar("_Target", Topic, Channel)
_Read = TypeVar("_Read")


class Administration:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        self._broker = service.broker

    # --- Topics -------------------------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> Response:
        topic_of(self._service, parse_query(request.query))
        return EMPTY

    def delete_topic(self, request: Request) -> Response:
        # nsqd: for delete, pause and unpause, an invalid name is just not found.
        name = required(parse_query(request.query), "topic")
        try:
            self._broker.delete_topic(name)
        except KeyError:
            raise ApiError(404, "TOPIC_NOT_FOUND") from None
        return EMPTY

    def empty_topic(self, request: Request) -> Response:
        name = required(parse_query(request.query), "topic")
        if not is_valid_name(name):
            raise ApiError(400, "INVALID_TOPIC")
        self._topic(name).empty()
        return EMPTY

    def pause_topic(self, request: Request) -> Response:
        return self._change(self._topic_of(request), Topic.pause)

    def unpause_topic(self, request: Request) -> Response:
        return self._change(self._topic_of(request), Topic.unpause)

    def recent(self, request: Request) -> Response:
        """The messages published last, whether finished or not."""
        limit = _limit(request)
        topic = self._topic_of(request)
        published = self._read(lambda: topic.recent(limit, self._service.now(), self._service.now_ns()))
        messages = [_message_json(frame) | ({"due": due_ns} if due_ns else {}) for frame, due_ns in published]
        return responses.json({"message_count": topic.message_count, "messages": messages})

    # --- Channels -----------------------------------------------------------------------------------------------------

    def create_channel(self, request: Request) -> Response:
        topic, name = self._topic_and_channel_name(request)
        try:
            topic.channel(name)
        except (Exiting, OSError):
            raise ApiError(503, "EXITING") from None
        return EMPTY

    def delete_channel(self, request: Request) -> Response:
        topic, name = self._topic_and_channel_name(request)
        try:
            topic.delete_channel(name)
        except KeyError:
            raise ApiError(404, "CHANNEL_NOT_FOUND") from None
        return EMPTY

    def empty_channel(self, request: Request) -> Response:
        topic, name = self._topic_and_channel_name(request)
        try:
            topic.empty_channel(name)
        except KeyError:
            raise ApiError(404, "CHANNEL_NOT_FOUND") from None
        return EMPTY

    def pause_channel(self, request: Request) -> Response:
        return self._change(self._channel_of(request), Channel.pause)

    def unpause_channel(self, request: Request) -> Response:
        return self._change(self._channel_of(request), Channel.unpause)

    def peek(self, request: Request) -> Response:
        """The messages of a channel that are next in each state, without delivering them."""
        limit = _limit(request)
        channel = self._channel_of(request)
        peek = self._read(lambda: channel.peek(limit))
        return responses.json(
            {
                "depth": channel.depth,
                "messages": [_message_json(frame) for frame in peek.waiting],
                "deferred": [_message_json(frame) | {"due": self._wall_ns(due)} for due, frame in peek.deferred],
                "in_flight": [
                    _message_json(frame) | {"deadline": self._wall_ns(deadline)} for deadline, frame in peek.in_flight
                ],
            }
        )

    # --- Common -------------------------------------------------------------------------------------------------------

    def _change(self, target: _Target, change: Callable[[_Target], object]) -> Response:
        change(target)
        # nsqd: saved before the response, so that a crash does not undo it.
        self._service.save_metadata()
        return EMPTY

    def _topic(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND")
        return topic

    def _read(self, read: Callable[[], _Read]) -> _Read:
        """Read messages, in as many steps as the log needs. Raises ``ApiError``."""
        while True:
            try:
                return read()
            except BlockingIOError:
                self._service.let_others_run()
            except OSError:
                raise ApiError(500, "INTERNAL_ERROR") from None

    def _topic_of(self, request: Request) -> Topic:
        return self._topic(required(parse_query(request.query), "topic"))

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        parameters = parse_query(request.query)
        topic = required_name(parameters, "topic")
        channel = required_name(parameters, "channel")
        return self._topic(topic), channel

    def _channel_of(self, request: Request) -> Channel:
        topic, name = self._topic_and_channel_name(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise ApiError(404, "CHANNEL_NOT_FOUND")
        return channel

    def _wall_ns(self, monotonic: float) -> int:
        return self._service.now_ns() + int((monotonic - self._service.now()) * _NS_PER_SECOND)


def _limit(request: Request) -> int:
    text = parse_query(request.query).get("limit", _DEFAULT_LIMIT)
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MAX_MESSAGES):
        raise ApiError(400, "INVALID_ARG_LIMIT")
    return int(text[:9])


def _message_json(frame: bytes) -> dict[str, object]:
    message_body = body(frame)
    return {
        "id": message_id(frame).decode("ascii"),
        "timestamp": timestamp_ns(frame),
        "attempts": attempts(frame),
        "size": len(message_body),
        "body": base64.b64encode(message_body[:MAX_SHOWN_BODY_BYTES]).decode("ascii"),
    }
