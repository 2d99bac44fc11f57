"""POST /topic/... and /channel/...: create, delete, empty, pause, unpause.

The order of the checks and the two spellings of their codes (INVALID_TOPIC for topics, INVALID_ARG_TOPIC for channels)
are nsqd's.
"""

from collections.abc import Callable
from typing import TypeVar

from nsq_compat.protocol.names import is_valid_name
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.errors import Exiting
from nsq_compat.queue.topic import Topic
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.publishing import topic_of
from nsq_compat.web.query import parse_query, required, required_name
from nsq_compat.web.responses import EMPTY, ApiError

_Target = TypeVar("_Target", Topic, Channel)


class Administration:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        self._broker = service.broker

    # --- Topics -------------------------------------------------------------------------------------------------------

    def create_topic(self, request: Request) -> Response:
        topic_of(self._service, parse_query(request.query))
        return EMPTY

    def delete_topic(self, request: Request) -> Response:
        # nsqd: a name that is not valid is just not found, here and where a topic is paused.
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
        return self._change(self.topic_of(request), Topic.pause)

    def unpause_topic(self, request: Request) -> Response:
        return self._change(self.topic_of(request), Topic.unpause)

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
        return self._change(self.channel_of(request), Channel.pause)

    def unpause_channel(self, request: Request) -> Response:
        return self._change(self.channel_of(request), Channel.unpause)

    # --- What they share ----------------------------------------------------------------------------------------------

    def _change(self, target: _Target, change: Callable[[_Target], object]) -> Response:
        change(target)
        # nsqd: written before the answer, so that a crash does not undo it.
        self._service.save_metadata()
        return EMPTY

    def _topic(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND")
        return topic

    def topic_of(self, request: Request) -> Topic:
        """The topic a request names. Raises ``ApiError``."""
        return self._topic(required(parse_query(request.query), "topic"))

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        parameters = parse_query(request.query)
        topic = required_name(parameters, "topic")
        channel = required_name(parameters, "channel")
        return self._topic(topic), channel

    def channel_of(self, request: Request) -> Channel:
        """The channel a request names. Raises ``ApiError``."""
        topic, name = self._topic_and_channel_name(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise ApiError(404, "CHANNEL_NOT_FOUND")
        return channel
