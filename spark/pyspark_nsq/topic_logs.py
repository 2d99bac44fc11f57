"""The logs of a query's topics, as their nsqd report them (mode=log), for the driver.

All nsqd are asked side by side, each once for all topics. An nsqd that does not answer delays a batch by half a second
at most, and the next ones not at all: its topics are left out until it answers.
"""

import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark_nsq.connection import http_access
from pyspark_nsq.nodes import HttpFailed, Nodes, NoNodes, SideBySide, ask, exists
from pyspark_nsq.options import ReadOptions

log = logging.getLogger(__name__)

_TOPICS_PER_REQUEST: Final = 64
"""So that the URL stays short."""


class Mark(NamedTuple):
    """A message of a log. Another log at the same address has another message at this offset, or none."""

    offset: int
    timestamp_ns: int


class TopicLog(NamedTuple):
    """What one nsqd has of a topic: the offsets from `first` up to, and without, `next`.

    `offset` is that of the first message at the time that was asked for, or `next`. `end` is an offset from which on
    all messages were published at the other time that was asked for, or later; None if nsqd does not say. If
    `is_retained`, a policy says how long finished messages stay.
    """

    topic: str
    nsqd: str
    first: int
    next: int
    bytes: int
    is_retained: bool
    first_timestamp_ns: int | None = None
    last_timestamp_ns: int | None = None
    offset: int = 0
    end: int | None = None

    @property
    def mark(self) -> Mark | None:
        """The last message, if there is one."""
        return None if self.last_timestamp_ns is None else Mark(self.next - 1, self.last_timestamp_ns)


class Report(NamedTuple):
    """The nsqd that answered, and the reasons of those that did not; those without /topic/read are in `lacking`."""

    logs: dict[tuple[str, str], TopicLog]
    silent: dict[str, str]
    lacking: frozenset[str]


class TopicLogs:
    """`clock` is monotonic."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._access = http_access(options)
        self._nodes = Nodes(options, clock)
        self._clock = clock
        self._requests = SideBySide(self._ask, lambda request: f"http://{request[0]}/topic/offsets")
        self._tcp: dict[str, str] = {}
        self._silent: set[str] = set()
        self.heard: dict[str, float] = {}
        """When each nsqd last answered, by `clock`."""

    def ask(self, at_ms: int | None = None, patience: float | None = None, until_ms: int | None = None) -> Report:
        """Ask all nsqd, also for the offsets of times in milliseconds since 1970: `offset` and `end` of a log.

        Waits `patience` seconds, by default not for long. Raises ``NoNodes`` if no nsqlookupd answers, and
        ``HttpFailed`` with failOnUnreachable.
        """
        if patience is None and self._options.fail_on_unreachable:
            patience = self._options.connect_timeout
        times = {name: _text(ms) for name, ms in (("at", at_ms), ("until", until_ms)) if ms is not None}
        topics: dict[str, list[str]] = {}
        for node in self._nodes.all():
            topics.setdefault(node.http, []).append(node.topic)
            self._tcp[node.http] = node.tcp
        asked = tuple(times.items())
        requests = [(nsqd, names, asked) for nsqd, all_names in topics.items() for names in _joined(all_names)]
        logs: dict[tuple[str, str], TopicLog] = {}
        silent: dict[str, str] = {}
        lacking = set()
        for (nsqd, _, _), answer in self._requests.ask(requests, patience).items():
            if isinstance(answer, HttpFailed):
                silent[nsqd] = str(answer)
                continue
            self.heard[nsqd] = self._clock()
            if answer is None:
                lacking.add(nsqd)
            else:
                logs.update(((each.topic, nsqd), each) for each in answer)
        for nsqd, text in silent.items():
            if self._options.fail_on_unreachable:
                raise HttpFailed(text)
            if nsqd not in self._silent:  # it is asked several times a second
                log.warning("an nsqd is left out of batches until it answers: %s", text)
        self._silent = set(silent)
        return Report(logs, silent, frozenset(lacking))

    def require(self, at_ms: int | None = None, until_ms: int | None = None) -> Report:
        """As `ask`, from every nsqd. Raises ``NoNodes`` if one cannot be reached or has no retained log."""
        report = self.ask(at_ms, self._options.connect_timeout, until_ms)
        if report.silent:
            raise NoNodes("mode=log needs an answer of every nsqd at the start: " + "; ".join(report.silent.values()))
        if report.lacking:
            raise NoNodes(f"mode=log: {', '.join(sorted(report.lacking))} cannot be read by offset (Go's nsqd cannot)")
        return report

    def offers_log(self) -> bool:
        """Whether every nsqd that answers retains every topic that it has, at least one does, and all may be read."""
        self._nodes.require()
        if not all(node.http for node in self._nodes.all()):
            return False
        if self._options.tls and not all(node.http.startswith("https://") for node in self._nodes.all()):
            return False  # nsqlookupd does not know the ports for HTTPS
        timeout = self._options.connect_timeout
        report = self.ask(patience=timeout)
        if report.lacking or not report.logs or not all(each.is_retained for each in report.logs.values()):
            return False
        # An nsqd with an auth server has no /topic/read.
        one_of_each = {each.nsqd: each for each in report.logs.values()}.values()
        place = {each.nsqd: {"topic": each.topic, "from": str(each.next)} for each in one_of_each}
        return all(exists(nsqd, "topic/read", timeout, self._access, **at) for nsqd, at in place.items())

    def tcp_of(self, nsqd: str) -> str:
        """The TCP address of an nsqd, or the same address if it is unknown."""
        return self._tcp.get(nsqd, nsqd)

    def _ask(self, request: tuple[str, str, tuple[tuple[str, str], ...]]) -> list[TopicLog] | None:
        nsqd, names, times = request
        arguments = {"topics": names, **dict(times)}
        answer = ask(nsqd, "topic/offsets", self._options.connect_timeout, self._access, **arguments)
        return None if answer is None else _parsed(nsqd, names.split(","), answer)


def _text(milliseconds: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)).isoformat()


def _joined(names: Iterable[str]) -> Iterable[str]:
    each = sorted(set(names))
    return (",".join(each[begin : begin + _TOPICS_PER_REQUEST]) for begin in range(0, len(each), _TOPICS_PER_REQUEST))


def _parsed(nsqd: str, names: Iterable[str], answer: Any) -> list[TopicLog]:
    """The logs of these topics; an nsqd may name others, which are not the query's."""
    try:
        topics = {topic: answer["topics"][topic] for topic in names if topic in answer["topics"]}
        return [
            TopicLog(
                topic,
                nsqd,
                _number(each["first"]),
                _number(each["next"]),
                _number(each["bytes"]),
                each["retained"] is True,
                _number_or_none(each["first_timestamp"]),
                _number_or_none(each["last_timestamp"]),
                _number(each.get("offset", 0)),
                _number_or_none(each.get("end")),
            )
            for topic, each in topics.items()
        ]
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        raise HttpFailed(f"{nsqd}: cannot parse the answer of /topic/offsets: {error!r}") from None


def _number(value: Any) -> int:
    """An offset, size or time; larger ones fit in no column. Raises ``ValueError`` and ``TypeError``."""
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is out of range")
    return int(value)


def _number_or_none(value: Any) -> int | None:
    return None if value is None else _number(value)
