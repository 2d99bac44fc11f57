"""What `nsq_pull` answers: /get, /mget, /put, /mput, /stats and /ping, for those who know simplequeue.

A message is finished when the caller's system has acknowledged all bytes of the answer it is in, and goes back at once
when he has gone before that. What is put is answered when nsqd has said OK.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from nsq_compat.client import Message, Producer, PublishError
from nsq_compat.protocol.durations import parse_duration, seconds
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.go_json import dumps
from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.tools.http_consumers.ack_http import Caller, Gone
from nsq_compat.tools.http_consumers.on_demand import OnDemand
from nsq_compat.web.query import parse_query
from nsq_compat.web.responses import JSON, ApiError, plain

LONGEST_WAIT: Final = 300.0
_GATHER_SECONDS: Final = 0.1
"""How long /mget waits for more, once it has something."""
_LARGEST_PUT: Final = 5 << 20
_LARGEST_IGNORED: Final = 64 << 10
_BYTES: Final = ("Content-Type", "application/octet-stream")
_DONE: Final = Response(200)
_COUNTED: Final = ("puts", "gets", "empty", "returned")


class _Route(NamedTuple):
    answer: Callable[["Pulling", Request, Mapping[str, str], Caller], bool]
    methods: frozenset[str]
    largest: int


class Pulling:
    """A handler for `http_door.Door`. `wait` is how many seconds one waits who does not say; `most` bounds /mget."""

    def __init__(self, queue: OnDemand, producer: Producer | None, topic: str, *, wait: float, most: int) -> None:
        self._queue = queue
        self._producer = producer
        self._topic = topic
        self._wait = wait
        self._most = most
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def admit(self, method: str, path: str) -> Admission:
        route = _ROUTES.get(path)
        return Admission(route.largest if route else _LARGEST_IGNORED, plain("too large\n", 413)._replace(close=True))

    def answer(self, request: Request, caller: Caller) -> bool:
        route = _ROUTES.get(request.path)
        if route is None:
            return caller.reply(request, plain("not found\n", 404))
        if request.method not in route.methods:
            return caller.reply(request, plain("method not allowed\n", 405))
        try:
            return route.answer(self, request, parse_query(request.query), caller)
        except ApiError as error:
            return caller.reply(request, plain(f"{error.code}\n", error.status))

    # --- Getting ------------------------------------------------------------------------------------------------------

    def _get(self, request: Request, parameters: Mapping[str, str], caller: Caller) -> bool:
        return self._hand_out(request, caller, 1, self._patience(parameters), b"")

    def _get_many(self, request: Request, parameters: Mapping[str, str], caller: Caller) -> bool:
        text = parameters.get("num_items", parameters.get("items", "1"))
        if not (text.isascii() and text.isdigit() and int(text)):
            raise ApiError(400, "number of items must be > 0")
        return self._hand_out(
            request, caller, min(int(text), self._most), self._patience(parameters), _separator(parameters)
        )

    def _patience(self, parameters: Mapping[str, str]) -> float:
        text = parameters.get("wait")
        return self._wait if text is None else read_wait(text)

    def _hand_out(self, request: Request, caller: Caller, count: int, wait: float, separator: bytes) -> bool:
        messages = self._take(caller, count, wait)
        try:
            if caller.is_gone:
                raise Gone("left while he waited")
            body = separator.join(message.body for message in messages)
            due = caller.due()
            goes_on = caller.reply(request, Response(200, body, (_BYTES,) if messages else ()), due)
            if messages:
                caller.wait_until_taken(due)
        except BaseException:
            self._queue.give_back(messages)
            self._count(returned=len(messages))
            raise
        self._queue.finish(messages)
        self._count(gets=len(messages), empty=not messages)
        return goes_on

    def _take(self, caller: Caller, count: int, wait: float) -> list[Message]:
        """What comes within so many seconds; once there is something, only a moment is waited for the rest."""
        deadline = time.monotonic() + wait
        gathering = False
        with self._queue.wish(count, caller.wake) as wish:
            while True:
                caller.wake.clear()
                if wish.messages and not gathering:
                    gathering = True
                    deadline = min(deadline, time.monotonic() + _GATHER_SECONDS)
                left = deadline - time.monotonic()
                if not wish.missing or caller.is_gone or caller.is_leaving or left <= 0:
                    break
                self._queue.wait(wish, left)
        return wish.messages

    # --- Putting ------------------------------------------------------------------------------------------------------

    def _put(self, request: Request, parameters: Mapping[str, str], caller: Caller) -> bool:
        return self._publish(request, caller, [_data(request, parameters)])

    def _put_many(self, request: Request, parameters: Mapping[str, str], caller: Caller) -> bool:
        return self._publish(request, caller, _data(request, parameters).split(_separator(parameters)))

    def _publish(self, request: Request, caller: Caller, bodies: list[bytes]) -> bool:
        if self._producer is None:
            raise ApiError(501, "no --destination-nsqd-tcp-address to put to")
        bodies = [body for body in bodies if body]
        if not bodies:
            raise ApiError(400, "missing data")
        try:
            self._producer.publish_many(self._topic, bodies)
        except PublishError as error:
            raise ApiError(_status_of(error), str(error)) from error
        self._count(puts=len(bodies))
        return caller.reply(request, _DONE)

    # --- The rest -----------------------------------------------------------------------------------------------------

    def _stats(self, request: Request, parameters: Mapping[str, str], caller: Caller) -> bool:
        if parameters.get("reset") == "1":
            with self._lock:
                self._counts.clear()
            return caller.reply(request, _DONE)
        with self._lock:
            figures = {name: self._counts[name] for name in _COUNTED}
        figures["in_flight"] = self._queue.in_flight
        if parameters.get("format") == "json":
            return caller.reply(request, Response(200, dumps(figures).encode() + b"\n", (JSON,)))
        return caller.reply(request, plain("".join(f"{name}:{figure}\n" for name, figure in figures.items())))

    def _ping(self, request: Request, parameters: Mapping[str, str], caller: Caller) -> bool:
        return caller.reply(request, plain("OK"))

    def _count(self, **figures: int) -> None:
        with self._lock:
            self._counts.update(figures)


_READING: Final = frozenset({"GET", "POST"})
_ROUTES: Final = {
    "/get": _Route(Pulling._get, _READING, _LARGEST_IGNORED),
    "/mget": _Route(Pulling._get_many, _READING, _LARGEST_IGNORED),
    "/put": _Route(Pulling._put, _READING | {"PUT"}, _LARGEST_PUT),
    "/mput": _Route(Pulling._put_many, _READING | {"PUT"}, _LARGEST_PUT),
    "/stats": _Route(Pulling._stats, _READING, _LARGEST_IGNORED),
    "/ping": _Route(Pulling._ping, _READING | {"HEAD"}, _LARGEST_IGNORED),
}


def read_wait(text: str) -> float:
    """Seconds of ``2.5``, or of a duration as flags have them (``2500ms``). Raises ``ApiError``."""
    try:
        wait = float(text)
    except ValueError:
        try:
            wait = seconds(parse_duration(text))
        except ValueError:
            raise ApiError(400, "wait must be seconds, or a duration such as 2s") from None
    if math.isnan(wait) or wait < 0:
        raise ApiError(400, "wait must not be negative")
    return min(wait, LONGEST_WAIT)


def _separator(parameters: Mapping[str, str]) -> bytes:
    separator = _bytes(parameters.get("separator", "\n"))
    if not separator:
        raise ApiError(400, "separator must not be empty")
    return separator


def _data(request: Request, parameters: Mapping[str, str]) -> bytes:
    """simplequeue: of the query first, then the body."""
    return _bytes(parameters["data"]) if "data" in parameters else request.body


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _status_of(error: PublishError) -> int:
    """400 when nsqd refused it for the message's sake; trying again helps against all else."""
    last = error.attempts[-1].error if error.attempts else None
    return 400 if isinstance(last, NsqError) and last.code.startswith("E_BAD") else 503
