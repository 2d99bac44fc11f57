"""Discovery of the nsqd that have a topic, and of their backlogs, over the HTTP APIs of nsqlookupd and nsqd."""

import itertools
import json
import logging
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from nsq_compat.bounded_http import FAILURES, Deadline, bearer, bounded_session, exchange, reason_of
from nsq_compat.protocol.names import address_error, is_ephemeral, is_valid_name, printable
from pyspark_nsq.connection import NO_ACCESS, HttpAccess, http_access, lookupd_access
from pyspark_nsq.options import ReadOptions

log = logging.getLogger(__name__)

_MAX_RESPONSE_BYTES = 32 << 20
_MAX_VALUES = 1_000_000
"""Of an answer. They take many times its size, and the process does nothing else while they are parsed."""
# Polls of /stats within one second while a topic still copies messages to its channels.
_MAX_POLLS = 50
_MAX_WARNINGS = 5
_MAX_REQUESTS = 64
_MAX_NODES = 1000
"""Of a topic, by each nsqlookupd: a batch may have a task for each."""
_MAX_REGISTRATIONS = 10 * _MAX_NODES
_MAX_TOPICS = 10_000
"""That match a pattern: each is looked up at each nsqlookupd."""
_MAX_DEPTH = (1 << 63) - 1
_PATIENCE = 0.5

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


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


def url_of(address: str, path: str, parameters: Mapping[str, object]) -> str:
    """The URL of a path. Addresses with TLS begin with https://."""
    return f"{base_of(address)}/{path}{'?' if parameters else ''}{urlencode(parameters)}"


def base_of(address: str) -> str:
    return address if "://" in address else f"http://{address}"


def ask(address: str, path: str, timeout: float, access: HttpAccess = NO_ACCESS, **parameters: str) -> Any:
    """GET a path and return the JSON value of the answer, or None for 404. Raises ``HttpFailed``."""
    status, body = _exchange("GET", address, path, timeout, b"", parameters, access)
    if status == 404:
        return None
    try:
        if sum(map(body.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise ValueError("the answer has too many values")
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpFailed(f"http://{address}/{path}: {error}") from None


def exists(address: str, path: str, timeout: float, access: HttpAccess = NO_ACCESS, **parameters: str) -> bool:
    """Whether GET of a path is answered with 200, not 404. Raises ``HttpFailed``."""
    return _exchange("GET", address, path, timeout, b"", parameters, access)[0] == 200


def post(
    address: str, path: str, timeout: float, body: bytes = b"", access: HttpAccess = NO_ACCESS, **parameters: str
) -> None:
    """POST to a path. Raises ``HttpFailed`` unless the daemon answers 200."""
    status, _ = _exchange("POST", address, path, timeout, body, parameters, access)
    if status == 404:
        raise HttpFailed(f"http://{address}/{path}: not found")


def _exchange(
    method: str,
    address: str,
    path: str,
    timeout: float,
    body: bytes,
    parameters: dict[str, str],
    access: HttpAccess,
) -> tuple[int, bytes]:
    """Return the status (200 or 404) and the body. `timeout` is for the whole exchange, in seconds."""
    url = url_of(address, path, parameters)
    try:
        with bounded_session(tls=access.tls) as session:
            answer = exchange(
                session,
                method,
                url,
                Deadline(timeout),
                connect_timeout=timeout,
                max_body=_MAX_RESPONSE_BYTES,
                body=body,
                headers={"Accept": "application/vnd.nsq; version=1.0", **bearer(access.token)},
            )
        if answer.status not in (200, 404):
            raise ValueError(f"status {answer.status} {answer.body[:200].decode('utf-8', 'replace')}")
    except FAILURES as error:
        raise HttpFailed(f"{url}: {reason_of(error)}") from None
    return answer.status, answer.body


Answers = dict[_Key, _Answer | HttpFailed]


class SideBySide(Generic[_Key, _Answer]):
    """Requests to many daemons at once. One that hangs takes a thread, and delays the first answers only."""

    def __init__(self, request: Callable[[_Key], _Answer], name: Callable[[_Key], str]) -> None:
        self._request = request
        self._name = name
        self._pool = ThreadPoolExecutor(_MAX_REQUESTS, "nsqd requests")
        self._asked: dict[_Key, Future[_Answer]] = {}

    def ask(self, keys: Iterable[_Key], patience: float | None = None) -> Answers[_Key, _Answer]:
        """The answers, or what failed; waits `patience` seconds, by default not for long.

        A request that is still under way is not made again, and by default not waited for again. Those that are not
        asked for any more are forgotten, else nsqd that come and go could add requests without end.
        """
        wanted = dict.fromkeys(keys)
        self._asked = {key: asked for key, asked in self._asked.items() if key in wanted or not _has_ended(asked)}
        hanging = set(self._asked.values())
        requests = {key: self._asked.get(key) or self._pool.submit(self._request, key) for key in wanted}
        self._asked |= requests
        wait(set(requests.values()) - (hanging if patience is None else set()), patience or _PATIENCE)
        return {key: self._answer(key, request) for key, request in requests.items()}

    def _answer(self, key: _Key, request: Future[_Answer]) -> _Answer | HttpFailed:
        if not request.done():
            return HttpFailed(f"{self._name(key)}: no answer yet")
        del self._asked[key]
        try:
            return request.result()
        except HttpFailed as error:
            return error


def _has_ended(request: Future[Any]) -> bool:
    """Whether a request has ended; one that has not begun ends now."""
    return request.done() or request.cancel()


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
        self._access = http_access(options)
        self._lookupd_access = lookupd_access(options, options.lookupd_http_addresses)
        self._clock = clock
        self._known: list[Node] = []
        self._asked: float | None = None
        self._with_channel: set[Node] = set()
        self._skipped: set[str] = set()
        self._lookups = SideBySide(self._ask_lookupd, lambda asked: f"{base_of(asked[0])}, topic {asked[1] or 'names'}")
        self._depths_of = SideBySide(self._depths, lambda node: f"http://{node.http}/stats")
        self._creations = SideBySide(self._create_channel, lambda node: f"http://{node.http}/channel/create")
        self._trials = SideBySide(self._try, lambda node: node.http or node.tcp)
        self.heard: dict[Node, tuple[float, int]] = {}
        """When each node with an HTTP address last told its depth, by `clock`, and the depth."""
        self.silent: dict[str, str] = {}
        """Why the depths of nsqd are missing, by their HTTP addresses."""

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
        nodes, complaints = self.all(), list[str]()
        for patience in (_PATIENCE, self._options.connect_timeout):
            answers = self._trials.ask(nodes, patience)
            if not all(isinstance(each, HttpFailed) for each in answers.values()):
                return
            complaints = [f"{node.tcp}: {error}" for node, error in answers.items()]
        if complaints and not self._options.lookupd_http_addresses:
            name = "nsqdTcpAddresses" if self._options.nsqd_tcp_addresses else "nsqdHttpAddresses"
            raise NoNodes(
                f"{name}: no nsqd can be reached; start one, or set other addresses: " + "; ".join(complaints)
            )

    def create_channels(self, patience: float | None = None) -> None:
        """Create the channel on every node, so that it gets all messages. A failure is retried at the next call.

        For `patience` see ``SideBySide.ask``; with failOnUnreachable, every nsqd is waited for.
        """
        if not self._options.create_channel:
            return
        missing = [node for node in self.all() if node.http and node not in self._with_channel]
        for node, answer in self._creations.ask(missing, self._patience(patience)).items():
            if isinstance(answer, HttpFailed):
                self._complain(node, answer)
            else:
                self._with_channel.add(node)

    def _create_channel(self, node: Node) -> None:
        if not self._options.lookupd_http_addresses:
            self._tell(node, "topic/create", topic=node.topic)
        self._tell(node, "channel/create", topic=node.topic, channel=self._options.channel)

    def backlog(self, patience: float | None = None) -> list[tuple[Node, int | None]]:
        """Return every node with the depth of the channel there, or None if the node has no HTTP address.

        Unreachable nodes are left out; with failOnUnreachable they raise ``HttpFailed``. `patience` is as in
        `create_channels`.
        """
        nodes = self.all()
        depths = self._depths_of.ask([node for node in nodes if node.http], self._patience(patience))
        silent: dict[str, str] = {}
        found: list[tuple[Node, int | None]] = []
        for node in nodes:
            answer = depths.get(node)
            if isinstance(answer, HttpFailed):
                self._complain(node, answer)
                silent[node.http] = str(answer)
            elif answer is None:
                found.append((node, None))
            else:
                # Recently published messages may still be in the topic.
                self.heard[node] = self._clock(), sum(answer)
                found.append((node, sum(answer)))
        self.silent = silent
        return found

    def _patience(self, given: float | None) -> float | None:
        return self._options.connect_timeout if given is None and self._options.fail_on_unreachable else given

    def report(self) -> dict[str, dict[str, Any]]:
        """For each nsqd, by its HTTP address, what it had when it was last heard, and why it is not heard now."""
        nsqds: dict[str, dict[str, Any]] = {}
        named = _named(self._options, self._options.topics) if not self._options.lookupd_http_addresses else []
        known = {*self._known, *named}
        for node, (at, depth) in self.heard.items():
            if node in known or depth:
                entry = nsqds.setdefault(node.http, {"messages": 0, "heardSecondsAgo": 0.0})
                entry["messages"] += depth
                entry["heardSecondsAgo"] = max(entry["heardSecondsAgo"], round(self._clock() - at, 3))
                if node not in known:
                    entry["unreachable"] = "it is not registered with nsqlookupd any more"
        for http, text in self.silent.items():
            nsqds.setdefault(http, {"messages": None, "heardSecondsAgo": None})["unreachable"] = text
        return nsqds

    def settled_backlog(self) -> list[tuple[Node, int | None]]:
        """Return `backlog` after topics have copied their messages to the channel, or after one second at most.

        Go's nsqd reads the channel's depth before the topic's, so that it misses messages that pass from topic to
        channel in between. Shortly after the channel was created, these can be all messages.
        """
        patience: float | None = self._options.connect_timeout
        for _ in range(_MAX_POLLS):
            answers = self._depths_of.ask([node for node in self.all() if node.http], patience)
            # `backlog` reports those that do not answer.
            if not any(isinstance(each, tuple) and each[0] for each in answers.values()):
                break
            patience = None
            time.sleep(1 / _MAX_POLLS)
        return self.backlog(self._options.connect_timeout)

    def _try(self, node: Node) -> None:
        timeout = self._options.connect_timeout
        if node.http:
            ask(node.http, "info", timeout, self._access)
            return
        host, _, port = node.tcp.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout).close()
        except OSError as error:
            raise HttpFailed(str(error)) from None

    def _tell(self, node: Node, path: str, **parameters: str) -> None:
        post(node.http, path, self._options.connect_timeout, b"", self._access, **parameters)

    def _depths(self, node: Node) -> tuple[int, int]:
        """The depths of topic and channel; (0, 0) if there is no such channel."""
        name, timeout = self._options.channel, self._options.connect_timeout
        answer = ask(node.http, "stats", timeout, self._access, format="json", topic=node.topic, channel=name)
        try:
            for topic in answer["topics"] or ():
                for channel in topic["channels"] or ():
                    if (topic["topic_name"], channel["channel_name"]) == (node.topic, name):
                        waiting, depth = (min(max(0, int(each["depth"])), _MAX_DEPTH) for each in (topic, channel))
                        return waiting, depth
            return 0, 0
        except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as error:
            raise HttpFailed(f"{node.http}: cannot parse the answer of /stats: {error!r}") from None

    def _topics(self, complaints: list[str]) -> list[str]:
        """The topics that match the pattern, by all nsqlookupd."""
        asked = [(lookupd, "") for lookupd in self._options.lookupd_http_addresses]
        answers = self._answers_of_lookupds(asked, complaints)
        return self._chosen(topic for topics in answers for topic in topics)

    def _answers_of_lookupds(self, asked: Sequence[tuple[str, str]], complaints: list[str]) -> list[Any]:
        """What nsqlookupd answer to `_ask_lookupd`; what failed is added to the complaints."""
        found = []
        for answer in self._lookups.ask(asked, self._options.connect_timeout).values():
            if isinstance(answer, HttpFailed):
                complaints.append(str(answer))
                log.warning("skipping an nsqlookupd: %s", answer)
            else:
                found.append(answer)
        return found

    def _ask_lookupd(self, asked: tuple[str, str]) -> Any:
        """The nodes of a topic, and reasons for skipped ones; without a topic the names of all topics."""
        (lookupd, topic), timeout, access = asked, self._options.connect_timeout, self._lookupd_access
        if not topic:
            return _names(ask(lookupd, "topics", timeout, access), url_of(lookupd, "topics", {}))
        return _producers(lookupd, topic, ask(lookupd, "lookup", timeout, access, topic=topic))

    def _matching(self) -> list[Node]:
        """The nodes of the options, with the topics there that match the pattern."""
        found: list[Node] = []
        for node in _named(self._options, [""]):
            try:
                parameters = {"format": "json", "include_clients": "false", "include_mem": "false"}
                stats = ask(node.http, "stats", self._options.connect_timeout, self._access, **parameters)
                topics = [str(each["topic_name"]) for each in stats["topics"] or ()]
            except HttpFailed as error:
                self._complain(node, error)
                found += [each for each in self._known if each.http == node.http]
                continue
            except (TypeError, KeyError) as error:
                raise HttpFailed(f"{node.http}: cannot parse the answer of /stats: {error!r}") from None
            found += [replace(node, topic=topic) for topic in self._chosen(topics)]
        return sorted(found, key=lambda node: (node.topic, node.tcp))

    def _chosen(self, topics: Iterable[str]) -> list[str]:
        pattern = self._options.topic_pattern
        assert pattern is not None, "otherwise topics are named"
        # A daemon may name anything: what follows a blank in a name would be further parameters of SUB.
        valid = filter(is_valid_name, topics)
        chosen = sorted({topic for topic in valid if pattern.fullmatch(topic) and not is_ephemeral(topic)})
        if len(chosen) > _MAX_TOPICS:
            log.warning("%d topics match the pattern, and only %d are used", len(chosen), _MAX_TOPICS)
        return chosen[:_MAX_TOPICS]

    def _complain(self, node: Node, error: HttpFailed) -> None:
        if self._options.fail_on_unreachable:
            raise error
        if node.http not in self.silent:  # it is asked several times a second
            log.warning("an nsqd is left out of batches until it answers: %s", error)
            self.silent[node.http] = str(error)

    def _look_up(self) -> None:
        if not self._options.lookupd_http_addresses:
            self._known = self._matching()
            return
        found: set[Node] = set()
        skipped: set[str] = set()
        complaints: list[str] = []
        topics = self._options.topics or self._topics(complaints)
        asked = [(lookupd, topic) for topic in topics for lookupd in self._options.lookupd_http_addresses]
        for nodes, problems in self._answers_of_lookupds(asked, complaints):
            found.update(nodes)
            skipped.update(problems)
        for text in sorted(skipped - self._skipped)[:_MAX_WARNINGS]:
            log.warning("nsqlookupd %s", text)
        self._skipped = skipped
        if len(complaints) < len(asked) or not (asked or complaints):
            self._known = sorted(found, key=lambda node: (node.topic, node.tcp))
        elif not self._known:
            raise NoNodes("lookupdHttpAddresses: no nsqlookupd answers: " + "; ".join(complaints))


def registered(lookupds: Sequence[str], topic: str, timeout: float, access: HttpAccess = NO_ACCESS) -> list[str]:
    """The TCP addresses of all nsqd that these nsqlookupd know, without those where `topic` has a tombstone.

    Raises ``NoNodes`` if no nsqlookupd answers.
    """
    found: set[str] = set()
    complaints: list[str] = []
    for lookupd in lookupds:
        try:
            found.update(node.tcp for node in _registered(lookupd, topic, ask(lookupd, "nodes", timeout, access)))
        except HttpFailed as error:
            complaints.append(str(error))
            log.warning("skipping an nsqlookupd: %s", error)
    if len(complaints) == len(lookupds):
        raise NoNodes("lookupdHttpAddresses: no nsqlookupd answers: " + "; ".join(complaints))
    return sorted(found)


def _registered(lookupd: str, topic: str, answer: Any) -> list[Node]:
    try:
        kept = [
            each
            for each in answer.get("data", answer)["producers"] or ()
            if (topic, True) not in zip(each["topics"] or (), each["tombstones"] or (), strict=False)
        ]
    except (AttributeError, TypeError, KeyError) as error:
        raise HttpFailed(f"{lookupd}: cannot parse the answer of /nodes: {error!r}") from None
    return _producers(lookupd, topic, {"producers": kept})[0]


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
        producers = list(answer.get("data", answer)["producers"] or ()) if answer is not None else []
        for each in producers[:_MAX_REGISTRATIONS]:
            host, tcp, http_port = each["broadcast_address"], each["tcp_port"], each["http_port"]
            if problem := address_error(host, TCP=tcp, HTTP=http_port):
                skipped.append(f"{lookupd}: skipped nsqd {printable(each.get('hostname', ''))}: {problem}")
                continue
            host = f"[{host}]" if ":" in host else host
            nodes.append(Node(topic, f"{host}:{tcp}", f"{host}:{http_port}"))
        if len(nodes) > _MAX_NODES:
            skipped.append(f"{lookupd}: lists {len(producers)} nsqd of a topic, and only {_MAX_NODES} are used")
            nodes = sorted(nodes, key=lambda node: node.tcp)[:_MAX_NODES]
    except (AttributeError, TypeError, KeyError) as error:
        raise HttpFailed(f"{lookupd}: cannot parse the answer of /lookup: {error!r}") from None
    return nodes, skipped
