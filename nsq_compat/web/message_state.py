"""/topic/message: one message, and where it is in each channel. It does not exist in NSQ (docs/differences.md: peek).

The answer is what nsqd has at the moment, and why a message came back last: see ``queue.message_state``.
"""

from typing import Any, Final

from nsq_compat.log.offsets import logged
from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.policy.access import CONSUME
from nsq_compat.queue.message_state import (
    DEFERRED,
    GONE,
    UNKNOWN,
    MessageState,
    state_in_backlog,
    state_in_channel,
)
from nsq_compat.queue.returns import Return
from nsq_compat.queue.schedule import NEVER
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.administration import message_json
from nsq_compat.web.application import TOPIC, ApiError, Route, Routes, ids_of, json_response, picked, required
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.topic_log import read_log

HELD: Final = "held"
"""The topic has the message, and gives it to its channels later."""
_CLIENT: Final = "client_id hostname remote_address user_agent"
_NS_PER_SECOND: Final = 1_000_000_000


class MessageStateApi:
    def __init__(self, service: NsqdService) -> None:
        self._service = service

    def routes(self) -> Routes:
        if not self._service.options.peeking_over_http:
            return {}
        return {"/topic/message": {"GET": Route(self._show, CONSUME, topics_in=TOPIC)}}

    def _show(self, request: Request) -> Response:
        topic = self._service.broker.topics.get(required(request, "topic"))
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND")
        message_id, *others = ids_of(request)
        if others:
            raise ApiError(400, "INVALID_ARG_ID", "id is the id of one message, not of several")
        store = topic.store
        found = None if store is None else read_log(topic, lambda: logged(store.log, message_id))
        held = state_in_backlog(topic.backlog, message_id, found) if topic.is_holding else MessageState(GONE)
        channels: list[dict[str, Any]] = []
        for channel in list(topic.channels.values()):
            state = state_in_channel(channel, message_id, found)
            if state.state == GONE and held.state != GONE:
                state = held if held.state == UNKNOWN else held._replace(state=HELD)
            channels.append({"channel_name": channel.name, **self._state_json(state)})
            yield_to_loop()  # each may have taken some milliseconds
        is_left = store is not None and found is not None and found.offset >= store.log.emptied_at
        if not is_left and held.state == GONE and all(each["state"] == GONE for each in channels):
            raise ApiError(404, "MESSAGE_NOT_FOUND")
        message: dict[str, Any] | None = None
        if found is not None:
            message = message_json(found.frame, {message_id: found.offset}) | {"segment": found.segment}
            if found.due_ns:
                message["due"] = found.due_ns
        return json_response({"message": message, "held": held.state not in (GONE, UNKNOWN), "channels": channels})

    def _state_json(self, state: MessageState) -> dict[str, Any]:
        answer: dict[str, Any] = {"state": state.state}
        if state.attempts:
            answer["attempts"] = state.attempts
        if state.since < NEVER:
            answer["since"] = self._wall_ns(state.since)
        if state.until < NEVER:
            is_deferred = state.state in (DEFERRED, HELD)
            answer["due" if is_deferred else "deadline"] = self._wall_ns(state.until)
        if state.consumer is not None:
            answer["client"] = picked(state.consumer.stats(), _CLIENT)
        if state.returned is not None:
            answer["returned"] = self._return_json(state.returned)
        return answer

    def _return_json(self, returned: Return) -> dict[str, Any]:
        answer: dict[str, Any] = {"reason": returned.reason}
        if returned.at < NEVER:
            answer["at"] = self._wall_ns(returned.at)
        if returned.client is not None:
            answer["client"] = dict(zip(("client_id", "remote_address"), returned.client, strict=True))
        return answer

    def _wall_ns(self, monotonic: float) -> int:
        return self._service.now_ns() + int((monotonic - self._service.now()) * _NS_PER_SECOND)
