"""What can be asked of a cluster, through its nsqlookupds or, where there are none, of a fixed list of nsqds.

Each question goes to all at once. What is learned comes with the errors of those who did not answer (`Answer`); when
nobody does, `AllFailed` is raised.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from nsq_compat.cluster import reading
from nsq_compat.cluster.fan_out import AllFailed, Answer, ask_all
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.cluster.nodes import Node, canonical_address, mark_out_of_date, read_node, read_registrations
from nsq_compat.cluster.skipped import SkippedLog, named
from nsq_compat.cluster.statistics import NodeStats, read_node_stats

log = logging.getLogger(__name__)

T = TypeVar("T")
Listing = tuple[list[Node], tuple[str, ...]]


class Addresses(Protocol):
    """Where the cluster is found; looked at for every question, since they may change."""

    @property
    def nsqlookupd_http_addresses(self) -> Sequence[str]: ...
    @property
    def nsqd_http_addresses(self) -> Sequence[str]: ...


class Cluster:
    def __init__(self, client: HttpClient, addresses: Addresses) -> None:
        self.client = client
        self._addresses = addresses
        self._skipped_log = SkippedLog()

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
        answer = self._ask_nsqds(lambda address: _topic_names(self._stats(address, include_clients="false")))
        return Answer(sorted({topic for _, names in answer.value for topic in names}), answer.errors)

    def channels(self, topic: str) -> Answer[list[str]]:
        """What nsqlookupd knows of, sorted; none without one."""
        return self._names("channels", "channels", topic=topic) if self.lookupds else Answer([])

    def nodes(self) -> Answer[list[Node]]:
        """Every nsqd, by host name; those of a fixed list that do not answer are `silent`."""
        if not self.lookupds:
            answer = self._ask_nsqds(self._describe)
            return Answer([node for _, node in answer.value], answer.errors, answer.silent)
        listings = self._ask_lookupds(lambda address: self._producers(address, "nodes"))
        nodes: dict[str, Node] = {}
        for address, (listed, _) in listings.value:
            for node in listed:
                known = nodes.setdefault(node.tcp_address, node)
                known.remote_addresses.append(f"{address}/{node.remote_address or 'N/A'}")
        mark_out_of_date(list(nodes.values()))
        found = sorted(nodes.values(), key=lambda node: node.hostname)
        return Answer(found, listings.errors, skipped=_skipped(listings))

    def known_address(self, address: str) -> str | None:
        """The HTTP address of a node as the cluster spells it; None for one that the cluster does not know.

        Known are the nodes that nsqlookupds announce, or those of the fixed list. Raises `AllFailed`.
        """
        wanted = canonical_address(address)
        if wanted is None:
            return None

        def find(addresses: Iterable[str]) -> str | None:
            return next((each for each in addresses if canonical_address(each) == wanted), None)

        # A node of the fixed list may call itself by another name than the list does: both are known.
        named = None if self.lookupds else find(self.nsqds)
        return named or find(node.http_address for node in self.nodes().value)

    def producers(self, topic: str) -> Answer[list[Node]]:
        """The nsqds that have a topic."""
        if self.lookupds:
            listings = self._ask_lookupds(lambda address: self._producers(address, "lookup", topic=topic))
            nodes = {node.http_address: node for _, (listed, _) in listings.value for node in reversed(listed)}
            return Answer(list(reversed(nodes.values())), listings.errors, skipped=_skipped(listings))
        answer = self._ask_nsqds(lambda address: self._describe_producer(address, topic))
        return Answer([node for _, node in answer.value if node is not None], answer.errors)

    def statistics(
        self, nodes: Sequence[Node], topic: str = "", channel: str = "", *, clients: bool = False
    ) -> Answer[list[tuple[Node, NodeStats]]]:
        """What these nodes say of themselves, or of one topic or channel."""
        parameters = {"topic": topic, "channel": channel, "include_clients": "" if clients else "false"}
        asked = {name: value for name, value in parameters.items() if value}

        def ask(node: Node) -> NodeStats:
            stats = read_node_stats(node, self._stats(node.http_address, **asked))
            # A name that was not asked for has no place in the sum.
            stats.topics = [each for each in stats.topics if topic in ("", each.topic_name)]
            return stats

        return ask_all("nsqd", nodes, ask, self.client.timeout)

    def describe(self, address: str) -> Node:
        """One nsqd by its own words. Raises `AllFailed`."""
        return ask_all("nsqd", [address], self._describe, self.client.timeout).value[0][1]

    # --- What is asked of one -----------------------------------------------------------------------------------------

    def _ask_lookupds(self, ask: Callable[[str], T]) -> Answer[list[tuple[str, T]]]:
        return ask_all("nsqlookupd", self.lookupds, ask, self.client.timeout)

    def _ask_nsqds(self, ask: Callable[[str], T]) -> Answer[list[tuple[str, T]]]:
        return ask_all("nsqd", self.nsqds, ask, 2 * self.client.timeout)

    def _names(self, path: str, key: str, **parameters: str) -> Answer[list[str]]:
        def ask(address: str) -> list[str]:
            answer = reading.mapping(self.client.get(address, path, **parameters))
            return reading.each(reading.text, answer.get(key))

        answer = self._ask_lookupds(ask)
        return Answer(sorted({name for _, names in answer.value for name in names}), answer.errors)

    def _producers(self, address: str, path: str, **parameters: str) -> Listing:
        """The nodes that an nsqlookupd lists, and what it lists besides and is skipped."""
        answer = reading.mapping(self.client.get(address, path, **parameters))
        nodes, skipped = read_registrations(answer.get("producers"))
        texts = named(address, skipped)
        self._skipped_log.note(address, texts, is_whole=not parameters)
        return nodes, texts

    def _stats(self, address: str, **parameters: str) -> Any:
        # The figures about memory are not wanted, and cost nsqd time.
        return self.client.get(address, "stats", format="json", include_mem="false", **parameters)

    def _describe(self, address: str) -> Node:
        node = self._info(address)
        node.topics = dict.fromkeys(_topic_names(self._stats(address, include_clients="false")), False)
        return node

    def _describe_producer(self, address: str, topic: str) -> Node | None:
        stats = self._stats(address, topic=topic, include_clients="false")
        if topic not in _topic_names(stats):
            return None
        node = self._info(address)
        node.topics = {topic: False}
        return node

    def _info(self, address: str) -> Node:
        node = read_node(self.client.get(address, "info"))
        if not node.broadcast_address:
            # An nsqd that does not say is where it was asked.
            host, _, port = address.rpartition(":")
            node.broadcast_address, node.http_port = host.strip("[]"), int(port) if port.isdigit() else 0
        node.hostname = node.hostname or node.broadcast_address
        return node


def _skipped(listings: Answer[list[tuple[str, Listing]]]) -> tuple[str, ...]:
    return tuple(text for _, (_, texts) in listings.value for text in texts)


def _topic_names(stats: object) -> list[str]:
    topics = reading.mapping(stats).get("topics")
    return reading.each(lambda topic: reading.text(reading.mapping(topic).get("topic_name")), topics)


__all__ = ["Addresses", "AllFailed", "Answer", "Cluster"]
