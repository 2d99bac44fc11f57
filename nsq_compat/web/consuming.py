"""/channel/consume and /message/...: consuming over HTTP, without a client library. They do not exist in NSQ.

A channel has one consumer for all requests for messages together (`PolledConsumer`), and one for each stream of events
(`EventStream`). Whatever request or stream received a message, any request may answer it, also when the stream has
ended. Messages that are not answered time out, as at every consumer.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from nsq_compat.policy.access import CONSUME
from nsq_compat.protocol.commands import SUBSCRIBED
from nsq_compat.protocol.durations import SECOND, parse_duration
from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.message import attempts, body, has_headers, headers, message_id, timestamp_ns
from nsq_compat.queue.channel import MAX_BATCH, Channel, TooManyConsumers
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.schedule import NEVER
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats, Refused
from nsq_compat.queue.wait_queue import Locality
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.application import (
    TOPIC,
    V1,
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
_MAX_SECONDS: Final = 0.004
"""Time after which an answer gets no more messages. Each block that is read from the log takes some milliseconds."""
_MAX_WAIT: Final = 60.0
_IDLE_SECONDS: Final = 30.0
"""Time without a request and a message in flight after which the consumer of requests leaves the channel."""
_GONE_SECONDS: Final = 1.0
"""Time after which a request that waits checks again whether the client is still there, which is a system call."""
_READ_SECONDS: Final = 1.0
"""How long a request that does not wait does so for each step of a long read."""
_MAX_USER_AGENT: Final = 256
_COUNT: Final = re.compile("[0-9]{1,4}", re.ASCII)

_NO_STORE: Final = ("Cache-Control", "no-store")
_EVENTS: Final = "text/event-stream"
_EVENT_HEADERS: Final = (
    ("Content-Type", _EVENTS),
    _NO_STORE,
    ("X-Accel-Buffering", "no"),  # nginx would collect events otherwise
    V1,
)
_EVENTS_AT_ONCE: Final = 8
"""Events that a stream sends in one turn; encoding one takes about 10 us."""
_CLIENT_ID: Final = "http"
_KEEP_ALIVE_SECONDS: Final = 15.0
_KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment, which clients ignore, after `_KEEP_ALIVE_SECONDS` without an event: proxies close idle connections."""


class Answered:
    """Messages in flight in a channel that are answered by requests.

    `timeout` is the time limit of a delivery in seconds.
    """

    def __init__(self, channel: Channel, in_flight: InFlight, timeout: float) -> None:
        self.channel = channel
        self.in_flight = in_flight
        self._timeout = timeout
        self._finish_count = self._requeue_count = 0

    @property
    def client(self) -> tuple[str, str]:
        """The id and the address of the client."""
        return _CLIENT_ID, ""

    def wake(self) -> None:
        """There is room again."""

    def finish(self, ids: Sequence[bytes], now: float, now_ns: int) -> None:
        if self.channel.latency is not None:
            self.channel.latency.add(self.in_flight.frames_of(ids), now, now_ns)
        self.channel.finish(self, ids)
        self._finish_count += len(ids)
        self.wake()

    def requeue(self, ids: Sequence[bytes], now: float, delay: float) -> None:
        """Requeue messages, to be delivered after `delay` seconds."""
        for each in ids:
            self.channel.requeue(self, each, now, delay)
        self._requeue_count += len(ids)
        self.wake()

    def touch(self, ids: Sequence[bytes], now: float) -> None:
        """Give messages more time."""
        for each in ids:
            self.channel.touch(self, each, now, self._timeout)


class HttpConsumer(Answered):
    """A consumer of a channel. At most `max_in_flight` messages are in flight."""

    locality = Locality.GLOBAL
    version = ""
    """In /stats."""

    def __init__(self, channel: Channel, request: Request, timeout: float, max_in_flight: int, now_ns: int) -> None:
        super().__init__(channel, InFlight(), timeout)
        self.alarm = NEVER
        self.ready_count = 0
        self._max_in_flight = max_in_flight
        self._connected_at = now_ns // 1_000_000_000
        self._message_count = 0
        self.came_from(request)
        channel.add_consumer(self)

    def came_from(self, request: Request) -> None:
        """Note the client for /stats."""
        self.remote_address = request.remote_address
        self._user_agent = request.headers.get(b"user-agent", b"")[:_MAX_USER_AGENT].decode("latin-1")

    def begin_headers(self) -> None:
        """Answers have the headers of every message that has any."""

    def close(self) -> None:
        raise NotImplementedError

    @property
    def client(self) -> tuple[str, str]:
        return _CLIENT_ID, self.remote_address

    def stats(self) -> ClientStats:
        return ClientStats(
            client_id=_CLIENT_ID,
            hostname=self.remote_address.rpartition(":")[0],
            version=self.version,
            remote_address=self.remote_address,
            state=SUBSCRIBED,
            ready_count=self.ready_count,
            in_flight_count=len(self.in_flight),
            message_count=self._message_count,
            finish_count=self._finish_count,
            requeue_count=self._requeue_count,
            connect_ts=self._connected_at,
            user_agent=self._user_agent,
        )

    @property
    def _room(self) -> int:
        return self._max_in_flight - len(self.in_flight)

    def _take(self, most: int, now: float) -> Sequence[bytes]:
        frames = self.channel.take(self, most, now, self._timeout)
        self._message_count += len(frames)
        return frames


class PolledConsumer(HttpConsumer):
    """The consumer of a channel for all requests for messages together."""

    version = "HTTP"

    def __init__(self, channel: Channel, request: Request, timeout: float, max_in_flight: int, now_ns: int) -> None:
        super().__init__(channel, request, timeout, max_in_flight, now_ns)
        self.is_awake = False
        """There may be messages, and room for them."""
        self.is_closed = False
        self.used_at = 0.0
        self._waiting = 0  # requests; `ready_count` is the number of messages that they want

    def wake(self) -> None:
        self.is_awake = True

    def close(self) -> None:
        self.is_closed = True
        self.channel.remove_consumer(self, answerable=True)

    def on_alarm(self, now: float) -> float:
        """Leave if it was not used for long; returns when to look again."""
        if self.is_closed:
            return NEVER
        if not self._waiting and not self.in_flight and now - self.used_at >= _IDLE_SECONDS:
            self.close()
            return NEVER
        return max(self.used_at + _IDLE_SECONDS, now + 1)

    def receive(
        self,
        most: int,
        now: Callable[[], float],
        until: float,
        wait: Callable[..., bool],
        is_gone: Callable[[], bool] = lambda: False,
    ) -> list[bytes]:
        """Take up to `most` messages; without any, call `wait` for some until the time `until`, or until they are read.

        A request that has waited takes none if the client `is_gone`.
        """
        self._waiting += 1
        self.ready_count += most
        asked_at = now()

        def may_go_on() -> bool:
            nonlocal asked_at
            if self.is_awake or self.is_closed:
                return True
            if now() - asked_at < _GONE_SECONDS:
                return False
            asked_at = now()
            return is_gone()

        try:
            frames = self._take_batch(most, now)
            # A request that does not wait gets messages that have to be read, too, as after a restart.
            while not frames and not self.is_closed and ((left := until - now()) > 0 or self.channel.is_reading):
                if not wait(may_go_on, left if left > 0 else _READ_SECONDS) or is_gone():
                    break
                frames = self._take_batch(most, now)
        finally:
            self._waiting -= 1
            self.ready_count -= most
            self.used_at = now()
            if self._waiting:
                self.is_awake = True  # another request looks for what is left
            else:
                self.channel.leave_wait_queue(self)
        return frames

    def _take_batch(self, most: int, now: Callable[[], float]) -> list[bytes]:
        self.is_awake = False
        began = now()
        frames: list[bytes] = []
        size = 0
        most = min(most, self._room)
        while not self.is_closed and len(frames) < most and size < _MAX_BYTES:
            more = self._take(most - len(frames), began)
            if not more:
                break
            frames += more
            if now() - began > _MAX_SECONDS:
                break
            size += sum(map(len, more))
        return frames


class EventStream(HttpConsumer):
    """The consumer for one stream of Server-Sent Events, and the ``BodyStream`` of the response.

    It takes messages when it is its turn and the connection can send them. When it ends, it calls `forget`.
    """

    version = "SSE"

    def __init__(
        self,
        channel: Channel,
        request: Request,
        timeout: float,
        max_in_flight: int,
        now_ns: int,
        *,
        now: float,
        call_in_turn: Callable[[Callable[[], None]], None],
        forget: "Callable[[EventStream], None]",
    ) -> None:
        super().__init__(channel, request, timeout, max_in_flight, now_ns)
        self.is_over = False
        self.is_whole = True
        self.next_wakeup = now + _KEEP_ALIVE_SECONDS
        self.ready_count = max_in_flight
        self._wake_connection = _no_connection
        self._call_in_turn = call_in_turn
        self._awaits_turn = False
        self._has_turn = False
        self._forget = forget

    def start(self, wake: Callable[[], None]) -> None:
        self._wake_connection = wake
        self.wake()

    def wake(self) -> None:
        # Encoding for hundreds of streams takes long, so they take turns, and other clients are served in between.
        if not self._awaits_turn and not self.is_over:
            self._awaits_turn = True
            self._call_in_turn(self._begin_turn)

    def _begin_turn(self) -> None:
        self._awaits_turn = False
        self._has_turn = True
        self._wake_connection()

    def data_to_send(self, now: float) -> bytes:
        data = b"".join(map(_event, self._next_frames(now))) if self._has_turn and not self.is_over else b""
        if not data and now >= self.next_wakeup:
            data = _KEEP_ALIVE
        if data:
            self.next_wakeup = now + _KEEP_ALIVE_SECONDS
        return data

    def _next_frames(self, now: float) -> Sequence[bytes]:
        self._has_turn = False
        room = min(self._room, _EVENTS_AT_ONCE)
        if room <= 0:
            self.channel.leave_wait_queue(self)
            return ()
        frames = self._take(room, now)
        if frames and self._room > 0 and (len(frames) == room or self.channel.depth > 0):
            self.wake()
        return frames

    def stalled(self) -> None:
        """Let messages go to other consumers while the client does not read."""
        self.channel.leave_wait_queue(self)
        self._has_turn = True  # to look for messages when the client reads again

    def close(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.channel.remove_consumer(self, answerable=True)
        wake, self._wake_connection = self._wake_connection, _no_connection
        wake()
        self._forget(self)


def _no_connection() -> None:
    """Before a stream begins, and after its end."""


class Consuming:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        self._polled: dict[Channel, PolledConsumer] = {}
        self._streams: dict[Channel, dict[EventStream, None]] = {}
        """Those that are not over."""

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

    # --- Messages out -------------------------------------------------------------------------------------------------

    def _consume(self, request: Request) -> Response:
        parameters = parse_query(request.query)
        most, seconds = _count_of(parameters), _wait_of(parameters)
        required_name(request, "topic")
        name = required_name(request, "channel")
        topic = topic_of(self._service, parameters)
        request.recheck()
        if _wants_events(request):
            return Response(200, headers=_EVENT_HEADERS, stream=self._begin_stream(topic, name, request, most))
        consumer = self._polled_consumer(topic, name, request)
        request.recheck()  # it may have waited for its channel
        now = self._service.now
        frames = consumer.receive(most, now, now() + seconds, self._service.wait_until, request.client_is_gone)
        response = json_response({"messages": [_message_json(frame) for frame in frames]})
        return response._replace(headers=(*response.headers, _NO_STORE))

    def _begin_stream(self, topic: Topic, name: str, request: Request, most: int) -> EventStream:
        service, options = self._service, self._service.options
        with _refusing_consumers():
            channel = service.broker.channel(topic, name)
            stream = EventStream(
                channel,
                request,
                options.msg_timeout / SECOND,
                min(most, options.max_rdy_count),
                service.now_ns(),
                now=service.now(),
                call_in_turn=service.call_in_turn,
                forget=self._forget,
            )
        self._streams.setdefault(channel, {})[stream] = None
        return stream

    def _forget(self, stream: EventStream) -> None:
        streams = self._streams[stream.channel]
        del streams[stream]
        if not streams:
            del self._streams[stream.channel]

    def _polled_consumer(self, topic: Topic, name: str, request: Request) -> PolledConsumer:
        """The consumer of a channel for requests, which is created if it does not exist."""
        service, options = self._service, self._service.options
        with _refusing_consumers():
            channel = service.broker.channel(topic, name)
            consumer = self._polled.get(channel)
            if consumer is not None and not consumer.is_closed:
                consumer.came_from(request)
                return consumer
            self._polled = {each: known for each, known in self._polled.items() if not known.is_closed}
            limits = options.msg_timeout / SECOND, options.max_rdy_count
            consumer = self._polled[channel] = PolledConsumer(channel, request, *limits, service.now_ns())
        service.broker.schedule.at(service.now() + _IDLE_SECONDS, consumer)
        return consumer

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _finish(self, request: Request) -> Response:
        now, now_ns = self._service.now(), self._service.now_ns()
        return self._answer(request, "finished", lambda consumer, ids: consumer.finish(ids, now, now_ns))

    def _requeue(self, request: Request) -> Response:
        delay = delay_of(request, self._service.options.max_req_timeout)
        now = self._service.now()
        return self._answer(request, "requeued", lambda consumer, ids: consumer.requeue(ids, now, delay))

    def _touch(self, request: Request) -> Response:
        now = self._service.now()
        return self._answer(request, "touched", lambda consumer, ids: consumer.touch(ids, now))

    def _answer(self, request: Request, done: str, act: Callable[[Answered, Sequence[bytes]], None]) -> Response:
        missing = dict.fromkeys(ids_of(request))
        count = len(missing)
        topic, name = required_name(request, "topic"), required_name(request, "channel")
        found = self._service.broker.topics.get(topic)
        channel = None if found is None else found.channels.get(name)
        if channel is None:
            raise ApiError(404, "TOPIC_NOT_FOUND" if found is None else "CHANNEL_NOT_FOUND")
        for consumer in self._consumers_of(channel):
            # Not one question for each id: there may be a thousand ids, and a thousand streams.
            held = consumer.in_flight.frames.keys() & missing.keys()
            if held:
                act(consumer, [each for each in missing if each in held])
                for each in held:
                    del missing[each]
        if left := channel.departed.answerable(list(missing)):
            act(Answered(channel, channel.departed, self._service.options.msg_timeout / SECOND), left)
            for each in left:
                del missing[each]
        return json_response({done: count - len(missing), "not_found": [each.decode("ascii") for each in missing]})

    def _consumers_of(self, channel: Channel) -> Iterator[HttpConsumer]:
        polled = self._polled.get(channel)
        if polled is not None:
            polled.used_at = self._service.now()
            yield polled
        yield from self._streams.get(channel, ())


@contextmanager
def _refusing_consumers() -> Iterator[None]:
    """Turn the reasons why a channel gets no further consumer into ``ApiError``."""
    try:
        yield
    except TooManyConsumers:
        raise ApiError(503, "TOO_MANY_CHANNEL_CONSUMERS") from None
    except (Refused, OSError) as failure:
        raise refusal_of(failure) from None


def _count_of(parameters: Mapping[str, str]) -> int:
    count = parameters.get("max", "1")
    if not (_COUNT.fullmatch(count) and 0 < int(count) <= MAX_BATCH):
        raise ApiError(400, "INVALID_ARG_MAX", f"max is a number of messages, from 1 to {MAX_BATCH}")
    return int(count)


def _wait_of(parameters: Mapping[str, str]) -> float:
    try:
        seconds = parse_duration(parameters.get("wait", "0s")) / SECOND
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MAX_WAIT:
        limit = f"wait is a duration with a unit, such as 500ms or 10s, up to {_MAX_WAIT:g}s"
        raise ApiError(400, "INVALID_ARG_WAIT", limit)
    return seconds


def _wants_events(request: Request) -> bool:
    accepted = request.headers.get(b"accept", b"").decode("latin-1").lower().split(",")
    return any(each.partition(";")[0].strip() == _EVENTS for each in accepted)


def _event(frame: bytes) -> bytes:
    # JSON has no line breaks, so it is one line of data.
    return b"id: %b\ndata: %b\n\n" % (message_id(frame), dumps(_message_json(frame)).encode("utf-8"))


def _message_json(frame: bytes) -> dict[str, Any]:
    return {
        "id": message_id(frame).decode("ascii"),
        "timestamp": timestamp_ns(frame),
        "attempts": attempts(frame),
        "body": base64.b64encode(body(frame)).decode("ascii"),
        **({"headers": dict(headers(frame))} if has_headers(frame) else {}),
    }
