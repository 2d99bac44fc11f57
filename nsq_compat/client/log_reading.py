"""Reading a topic's log by offset: what is requested, in which order, and what the answers mean. Without I/O.

Nothing is consumed: the same range gives the same messages again, as long as nsqd retains them. It uses /topic/offsets
and /topic/read (docs/http-api.md), which Go's nsqd does not have.

Used by the reader in threads and by the one on an event loop. A routine is a generator that yields *steps*: a
`Request`, and is sent its ``Answer``, or its failure is thrown into it; a `LookUp`, for the nodes that the nsqlookupds
list; a `Pause`; a `Part` for the program that iterates. The readers carry the steps out.
"""

import logging
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

from nsq_compat.bounded_http import FAILURES, Answer, reason_of
from nsq_compat.client.discovery import FIRST_POLL_DELAY, MAX_NODES, loaded
from nsq_compat.client.nodes import Error
from nsq_compat.client.settings import SubscriptionOptions, SubscriptionSettings, address_list
from nsq_compat.protocol.durations import parse_duration, seconds
from nsq_compat.protocol.errors import one_line, without_secrets
from nsq_compat.protocol.frames import FrameError, FrameReader, parse_message
from nsq_compat.protocol.headers import NO_HEADERS, Headers
from nsq_compat.protocol.names import is_port, is_valid_name

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
When = str | int | datetime | timedelta
"""A place in a log: ``oldest``, ``latest``, an offset, a time with its zone, or a duration ago, such as ``15m``."""

MAX_ANSWER_BYTES: Final = 1 << 30
"""A part has a message at least, and nsqd does not announce its --max-msg-size."""
_MAX_JSON_BYTES: Final = 1 << 20
"""Of an answer that is no part of a log. JSON takes up to thirty times its size, and is parsed in one go."""
_WAIT_SECONDS: Final = 20.0
"""Time for which nsqd waits for the next message before it answers with none."""
_FIRST_DELAY: Final = 0.2
_MAX_DELAY: Final = 5.0
_FOR_ONE: Final = "an offset is a place on one nsqd; use a time or a position for several"
_MAX_SHOWN: Final = 1000
"""Characters of what nsqd says, in errors and in the log."""
_END: Final = 1 << 63
_FIRST_OFFSET: Final = re.compile(r"first offset is (\d+)")


# --- Values -----------------------------------------------------------------------------------------------------------


class LogReadError(Error):
    """Reading cannot go on. `nsqd` is the address of the nsqd that is the reason, or empty."""

    def __init__(self, text: str, nsqd: str = "") -> None:
        super().__init__(f"nsqd {without_secrets(nsqd)}: {text}" if nsqd else text)
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


# --- Steps ------------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """A GET request, within `timeout` seconds."""

    url: str
    headers: dict[str, str]
    timeout: float


class LookUp(NamedTuple):
    """Ask every nsqlookupd; the result is ``LogReading.union`` of the answers."""


class Pause(NamedTuple):
    seconds: float


class Part(NamedTuple):
    """A part of a log: the frames from the offset `first` up to `next`. A gap ends before `first`.

    As a step: pass it on to the program that iterates, which calls ``LogReading.messages``.
    """

    address: str
    begin: int
    first: int
    next: int
    frames: bytes = b""


Step = Request | LookUp | Pause | Part
Routine = Generator[Step, Any, T]


class LogReading:
    """The options, the position and the routines of a reader, which are those of ``LogReader``."""

    def __init__(
        self,
        topic: str,
        nsqd_http_addresses: str | Iterable[str],
        lookupd_http_addresses: str | Iterable[str],
        start: When,
        end: When | None,
        position: Mapping[str, int] | None,
        follow: bool,
        on_gap: Callable[[Gap], object] | None,
        retry_timeout: float | None,
        request_timeout: float,
        max_bytes: int,
        options: SubscriptionOptions,
    ) -> None:
        if not is_valid_name(topic):
            raise ValueError(f"{topic!r} is not a valid topic name")
        self.topic = topic
        self.lost_count: int = 0
        self.lookupds: list[str] = list(dict.fromkeys(address_list(lookupd_http_addresses)))
        self._nsqds = list(dict.fromkeys(address_list(nsqd_http_addresses)))
        if bool(self._nsqds) == bool(self.lookupds):
            raise ValueError("either nsqd_http_addresses or lookupd_http_addresses is required")
        if follow and end is not None:
            raise ValueError("follow has no end")
        self.start: str = _text_of(start)
        self._end = "latest" if end is None else _text_of(end)
        self._is_for_one = self.start.isdigit() or self._end.isdigit()
        if self._is_for_one and (len(self._nsqds) > 1 or (self.lookupds and follow)):
            raise ValueError(_FOR_ONE)
        self.follow = follow
        self._on_gap = on_gap
        self._retry_timeout = retry_timeout
        self._request_timeout = request_timeout
        self._max_bytes = max_bytes
        self.settings: SubscriptionSettings = SubscriptionSettings.of(options, self)
        self.settings.tls_context()  # raises now for files that cannot be read
        self.position: dict[str, int] = dict(position or {})
        self._with_topic: set[str] = set()
        self._unfinished: set[str] = set()
        self._known: set[str] = set()

    # --- In the program that iterates ---------------------------------------------------------------------------------

    @property
    def goes_on(self) -> bool:
        """Whether further messages may come."""
        return self.follow or bool(self._unfinished)

    def check_end(self) -> None:
        """Raises ``LogReadError`` if nothing could be read."""
        if not self._with_topic:
            raise LogReadError(f"no nsqd has the topic {self.topic}")

    def new_nodes(self, addresses: Iterable[str]) -> list[str]:
        """The nodes that are not read yet; reading them begins now."""
        new = [address for address in dict.fromkeys(addresses) if address not in self._known]
        if self.lookupds:
            # They may list others with each look.
            room = max(0, MAX_NODES * len(self.lookupds) - len(self._known))
            if len(new) > room:
                log.warning("[%s] nsqlookupd lists %d further nsqd, which are not read", self.topic, len(new) - room)
            new = new[:room]
        self._known.update(new)
        self._unfinished.update(new)
        return new

    def finished(self, address: str) -> None:
        """The routine that reads this nsqd has ended."""
        self._unfinished.discard(address)

    def messages(self, part: Part) -> Iterator[LoggedMessage]:
        """The messages of a part; the position moves before each. Raises ``LogReadError``."""
        address, offset = part.address, part.first
        self._with_topic.add(address)
        self.position[address] = offset
        if offset > part.begin:
            gap = Gap(address, part.begin, offset - 1)
            self.lost_count += gap.size
            if self._on_gap is not None:
                self._on_gap(gap)
        try:
            for frame in FrameReader(MAX_ANSWER_BYTES).receive_data(part.frames):
                timestamp, attempts, message_id, body, headers = parse_message(frame.data, frame.type)
                self.position[address] = offset + 1
                yield LoggedMessage(message_id, timestamp, body, attempts, offset, address, headers)
                offset += 1
        except FrameError as error:
            raise LogReadError(f"invalid answer: {error}", address) from None
        if offset != part.next:
            raise LogReadError(f"invalid answer: messages up to the offset {part.next} are missing", address)

    # --- Routines -----------------------------------------------------------------------------------------------------

    def addresses(self) -> Routine[list[str]]:
        """The addresses of all nsqd. Raises ``LogReadError``."""
        if self._nsqds:
            return self._nsqds
        name = f"nsqlookupd {', '.join(map(without_secrets, self.lookupds))}"
        nodes: set[str] = yield from self._retry(name, _look_up)
        if missing := sorted(self.position.keys() - nodes):
            log.warning("[%s] no nsqlookupd lists %s, which the position names", self.topic, ", ".join(missing))
        if not nodes and not self.follow:
            raise LogReadError(f"no nsqd has the topic {self.topic}")
        if len(nodes) > 1 and self._is_for_one:
            raise LogReadError(_FOR_ONE)
        return sorted(nodes)

    def further_nodes(self) -> Routine[set[str]]:
        """Before each further look: wait, then look up; an empty set after a failure."""
        yield Pause(self.settings.lookupd_poll_interval if self._known else FIRST_POLL_DELAY)
        with suppress(*FAILURES):
            return (yield from _look_up())
        return set()

    def union(self, found: Iterable[set[str]], failures: list[str]) -> set[str]:
        """The nodes that the nsqlookupds list. Raises ``ValueError`` if none of them has answered."""
        if len(failures) == len(self.lookupds):
            raise ValueError("; ".join(dict.fromkeys(failures)))
        return set().union(*found)

    def range_of(self, address: str) -> Routine[range | None]:
        """The offsets to read from an nsqd; None if it does not have the topic. Raises ``LogReadError``."""
        return (yield from self._range_of(self._node(address), self.start))

    def read(self, address: str, start: str) -> Routine[None]:
        """Read an nsqd to the end. Raises ``LogReadError``."""
        node = self._node(address)
        try:
            found = yield from self._range_of(node, start)
            if found is None:  # the whole topic is later than the end
                start = "oldest" if start == "latest" else moment_of(start)
            while found is None and self.follow:
                yield Pause(FIRST_POLL_DELAY)
                found = yield from self._range_of(node, start)
            if found is not None:
                yield from self._read_range(node, found)
        except _NoTopic:
            raise LogReadError("the topic was deleted", address) from None

    def _read_range(self, node: "_Node", offsets: range) -> Routine[None]:
        begin = offsets.start
        yield Part(node.address, begin, begin, begin)
        end = None if self.follow else offsets.stop
        while end is None or begin < end:
            request = partial(node.read, begin, end, self._max_bytes)
            asked_at = time.monotonic()
            part: Part = yield from self._retry(f"nsqd {without_secrets(node.address)}", request)
            if part.next > begin:
                yield part
            else:  # an nsqd that waits before it answers is asked again at once, another is not
                yield Pause(max(0.0, asked_at + _FIRST_DELAY - time.monotonic()))
            begin = part.next

    def _node(self, address: str) -> "_Node":
        return _Node(address, self.topic, self.settings, self._request_timeout)

    def _range_of(self, node: "_Node", start: str) -> Routine[range | None]:
        return (yield from self._retry(f"nsqd {without_secrets(node.address)}", partial(self._find_range, node, start)))

    def _find_range(self, node: "_Node", start: str) -> Routine[range | None]:
        try:
            found = yield from node.offsets(self._end)
            begin = self.position.get(node.address)
            if begin is None:
                begin = found["first"] if start == "oldest" else (yield from node.offsets(start))["offset"]
        except _NoTopic:
            return None
        if begin < found["first"]:
            raise OffsetGone(node.address, begin, found["first"])
        if begin > found["next"]:
            text = f"the position {begin} is after the next offset, {found['next']}: this is another log of the topic"
            raise LogReadError(text, node.address)
        return range(begin, max(begin, found["offset"]))

    def _retry(self, name: str, request: Callable[[], Routine[T]]) -> Routine[T]:
        """Repeat a request, with growing pauses, while the daemon does not answer. Raises ``LogReadError``."""
        failed_at: float | None = None
        delay = _FIRST_DELAY
        while True:
            try:
                result = yield from request()
            except FAILURES as error:
                now, reason = time.monotonic(), reason_of(error)
                is_first = failed_at is None
                failed_at = now if failed_at is None else failed_at
                if self._retry_timeout is not None and now >= failed_at + self._retry_timeout:
                    during = f", for {self._retry_timeout:g} s" if self._retry_timeout else ""
                    raise LogReadError(f"{name}: {reason}{during}") from None
                if is_first:
                    log.warning("[%s] %s: %s; trying again in %g s", self.topic, name, reason, delay)
            else:
                if failed_at is not None:
                    log.info("[%s] %s: answers again", self.topic, name)
                return result
            yield Pause(delay)
            delay = min(2 * delay, _MAX_DELAY)


class _NoTopic(Exception):
    """The nsqd does not have the topic."""


def _look_up() -> Routine[set[str]]:
    nodes: set[str] = yield LookUp()
    return nodes


class _Node:
    """The requests to one nsqd. An address may be a URL.

    They raise one of `FAILURES` for what may be better later, ``_NoTopic`` or ``LogReadError``.
    """

    def __init__(self, address: str, topic: str, settings: SubscriptionSettings, request_timeout: float) -> None:
        self.address = address
        self._url = address if "://" in address else f"http://{address}"
        self._topic = topic
        self._timeout = request_timeout
        self._headers = {"Accept-Encoding": "identity", "User-Agent": settings.user_agent}
        self._secret = settings.headers()
        self._may_require_tls = bool(self._secret) and self._url.lower().startswith("http://")

    def offsets(self, at: str) -> Routine[dict[str, int]]:
        """The answer of /topic/offsets."""
        body = (yield from self._get("/topic/offsets", {"at": at})).body
        answer = loaded(body) if len(body) <= _MAX_JSON_BYTES else None
        if not isinstance(answer, dict) or not all(_is_offset(answer.get(key)) for key in ("first", "next", "offset")):
            raise ValueError("the answer has no offsets; is this nsqd's HTTP address?")
        return answer

    def read(self, begin: int, end: int | None, max_bytes: int) -> Routine[Part]:
        """The messages from an offset on; without an end, waits for the next message."""
        until = {"wait": f"{_WAIT_SECONDS * 1000:.0f}"} if end is None else {"to": str(end)}
        answer = yield from self._get("/topic/read", {"from": str(begin), "max_bytes": str(max_bytes), **until})
        try:
            first, following = (int(answer.headers[f"X-NSQ-{name}-Offset"]) for name in ("First", "Next"))
        except (KeyError, ValueError):
            raise ValueError("the answer has no offsets; is this nsqd's HTTP address?") from None
        if not begin <= first <= following < _END or (end is not None and following == begin):
            raise ValueError(f"the answer has the offsets {first} to {following}")
        return Part(self.address, begin, first, following, answer.body)

    def _get(self, path: str, parameters: Mapping[str, str]) -> Routine[Answer]:
        query = {"topic": self._topic, **parameters}
        if self._may_require_tls:  # then the secret must not be sent without it
            self._use_tls_if_required((yield self._request("/ping", {}, {})))
            self._may_require_tls = False
        answer: Answer = yield self._request(path, query, self._secret)
        if self._use_tls_if_required(answer):
            answer = yield self._request(path, query, self._secret)
        if answer.status == 200:
            return answer
        reason = one_line(str(_load(answer.body).get("message", ""))[:_MAX_SHOWN])
        if answer.status == 404 and reason == "TOPIC_NOT_FOUND":
            raise _NoTopic
        if answer.status in (404, 405):
            text = f"does not offer {path}: it is Go's nsqd, or an nsqd with --auth-http-address"
            raise LogReadError(text, self.address)
        if answer.status == 410 and (found := _FIRST_OFFSET.search(reason)):
            raise OffsetGone(self.address, int(query.get("from") or query["at"]), int(found[1]))
        text = f"answered {answer.status} {reason}".rstrip()
        if 400 <= answer.status < 500:
            raise LogReadError(text, self.address)
        raise ValueError(text)

    def _use_tls_if_required(self, answer: Answer) -> bool:
        """Whether nsqd requires TLS, and names its port for it."""
        port = _load(answer.body).get("https_port") if answer.status == 403 else None
        if not is_port(port):  # of any other value, a URL could name another host
            return False
        parts = urlsplit(self._url)
        user, at, _ = parts.netloc.rpartition("@")
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self._url = f"https://{user}{at}{host}:{port}"
        return True

    def _request(self, path: str, query: Mapping[str, str], secret: Mapping[str, str]) -> Request:
        timeout = self._timeout + (_WAIT_SECONDS if "wait" in query else 0)
        url = f"{self._url.rstrip('/')}{path}" + (f"?{urlencode(query)}" if query else "")
        return Request(url, {**self._headers, **secret}, timeout)


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value < _END


def _load(body: bytes) -> dict[str, Any]:
    """The JSON object of a refusal; empty if it is none."""
    if len(body) > _MAX_JSON_BYTES:
        return {}
    with suppress(ValueError):
        value = loaded(body)
        if isinstance(value, dict):
            return value
    return {}


def _text_of(when: When) -> str:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{when} has no time zone")
        return when.isoformat()
    if isinstance(when, timedelta):
        return f"{when / timedelta(microseconds=1):.0f}us"
    return str(when)


def moment_of(start: str) -> str:
    """The same place for an nsqd that is found later: a duration ago and the end are the times that they are now."""
    try:
        before = timedelta(0) if start == "latest" else timedelta(seconds=seconds(parse_duration(start)))
    except ValueError:
        return start
    return (datetime.now(UTC) - before).isoformat()
