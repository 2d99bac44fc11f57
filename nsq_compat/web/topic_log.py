"""/topic/offsets, /topic/read, /channel/rewind: a topic's messages by their offsets, also those that are finished.

They do not exist in NSQ (docs/http-api.md: reading by offset). WHEN is `oldest`, `latest`, an offset, a time of RFC
3339, or a duration ago, such as 15m.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

from nsq_compat.log.offsets import OffsetReader, Retention, later_than_id, offset_at, oldest, published_since, retained
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.policy.access import CONSUME, OPERATE, READ
from nsq_compat.policy.policies import Applied
from nsq_compat.protocol.durations import parse_duration
from nsq_compat.protocol.message import MAX_LEAD_NS, TICK_SHIFT, timestamp_ns
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import NotLogged
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.application import (
    TOPIC,
    V1,
    ApiError,
    Route,
    Routes,
    json_response,
    parse_query,
    read_in_steps,
    required,
)
from nsq_compat.web.nsqd_service import NsqdService

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Read = TypeVar("Read")

OLDEST: Final = "oldest"
LATEST: Final = "latest"
DEFAULT_READ_BYTES: Final = 1 << 20
MAX_READ_BYTES: Final = 1 << 24
MAX_WAIT_MS: Final = 60_000
_MAX_UNSENT_BYTES: Final = 1 << 26
"""Answers that clients have not taken yet. Beyond it, no answer has more than one step."""
_STEP_BYTES: Final = 1 << 18
_STEP_GROUPS: Final = 256
"""About what is read from the log before other clients are served: some 0.2 ms of work."""
_LEAST_BYTES: Final = 1 << 16
"""The rest of an answer is not read if it is smaller: it would be a part of a group."""
_MAX_READERS: Final = 16
_OCTETS: Final = ("Content-Type", "application/octet-stream")


class _Pieces(deque[bytes]):
    """An answer, from which pieces are removed as they are sent."""

    largest = 0


_MAX_TOPICS: Final = 1000
"""In one request for offsets."""


class TopicLogApi:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        self.reads = 0
        """Answers of /topic/read with messages."""
        self.gone = 0
        """Requests for offsets that were released."""
        self._unsent: list[ref[_Pieces]] = []
        self._readers: dict[tuple[TopicLog, int], OffsetReader] = {}
        """By the offset at which their last answer ended, from which most clients read on."""
        service.metrics.collect_from(self._collect)

    def routes(self) -> Routes:
        reading = (
            {"/topic/read": {"GET": Route(self._read, CONSUME, topics_in=TOPIC)}}
            if self._service.options.peeking_over_http
            else {}
        )
        return {
            "/topic/offsets": {"GET": Route(self._offsets, READ, topics_in=("topic", "topics"))},
            "/channel/rewind": {"POST": Route(self._rewind, OPERATE, topics_in=TOPIC)},
            **reading,
        }

    def offset_of(self, topic: Topic, when: str, name: str) -> int:
        """The offset that WHEN stands for. `name` is that of the argument, for ``ApiError``."""
        log = _log_of(topic)
        if when == LATEST:
            return topic.next_offset
        if when == OLDEST:
            return read_log(topic, lambda: _first(topic, log))
        if when.isascii() and when.isdigit() and len(when) < 20:
            offset = int(when)
            if offset > topic.next_offset:
                raise ApiError(400, f"INVALID_ARG_{name}: the next offset is {topic.next_offset}")
            self._require(topic, log, offset)
            return offset
        since = published_since(_time_ns(when, self._service.now_ns(), name))
        return read_log(topic, lambda: offset_at(log, since, topic.next_offset))

    def _end_of(self, topic: Topic, log: TopicLog, time_ns: int) -> int:
        """An offset from which on all messages were published at that time or later."""
        # Times go back with the clock. Ids do not, and are hardly ahead of the times from the message `early` on.
        end, early = topic.next_offset, topic.frames.ids.early
        later = published_since(time_ns + MAX_LEAD_NS + (1 << TICK_SHIFT))
        found = read_log(topic, lambda: offset_at(log, later, end))
        return max(found, read_log(topic, lambda: offset_at(log, later_than_id(early), end))) if early else found

    def _require(self, topic: Topic, log: TopicLog, offset: int) -> None:
        """Raise ``ApiError`` if the message with this offset was released."""
        first = read_log(topic, lambda: _first(topic, log))
        if offset < first:
            self.gone += 1
            raise ApiError(410, f"OFFSET_GONE: the first offset is {first}")

    def _collect(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily  # an extra

        yield CounterMetricFamily("nsqd_offset_reads", "Answers of /topic/read with messages.", float(self.reads))
        yield CounterMetricFamily("nsqd_offset_gone", "Requests for released offsets.", float(self.gone))

    def _offsets(self, request: Request) -> Response:
        query = parse_query(request.query)
        if (names := query.get("topics")) is None:
            return json_response(self._offsets_of(self._topic_of(request), query))
        named = dict.fromkeys(names.split(","))
        if len(named) > _MAX_TOPICS:
            raise ApiError(400, f"INVALID_ARG_TOPICS: at most {_MAX_TOPICS} topics")
        several = {name: query[name] for name in ("at", "until") if name in query}
        answers: dict[str, dict[str, Any]] = {}
        for name in named:
            topic = self._service.broker.topics.get(name)
            if topic is not None and topic.store is not None:
                answers[name] = self._offsets_of(topic, several)
                yield_to_loop()
        return json_response({"topics": answers})

    def _offsets_of(self, topic: Topic, query: Mapping[str, str]) -> dict[str, Any]:
        log = _log_of(topic)
        # What is acknowledged is synced, but for what an earlier run of nsqd wrote until the first sync.
        end = _durable_end(topic, log, 0 if log.synced_offset else topic.next_offset)
        first = read_log(topic, lambda: oldest(log))
        last = read_log(topic, lambda: _timestamp_at(log, end - 1)) if first is not None else None
        retention = topic.store.retention if topic.store is not None else None
        answer: dict[str, Any] = {
            "first": end if first is None else first.offset,
            "next": end,
            "first_timestamp": None if first is None else first.timestamp_ns,
            "last_timestamp": last,
            "bytes": sum(segment.end for segment in retained(log)),
            "retained": retention is not None,
            **_settings_of(topic, retention),
        }
        if (when := query.get("at")) is not None:
            answer["offset"] = min(self.offset_of(topic, when, "AT"), end)
        if (when := query.get("until")) is not None:
            answer["end"] = min(self._end_of(topic, log, _time_ns(when, self._service.now_ns(), "UNTIL")), end)
        if (name := query.get("channel")) is not None:
            drops_taken = _drops_taken(query)
            with _refusing_moves():
                answer["channel_offset"] = read_log(topic, lambda: topic.offset_of_channel(name))
                answer["channel_depth"] = topic.channels[name].depth
                if (offset := answer.get("offset")) is not None:
                    answer["depth"] = read_log(
                        topic, lambda: topic.depth_if_moved(name, offset, drops_taken=drops_taken)
                    )
        return answer

    def _read(self, request: Request) -> Response:
        topic, query = self._topic_of(request), parse_query(request.query)
        begin = _number(query, "from", topic.next_offset)
        end = _number(query, "to", topic.next_offset, default=-1)
        size = _number(query, "max_bytes", MAX_READ_BYTES, default=DEFAULT_READ_BYTES)
        wait_ms = _number(query, "wait", MAX_WAIT_MS, default=0)
        log = _log_of(topic)
        if begin == topic.next_offset and wait_ms:
            self._service.wait_until(lambda: topic.next_offset > begin or topic.exiting, wait_ms / 1000)
        if begin < topic.next_offset:
            self._require(topic, log, begin)
        readable = _durable_end(topic, log, max(begin + 1, end))
        return self._answer(topic, log, begin, readable if end < 0 else end, max(1, size))

    def _answer(self, topic: Topic, log: TopicLog, begin: int, end: int, size: int) -> Response:
        if not self.reads:
            # Allocated and freed once, so that the C library keeps the memory of later answers for the next ones.
            # Returning it to the system and getting it back took half of the CPU time of large answers.
            bytes(MAX_READ_BYTES)
        reader = self._readers.pop((log, begin), None) or OffsetReader(log, begin)
        pieces = _Pieces()
        self._unsent.append(ref(pieces))
        first = following = begin
        left, step = size, _LEAST_BYTES
        while following < end and (left >= _LEAST_BYTES or not pieces):
            if pieces:
                if self._unsent_bytes() > _MAX_UNSENT_BYTES:
                    break
                yield_to_loop()
            frames = read_log(topic, partial(reader.read_frames, min(left, step)))
            if frames is None:
                if not pieces:  # the rest is lost
                    first = following = end
                break
            if frames.offset != following:
                if pieces:
                    break  # the next answer begins with the gap
                self._require(topic, log, begin)  # it may have been released just now
                first = min(frames.offset, end)
            if frames.next_offset > end:
                frames = frames.cut(end)
            following = max(first, frames.next_offset)
            if not frames.pieces:
                break  # the gap ends behind what was asked for
            piece = b"".join(frames.pieces)
            pieces.append(piece)
            pieces.largest = max(pieces.largest, len(piece))
            left -= len(piece)
            step = max(1, min(_STEP_BYTES, len(piece) * _STEP_GROUPS // len(frames.pieces)))
        if reader.offset == following:
            self._readers[log, following] = reader
            if len(self._readers) > _MAX_READERS:
                del self._readers[next(iter(self._readers))]
        headers = [_OCTETS, V1, ("X-NSQ-First-Offset", str(first)), ("X-NSQ-Next-Offset", str(following))]
        if first > begin:
            headers.append(("X-NSQ-Gap", f"{begin}-{first - 1}"))
        self.reads += bool(pieces)
        return Response(200, pieces.popleft() if pieces else b"", tuple(headers), rest=pieces)

    def _unsent_bytes(self) -> int:
        """The approximate size of the answers that clients have not taken, and of those that are being read."""
        unsent = [rest for each in self._unsent if (rest := each())]
        self._unsent = [ref(rest) for rest in unsent]
        return sum(len(rest) * rest.largest for rest in unsent)

    def _rewind(self, request: Request) -> Response:
        topic, query = self._topic_of(request), parse_query(request.query)
        name = required(request, "channel")
        if name not in topic.channels:
            raise ApiError(404, "CHANNEL_NOT_FOUND")
        drops_taken = _drops_taken(query)
        offset = self.offset_of(topic, required(request, "to"), "TO")
        now_ns = self._service.now_ns()

        def move() -> None:
            request.recheck()
            topic.move_channel(name, offset, now_ns, drops_taken=drops_taken)

        with _refusing_moves():
            read_of(topic, move)
        return _moved(topic, topic.channels[name], offset)

    def create_channel(self, request: Request, topic: Topic, name: str, when: str) -> Response:
        """/channel/create with `from`."""
        offset = self.offset_of(topic, when, "FROM")
        now_ns = self._service.now_ns()

        def check() -> None:
            # Last: others may create channels while the log is searched.
            if name in topic.channels:
                raise ApiError(400, "INVALID_ARG_FROM: the channel exists; /channel/rewind moves it")
            self._service.broker.check_channel(topic, name)

        def create() -> Channel:
            request.recheck()
            return topic.create_channel_at(name, offset, now_ns, check)

        try:
            channel = read_of(topic, create)
        except NotLogged:
            raise ApiError(400, "INVALID_ARG_CHANNEL: an ephemeral channel begins at the end") from None
        return _moved(topic, channel, offset)

    def _topic_of(self, request: Request) -> Topic:
        topic = self._service.broker.topics.get(required(request, "topic"))
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND")
        return topic


def _drops_taken(query: Mapping[str, str]) -> bool:
    text = query.get("drop_pending", "false")
    if text not in ("true", "false"):
        raise ApiError(400, "INVALID_ARG_DROP_PENDING")
    return text == "true"


@contextmanager
def _refusing_moves() -> Iterator[None]:
    """Turn the reasons why a channel cannot be moved into ``ApiError``."""
    try:
        yield
    except KeyError:
        raise ApiError(404, "CHANNEL_NOT_FOUND") from None
    except NotLogged:
        raise ApiError(400, "INVALID_ARG_CHANNEL: an ephemeral channel cannot be moved") from None


def _moved(topic: Topic, channel: Channel, offset: int) -> Response:
    return json_response({"offset": offset, "next": topic.next_offset, "depth": channel.depth})


def _log_of(topic: Topic) -> TopicLog:
    if topic.store is None:
        raise ApiError(400, "INVALID_TOPIC: an ephemeral topic has no log")
    return topic.store.log


def _settings_of(topic: Topic, retention: Retention | None) -> Mapping[str, Any]:
    """The settings of the policies that retain the topic, by their names."""
    if retention is None:
        return {}
    is_for_ids = retention.seconds == 0  # see `Applied.kept`
    own = Applied(retention=None if is_for_ids else retention, dedup_window=retention.least_seconds or None)
    return own.to_settings(topic.name, "")


def _durable_end(topic: Topic, log: TopicLog, wanted: int) -> int:
    """The offset at which reading ends. At level ``fsync`` it waits for a sync if it would end before `wanted`.

    What a power cut could remove is not shown: other messages would have its offsets then. No standby is waited
    for. Raises ``ApiError``.
    """
    end, store = topic.next_offset, topic.store
    if store is None or not store.syncs:
        return end
    if log.synced_offset < min(wanted, end):
        read_of(topic, store.sync)
    return log.synced_offset


def read_of(topic: Topic, read: Callable[[], Read]) -> Read:
    """As `read_in_steps`. Raises ``ApiError``, 404 if the topic was deleted between two steps, with its files."""
    try:
        return read_in_steps(read)
    except ApiError:
        if topic.store is not None and topic.store.is_deleted:
            raise ApiError(404, "TOPIC_NOT_FOUND") from None
        raise


def read_log(topic: Topic, read: Callable[[], Read]) -> Read:
    """As `read_of`, after writing what is in memory only."""

    def step() -> Read:
        if topic.store is not None and not topic.store.spill_some():
            raise BlockingIOError
        return read()

    return read_of(topic, step)


def _timestamp_at(log: TopicLog, offset: int) -> int | None:
    """When the last message up to this offset was published, which is one of the latest; None if it is damaged."""
    groups = log.latest(1)
    if not groups or groups[-1].offset > offset:  # far from the end, or of producers that have no OK yet
        groups = OffsetReader(log, offset).read(1)
    frames = [frame for each in groups for frame in each.frames[: max(0, offset + 1 - each.offset)]]
    return timestamp_ns(frames[-1]) if frames else None


def _first(topic: Topic, log: TopicLog) -> int:
    first = oldest(log)
    return topic.next_offset if first is None else first.offset


def _number(query: Mapping[str, str], name: str, limit: int, default: int | None = None) -> int:
    text = query.get(name)
    if text is None:
        if default is None:
            raise ApiError(400, f"MISSING_ARG_{name.upper()}")
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= limit):
        raise ApiError(400, f"INVALID_ARG_{name.upper()}: a number up to {limit}")
    return int(text)


def _time_ns(when: str, now_ns: int, name: str) -> int:
    try:
        if not when.startswith(("-", "+")):
            return now_ns - parse_duration(when)
    except ValueError:
        pass
    from datetime import UTC, datetime  # 0.4 MB

    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        text = f"INVALID_ARG_{name}: oldest, latest, an offset, a time such as 2026-01-31T15:04:05Z, or 15m"
        raise ApiError(400, text)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
