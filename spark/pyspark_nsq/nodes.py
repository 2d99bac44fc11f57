"""Discovery of the nsqd that have a topic, and of their backlogs, over the HTTP APIs of nsqlookupd and nsqd."""

import itertools
import json
import logging
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from nsq_compat.bounded_http import FAILURES, Deadline, bounded_session, exchange, reason_of
from nsq_compat.protocol.names import address_error, is_ephemeral, printable
from pyspark_nsq.options import ReadOptions

log = logging.getLogger(__name__)

_MAX_RESPONSE_BYTES = 32 << 20
# Polls of /stats within one second while a topic still copies messages to its channels.
_MAX_POLLS = 50
_MAX_WARNINGS = 5


class HttpFailed(Exception):
    """A daemon gave no usable answer; the text names the daemon and the reason."""


class NoNodes(Exception):
    """No nsqlookupd answers, or none of the named nsqd can be reached."""


@dataclass(frozen=True, slots=True)
class Node:
    """An nsqd with one of the topics. If `http` is empty, its backlog is unknown."""

    topic: str
    tcp: str
    http: str


def ask(address: str, path: str, timeout: float, **parameters: str) -> Any:
    """GET a path and return the JSON value of the answer, or None for 404. Raises ``HttpFailed``."""
    status, body = _exchange("GET", address, path, timeout, b"", parameters)
    if status == 404:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        raise HttpFailed(f"http://{address}/{path}: {error}") from None


def exists(address: str, path: str, timeout: float, **parameters: str) -> bool:
    """Whether GET of a path is answered with 200, not 404. Raises ``HttpFailed``."""
    return _exchange("GET", address, path, timeout, b"", parameters)[0] == 200


def post(address: str, path: str, timeout: float, body: bytes = b"", **parameters: str) -> None:
    """POST to a path. Raises ``HttpFailed`` unless the daemon answers 200."""
    status, _ = _exchange("POST", address, path, timeout, body, parameters)
    if status == 404:
        raise HttpFailed(f"http://{address}/{path}: not found")


def _exchange(
    method: str, address: str, path: str, timeout: float, body: bytes, parameters: dict[str, str]
) -> tuple[int, bytes]:
    """Return the status (200 or 404) and the body. `timeout` is for the whole exchange, in seconds."""
    url = f"http://{address}/{path}?{urlencode(parameters)}"
    try:
        with bounded_session() as session:
            answer = exchange(
                session,
                method,
                url,
                Deadline(timeout),
                connect_timeout=timeout,
                max_body=_MAX_RESPONSE_BYTES,
                body=body,
                headers={"Accept": "application/vnd.nsq; version=1.0"},
            )
        if answer.status not in (200, 404):
            raise ValueError(f"status {answer.status} {answer.body[:200].decode('utf-8', 'replace')}")
    except FAILURES as error:
        raise HttpFailed(f"{url}: {reason_of(error)}") from None
    return answer.status, answer.body


class Interval:
    """Whether something is due again: at the first call, and `seconds` after the last time. `clock` is monotonic."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: float | None = None

    def is_due(self) -> bool:
        now = self._clock()
        if self._last is not None and now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Nodes:
    """The nodes that have a query's topics. They are looked up again every `lookup_interval`. `clock` is monotonic."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._known: list[Node] = []
        self._asked: float | None = None
        self._with_channel: set[Node] = set()
        self._skipped: set[str] = set()

    def all(self) -> list[Node]:
        """Return the nodes in sorted order, so that plans are stable.

        Raises ``NoNodes`` if no nsqlookupd answers and none has answered before.
        """
        options = self._options
        if not options.lookupd_http_addresses and options.topic_pattern is None:
            return _named(options, options.topics)
        now = self._clock()
        if self._asked is None or now - self._asked >= options.lookup_interval:
            self._look_up()
            self._asked = now
        return self._known

    def require(self) -> None:
        """Raise ``NoNodes`` if no named nsqd, or no nsqlookupd, can be reached."""
        complaints = []
        for node in self.all():
            try:
                self._try(node)
            except (HttpFailed, OSError) as error:
                complaints.append(f"{node.tcp}: {error}")
            else:
                return
        if complaints and not self._options.lookupd_http_addresses:
            name = "nsqdTcpAddresses" if self._options.nsqd_tcp_addresses else "nsqdHttpAddresses"
            raise NoNodes(
                f"{name}: no nsqd can be reached; start one, or set other addresses: " + "; ".join(complaints)
            )

    def create_channels(self) -> None:
        """Create the channel on every node, so that it gets all messages. A failure is retried at the next call."""
        options = self._options
        for node in self.all():
            if not options.create_channel or not node.http or node in self._with_channel:
                continue
            try:
                if not options.lookupd_http_addresses:
                    self._tell(node, "topic/create", topic=node.topic)
                self._tell(node, "channel/create", topic=node.topic, channel=options.channel)
                self._with_channel.add(node)
            except HttpFailed as error:
                self._complain(error)

    def backlog(self) -> list[tuple[Node, int | None]]:
        """Return every node with the depth of the channel there, or None if the node has no HTTP address.

        Unreachable nodes are left out; with failOnUnreachable they raise ``HttpFailed``.
        """
        found: list[tuple[Node, int | None]] = []
        for node in self.all():
            try:
                found.append((node, self._depth(node) if node.http else None))
            except HttpFailed as error:
                self._complain(error)
        return found

    def settled_backlog(self) -> list[tuple[Node, int | None]]:
        """Return `backlog` after topics have copied their messages to the channel, or after one second at most.

        Go's nsqd reads the channel's depth before the topic's, so that it misses messages that pass from topic to
        channel in between. Shortly after the channel was created, these can be all messages.
        """
        for _ in range(_MAX_POLLS):
            if not any(self._is_passing_on(node) for node in self.all() if node.http):
                break
            time.sleep(1 / _MAX_POLLS)
        return self.backlog()

    def _try(self, node: Node) -> None:
        timeout = self._options.connect_timeout
        if node.http:
            ask(node.http, "info", timeout)
        else:
            host, _, port = node.tcp.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout).close()

    def _tell(self, node: Node, path: str, **parameters: str) -> None:
        post(node.http, path, self._options.connect_timeout, b"", **parameters)

    def _is_passing_on(self, node: Node) -> bool:
        try:
            return self._depths(node)[0] > 0
        except HttpFailed:  # reported by `backlog`
            return False

    def _depth(self, node: Node) -> int:
        # Recently published messages may still be in the topic.
        return sum(self._depths(node))

    def _depths(self, node: Node) -> tuple[int, int]:
        """The depths of topic and channel; (0, 0) if there is no such channel."""
        name, timeout = self._options.channel, self._options.connect_timeout
        answer = ask(node.http, "stats", timeout, format="json", topic=node.topic, channel=name)
        try:
            for topic in answer["topics"] or ():
                for channel in topic["channels"] or ():
                    if (topic["topic_name"], channel["channel_name"]) == (node.topic, name):
                        return int(topic["depth"]), int(channel["depth"])
            return 0, 0
        except (TypeError, KeyError) as error:
            raise HttpFailed(f"{node.http}: cannot parse the answer of /stats: {error!r}") from None

    def _topics(self, complaints: list[str]) -> list[str]:
        """The topics that match the pattern, by all nsqlookupd."""
        found: set[str] = set()
        for lookupd in self._options.lookupd_http_addresses:
            try:
                answer = ask(lookupd, "topics", self._options.connect_timeout)
                found.update(_names(answer, f"http://{lookupd}/topics"))
            except HttpFailed as error:
                complaints.append(str(error))
                log.warning("skipping an nsqlookupd: %s", error)
        return self._chosen(found)

    def _matching(self) -> list[Node]:
        """The nodes of the options, with the topics there that match the pattern."""
        found: list[Node] = []
        for node in _named(self._options, [""]):
            try:
                parameters = {"format": "json", "include_clients": "false", "include_mem": "false"}
                stats = ask(node.http, "stats", self._options.connect_timeout, **parameters)
                topics = [str(each["topic_name"]) for each in stats["topics"] or ()]
            except HttpFailed as error:
                self._complain(error)
                found += [each for each in self._known if each.http == node.http]
                continue
            except (TypeError, KeyError) as error:
                raise HttpFailed(f"{node.http}: cannot parse the answer of /stats: {error!r}") from None
            found += [replace(node, topic=topic) for topic in self._chosen(topics)]
        return sorted(found, key=lambda node: (node.topic, node.tcp))

    def _chosen(self, topics: Iterable[str]) -> list[str]:
        pattern = self._options.topic_pattern
        assert pattern is not None, "otherwise topics are named"
        return sorted(topic for topic in topics if pattern.fullmatch(topic) and not is_ephemeral(topic))

    def _complain(self, error: HttpFailed) -> None:
        if self._options.fail_on_unreachable:
            raise error
        log.warning("skipping an unreachable nsqd: %s", error)

    def _look_up(self) -> None:
        if not self._options.lookupd_http_addresses:
            self._known = self._matching()
            return
        found: set[Node] = set()
        skipped: set[str] = set()
        complaints: list[str] = []
        topics = self._options.topics or self._topics(complaints)
        for topic in topics:
            for lookupd in self._options.lookupd_http_addresses:
                try:
                    answer = ask(lookupd, "lookup", self._options.connect_timeout, topic=topic)
                    nodes, problems = _producers(lookupd, topic, answer)
                    found.update(nodes)
                    skipped.update(problems)
                except HttpFailed as error:
                    complaints.append(str(error))
                    log.warning("skipping an nsqlookupd: %s", error)
        for text in sorted(skipped - self._skipped)[:_MAX_WARNINGS]:
            log.warning("nsqlookupd %s", text)
        self._skipped = skipped
        asked = len(topics) * len(self._options.lookupd_http_addresses)
        if len(complaints) < asked or not (asked or complaints):
            self._known = sorted(found, key=lambda node: (node.topic, node.tcp))
        elif not self._known:
            raise NoNodes("lookupdHttpAddresses: no nsqlookupd answers: " + "; ".join(complaints))


def _named(options: ReadOptions, topics: Iterable[str]) -> list[Node]:
    """The nodes of the options, for each of these topics."""
    tcps, https = options.nsqd_tcp_addresses, options.nsqd_http_addresses
    pairs = list(itertools.zip_longest(tcps, https, fillvalue=""))
    return [Node(topic, tcp or http, http) for topic in topics for tcp, http in pairs]


def _names(answer: Any, what: str) -> list[str]:
    try:
        return [str(each) for each in answer.get("data", answer)["topics"] or ()]
    except (AttributeError, TypeError, KeyError) as error:
        raise HttpFailed(f"{what}: cannot parse the answer: {error!r}") from None


def _producers(lookupd: str, topic: str, answer: Any) -> tuple[list[Node], list[str]]:
    """Return the nodes of an answer, and the reasons for skipped ones. No answer (404): no nsqd has the topic.

    An entry of a wrong form raises ``HttpFailed`` for the whole answer; other nsqlookupds may have a good one.
    """
    nodes: list[Node] = []
    skipped: list[str] = []
    try:
        for each in answer.get("data", answer)["producers"] or () if answer is not None else ():
            host, tcp, http_port = each["broadcast_address"], each["tcp_port"], each["http_port"]
            if problem := address_error(host, TCP=tcp, HTTP=http_port):
                skipped.append(f"{lookupd}: skipped nsqd {printable(each.get('hostname', ''))}: {problem}")
                continue
            host = f"[{host}]" if ":" in host else host
            nodes.append(Node(topic, f"{host}:{tcp}", f"{host}:{http_port}"))
    except (AttributeError, TypeError, KeyError) as error:
        raise HttpFailed(f"{lookupd}: cannot parse the answer of /lookup: {error!r}") from None
    return nodes, skipped
