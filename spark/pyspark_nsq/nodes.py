"""Which nsqd have a topic, and how much waits there: nsqlookupd's and nsqd's HTTP, asked with nothing but the standard
library, since this runs in Spark's processes.
"""

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from nsq_compat.protocol.names import address_error, printable
from pyspark_nsq.options import ReadOptions

log = logging.getLogger(__name__)

_LARGEST_ANSWER = 32 << 20
# In a second, until a topic has passed on what it has.
_LOOKS = 50
_MOST_NAMED = 5


class HttpFailed(Exception):
    """A daemon gave no answer that can be used; the text says which and why."""


class NoNodes(Exception):
    """Nobody can say where the topics are."""


@dataclass(frozen=True, slots=True)
class Node:
    """An nsqd with one of the topics. Without `http` nobody can ask how much waits there."""

    topic: str
    tcp: str
    http: str


def ask(address: str, path: str, timeout: float, **parameters: str) -> Any:
    """The JSON value of an answer, None for 404. Raises ``HttpFailed``."""
    status, body = _exchange("GET", address, path, timeout, b"", parameters)
    if status == 404:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        raise HttpFailed(f"http://{address}/{path}: {error}") from None


def post(address: str, path: str, timeout: float, body: bytes = b"", **parameters: str) -> None:
    """Raises ``HttpFailed`` unless it was done."""
    status, _ = _exchange("POST", address, path, timeout, body, parameters)
    if status == 404:
        raise HttpFailed(f"http://{address}/{path}: not found")


def _exchange(
    method: str, address: str, path: str, timeout: float, body: bytes, parameters: dict[str, str]
) -> tuple[int, bytes]:
    """Status (200 or 404) and body of an answer, all of it within `timeout` seconds."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    url = f"/{path}?{urlencode(parameters)}"
    deadline = time.monotonic() + timeout
    try:
        connection.connect()
        with _shut_at(deadline, connection.sock):
            connection.request(method, url, body, {"Accept": "application/vnd.nsq; version=1.0"})
            response = connection.getresponse()
            answer = response.read(_LARGEST_ANSWER)
        if response.status not in (200, 404):
            raise ValueError(f"status {response.status} {answer[:200].decode('utf-8', 'replace')}")
        return response.status, answer
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpFailed(f"http://{address}{url}: {error}") from None
    finally:
        connection.close()


@contextmanager
def _shut_at(deadline: float, connection: socket.socket) -> Iterator[None]:
    """Shut the connection down at the deadline: each wait for it has a timeout, but a server that drips has many."""

    def shut() -> None:
        with suppress(OSError):  # the server was quicker
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if time.monotonic() < deadline:
            raise
    finally:
        timer.cancel()
    if time.monotonic() >= deadline:
        raise TimeoutError("timed out")


class Nodes:
    """The nodes of a query's topics, asked for again after `lookup_interval`; `clock` is monotonic."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._known: list[Node] = []
        self._asked: float | None = None
        self._with_channel: set[Node] = set()
        self._skipped: set[str] = set()

    def all(self) -> list[Node]:
        """Sorted, so that batches plan in the same order. Raises ``NoNodes`` if no nsqlookupd answers and none did."""
        options = self._options
        if options.nsqd_tcp_addresses:
            https = options.nsqd_http_addresses or ("",) * len(options.nsqd_tcp_addresses)
            pairs = list(zip(options.nsqd_tcp_addresses, https, strict=True))
            return [Node(topic, tcp, http) for topic in options.topics for tcp, http in pairs]
        now = self._clock()
        if self._asked is None or now - self._asked >= options.lookup_interval:
            self._look_up()
            self._asked = now
        return self._known

    def require(self) -> None:
        """Raises ``NoNodes`` when of the nsqd that were named none can be reached, or no nsqlookupd."""
        complaints = []
        for node in self.all():
            try:
                self._try(node)
            except (HttpFailed, OSError) as error:
                complaints.append(f"{node.tcp}: {error}")
            else:
                return
        if complaints and self._options.nsqd_tcp_addresses:
            raise NoNodes(
                "nsqdTcpAddresses: no nsqd can be reached; start one, or name others: " + "; ".join(complaints)
            )

    def ensure_channels(self) -> None:
        """Make the channel where it is not, so that nothing is missed. What fails is tried the next time."""
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
        """How much waits for the channel on every node; None where nobody can tell. Raises ``HttpFailed`` if the user
        wants unreachable nodes to be errors."""
        found: list[tuple[Node, int | None]] = []
        for node in self.all():
            try:
                found.append((node, self._depth(node) if node.http else None))
            except HttpFailed as error:
                self._complain(error)
        return found

    def whole_backlog(self) -> list[tuple[Node, int | None]]:
        """`backlog`, with everything that was published before.

        Go's nsqd counts a channel before its topic, and so misses what passes from one to the other meanwhile, maybe
        everything when a channel has just been made. Once the topic is empty it is all in the channel; for one that
        does not become empty nobody waits longer than a second.
        """
        for _ in range(_LOOKS):
            if not any(self._is_passing_on(node) for node in self.all() if node.http):
                break
            time.sleep(1 / _LOOKS)
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
        except HttpFailed:  # `backlog` says so
            return False

    def _depth(self, node: Node) -> int:
        # What was published a moment ago may still be on its way from the topic to its channels.
        return sum(self._depths(node))

    def _depths(self, node: Node) -> tuple[int, int]:
        """Of the topic and of the channel; 0 and 0 while there is no such channel."""
        name, timeout = self._options.channel, self._options.connect_timeout
        answer = ask(node.http, "stats", timeout, format="json", topic=node.topic, channel=name)
        try:
            for topic in answer["topics"] or ():
                for channel in topic["channels"] or ():
                    if (topic["topic_name"], channel["channel_name"]) == (node.topic, name):
                        return int(topic["depth"]), int(channel["depth"])
            return 0, 0
        except (TypeError, KeyError) as error:
            raise HttpFailed(f"{node.http}: /stats cannot be understood: {error!r}") from None

    def _complain(self, error: HttpFailed) -> None:
        if self._options.fail_on_unreachable:
            raise error
        log.warning("passing over what cannot be reached: %s", error)

    def _look_up(self) -> None:
        found: set[Node] = set()
        skipped: set[str] = set()
        complaints = []
        for topic in self._options.topics:
            for lookupd in self._options.lookupd_http_addresses:
                try:
                    answer = ask(lookupd, "lookup", self._options.connect_timeout, topic=topic)
                    nodes, problems = _producers(lookupd, topic, answer)
                    found.update(nodes)
                    skipped.update(problems)
                except HttpFailed as error:
                    complaints.append(str(error))
                    log.warning("passing over an nsqlookupd: %s", error)
        for text in sorted(skipped - self._skipped)[:_MOST_NAMED]:
            log.warning("nsqlookupd %s", text)
        self._skipped = skipped
        asked = len(self._options.topics) * len(self._options.lookupd_http_addresses)
        if len(complaints) < asked:
            self._known = sorted(found, key=lambda node: (node.topic, node.tcp))
        elif not self._known:
            raise NoNodes("lookupdHttpAddresses: no nsqlookupd answers: " + "; ".join(complaints))


def _producers(lookupd: str, topic: str, answer: Any) -> tuple[list[Node], list[str]]:
    """The nodes of an answer, and why others are skipped; 404 is a topic nobody has.

    An entry of another form spoils the answer, so that another nsqlookupd's counts.
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
        raise HttpFailed(f"{lookupd}: /lookup cannot be understood: {error!r}") from None
    return nodes, skipped
