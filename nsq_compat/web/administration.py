"""/topic/..., /channel/..., /client/close and /config/:opt: create, delete, empty, pause, peek, change options.

The order of the checks and both spellings of their codes (INVALID_TOPIC for topics, INVALID_ARG_TOPIC for channels) are
nsqd's. peek and recent do not exist in NSQ (docs/differences.md: peek), nor do finish, requeue, dead_letter and redrive
(message actions), nor does /client/close.
"""

import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from nsq_compat.log.data_path import reason
from nsq_compat.log.offsets import offsets_of
from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.policy.access import ADMIN, CONSUME, OPERATE
from nsq_compat.policy.enforcer import CreationRefused
from nsq_compat.policy.policies import PolicyError
from nsq_compat.protocol.message import attempts, body, has_headers, headers, message_id, timestamp_ns
from nsq_compat.protocol.names import is_valid_name, network_of_peer
from nsq_compat.queue.channel import MAX_BATCH, Channel
from nsq_compat.queue.topic import MAX_RECENT, Topic
from nsq_compat.queue.turns import Turns
from nsq_compat.queue.values import Exiting, Refused
from nsq_compat.queue.withdrawal import Withdrawal
from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.web.application import (
    EMPTY,
    TOPIC,
    ApiError,
    Handler,
    Route,
    Routes,
    delay_of,
    error,
    ids_of,
    json_response,
    parse_query,
    required,
    required_name,
    text_response,
)
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.publishing import refusal_of, topic_of
from nsq_compat.web.topic_log import TopicLogApi, read_of

MAX_SHOWN_BODY_BYTES: Final = 16 * 1024
_DEFAULT_LIMIT: Final = "10"
_NS_PER_SECOND: Final = 1_000_000_000
_LOOKUP_SECONDS: Final = 5.0
"""Time in which nsqlookupd usually names the channels of a new topic, as a dead-letter topic may be one."""
_REDRIVE_SECONDS: Final = 60.0
"""Time after which messages are delivered again if the topic that they are published to is not done with them."""
_SEARCH_SECONDS: Final = 60.0
"""How long a search for messages waits for another one in the same channel."""

log = logging.getLogger(__name__)

_Target = TypeVar("_Target", Topic, Channel)


class Administration:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        self._broker = service.broker
        self._topic_log = TopicLogApi(service)
        self._searches: dict[Channel, Turns[Withdrawal]] = {}
        """Of each channel: the search for messages that is under way, and those that wait for it."""

    def routes(self) -> Routes:
        changes: dict[str, Handler] = {
            "/topic/create": self._create_topic,
            "/topic/empty": self._empty_topic,
            "/topic/pause": partial(self._pause, self._topic_of, Topic.pause),
            "/topic/unpause": partial(self._pause, self._topic_of, Topic.unpause),
            "/channel/create": self._create_channel,
            "/channel/empty": partial(self._change_channel, Topic.empty_channel),
            "/channel/pause": partial(self._pause, self._channel_of, Channel.pause),
            "/channel/unpause": partial(self._pause, self._channel_of, Channel.unpause),
            "/client/close": self._close_client,
        }
        deletions: dict[str, Handler] = {
            "/topic/delete": self._delete_topic,
            "/channel/delete": partial(self._change_channel, Topic.delete_channel),
        }
        reads: dict[str, Handler] = {"/channel/peek": self._peek, "/topic/recent": self._recent}
        on_messages: dict[str, Handler] = {
            "/channel/finish": self._finish,
            "/channel/requeue": self._requeue,
            "/channel/dead_letter": self._dead_letter,
        }
        if self._service.options.peeking_over_http:
            changes |= on_messages
            redrive = {"/channel/redrive": {"POST": Route(self._redrive, OPERATE, topics_in=("topic", "to"))}}
        else:
            reads, redrive = {}, {}
        return {
            **self._topic_log.routes(),
            **redrive,
            **{path: {"POST": Route(handler, OPERATE, topics_in=TOPIC)} for path, handler in changes.items()},
            **{path: {"POST": Route(handler, ADMIN, topics_in=TOPIC)} for path, handler in deletions.items()},
            **{path: {"GET": Route(handler, CONSUME, topics_in=TOPIC)} for path, handler in reads.items()},
        }

    # --- Topics -------------------------------------------------------------------------------------------------------

    def _create_topic(self, request: Request) -> Response:
        topic_of(self._service, parse_query(request.query))
        return EMPTY

    def _delete_topic(self, request: Request) -> Response:
        # nsqd: for delete, pause and unpause, an invalid name is just not found.
        try:
            self._broker.delete_topic(required(request, "topic"))
        except KeyError:
            raise ApiError(404, "TOPIC_NOT_FOUND") from None
        return EMPTY

    def _empty_topic(self, request: Request) -> Response:
        if not is_valid_name(required(request, "topic")):
            raise ApiError(400, "INVALID_TOPIC")
        self._topic_of(request).empty()
        return EMPTY

    def _recent(self, request: Request) -> Response:
        """The messages published last, whether finished or not."""
        limit = _limit(request)
        topic = self._topic_of(request)
        published = read_of(topic, lambda: topic.recent(limit, self._service.now(), self._service.now_ns()))
        offsets = _offsets(topic, [frame for frame, _ in published])
        messages = [message_json(frame, offsets) | ({"due": due_ns} if due_ns else {}) for frame, due_ns in published]
        return json_response({"message_count": topic.message_count, "messages": messages})

    # --- Channels -----------------------------------------------------------------------------------------------------

    def _create_channel(self, request: Request) -> Response:
        topic, name = self._topic_and_channel_name(request)
        when = parse_query(request.query).get("from")
        try:
            if when is not None:
                return self._topic_log.create_channel(request, topic, name, when)
            self._broker.channel(topic, name)
        except (CreationRefused, Exiting, OSError) as failure:
            raise refusal_of(failure) from None
        return EMPTY

    def _change_channel(self, change: Callable[[Topic, str], None], request: Request) -> Response:
        topic, name = self._topic_and_channel_name(request)
        try:
            change(topic, name)
        except KeyError:
            raise ApiError(404, "CHANNEL_NOT_FOUND") from None
        return EMPTY

    def _peek(self, request: Request) -> Response:
        """The messages of a channel that are next in each state, without delivering them."""
        limit = _limit(request)
        topic, channel = self._topic_of(request), self._channel_of(request)
        peek = read_of(topic, lambda: channel.peek(limit))
        taken = [frame for _, frame in (*peek.deferred, *peek.in_flight)]
        offsets = _offsets(topic, [*peek.waiting, *taken])
        return json_response(
            {
                "depth": channel.depth,
                "messages": [message_json(frame, offsets) for frame in peek.waiting],
                "deferred": [
                    message_json(frame, offsets) | {"due": self._wall_ns(due)} for due, frame in peek.deferred
                ],
                "in_flight": [
                    message_json(frame, offsets) | {"deadline": self._wall_ns(deadline)}
                    for deadline, frame in peek.in_flight
                ],
            }
        )

    def _close_client(self, request: Request) -> Response:
        """Close the connection of a client; with a topic and channel, of its consumers of that channel only."""
        address = required(request, "address")
        if parse_query(request.query).keys() & {"topic", "channel"}:
            # An address may have other connections: that of a unix socket is the same for all.
            consumers = self._channel_of(request).consumers
            found = [each for each in consumers if each.stats().remote_address == address]
            for each in found:
                each.close()
            is_closed = bool(found)
        else:
            is_closed = self._service.close_client(address)
        if not is_closed:
            raise ApiError(404, "CLIENT_NOT_FOUND")
        log.info("closing client(%s) as requested by %s", address, request.remote_address)
        return EMPTY

    # --- Messages of a channel, by their ids --------------------------------------------------------------------------

    def _finish(self, request: Request) -> Response:
        channel, ids = self._channel_of(request), ids_of(request)
        finished, rest = self._take_out(request, channel, ids, lambda frames: None)
        return _done(channel, {"finished": finished, **rest})

    def _requeue(self, request: Request) -> Response:
        channel, ids = self._channel_of(request), ids_of(request)
        seconds = delay_of(request, self._service.options.max_req_timeout)
        requeued, rest = self._take_out(
            request, channel, ids, lambda frames: channel.requeue_withdrawn(frames, self._service.now(), seconds)
        )
        return _done(channel, {"requeued": requeued, **rest})

    def _dead_letter(self, request: Request) -> Response:
        """Answers when the dead-letter topic has the messages, or has refused them: those are then `pending`."""
        channel, ids = self._channel_of(request), ids_of(request)
        if self._service.draining:
            raise ApiError(503, "EXITING")
        try:
            with self._service.dead_letters.transfer(channel) as transfer:
                if not transfer.queue.room:
                    raise ApiError(503, f"DEAD_LETTER_TOPIC_REFUSES: {transfer.queue.error}")
                _, rest = self._take_out(request, channel, ids, transfer.add)
                self._service.await_transfer(transfer)
        except Refused as failure:
            raise ApiError(400, f"INVALID_CHANNEL: {failure}") from None
        pending = sorted(each.decode("ascii") for each in transfer.pending)
        answer = {"topic": transfer.queue.target, "dead_lettered": transfer.moved, "pending": pending, **rest}
        if transfer.error:
            answer["error"] = transfer.error
        return _done(channel, answer)

    def _redrive(self, request: Request) -> Response:
        """Publish the next messages to another topic, then finish them. After a crash in between, both have them."""
        channel = self._channel_of(request)
        to = required_name(request, "to")
        if to == channel.topic_name:
            raise ApiError(400, "INVALID_ARG_TO")
        topic, limit = self._topic_of(request), _limit(request, MAX_BATCH)
        self._service.wait_until(lambda: not topic.awaits_channels, _LOOKUP_SECONDS)
        request.recheck()
        now = self._service.now()
        frames = read_of(topic, lambda: channel.set_aside(limit, now, _REDRIVE_SECONDS))
        try:
            if frames:
                target = self._broker.topic(to)
                request.recheck()
                target.republish(frames, now, self._service.now_ns())
        except (Refused, OSError) as failure:
            channel.return_set_aside(frames, now)
            text = reason(failure) if isinstance(failure, OSError) else str(failure)
            raise ApiError(503, f"PUB_FAILED: {text}") from None
        except Exception:
            channel.return_set_aside(frames, now)
            raise
        channel.finish_set_aside(frames)
        return json_response({"moved": len(frames), "depth": channel.depth})

    def _take_out(
        self, request: Request, channel: Channel, ids: Sequence[bytes], use: Callable[[Sequence[bytes]], None]
    ) -> tuple[int, dict[str, Any]]:
        """Pass the frames to `use`, in steps; returns their number, and what became of the other messages."""
        # One search at a time: two would each have the other begin again, without an end.
        search = Withdrawal(channel, ids)
        searches = self._searches.setdefault(channel, Turns())
        searches.add(network_of_peer(request.remote_address), search)
        try:
            if not self._service.wait_until(lambda: searches.first is search, _SEARCH_SECONDS):
                raise ApiError(503, "CHANNEL_BUSY")
            return self._run(request, channel, search, use)
        finally:
            searches.remove(search)
            if not searches:
                del self._searches[channel]

    def _run(
        self, request: Request, channel: Channel, search: Withdrawal, use: Callable[[Sequence[bytes]], None]
    ) -> tuple[int, dict[str, Any]]:
        count, problem = 0, {}
        try:
            while not search.is_done:
                request.recheck()
                frames = search.step(self._service.now())
                if frames:
                    use(frames)
                count += len(frames)
                if not search.is_done:
                    yield_to_loop(turn=f"search in {channel.topic_name}:{channel.name}")
        except OSError as failure:
            problem = {"error": reason(failure)}  # those that are left may be where it cannot read
        except Exception:
            log.info("CHANNEL(%s:%s): %d messages taken out over HTTP", channel.topic_name, channel.name, count)
            raise
        finally:
            search.end()
        return count, {"not_found": [each.decode("ascii") for each in search.missing], **problem}

    # --- Common -------------------------------------------------------------------------------------------------------

    def _pause(
        self, find: Callable[[Request], _Target], change: Callable[[_Target], None], request: Request
    ) -> Response:
        change(find(request))
        # nsqd: saved before the response, so that a crash does not undo it.
        self._service.save_metadata()
        return EMPTY

    def _topic_of(self, request: Request) -> Topic:
        topic = self._broker.topics.get(required(request, "topic"))
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND")
        return topic

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        required_name(request, "topic")
        name = required_name(request, "channel")
        return self._topic_of(request), name

    def _channel_of(self, request: Request) -> Channel:
        topic, name = self._topic_and_channel_name(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise ApiError(404, "CHANNEL_NOT_FOUND")
        return channel

    def _wall_ns(self, monotonic: float) -> int:
        return self._service.now_ns() + int((monotonic - self._service.now()) * _NS_PER_SECOND)


def _done(channel: Channel, answer: dict[str, Any]) -> Response:
    counts = ", ".join(f"{key} {len(each) if isinstance(each, list) else each}" for key, each in answer.items())
    log.info("CHANNEL(%s:%s): messages taken out over HTTP: %s", channel.topic_name, channel.name, counts)
    return json_response(answer)


def _limit(request: Request, largest: int = MAX_RECENT) -> int:
    text = parse_query(request.query).get("limit", _DEFAULT_LIMIT)
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= largest):
        raise ApiError(400, "INVALID_ARG_LIMIT")
    return int(text[:9])


def _offsets(topic: Topic, frames: Sequence[bytes]) -> Mapping[bytes, int]:
    """The offsets of those of these messages that the log still has, by id."""
    store = topic.store
    return {} if store is None else read_of(topic, lambda: offsets_of(store.log, map(message_id, frames)))


def message_json(frame: bytes, offsets: Mapping[bytes, int]) -> dict[str, object]:
    """`offset` is null if the message is only in memory, or no more in the log; `headers` are there if it has any."""
    message_body = body(frame)
    return {
        "id": message_id(frame).decode("ascii"),
        "offset": offsets.get(message_id(frame)),
        "timestamp": timestamp_ns(frame),
        "attempts": attempts(frame),
        "size": len(message_body),
        "body": base64.b64encode(message_body[:MAX_SHOWN_BODY_BYTES]).decode("ascii"),
        **({"headers": dict(headers(frame))} if has_headers(frame) else {}),
    }


# --- /config ----------------------------------------------------------------------------------------------------------


class Configuration:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        self._writable: dict[str, Callable[[bytes], None]] = {
            "nsqlookupd_tcp_addresses": self._set_lookupd_addresses,
            "log_level": lambda body: service.set_log_level(body.decode("utf-8")),
            "drain": self._drain,
            "policies": lambda body: service.set_policies(json.loads(body.decode("utf-8"))),
        }

    def routes(self) -> Routes:
        admission = Admission(self._service.options.max_msg_size, error(413, "INVALID_VALUE"))
        return {"/config/:opt": {"GET": Route(self._show, ADMIN), "PUT": Route(self._change, ADMIN, admission)}}

    def _show(self, request: Request) -> Response:
        return self._value(request.path.rpartition("/")[2])

    def _change(self, request: Request) -> Response:
        name = request.path.rpartition("/")[2]
        if not request.body:
            raise ApiError(413, "INVALID_VALUE")
        if name not in self._writable:
            raise ApiError(400, "INVALID_OPTION")
        try:
            self._writable[name](request.body)
        except PolicyError as failure:  # docs/differences.md: policies
            raise ApiError(400, f"INVALID_VALUE: {failure}") from None
        except (ValueError, RecursionError):  # RecursionError: deeply nested JSON
            raise ApiError(400, "INVALID_VALUE") from None
        return self._value(name)

    def _value(self, name: str) -> Response:
        try:
            value = self._service.config_value(name)
        except KeyError:
            raise ApiError(400, "INVALID_OPTION") from None
        # nsqd: strings are shown raw, everything else as JSON.
        return text_response(value.encode("utf-8")) if isinstance(value, str) else json_response(value)

    def _set_lookupd_addresses(self, body: bytes) -> None:
        addresses = json.loads(body.decode("utf-8"))
        if addresses is not None and not (
            isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)
        ):
            raise ValueError("not a list of strings")
        self._service.set_lookupd_addresses(addresses)

    def _drain(self, body: bytes) -> None:
        # docs/differences.md: drain
        if body.strip() != b"true":
            raise ValueError("a drain cannot be undone")
        self._service.drain()
