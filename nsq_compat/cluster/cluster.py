"""Queries of a cluster, through its nsqlookupds, or without them through a fixed list of nsqds.

Each query asks all daemons concurrently. An `Answer` combines what they returned with the errors of daemons that did
not answer. If none answers, `AllFailed` is raised.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from nsq_compat.cluster import reading
from nsq_compat.cluster.fan_out import AllFailed, Answer, query_all
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.cluster.nodes import Node, canonical_address, mark_out_of_date, read_node, read_registrations
from nsq_compat.cluster.stats import NodeStats, read_node_stats

__all__ = ["Addresses", "AllFailed", "Answer", "Cluster"]

log = logging.getLogger(__name__)

T = TypeVar("T")
_Listing = tuple[list[Node], tuple[str, ...]]

_MAX_SKIPPED_NAMED: Final = 5
"""Skipped registrations of an nsqlookupd that are named in warnings and in the log. Further ones are counted."""
_MAX_SKIPPED_REMEMBERED: Final = 1000


class Addresses(Protocol):
    """The addresses of the cluster. Read for every query, because they may change."""

    @property
    def nsqlookupd_http_addresses(self) -> Sequence[str]: ...
    @property
    def nsqd_http_addresses(self) -> Sequence[str]: ...


class Cluster:
    def __init__(self, client: HttpClient, addresses: Addresses) -> None:
        self.client = client
        self._addresses = addresses
        self._skipped_log = _SkippedLog()

    @property
    def lookupds(self) -> Sequence[str]:
        return self._addresses.nsqlookupd_http_addresses

    @property
    def nsqds(self) -> Sequence[str]:
        return self._addresses.nsqd_http_addresses

    def topics(self) -> Answer[list[str]]:
        """Sorted names."""
        if self.lookupds:
            return self._names("topics", "topics")
        answer = self._query_nsqds(lambda address: _topic_names(self._get_stats(address, include_clients="false")))
        return Answer(sorted({topic for _, names in answer.value for topic in names}), answer.errors)

    def channels(self, topic: str) -> Answer[list[str]]:
        """Sorted names that the nsqlookupds know; empty without nsqlookupds."""
        return self._names("channels", "channels", topic=topic) if self.lookupds else Answer([])

    def nodes(self) -> Answer[list[Node]]:
        """All nsqds, sorted by host name. `unreachable` has those of a fixed list that did not answer."""
        if not self.lookupds:
            answer = self._query_nsqds(self._get_node)
            return Answer([node for _, node in answer.value], answer.errors, answer.unreachable)
        listings = self._query_lookupds(lambda address: self._listing(address, "nodes"))
        nodes: dict[str, Node] = {}
        for address, (listed, _) in listings.value:
            for node in listed:
                known = nodes.setdefault(node.tcp_address, node)
                known.remote_addresses.append(f"{address}/{node.remote_address or 'N/A'}")
        mark_out_of_date(list(nodes.values()))
        found = sorted(nodes.values(), key=lambda node: node.hostname)
        return Answer(found, listings.errors, skipped=_skipped(listings))

    def known_address(self, address: str) -> str | None:
        """The HTTP address of a node as the cluster spells it, or None if the cluster does not have the node.

        The cluster has the nodes that nsqlookupds announce, or those of the fixed list. Raises `AllFailed`.
        """
        wanted = canonical_address(address)
        if wanted is None:
            return None

        def find(addresses: Iterable[str]) -> str | None:
            return next((each for each in addresses if canonical_address(each) == wanted), None)

        # A node of the fixed list may announce another name than the list has. Both are accepted.
        listed = None if self.lookupds else find(self.nsqds)
        return listed or find(node.http_address for node in self.nodes().value)

    def producers(self, topic: str) -> Answer[list[Node]]:
        """The nsqds that have a topic."""
        if self.lookupds:
            listings = self._query_lookupds(lambda address: self._listing(address, "lookup", topic=topic))
            nodes = {node.http_address: node for _, (listed, _) in listings.value for node in reversed(listed)}
            return Answer(list(reversed(nodes.values())), listings.errors, skipped=_skipped(listings))
        answer = self._query_nsqds(lambda address: self._get_producer(address, topic))
        return Answer([node for _, node in answer.value if node is not None], answer.errors)

    def stats(
        self, nodes: Sequence[Node], topic: str = "", channel: str = "", *, clients: bool = False
    ) -> Answer[list[tuple[Node, NodeStats]]]:
        """The stats of these nodes, or of one topic or channel on them."""
        parameters = {"topic": topic, "channel": channel, "include_clients": "" if clients else "false"}
        parameters = {name: value for name, value in parameters.items() if value}

        def query(node: Node) -> NodeStats:
            stats = read_node_stats(node, self._get_stats(node.http_address, **parameters))
            # A topic that was not requested must not be added to the sums.
            stats.topics = [each for each in stats.topics if topic in ("", each.topic_name)]
            return stats

        return query_all("nsqd", nodes, query, self.client.timeout)

    def describe(self, address: str) -> Node:
        """One nsqd, from its own answer. Raises `AllFailed`."""
        return query_all("nsqd", [address], self._get_node, self.client.timeout).value[0][1]

    # --- Requests to one daemon ---------------------------------------------------------------------------------------

    def _query_lookupds(self, query: Callable[[str], T]) -> Answer[list[tuple[str, T]]]:
        return query_all("nsqlookupd", self.lookupds, query, self.client.timeout)

    def _query_nsqds(self, query: Callable[[str], T]) -> Answer[list[tuple[str, T]]]:
        # Twice the timeout: some of these queries make two requests.
        return query_all("nsqd", self.nsqds, query, 2 * self.client.timeout)

    def _names(self, path: str, key: str, **parameters: str) -> Answer[list[str]]:
        def query(address: str) -> list[str]:
            answer = reading.mapping(self.client.get(address, path, **parameters))
            return reading.array(reading.text, answer.get(key))

        answer = self._query_lookupds(query)
        return Answer(sorted({name for _, names in answer.value for name in names}), answer.errors)

    def _listing(self, address: str, path: str, **parameters: str) -> _Listing:
        """The nodes that an nsqlookupd lists, and a text for each skipped registration."""
        answer = reading.mapping(self.client.get(address, path, **parameters))
        nodes, skipped = read_registrations(answer.get("producers"))
        texts = [f"nsqlookupd {address}: skipped {each}" for each in skipped[:_MAX_SKIPPED_NAMED]]
        if len(skipped) > _MAX_SKIPPED_NAMED:
            more = len(skipped) - _MAX_SKIPPED_NAMED
            texts.append(f"nsqlookupd {address}: skipped {more} more invalid registrations")
        self._skipped_log.add(address, texts, is_complete=not parameters)
        return nodes, tuple(texts)

    def _get_stats(self, address: str, **parameters: str) -> Any:
        # Memory stats are not used, and cost nsqd time.
        return self.client.get(address, "stats", format="json", include_mem="false", **parameters)

    def _get_node(self, address: str) -> Node:
        node = self._get_info(address)
        node.topics = dict.fromkeys(_topic_names(self._get_stats(address, include_clients="false")), False)
        return node

    def _get_producer(self, address: str, topic: str) -> Node | None:
        stats = self._get_stats(address, topic=topic, include_clients="false")
        if topic not in _topic_names(stats):
            return None
        node = self._get_info(address)
        node.topics = {topic: False}
        return node

    def _get_info(self, address: str) -> Node:
        node = read_node(self.client.get(address, "info"))
        if not node.broadcast_address:
            # An nsqd without a broadcast address is at the address of the request.
            host, _, port = address.rpartition(":")
            node.broadcast_address, node.http_port = host.strip("[]"), int(port) if port.isdigit() else 0
        node.hostname = node.hostname or node.broadcast_address
        return node


class _SkippedLog:
    """Logs each invalid registration once, when it first appears.

    A complete listing replaces the remembered registrations of its nsqlookupd; the listing of a topic adds to them.
    """

    def __init__(self) -> None:
        self._logged: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def add(self, lookupd: str, texts: Sequence[str], *, is_complete: bool) -> None:
        with self._lock:
            known = self._logged.setdefault(lookupd, set())
            new = [text for text in texts if text not in known]
            if is_complete or len(known) > _MAX_SKIPPED_REMEMBERED:
                known.clear()
            known.update(texts)
        for text in new:
            log.warning("%s", text)


def _skipped(listings: Answer[list[tuple[str, _Listing]]]) -> tuple[str, ...]:
    return tuple(text for _, (_, texts) in listings.value for text in texts)


def _topic_names(stats: object) -> list[str]:
    topics = reading.mapping(stats).get("topics")
    return reading.array(lambda topic: reading.text(reading.mapping(topic).get("topic_name")), topics)
