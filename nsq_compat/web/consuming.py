"""/channel/consume and /message/...: consuming over HTTP, without a client library. They do not exist in NSQ.

All requests for a channel together are one consumer of it. Whatever request received a message, any other may answer
it. Messages that are not answered time out, as at every consumer.
"""

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from nsq_compat.policy.access import CONSUME
from nsq_compat.protocol.commands import SUBSCRIBED
from nsq_compat.protocol.durations import SECOND, parse_duration
from nsq_compat.protocol.message import attempts, body, has_headers, headers, message_id, timestamp_ns
from nsq_compat.queue.channel import MAX_BATCH, Channel, NotInFlight, TooManyConsumers
from nsq_compat.queue.in_flight import NEVER, InFlight
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats, Refused
from nsq_compat.queue.wait_queue import Locality
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.application import (
    TOPIC,
    ApiError,
    Route,
    Routes,
    delay_of,
    ids_of,
    json_response,
    parse_query,
    required_name,
)
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.publishing import refusal_of, topic_of

_MAX_BYTES: Final = 1 << 20
"""Bytes of messages in an answer, after which it has no more; a single message may be larger."""
_MAX_WAIT: Final = 60.0
_IDLE_SECONDS: Final = 30.0
"""Time without a request and a message in flight after which the consumer leaves the channel."""
_MAX_USER_AGENT: Final = 256
_COUNT: Final = re.compile("[0-9]{1,4}", re.ASCII)


class HttpConsumer:
    """The consumer of a channel for all requests. `timeout` is the time limit of a delivery in seconds.

    At most `max_in_flight` messages are in flight, as a TCP client may not have a higher RDY.
    """

    locality = Locality.GLOBAL

    def __init__(self, channel: Channel, timeout: float, max_in_flight: int, now: float, now_ns: int) -> None:
        self.in_flight = InFlight()
        self.alarm = NEVER
        self.is_awake = False
        """There may be messages."""
        self.is_closed = False
        self.used_at = now
        self.remote_address = self.user_agent = ""  # of the last request for messages
        self._channel = channel
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._connected_at = now_ns // 1_000_000_000
        self._waiting = 0  # requests
        self._wanted = 0  # messages, by those
        self._message_count = self._finish_count = self._requeue_count = 0
        channel.add_consumer(self)

    def wake(self) -> None:
        self.is_awake = True

    def begin_headers(self) -> None:
        """Answers have the headers of every message that has any."""

    def close(self) -> None:
        self.is_closed = True

    def leave(self) -> None:
        self.is_closed = True
        self._channel.remove_consumer(self)

    def on_alarm(self, now: float) -> float:
        """Leave if it was not used for long; returns when to look again."""
        if self.is_closed:
            return NEVER
        if not self._waiting and not self.in_flight and now - self.used_at >= _IDLE_SECONDS:
            self.leave()
            return NEVER
        return max(self.used_at + _IDLE_SECONDS, now + 1)

    def stats(self) -> ClientStats:
        return ClientStats(
            client_id="http",
            hostname=self.remote_address.rpartition(":")[0],
            version="HTTP",
            remote_address=self.remote_address,
            state=SUBSCRIBED,
            ready_count=self._wanted,
            in_flight_count=len(self.in_flight),
            message_count=self._message_count,
            finish_count=self._finish_count,
            requeue_count=self._requeue_count,
            connect_ts=self._connected_at,
            user_agent=self.user_agent,
        )

    def receive(self, most: int, now: Callable[[], float], until: float, wait: Callable[..., bool]) -> list[bytes]:
        """Take up to `most` messages; without any, call `wait` for some until the time `until`."""
        self._waiting += 1
        self._wanted += most
        try:
            frames = self._take(most, now())
            while not frames and not self.is_closed and (left := until - now()) > 0:
                if not wait(lambda: self.is_awake or self.is_closed, left):
                    break
                frames = self._take(most, now())
        finally:
            self._waiting -= 1
            self._wanted -= most
            self.used_at = now()
            if self._waiting:
                self.is_awake = True  # another request looks for what is left
            else:
                self._channel.leave_wait_queue(self)
        return frames

    def _take(self, most: int, now: float) -> list[bytes]:
        self.is_awake = False
        frames: list[bytes] = []
        size = 0
        most = min(most, self._max_in_flight - len(self.in_flight))
        while not self.is_closed and len(frames) < most and size < _MAX_BYTES:
            more = self._channel.take(self, most - len(frames), now, self._timeout)
            if not more:
                break
            frames += more
            size += sum(map(len, more))
        self._message_count += len(frames)
        return frames

    def finish(self, ids: Sequence[bytes], now: float, now_ns: int) -> list[bytes]:
        """Finish messages; returns the ids that are not in flight here."""
        self.used_at = now
        if self._channel.latency is not None:
            self._channel.latency.add(self.in_flight.frames_of(ids), now, now_ns)
        missing = self._channel.finish(self, ids)
        self._finish_count += len(ids) - len(missing)
        self.is_awake = True  # there may be room again
        return missing

    def requeue(self, ids: Sequence[bytes], now: float, delay: float) -> list[bytes]:
        """Requeue messages, to be delivered after `delay` seconds; returns the ids that are not in flight here."""
        missing = self._each(ids, now, lambda each: self._channel.requeue(self, each, now, delay))
        self._requeue_count += len(ids) - len(missing)
        return missing

    def touch(self, ids: Sequence[bytes], now: float) -> list[bytes]:
        """Give messages more time; returns the ids that are not in flight here."""
        return self._each(ids, now, lambda each: self._channel.touch(self, each, now, self._timeout))

    def _each(self, ids: Sequence[bytes], now: float, act: Callable[[bytes], None]) -> list[bytes]:
        self.used_at = now
        missing: list[bytes] = []
        for each in ids:
            try:
                act(each)
            except NotInFlight:
                missing.append(each)
        self.is_awake = True  # there may be room again
        return missing


class Consuming:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        self._consumers: dict[Channel, HttpConsumer] = {}

    def routes(self) -> Routes:
        if not self._service.options.peeking_over_http:
            return {}
        answers = {"finish": self._finish, "requeue": self._requeue, "touch": self._touch}
        return {
            "/channel/consume": {"GET": Route(self._consume, CONSUME, topics_in=TOPIC)},
            **{
                f"/message/{name}": {"POST": Route(handler, CONSUME, topics_in=TOPIC)}
                for name, handler in answers.items()
            },
        }

    def _consume(self, request: Request) -> Response:
        parameters = parse_query(request.query)
        count, wait = parameters.get("max", "1"), parameters.get("wait", "0s")
        if not (_COUNT.fullmatch(count) and 0 < int(count) <= MAX_BATCH):
            raise ApiError(400, "INVALID_ARG_MAX")
        try:
            seconds = parse_duration(wait) / SECOND
        except ValueError:
            raise ApiError(400, "INVALID_ARG_WAIT") from None
        if not 0 <= seconds <= _MAX_WAIT:
            raise ApiError(400, "INVALID_ARG_WAIT")
        required_name(request, "topic")
        name = required_name(request, "channel")
        consumer = self._consumer(topic_of(self._service, parameters), name)
        consumer.remote_address = request.remote_address
        consumer.user_agent = request.headers.get(b"user-agent", b"")[:_MAX_USER_AGENT].decode("latin-1")
        now = self._service.now
        frames = consumer.receive(int(count), now, now() + seconds, self._service.wait_until)
        return json_response({"messages": [_message_json(frame) for frame in frames]})

    def _finish(self, request: Request) -> Response:
        service = self._service
        return self._answer(
            request, "finished", lambda consumer, ids: consumer.finish(ids, service.now(), service.now_ns())
        )

    def _requeue(self, request: Request) -> Response:
        delay = delay_of(request, self._service.options.max_req_timeout)
        now = self._service.now()
        return self._answer(request, "requeued", lambda consumer, ids: consumer.requeue(ids, now, delay))

    def _touch(self, request: Request) -> Response:
        now = self._service.now()
        return self._answer(request, "touched", lambda consumer, ids: consumer.touch(ids, now))

    def _answer(
        self, request: Request, done: str, act: Callable[[HttpConsumer, Sequence[bytes]], list[bytes]]
    ) -> Response:
        ids = list(dict.fromkeys(ids_of(request)))
        topic, name = required_name(request, "topic"), required_name(request, "channel")
        found = self._service.broker.topics.get(topic)
        channel = None if found is None else found.channels.get(name)
        if channel is None:
            raise ApiError(404, "TOPIC_NOT_FOUND" if found is None else "CHANNEL_NOT_FOUND")
        consumer = self._consumers.get(channel)
        missing = ids if consumer is None else act(consumer, ids)
        return json_response({done: len(ids) - len(missing), "not_found": [each.decode("ascii") for each in missing]})

    def _consumer(self, topic: Topic, name: str) -> HttpConsumer:
        """The consumer of a channel, which is created if it does not exist."""
        service = self._service
        try:
            channel = service.broker.channel(topic, name)
            consumer = self._consumers.get(channel)
            if consumer is None or consumer.is_closed:
                self._consumers = {each: known for each, known in self._consumers.items() if not known.is_closed}
                limits = service.options.msg_timeout / SECOND, service.options.max_rdy_count
                consumer = self._consumers[channel] = HttpConsumer(channel, *limits, service.now(), service.now_ns())
                service.broker.schedule.at(service.now() + _IDLE_SECONDS, consumer)
        except TooManyConsumers:
            raise ApiError(503, "TOO_MANY_CHANNEL_CONSUMERS") from None
        except (Refused, OSError) as failure:
            raise refusal_of(failure) from None
        return consumer


def _message_json(frame: bytes) -> dict[str, Any]:
    return {
        "id": message_id(frame).decode("ascii"),
        "timestamp": timestamp_ns(frame),
        "attempts": attempts(frame),
        "body": base64.b64encode(body(frame)).decode("ascii"),
        **({"headers": dict(headers(frame))} if has_headers(frame) else {}),
    }
