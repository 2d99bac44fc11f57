"""The handler of `nsq_pull`: /get, /mget, /put, /mput, /stats and /ping, as in simplequeue.

A message is finished when the client's system has acknowledged the whole answer that contains it, and requeued at once
if the client leaves before that. A put is answered when nsqd has answered OK.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nsq_compat.client import Message, Producer, PublishError
from nsq_compat.protocol.durations import parse_duration, seconds
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.go_json import dumps
from nsq_compat.session.http_message import Request, Response
from nsq_compat.tools.http_consumers.ack_http import MAX_IGNORED_BODY, AckConnection, ClientGone
from nsq_compat.tools.http_consumers.on_demand import OnDemand
from nsq_compat.web.application import JSON, ApiError, parse_query, plain

MAX_WAIT_SECONDS: Final = 300.0
_GATHER_SECONDS: Final = 0.1
"""How long /mget waits for more messages once it has one."""
_MAX_DIGITS: Final = 18
_MAX_PUT_BODY: Final = 5 << 20
_MAX_PUT_MESSAGES: Final = 100_000
"""Of a request. They take 0.1 s, in which other clients wait."""
_BYTES: Final = ("Content-Type", "application/octet-stream")
_DONE: Final = Response(200)
_COUNTERS: Final = ("puts", "gets", "empty", "returned")


class _Route(NamedTuple):
    answer: Callable[["Pulling", Request, Mapping[str, str], AckConnection], bool]
    methods: frozenset[str]
    max_body: int


@dataclass
class Pulling:
    """A handler for `AckHttpServer`, called by greenlets. `wait` in seconds is the default of a request."""

    queue: OnDemand
    producer: Producer | None
    topic: str
    wait: float
    _counts: Counter[str] = field(default_factory=Counter, init=False)

    def max_body(self, path: str) -> int:
        route = _ROUTES.get(path)
        return route.max_body if route else MAX_IGNORED_BODY

    def answer(self, request: Request, client: AckConnection) -> bool:
        route = _ROUTES.get(request.path)
        if route is None:
            return client.reply(request, plain("not found\n", 404))
        if request.method not in route.methods:
            return client.reply(request, plain("method not allowed\n", 405))
        try:
            return route.answer(self, request, parse_query(request.query), client)
        except ApiError as error:
            return client.reply(request, plain(f"{error.code}\n", error.status))

    # --- Getting ------------------------------------------------------------------------------------------------------

    def _get(self, request: Request, parameters: Mapping[str, str], client: AckConnection) -> bool:
        return self._hand_out(request, parameters, client, 1, b"")

    def _get_many(self, request: Request, parameters: Mapping[str, str], client: AckConnection) -> bool:
        text = parameters.get("num_items", parameters.get("items", "1"))
        digits = text.lstrip("0")
        if not (digits.isascii() and digits.isdigit()):
            raise ApiError(400, "number of items must be > 0")
        count = int(digits[:_MAX_DIGITS])  # int() refuses thousands of them
        return self._hand_out(request, parameters, client, count, _separator(parameters))

    def _hand_out(
        self, request: Request, parameters: Mapping[str, str], client: AckConnection, count: int, separator: bytes
    ) -> bool:
        wait = read_wait(parameters["wait"]) if "wait" in parameters else self.wait
        messages = self._take(client, count, wait)
        try:
            if client.session.is_gone:
                raise ClientGone("left while waiting")
            body = separator.join(message.body for message in messages)
            deadline = client.write_deadline()
            is_kept = client.reply(request, Response(200, body, (_BYTES,) if messages else ()), deadline)
            if messages:
                client.wait_until_acknowledged(deadline)
        except BaseException:
            self.queue.put_back(messages)
            self._counts.update(returned=len(messages))
            raise
        self.queue.finish(messages)
        self._counts.update(gets=len(messages), empty=not messages)
        return is_kept

    def _take(self, client: AckConnection, count: int, wait: float) -> list[Message]:
        """Wait for messages; after the first one only a moment longer."""
        deadline = time.monotonic() + wait
        with self.queue.request(count, client.wake) as demand:
            while True:
                client.wake.clear()
                if demand.messages:
                    deadline = min(deadline, time.monotonic() + _GATHER_SECONDS)
                left = deadline - time.monotonic()
                if not demand.missing or client.session.is_gone or client.is_stopping or left <= 0:
                    break
                self.queue.wait(demand, left)
        return demand.messages

    # --- Putting ------------------------------------------------------------------------------------------------------

    def _put(self, request: Request, parameters: Mapping[str, str], client: AckConnection) -> bool:
        return self._publish(request, client, [_data(request, parameters)])

    def _put_many(self, request: Request, parameters: Mapping[str, str], client: AckConnection) -> bool:
        data, separator = _data(request, parameters), _separator(parameters)
        if data.count(separator) >= _MAX_PUT_MESSAGES:
            raise ApiError(413, f"more than {_MAX_PUT_MESSAGES} messages")
        return self._publish(request, client, data.split(separator))

    def _publish(self, request: Request, client: AckConnection, bodies: list[bytes]) -> bool:
        if self.producer is None:
            raise ApiError(501, "no --destination-nsqd-tcp-address to put to")
        bodies = [body for body in bodies if body]
        if not bodies:
            raise ApiError(400, "missing data")
        try:
            self.producer.publish_many(self.topic, bodies)
        except PublishError as error:
            raise ApiError(_status_of(error), str(error)) from error
        self._counts.update(puts=len(bodies))
        return client.reply(request, _DONE)

    # --- Other requests -----------------------------------------------------------------------------------------------

    def _stats(self, request: Request, parameters: Mapping[str, str], client: AckConnection) -> bool:
        if parameters.get("reset") == "1":
            self._counts.clear()
            return client.reply(request, _DONE)
        stats = {**{name: self._counts[name] for name in _COUNTERS}, "in_flight": self.queue.in_flight}
        if parameters.get("format") == "json":
            return client.reply(request, Response(200, dumps(stats).encode() + b"\n", (JSON,)))
        return client.reply(request, plain("".join(f"{name}:{count}\n" for name, count in stats.items())))

    def _ping(self, request: Request, parameters: Mapping[str, str], client: AckConnection) -> bool:
        return client.reply(request, plain("OK"))


_READING: Final = frozenset({"GET", "POST"})
_ROUTES: Final = {
    "/get": _Route(Pulling._get, _READING, MAX_IGNORED_BODY),
    "/mget": _Route(Pulling._get_many, _READING, MAX_IGNORED_BODY),
    "/put": _Route(Pulling._put, _READING | {"PUT"}, _MAX_PUT_BODY),
    "/mput": _Route(Pulling._put_many, _READING | {"PUT"}, _MAX_PUT_BODY),
    "/stats": _Route(Pulling._stats, _READING, MAX_IGNORED_BODY),
    "/ping": _Route(Pulling._ping, _READING | {"HEAD"}, MAX_IGNORED_BODY),
}


def read_wait(text: str) -> float:
    """Seconds of a number such as ``2.5``, or of a duration such as ``2500ms``. Raises ``ApiError``."""
    try:
        wait = float(text)
    except ValueError:
        try:
            wait = seconds(parse_duration(text))
        except ValueError:
            raise ApiError(400, "wait must be seconds, or a duration such as 2s") from None
    if math.isnan(wait) or wait < 0:
        raise ApiError(400, "wait must not be negative")
    return min(wait, MAX_WAIT_SECONDS)


def _separator(parameters: Mapping[str, str]) -> bytes:
    separator = _bytes(parameters.get("separator", "\n"))
    if not separator:
        raise ApiError(400, "separator must not be empty")
    return separator


def _data(request: Request, parameters: Mapping[str, str]) -> bytes:
    """simplequeue: the parameter takes precedence over the body."""
    return _bytes(parameters["data"]) if "data" in parameters else request.body


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _status_of(error: PublishError) -> int:
    """400 when nsqd refuses the message itself; for other errors the client can try again."""
    last = error.attempts[-1].error if error.attempts else None
    return 400 if isinstance(last, NsqError) and last.code.startswith("E_BAD") else 503
