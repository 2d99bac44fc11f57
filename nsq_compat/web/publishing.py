"""POST /pub and /mpub: publish over HTTP."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Final

from nsq_compat.log.data_path import NotMirrored, reason
from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.policy.access import PUBLISH
from nsq_compat.policy.enforcer import CreationRefused, Full
from nsq_compat.protocol.headers import ID, HeaderError, encode_raw, publish_id
from nsq_compat.protocol.layout import SIZE_OF_SIZE, read_size
from nsq_compat.protocol.names import is_valid_name, network_of_peer
from nsq_compat.queue.publish_batch import LargeBatch, Producer, PublishBatch, is_large
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import Refused
from nsq_compat.session.http_message import (
    HEADER_PREFIX,
    Admission,
    Request,
    Response,
    has_publish_id,
    message_headers,
)
from nsq_compat.web.application import (
    MAX_CACHED_LENGTH,
    OK,
    TOPIC,
    ApiError,
    Route,
    Routes,
    error,
    parse_boolean,
    parse_query,
)
from nsq_compat.web.nsqd_service import NsqdService

log = logging.getLogger(__name__)

_MIN_PART_BYTES: Final = 32 * 1024
"""A part of a text body ends with the first line break after this many bytes."""
_MAX_PART_MESSAGES: Final = 16384
"""Messages in a part of a binary body."""
# Bounded, because int() takes quadratic time.
_is_integer = re.compile(r"[+-]?0{0,64}[0-9]{1,19}").fullmatch
_NS_PER_MS: Final = 1_000_000
_ID: Final = ID.encode("ascii")
_FORBIDDEN: Final = error(
    403, "FORBIDDEN: while there are auth servers, publishing over HTTP needs --http-publish-without-auth"
)
_OK_OF_ID: Final = {
    name: OK._replace(headers=(*OK.headers, ("X-NSQ-Id", name))) for name in ("new", "known", "no-window")
}
"""The answers to a message with an id."""
# Names before NSQ 0.3: /put and /mput (docs/differences.md: http-put).
_MESSAGE_PATHS: Final = frozenset({"/pub", "/put"})
_BATCH_PATHS: Final = frozenset({"/mpub", "/mput"})


class Publishing:
    """Handlers that publish. With a `publish_batch`, all requests of an event-loop iteration share a log write."""

    paths: Final = _MESSAGE_PATHS | _BATCH_PATHS

    def __init__(self, service: NsqdService, publish_batch: PublishBatch | None = None) -> None:
        self._publish_batch = publish_batch
        self._service = service
        self._topics = service.broker.topics
        self._max_msg_size = service.options.max_msg_size
        self._max_body_size = service.options.max_body_size
        self._max_defer_ms = service.options.max_defer_timeout // _NS_PER_MS

    def routes(self) -> Routes:
        if self._service.options.publishing_over_http:
            message = Route(
                self.publish,
                PUBLISH,
                Admission(self._max_msg_size, error(413, "MSG_TOO_BIG")),
                logged=False,
                topics_in=TOPIC,
            )
            batch = Route(
                self.publish,
                PUBLISH,
                Admission(self._max_body_size, error(413, "BODY_TOO_BIG")),
                logged=False,
                topics_in=TOPIC,
            )
        else:  # docs/differences.md: http-auth
            message = batch = Route(lambda request: _FORBIDDEN, PUBLISH, Admission(self._max_body_size, _FORBIDDEN))
        return {path: {"POST": message if path in _MESSAGE_PATHS else batch} for path in self.paths}

    def publish(self, request: Request) -> Response:
        """Publish in as many steps as the messages need. Waits for the disk where that is synced first."""
        headers = message_headers(request.headers)
        if headers or has_publish_id(request.query):
            if request.path in _MESSAGE_PATHS:
                return self._publish_with_headers(request, headers)
            if any(name.startswith(HEADER_PREFIX) for name in request.headers):
                raise ApiError(400, "INVALID_HEADER: only the message of a /pub has headers")
            if has_publish_id(request.query):
                # docs/differences.md: publish-ids
                raise ApiError(400, "INVALID_ID: only the message of a /pub has an id")
        topic, parts, defer = self._read(request)
        bodies: list[bytes] = []
        for number, part in enumerate(parts):
            if number:
                yield_to_loop()
            request.recheck()
            bodies += part
        if not bodies:
            return OK
        try:
            if is_large(bodies):
                self._publish_in_steps(request, topic, bodies)
            else:
                topic.publish(bodies, self._service.now(), self._service.now_ns(), defer)
        except (Refused, OSError) as failure:
            return self.outcome(failure)
        return OK

    def _publish_with_headers(self, request: Request, headers: list[tuple[bytes, bytes]]) -> Response:
        """Publish the message of a /pub with its headers, among them its id."""
        topic, parts, defer = self._read(request)
        request.recheck()
        if (identity := parse_query(request.query).get("id")) is not None:
            headers.append((_ID, identity.encode("utf-8", "surrogateescape")))
        try:
            payload = b"".join([encode_raw(headers), *chain.from_iterable(parts)])
        except HeaderError as failure:
            raise ApiError(400, f"INVALID_HEADER: {failure}") from None
        if len(payload) > self._max_msg_size:
            raise ApiError(413, "MSG_TOO_BIG")
        try:
            count = topic.publish_with_headers([payload], self._service.now(), self._service.now_ns(), defer)
        except (Refused, OSError) as failure:
            return self.outcome(failure)
        if not publish_id(payload, 0):
            return OK
        return _OK_OF_ID["no-window" if topic.publish_ids is None else "new" if count else "known"]

    def _publish_in_steps(self, request: Request, topic: Topic, bodies: list[bytes]) -> None:
        client = network_of_peer(request.remote_address)
        now, now_ns = self._service.now(), self._service.now_ns()
        batch = LargeBatch(topic, bodies, now, now_ns, client, recheck=request.recheck)
        try:
            while not batch.step():
                yield_to_loop()
            while batch.forget_bodies():
                yield_to_loop()
        finally:
            batch.cancel()  # no effect unless the request was aborted

    # --- Without waiting (`session.http_session.ImmediateHandler`) ----------------------------------------------------

    def begin(self, request: Request, producer: Producer | None, now: float, now_ns: int) -> Response | None:
        """Publish now and return the response, or post the messages for the end of the iteration and return None.

        In the latter case `producer` is notified.
        """
        # Hot: runs for every message published over HTTP.
        try:
            query, known = request.query, None
            if request.path in _MESSAGE_PATHS and request.body and len(query) <= MAX_CACHED_LENGTH:
                known = self._topics.get(_only_topic(query))
            if known is not None:
                topic, bodies, defer = known, [request.body], 0.0
            else:
                topic, parts, defer = self._read(request)
                bodies = list(chain.from_iterable(parts))
                if not bodies:
                    return OK
            if (
                producer is not None
                and not defer
                and self._publish_batch is not None
                and self._publish_batch.post(topic, bodies, producer, now, now_ns)
            ):
                return None
            topic.publish(bodies, now, now_ns, defer)
        except ApiError as failure:
            return error(failure.status, failure.code)
        except (Refused, OSError) as failure:
            return self.outcome(failure)
        return OK

    def outcome(self, failure: Exception | None) -> Response:
        """The response to a publish, which succeeded if `failure` is None."""
        if failure is None:
            return OK
        if isinstance(failure, OSError):
            log.error("publish over HTTP failed - %s", reason(failure))
        return error(503, _code(failure))

    def publish_posted(self) -> None:
        """Publish the messages posted in this event-loop iteration."""
        if self._publish_batch is not None:
            self._publish_batch.publish_posted()

    def _read(self, request: Request) -> tuple[Topic, Iterable[list[bytes]], float]:
        """The topic, the messages in parts, and the seconds by which they are deferred."""
        is_batch = request.path in _BATCH_PATHS
        if not request.body and not is_batch:
            raise ApiError(400, "MSG_EMPTY")
        parameters = parse_query(request.query)
        topic = topic_of(self._service, parameters)
        if not is_batch:
            return topic, ([request.body],), self._defer_of(parameters) if "defer" in parameters else 0.0
        # nsqd: a batch's `defer` is ignored.
        if _is_binary(parameters):
            return topic, split_binary(request.body, self._max_msg_size, self._max_body_size), 0.0
        return topic, split_text(request.body, self._max_msg_size), 0.0

    def _defer_of(self, parameters: Mapping[str, str]) -> float:
        """Seconds. nsqd: checked only after the topic was created."""
        text = parameters["defer"]
        if not _is_integer(text) or not 0 <= (defer_ms := int(text)) <= self._max_defer_ms:
            raise ApiError(400, "INVALID_DEFER")
        return defer_ms / 1000


@lru_cache(maxsize=1024)
def _only_topic(query: bytes) -> str:
    """The topic of a query without `defer`, or else "". Cached, because a publisher repeats its query."""
    parameters = parse_query(query)
    return "" if "defer" in parameters else parameters.get("topic", "")


def topic_of(service: NsqdService, parameters: Mapping[str, str]) -> Topic:
    """The topic that the query names, created if it does not exist."""
    name = parameters.get("topic")
    if name is None:
        raise ApiError(400, "MISSING_ARG_TOPIC")
    topic = service.broker.topics.get(name)
    if topic is not None:  # an existing name is valid
        return topic
    if not is_valid_name(name):
        raise ApiError(400, "INVALID_TOPIC")
    try:
        return service.broker.topic(name)
    except (Refused, OSError) as failure:
        raise refusal_of(failure) from None


def refusal_of(failure: Exception) -> ApiError:
    """The answer to a request whose topic or channel cannot be created."""
    if isinstance(failure, CreationRefused):
        return ApiError(*_CREATION_CODES[failure.limit])
    return ApiError(503, _code(failure))


_CREATION_CODES: Final = {
    "max_topics": (503, "TOO_MANY_TOPICS"),
    "max_channels": (503, "TOO_MANY_CHANNELS"),
    "max_creations_per_second": (429, "TOO_MANY_CREATIONS"),
}


def _code(failure: Exception) -> str:
    """The error code of a publish that was refused, or could not be written."""
    if isinstance(failure, Full):
        return "TOPIC_FULL"  # docs/differences.md: policies
    return "NOT_MIRRORED" if isinstance(failure, NotMirrored) else "EXITING"  # nsqd: for a failed write too


def split_text(body: bytes, max_msg_size: int) -> Iterator[list[bytes]]:
    """Split lines into messages, without empty ones. Yields parts, possibly none, and possibly empty ones."""
    begin, end = 0, len(body)
    while begin < end:
        stop = end
        if end - begin > _MIN_PART_BYTES:
            newline = body.find(b"\n", begin + _MIN_PART_BYTES)
            stop = newline + 1 if newline >= 0 else end
        part = body if stop - begin == end else body[begin:stop]
        bodies = [line for line in part.split(b"\n") if line]
        if len(part) > max_msg_size and any(len(line) > max_msg_size for line in bodies):
            raise ApiError(413, "MSG_TOO_BIG")
        yield bodies
        begin = stop


def split_binary(body: bytes, max_msg_size: int, max_body_size: int) -> Iterator[list[bytes]]:
    """Split `schema.HTTP_MPUB_BODY`, a count and sized messages, and yield parts. Bytes after the last are ignored.

    nsqd: every error has status 413.
    """
    end = len(body)
    if end < SIZE_OF_SIZE:
        raise ApiError(413, "BAD_BODY")
    count = read_size(body, 0)[0]
    # nsqd: a message has a size and at least one byte.
    if not 0 < count <= (max_body_size - SIZE_OF_SIZE) // (SIZE_OF_SIZE + 1):
        raise ApiError(413, "BAD_BODY")
    bodies: list[bytes] = []
    position = SIZE_OF_SIZE
    # Hot: runs for every message. A wrong count ends at the first message that is missing.
    for _ in range(count):
        begin = position + SIZE_OF_SIZE
        if begin > end:
            raise ApiError(413, "BAD_MESSAGE")
        size = read_size(body, position)[0]
        position = begin + size
        if not 0 < size <= max_msg_size or position > end:
            raise ApiError(413, "BAD_MESSAGE")
        bodies.append(body[begin:position])
        if len(bodies) == _MAX_PART_MESSAGES:
            yield bodies
            bodies = []
    yield bodies


def _is_binary(parameters: Mapping[str, str]) -> bool:
    value = parameters.get("binary")
    if value is None:
        return False
    binary = parse_boolean(value)
    if binary is None:
        log.warning("deprecated value '%s' used for /mpub binary param", value)
        return True
    return binary
