"""Reading a topic's log by offset, without a channel, from one nsqd or from all that have the topic.

Nothing is consumed: the same range gives the same messages again, as long as nsqd retains them. It uses /topic/offsets
and /topic/read (docs/http-api.md), which Go's nsqd does not have.

A thread for each nsqd requests the next part of its log while the caller handles the part before, so memory holds two
parts of each nsqd. The threads only make requests and queue the results; everything else is done by the thread that
iterates.
"""

import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlencode, urlsplit

from nsq_compat.bounded_http import FAILURES, Answer, Deadline, bounded_session, exchange, reason_of
from nsq_compat.client.connection import do_together, start_thread
from nsq_compat.client.discovery import FIRST_POLL_DELAY, ask
from nsq_compat.client.nodes import Error
from nsq_compat.client.settings import SubscriptionSettings, address_list
from nsq_compat.protocol.durations import parse_duration, seconds
from nsq_compat.protocol.errors import without_secrets
from nsq_compat.protocol.frames import FrameError, FrameReader, parse_message
from nsq_compat.protocol.headers import NO_HEADERS, Headers
from nsq_compat.protocol.names import is_valid_name

log = logging.getLogger(__name__)

T = TypeVar("T")
When = str | int | datetime | timedelta
"""A place in a log: ``oldest``, ``latest``, an offset, a time with its zone, or a duration ago, such as ``15m``."""

_WAIT_SECONDS: Final = 20.0
"""Time for which nsqd waits for the next message before it answers with none."""
_FIRST_DELAY: Final = 0.2
_MAX_DELAY: Final = 5.0
_MAX_ANSWER_BYTES: Final = 1 << 30
"""A part has a message at least, and nsqd does not announce its --max-msg-size."""
_FOR_ONE: Final = "an offset is a place on one nsqd; use a time or a position for several"
_FIRST_OFFSET: Final = re.compile(r"first offset is (\d+)")


class LogReadError(Error):
    """Reading cannot go on. `nsqd` is the address of the nsqd that is the reason, or empty."""

    def __init__(self, text: str, nsqd: str = "") -> None:
        super().__init__(f"nsqd {nsqd}: {text}" if nsqd else text)
        self.nsqd = nsqd


class OffsetGone(LogReadError):
    """The message with this `offset` was released; `first` is the first offset that nsqd retains."""

    def __init__(self, nsqd: str, offset: int, first: int) -> None:
        super().__init__(f"the message with offset {offset} was released; the first offset is {first}", nsqd)
        self.offset = offset
        self.first = first


class LoggedMessage(NamedTuple):
    """A message of a log. `id` is 16 ASCII bytes, `timestamp` the time of publishing in nanoseconds since 1970."""

    id: bytes
    timestamp: int
    body: bytes
    attempts: int
    """Always 1."""
    offset: int
    nsqd: str
    headers: Headers = NO_HEADERS


class Gap(NamedTuple):
    """Offsets, `first` to `last`, of messages that were lost by damage or never written."""

    nsqd: str
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class _Part(NamedTuple):
    """A part of a log: the frames from the offset `first` up to `next`. A gap ends before `first`."""

    begin: int
    first: int
    next: int
    frames: bytes = b""


class LogReader:
    """Iterates over the messages of a topic. Those of each nsqd come in the order of their offsets.

    It begins at `start`, or for an nsqd that is in `position`, there. It ends at `end`, by default the end of the log
    when it begins; with `follow` it goes on with what is published, and with further nsqd that nsqlookupd names.

    `on_gap` is called with each ``Gap``, in order with the messages. If an nsqd cannot be read for `retry_timeout`
    seconds (None: no limit), the iterator raises ``LogReadError``. `max_bytes` is the approximate size of a part that
    is read at once. Other options are those of ``SubscriptionSettings``.
    """

    def __init__(
        self,
        topic: str,
        *,
        nsqd_http_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        start: When = "oldest",
        end: When | None = None,
        position: Mapping[str, int] | None = None,
        follow: bool = False,
        on_gap: Callable[[Gap], object] | None = None,
        retry_timeout: float | None = 60.0,
        request_timeout: float = 30.0,
        max_bytes: int = 1 << 20,
        **options: Any,
    ) -> None:
        if not is_valid_name(topic):
            raise ValueError(f"{topic!r} is not a valid topic name")
        self.topic = topic
        self.lost_count = 0
        """The number of messages in gaps so far."""
        self._nsqds = list(dict.fromkeys(address_list(nsqd_http_addresses)))
        self._lookupds = list(dict.fromkeys(address_list(lookupd_http_addresses)))
        if bool(self._nsqds) == bool(self._lookupds):
            raise ValueError("either nsqd_http_addresses or lookupd_http_addresses is required")
        if follow and end is not None:
            raise ValueError("follow has no end")
        self._start = _text_of(start)
        self._end = "latest" if end is None else _text_of(end)
        self._is_for_one = self._start.isdigit() or self._end.isdigit()
        if self._is_for_one and (len(self._nsqds) > 1 or (self._lookupds and follow)):
            raise ValueError(_FOR_ONE)
        self._follow = follow
        self._on_gap = on_gap
        self._retry_timeout = retry_timeout
        self._request_timeout = request_timeout
        self._max_bytes = max_bytes
        self._settings = SubscriptionSettings(**options)
        self._settings.tls_context()  # raises now for files that cannot be read
        self._position = dict(position or {})
        self._nodes: dict[str, _Node] = {}
        self._with_topic: set[str] = set()
        self._unfinished: set[str] = set()
        self._ends = False
        self._stopped = threading.Event()
        """For the threads; set soon after `_ends`."""
        self._events: queue.SimpleQueue[Callable[[], Iterable[LoggedMessage]]] = queue.SimpleQueue()
        """What the threads have for the iterating one. The results are the next messages."""
        self._messages = self._read_all()

    @property
    def position(self) -> dict[str, int]:
        """For each nsqd the offset after the last message that the iterator has returned, for another reader."""
        return dict(self._position)

    def ranges(self) -> dict[str, range]:
        """The offsets that would be read from each nsqd now, without reading them; empty once it was stopped.

        Raises ``LogReadError``.
        """
        try:
            addresses = self._addresses()
        except _Stopped:
            return {}
        found: dict[str, range | None] = {}
        failures: list[LogReadError] = []

        def find(address: str) -> None:
            node = self._make_node(address)
            try:
                found[address] = self._retry(f"nsqd {address}", partial(self._range_of, node, self._start))
            except LogReadError as error:
                failures.append(error)
            except _Stopped:
                found[address] = None

        do_together(partial(find, address) for address in addresses)
        for failure in failures:
            raise failure
        ranges = ((address, found[address]) for address in addresses)
        return {address: each for address, each in ranges if each is not None}

    def stop(self) -> None:
        """End the iteration; may be called by any thread, and by signal handlers."""
        self._ends = True
        start_thread("nsq stop", self._end_threads)  # a signal handler must not wait for locks

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LoggedMessage:
        """Raises ``LogReadError``, also ``OffsetGone``."""
        return next(self._messages)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_threads()

    # --- In the thread that iterates ----------------------------------------------------------------------------------

    def _read_all(self) -> Iterator[LoggedMessage]:
        try:
            self._add(self._addresses(), self._start)
            if self._follow and self._lookupds:
                start_thread(f"lookup {self.topic}", self._look_up_again)
            while self._follow or self._unfinished:
                for message in self._events.get()():
                    yield message
                    if self._ends:
                        return
            if not self._with_topic:
                raise LogReadError(f"no nsqd has the topic {self.topic}")
        except _Stopped:
            return
        finally:
            self._end_threads()

    def _end_threads(self) -> None:
        self._ends = True
        self._stopped.set()
        for node in tuple(self._nodes.values()):
            node.abort()
        self._events.put(partial(_raise, _Stopped()))

    def _add(self, addresses: Iterable[str], start: str) -> Iterable[LoggedMessage]:
        for address in addresses:
            if address not in self._nodes:
                self._nodes[address] = node = self._make_node(address)
                self._unfinished.add(address)
                start_thread(f"log of nsqd {address}", self._read, node, start)
        return ()

    def _deliver(self, node: "_Node", part: _Part) -> Iterator[LoggedMessage]:
        """Yield the messages of a part, and move the position before each."""
        address, offset = node.address, part.first
        self._with_topic.add(address)
        self._position[address] = offset
        if offset > part.begin:
            gap = Gap(address, part.begin, offset - 1)
            self.lost_count += gap.size
            if self._on_gap is not None:
                self._on_gap(gap)
        try:
            for frame in FrameReader(_MAX_ANSWER_BYTES).receive_data(part.frames):
                timestamp, attempts, message_id, body, headers = parse_message(frame.data, frame.type)
                self._position[address] = offset + 1
                yield LoggedMessage(message_id, timestamp, body, attempts, offset, address, headers)
                offset += 1
        except FrameError as error:
            raise LogReadError(f"invalid answer: {error}", address) from None
        if offset != part.next:
            raise LogReadError(f"invalid answer: messages up to the offset {part.next} are missing", address)
        node.room.release()

    def _finish(self, address: str) -> Iterable[LoggedMessage]:
        self._unfinished.discard(address)
        return ()

    # --- In other threads ---------------------------------------------------------------------------------------------

    def _read(self, node: "_Node", start: str) -> None:
        name = f"nsqd {node.address}"
        try:
            found = self._retry(name, partial(self._range_of, node, start))
            if found is None:  # the whole topic is later than the end
                start = "oldest" if start == "latest" else _moment_of(start)
            while found is None and self._follow:
                self._stopped.wait(FIRST_POLL_DELAY)
                found = self._retry(name, partial(self._range_of, node, start))
            if found is not None:
                self._read_range(node, found)
            self._events.put(partial(self._finish, node.address))
        except _Stopped:
            pass
        except _NoTopic:
            self._events.put(partial(_raise, LogReadError("the topic was deleted", node.address)))
        except Exception as error:  # the top of a thread
            self._events.put(partial(_raise, error))

    def _read_range(self, node: "_Node", offsets: range) -> None:
        begin = offsets.start
        self._pass_on(node, _Part(begin, begin, begin))
        end = None if self._follow else offsets.stop
        while end is None or begin < end:
            part = self._retry(f"nsqd {node.address}", partial(node.read, begin, end, self._max_bytes))
            if part.next > begin:
                self._pass_on(node, part)
            begin = part.next

    def _pass_on(self, node: "_Node", part: _Part) -> None:
        node.room.acquire()
        if self._stopped.is_set():
            raise _Stopped
        self._events.put(partial(self._deliver, node, part))

    def _look_up_again(self) -> None:
        """Find further nsqd. What they have was published after this reader began, unless they are named late."""
        start = _moment_of(self._start)
        while not self._stopped.wait(self._settings.lookupd_poll_interval if self._nodes else FIRST_POLL_DELAY):
            with suppress(*FAILURES):
                nodes = self._look_up()
                self._events.put(partial(self._add, sorted(nodes), start))

    # --- In any thread ------------------------------------------------------------------------------------------------

    def _make_node(self, address: str) -> "_Node":
        return _Node(address, self.topic, self._settings, self._request_timeout)

    def _addresses(self) -> list[str]:
        """The addresses of all nsqd. Raises ``LogReadError``."""
        if self._nsqds:
            return self._nsqds
        nodes = self._retry(f"nsqlookupd {', '.join(map(without_secrets, self._lookupds))}", self._look_up)
        if missing := sorted(self._position.keys() - nodes):
            log.warning("[%s] no nsqlookupd lists %s, which the position names", self.topic, ", ".join(missing))
        if not nodes and not self._follow:
            raise LogReadError(f"no nsqd has the topic {self.topic}")
        if len(nodes) > 1 and self._is_for_one:
            raise LogReadError(_FOR_ONE)
        return sorted(nodes)

    def _look_up(self) -> set[str]:
        """The addresses that the nsqlookupds list. Raises ``ValueError`` if none of them answers."""
        nodes: set[str] = set()
        failures: list[str] = []

        def query(lookupd: str) -> None:
            try:
                nodes.update(ask(lookupd, self.topic, self._settings, "HTTP").nodes)
            except FAILURES as error:
                log.warning("[%s] nsqlookupd %s: %s", self.topic, without_secrets(lookupd), reason_of(error))
                failures.append(reason_of(error))

        do_together(partial(query, each) for each in self._lookupds)
        if len(failures) == len(self._lookupds):
            raise ValueError("; ".join(dict.fromkeys(failures)))
        return nodes

    def _range_of(self, node: "_Node", start: str) -> range | None:
        """The offsets to read; None if the nsqd does not have the topic."""
        try:
            found = node.offsets(self._end)
            begin = self._position.get(node.address)
            if begin is None:
                begin = found["first"] if start == "oldest" else node.offsets(start)["offset"]
        except _NoTopic:
            return None
        if begin < found["first"]:
            raise OffsetGone(node.address, begin, found["first"])
        if begin > found["next"]:
            text = f"the position {begin} is after the next offset, {found['next']}: this is another log of the topic"
            raise LogReadError(text, node.address)
        return range(begin, max(begin, found["offset"]))

    def _retry(self, name: str, request: Callable[[], T]) -> T:
        """Repeat a request, with growing pauses, while the daemon does not answer. Raises ``LogReadError``."""
        failed_at: float | None = None
        delay = _FIRST_DELAY
        while not self._stopped.is_set():
            try:
                result = request()
            except FAILURES as error:
                now, reason = time.monotonic(), reason_of(error)
                if self._stopped.is_set():
                    break
                is_first = failed_at is None
                failed_at = now if failed_at is None else failed_at
                if self._retry_timeout is not None and now >= failed_at + self._retry_timeout:
                    during = f", for {self._retry_timeout:g} s" if self._retry_timeout else ""
                    raise LogReadError(f"{name}: {reason}{during}") from None
                if is_first:
                    log.warning("[%s] %s: %s; trying again", self.topic, name, reason)
            else:
                if failed_at is not None:
                    log.info("[%s] %s: answers again", self.topic, name)
                return result
            self._stopped.wait(delay)
            delay = min(2 * delay, _MAX_DELAY)
        raise _Stopped


class _NoTopic(Exception):
    """The nsqd does not have the topic."""


class _Stopped(Exception):
    """The reader was stopped."""


class _Node:
    """The requests to one nsqd, all from one thread. An address may be a URL.

    They raise one of `FAILURES` for what may be better later, ``_NoTopic`` or ``LogReadError``.
    """

    def __init__(self, address: str, topic: str, settings: SubscriptionSettings, request_timeout: float) -> None:
        self.address = address
        self.room = threading.Semaphore(1)
        """For parts that wait for the iterating thread."""
        self._url = address if "://" in address else f"http://{address}"
        self._topic = topic
        self._settings = settings
        self._timeout = request_timeout
        self._session = bounded_session(1, settings.tls_context())
        self._deadline = Deadline(0.0)
        self._may_require_tls = bool(settings.headers()) and self._url.lower().startswith("http://")

    def offsets(self, at: str) -> dict[str, int]:
        """The answer of /topic/offsets."""
        answer = json.loads(self._get("/topic/offsets", {"at": at}).body)
        if not isinstance(answer, dict) or not all(type(answer.get(key)) is int for key in ("first", "next", "offset")):
            raise ValueError("the answer has no offsets; is this nsqd's HTTP address?")
        return answer

    def read(self, begin: int, end: int | None, max_bytes: int) -> _Part:
        """The messages from an offset on; without an end, waits for the next message."""
        until = {"wait": f"{_WAIT_SECONDS * 1000:.0f}"} if end is None else {"to": str(end)}
        answer = self._get("/topic/read", {"from": str(begin), "max_bytes": str(max_bytes), **until})
        try:
            first, following = (int(answer.headers[f"X-NSQ-{name}-Offset"]) for name in ("First", "Next"))
        except (KeyError, ValueError):
            raise ValueError("the answer has no offsets; is this nsqd's HTTP address?") from None
        if not begin <= first <= following or (end is not None and following == begin):
            raise ValueError(f"the answer has the offsets {first} to {following}")
        return _Part(begin, first, following, answer.body)

    def abort(self) -> None:
        """End the request under way, and waiting for room; may be called by any thread."""
        self._deadline.expire()
        self.room.release()

    def _get(self, path: str, parameters: Mapping[str, str]) -> Answer:
        query = {"topic": self._topic, **parameters}
        self._deadline = Deadline(self._timeout + (_WAIT_SECONDS if "wait" in query else 0))
        if self._may_require_tls:  # then the secret must not be sent without it
            self._use_tls_if_required(self._exchange("/ping", {}, is_secret=False))
            self._may_require_tls = False
        answer = self._exchange(path, query)
        if self._use_tls_if_required(answer):
            answer = self._exchange(path, query)
        if answer.status == 200:
            return answer
        reason = str(_load(answer.body).get("message", ""))
        if answer.status == 404 and reason == "TOPIC_NOT_FOUND":
            raise _NoTopic
        if answer.status in (404, 405):
            text = f"does not offer {path}: it is Go's nsqd, or an nsqd with --auth-http-address"
            raise LogReadError(text, self.address)
        if answer.status == 410 and (found := _FIRST_OFFSET.search(reason)):
            raise OffsetGone(self.address, int(query.get("from") or query["at"]), int(found[1]))
        if 400 <= answer.status < 500:
            raise LogReadError(f"answered {answer.status} {reason}", self.address)
        raise ValueError(f"answered {answer.status} {reason}")

    def _use_tls_if_required(self, answer: Answer) -> bool:
        """Whether nsqd requires TLS, and names its port for it."""
        port = _load(answer.body).get("https_port") if answer.status == 403 else None
        if port:
            self._url = f"https://{urlsplit(self._url).netloc.rpartition(':')[0]}:{port}"
        return bool(port)

    def _exchange(self, path: str, query: Mapping[str, str], *, is_secret: bool = True) -> Answer:
        return exchange(
            self._session,
            "GET",
            f"{self._url.rstrip('/')}{path}?{urlencode(query)}",
            self._deadline,
            connect_timeout=self._settings.timeout,
            max_body=_MAX_ANSWER_BYTES,
            headers={
                "Accept-Encoding": "identity",
                "User-Agent": self._settings.user_agent,
                **(self._settings.headers() if is_secret else {}),
            },
        )


def _load(body: bytes) -> dict[str, Any]:
    """The JSON object of a refusal; empty if it is none."""
    with suppress(ValueError):
        value = json.loads(body)
        if isinstance(value, dict):
            return value
    return {}


def _raise(error: Exception) -> Iterable[LoggedMessage]:
    raise error


def _text_of(when: When) -> str:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{when} has no time zone")
        return when.isoformat()
    if isinstance(when, timedelta):
        return f"{when / timedelta(microseconds=1):.0f}us"
    return str(when)


def _moment_of(start: str) -> str:
    """The same place for an nsqd that is found later: a duration ago and the end are the times that they are now."""
    try:
        before = timedelta(0) if start == "latest" else timedelta(seconds=seconds(parse_duration(start)))
    except ValueError:
        return start
    return (datetime.now(UTC) - before).isoformat()
