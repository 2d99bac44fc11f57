"""Queries and actions on a cluster, through its nsqlookupds, or without them on a fixed list of nsqds.

Each asks all daemons concurrently. The `Answer` of a query combines what they returned with the errors of daemons that
did not answer. If none answers, `AllFailed` is raised.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from nsq_compat.cluster import reading
from nsq_compat.cluster.http_client import (
    AllFailed,
    Answer,
    DaemonError,
    HttpClient,
    call_all,
    explained,
    is_not_found,
    query_all,
)
from nsq_compat.cluster.nodes import Node, canonical_address, mark_out_of_date, read_node, read_registrations
from nsq_compat.cluster.reading import UpstreamError
from nsq_compat.cluster.stats import NodeStats, TopicStats, read_node_stats, read_retained, sum_topics
from nsq_compat.protocol.names import address_error

log = logging.getLogger(__name__)

T = TypeVar("T")
Errors = tuple[str, ...]
_Listing = tuple[list[Node], Errors]

_MAX_SKIPPED_NAMED: Final = 5
"""Skipped registrations of an nsqlookupd that are named in warnings and in the log. Further ones are counted."""
_MAX_SKIPPED_REMEMBERED: Final = 1000
_DISCOVERY_SHARE: Final = 0.45
"""The part of the time of a page that a request may take which finds out what nodes to ask."""
_REGISTRATION_SECONDS: Final = 2.0
_MAX_ANSWER_TIME: Final = 2.0
_MAX_PINGS: Final = 16


class Cluster:
    """`lookupds` and `nsqds` are HTTP addresses; those of `lookupds` with TLS begin with ``https://``.

    They may be replaced at any time.
    """

    def __init__(self, client: HttpClient, lookupds: Sequence[str] = (), nsqds: Sequence[str] = ()) -> None:
        self.client = self._discovery_client = client
        self.lookupds = lookupds
        self.nsqds = nsqds
        self._announced: dict[str, str] = {}
        self._remembered: list[Node] = []
        self._logged: dict[str, set[str]] = {}
        self._logged_lock = threading.Lock()

    def within(self, seconds: float) -> "Cluster":
        """The same cluster for queries that all end within `seconds`.

        A daemon that does not answer in time is named in the errors of each query, and asked only once. What finds the
        nodes has less than half of the time, because the nodes are asked afterwards.
        """
        bounded = copy(self)
        bounded.client = self.client.within(seconds)
        bounded._discovery_client = bounded.client.at_most(_DISCOVERY_SHARE * seconds)
        return bounded

    # --- Queries ------------------------------------------------------------------------------------------------------

    def topics(self) -> Answer[list[str]]:
        """Sorted names."""
        if self.lookupds:
            return self._names("topics")
        return _merged(self._query_nsqds(self._get_topics))

    def channels(self, topic: str) -> Answer[list[str]]:
        """Sorted names that the nsqlookupds know; empty without nsqlookupds."""
        return self._names("channels", topic=topic) if self.lookupds else Answer([])

    def nodes(self, *, remembered: bool = False) -> Answer[list[Node]]:
        """All nsqds, sorted by host name. `unreachable` has the nsqlookupds, or listed nsqds, that did not answer.

        With `remembered`, also the nodes that only these nsqlookupds had listed. Then it raises `AllFailed` only if
        there is no such node.
        """
        if not self.lookupds:
            answer = self._query_nsqds(self._get_node)
            self._announced.update((listed, node.http_address) for listed, node in answer.value)
            unreachable = self.announced(answer.unreachable)
            return Answer([node for _, node in answer.value], answer.errors, unreachable)
        try:
            listings = self._query_lookupds(lambda address: self._listing(address, "nodes"))
        except AllFailed as failure:
            if remembered and (kept := self._kept(self.lookupds)):
                return Answer(kept, failure.errors, tuple(self.lookupds))
            raise
        nodes: dict[str, Node] = {}
        for address, (listed, _) in listings.value:
            for node in listed:
                known = nodes.setdefault(node.tcp_address, node)
                known.remote_addresses.append(f"{address}/{node.remote_address or 'N/A'}")
        mark_out_of_date(list(nodes.values()))
        kept = [node for node in self._kept(listings.unreachable) if node.tcp_address not in nodes]
        self._remembered[:] = [*nodes.values(), *kept]
        found = sorted(
            [*nodes.values(), *(kept if remembered else ())],
            key=lambda node: (node.hostname, node.broadcast_address, node.http_port),
        )
        return Answer(found, listings.errors, listings.unreachable, _skipped(listings))

    def _kept(self, silent: Sequence[str]) -> list[Node]:
        """The nodes that only these nsqlookupds listed when they answered last."""
        return [replace(node, is_remembered=True) for node in self._remembered if node.listed_by <= set(silent)]

    def announced(self, listed: Sequence[str]) -> tuple[str, ...]:
        """The addresses that nodes of the fixed list announced when they answered last; as listed until then."""
        return tuple(self._announced.get(address, address) for address in listed)

    def known_address(self, address: str) -> str | None:
        """The HTTP address of a node as the cluster spells it, or None if the cluster does not have the node.

        The cluster has the nodes that nsqlookupds announce, or those of the fixed list. Raises `AllFailed`.
        """
        if (wanted := canonical_address(address)) is None:
            return None
        # A node of the fixed list may announce another name than the list has. Both are accepted.
        listed = [] if self.lookupds else [each for each in self.nsqds if canonical_address(each) == wanted]
        found = listed or [at for node in self.nodes().value if canonical_address(at := node.http_address) == wanted]
        return found[0] if found else None

    def producers(self, topic: str, *, remembered: bool = False) -> Answer[list[Node]]:
        """The nsqds that have a topic. `unreachable` has the listed nsqds that did not answer.

        `remembered` is that of `nodes`.
        """
        if self.lookupds:
            try:
                listings = self._query_lookupds(lambda address: self._listing(address, "lookup", topic=topic))
            except AllFailed as failure:
                if remembered and (kept := self._kept_with(topic, failure.errors)):
                    return Answer(kept, failure.errors)
                raise
            nodes = {node.http_address: node for _, (listed, _) in listings.value for node in reversed(listed)}
            found = list(reversed(nodes.values()))
            kept = self._kept_with(topic, listings.errors) if remembered else []
            found += [node for node in kept if node.http_address not in nodes]
            return Answer(found, listings.errors, skipped=_skipped(listings))
        answer = self._query_nsqds(lambda address: self._get_producer(address, topic))
        found = [node for _, node in answer.value if node is not None]
        return Answer(found, answer.errors, self.announced(answer.unreachable))

    def _kept_with(self, topic: str, errors: Errors) -> list[Node]:
        """The remembered nodes with this topic; an nsqlookupd that does not know the topic has answered."""
        silent = [error.daemon for error in errors if isinstance(error, DaemonError) and not is_not_found(error)]
        return [node for node in self._kept(silent) if topic in node.topics]

    def stats(
        self,
        nodes: Sequence[Node],
        topic: str = "",
        channel: str = "",
        *,
        clients: bool = False,
        retained: bool = False,
    ) -> Answer[list[tuple[Node, NodeStats]]]:
        """The stats of these nodes, or of one topic or channel on them; with what they retain of the topic."""
        parameters = {"topic": topic, "channel": channel, "include_clients": "" if clients else "false"}
        parameters = {name: value for name, value in parameters.items() if value}

        def query(node: Node) -> NodeStats:
            answer = _get_stats(self.client, node.http_address, **parameters)
            stats = read_node_stats(node, answer, self.client.check)
            # A topic that was not requested must not be added to the sums.
            stats.topics = [each for each in stats.topics if topic in ("", each.topic_name)]
            if retained and stats.build is not None:
                for each in stats.topics:
                    with suppress(UpstreamError):  # an older version, or an ephemeral topic; the stats are known
                        address = node.http_address
                        answer = self.client.get(address, "topic/offsets", topic=topic)
                        each.retained = read_retained(address, answer)
            return stats

        return query_all("nsqd", nodes, query, self.client.timeout)

    def answer_times(self, addresses: Sequence[str]) -> Mapping[str, float]:
        """Seconds until each daemon answered /ping, without those that took longer than two seconds or failed."""
        client = self.client.within(min(_MAX_ANSWER_TIME, self.client.timeout))

        def ping(address: str) -> float:
            began = time.monotonic()
            client.health(address)
            return time.monotonic() - began

        # Few at once, so that a ping does not wait for the others of this program.
        return dict(call_all(addresses, ping, _MAX_ANSWER_TIME, max_concurrent=_MAX_PINGS).value)

    def health_of(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """What each of these daemons answers to /ping now, without those that do not answer."""
        return dict(call_all(addresses, self.client.health, self.client.timeout).value)

    def settings_of(self, node: str, names: Sequence[str]) -> Mapping[str, str]:
        """The values of these options of an nsqd, without those that it does not have."""
        client = self.client
        return dict(call_all(names, lambda name: client.text(node, f"config/{name}"), client.timeout).value)

    # --- Actions: each returns the errors of the daemons that did not perform it --------------------------------------
    #
    # An action on all nodes first finds those that have the topic (which raises `AllFailed` if no daemon answers), then
    # calls the nsqlookupds, then the nodes. A daemon that does not have the topic or channel is an error only if no
    # daemon has it.

    def create(self, topic: str, channel: str = "", node: str = "") -> Errors:
        """Create a topic, and a channel, on one node or in the whole cluster, as NSQ's API does.

        nsqadmin: a topic is created in nsqlookupds only. An nsqd creates it with its first message.
        """
        addresses = [node] if node else self.lookupds
        errors = self._post(addresses, "create", topic).errors
        if channel:
            errors += self._post(addresses, "create", topic, channel).errors
        if not channel or node:
            return errors
        if not self.lookupds:
            # nsqadmin: only nsqlookupds can tell which nodes have the topic.
            raise AllFailed("failed to query any nsqlookupd: ")
        nodes, lookup_errors = self._nodes_of(topic)
        return errors + lookup_errors + self._post(nodes, "create", topic, channel).errors

    def create_on(self, nodes: Sequence[str], topic: str, channel: str = "", begin: str = "") -> Answer[list[str]]:
        """Create a topic, and a channel, at all nsqlookupds and on these nodes; `value` has the nodes that did.

        `begin` is the place in the log from which the channel gets messages (docs/http-api.md: WHEN).
        Returns when the nsqlookupds list the nodes, so that the next query finds them, or after two seconds.
        """
        names = {"topic": topic, "channel": channel}

        def create(address: str) -> None:
            self.client.post(address, "topic/create", {"topic": topic})
            if channel:
                self.client.post(address, "channel/create", names)

        def create_at(address: str) -> None:
            self.client.post(address, "topic/create", {"topic": topic})
            try:
                # Go's nsqd would ignore `from`. It does not answer this.
                self.client.get(address, "topic/offsets", topic=topic, at=begin)
                self.client.post(address, "channel/create", {**names, "from": begin})
            except UpstreamError as failure:
                raise UpstreamError(explained(str(failure))) from None

        # A node that learns the channel from an nsqlookupd before would create it at the end of the log.
        created = call_all(nodes, create_at, 2 * self.client.timeout) if begin else None
        lookupds = self.lookupds if created is None or created.value else ()
        registered = call_all(lookupds, create, 2 * self.client.timeout)
        if created is None:
            created = call_all(nodes, create, 2 * self.client.timeout)
        done = [address for address, _ in created.value]
        deadline = time.monotonic() + _REGISTRATION_SECONDS
        while done and registered.value and not self._lists(topic, done) and time.monotonic() < deadline:
            time.sleep(_REGISTRATION_SECONDS / 40)
        return Answer(done, registered.errors + created.errors, registered.unreachable + created.unreachable)

    def _lists(self, topic: str, nodes: Sequence[str]) -> bool:
        """Whether the nsqlookupds list these nodes for the topic."""
        with suppress(AllFailed):
            return {node.http_address for node in self.producers(topic).value} >= set(nodes)
        return False

    def delete(self, topic: str, channel: str = "") -> Errors:
        nodes, errors = self._nodes_of(topic)
        registered = self._post(self.lookupds, "delete", topic, channel)
        return errors + _failures(registered, self._post(nodes, "delete", topic, channel))

    def change(self, action: str, topic: str, channel: str = "", node: str = "") -> Errors:
        """`action` is pause, unpause or empty; on one node, or on all that have the topic."""
        nodes, errors = ([node], ()) if node else self._nodes_of(topic)
        return errors + _failures(self._post(nodes, action, topic, channel))

    def tombstone(self, topic: str, node: str) -> Errors:
        """Hide a node from lookups of a topic, and delete the topic and its messages on the node."""
        errors = self._post(self.lookupds, "tombstone", topic, node=node).errors
        query_all("nsqd", [node], self._get_node, self.client.timeout)  # raises if the node does not answer
        # Sent to the address that answered, not to the address that the answer contains.
        return errors + self._post([node], "delete", topic).errors

    def publish(self, node: str, topic: str, body: bytes, defer_ms: int = 0) -> Errors:
        parameters = {"topic": topic} | ({"defer": str(defer_ms)} if defer_ms else {})
        client = self.client
        return call_all([node], lambda address: client.post(address, "pub", parameters, body), client.timeout).errors

    def close_client(self, node: str, topic: str, channel: str, address: str) -> Errors:
        """Close the connection of a consumer."""
        parameters = {"topic": topic, "channel": channel, "address": address}
        client = self.client
        return call_all([node], lambda each: client.post(each, "client/close", parameters), client.timeout).errors

    def adopt(self, node: str, identity: str) -> Answer[list[str]]:
        """Let a standby take over the topics of a primary; `value` has their names."""

        def take_over(address: str) -> list[str]:
            answer = self.client.post_for_answer(address, "mirror/adopt", {"identity": identity})
            return reading.array(reading.text, reading.mapping(answer).get("topics"))

        answer = call_all([node], take_over, self.client.timeout)
        return Answer([name for _, names in answer.value for name in names], answer.errors, answer.unreachable)

    def _nodes_of(self, topic: str) -> tuple[list[str], Errors]:
        producers = self.producers(topic)
        errors = tuple(error for error in producers.errors if not is_not_found(error))
        return [node.http_address for node in producers.value], errors + producers.skipped

    def _post(
        self, addresses: Sequence[str], action: str, topic: str, channel: str = "", **others: str
    ) -> Answer[list[tuple[str, None]]]:
        path = f"{'channel' if channel else 'topic'}/{action}"
        parameters = {"topic": topic} | ({"channel": channel} if channel else {}) | others
        client = self.client
        return call_all(addresses, lambda address: client.post(address, path, parameters), client.timeout)

    # --- Requests to one daemon ---------------------------------------------------------------------------------------

    def _query_lookupds(self, query: Callable[[str], T]) -> Answer[list[tuple[str, T]]]:
        return query_all("nsqlookupd", self.lookupds, query, self._discovery_client.timeout)

    def _query_nsqds(self, query: Callable[[str], T]) -> Answer[list[tuple[str, T]]]:
        # Twice the timeout: some of these queries make two requests.
        return query_all("nsqd", self.nsqds, query, 2 * self.client.timeout)

    def _names(self, kind: str, **parameters: str) -> Answer[list[str]]:
        def query(address: str) -> list[str]:
            answer = reading.mapping(self._discovery_client.get(address, kind, **parameters))
            return reading.array(reading.text, answer.get(kind))

        return _merged(self._query_lookupds(query))

    def _listing(self, address: str, path: str, **parameters: str) -> _Listing:
        """The nodes that an nsqlookupd lists, and a text for each skipped registration."""
        answer = reading.mapping(self._discovery_client.get(address, path, **parameters))
        nodes, skipped = read_registrations(answer.get("producers"))
        texts = [f"nsqlookupd {address}: skipped {each}" for each in skipped[:_MAX_SKIPPED_NAMED]]
        if len(skipped) > _MAX_SKIPPED_NAMED:
            more = len(skipped) - _MAX_SKIPPED_NAMED
            texts.append(f"nsqlookupd {address}: skipped {more} more invalid registrations")
        self._log_skipped(address, texts, is_complete=not parameters)
        return nodes, tuple(texts)

    def _log_skipped(self, lookupd: str, texts: Sequence[str], *, is_complete: bool) -> None:
        """Log each invalid registration once, when it first appears.

        A complete listing replaces the remembered registrations of its nsqlookupd; the listing of a topic adds to them.
        """
        with self._logged_lock:
            known = self._logged.setdefault(lookupd, set())
            new = [text for text in texts if text not in known]
            if is_complete or len(known) > _MAX_SKIPPED_REMEMBERED:
                known.clear()
            known.update(texts)
        for text in new:
            log.warning("%s", text)

    def _get_topics(self, address: str, **parameters: str) -> list[str]:
        stats = _get_stats(self._discovery_client, address, include_clients="false", **parameters)
        topics = reading.array(reading.mapping, reading.mapping(stats).get("topics"))
        return [reading.text(topic.get("topic_name")) for topic in topics]

    def _get_node(self, address: str) -> Node:
        node = self._get_info(address)
        node.topics = dict.fromkeys(self._get_topics(address), False)
        return node

    def _get_producer(self, address: str, topic: str) -> Node | None:
        if topic not in self._get_topics(address, topic=topic):
            return None
        node = self._get_info(address)
        node.topics = {topic: False}
        return node

    def _get_info(self, address: str) -> Node:
        node = read_node(self._discovery_client.get(address, "info"))
        if problem := address_error(node.broadcast_address, HTTP=node.http_port):
            if node.broadcast_address:
                text = f"nsqd {address} announces an {problem}; the address in --nsqd-http-address is used"
                self._log_skipped(address, [text], is_complete=False)
            # An nsqd without a broadcast address is at the address of the request.
            host, _, port = address.rpartition(":")
            node.broadcast_address, node.http_port = host.strip("[]"), int(port) if port.isdigit() else 0
        node.hostname = node.hostname or node.broadcast_address
        return node


def _get_stats(client: HttpClient, address: str, **parameters: str) -> Any:
    # Memory stats are not used, and cost nsqd time.
    return client.get(address, "stats", format="json", include_mem="false", **parameters)


def _merged(answer: Answer[list[tuple[str, list[str]]]]) -> Answer[list[str]]:
    return Answer(sorted({name for _, names in answer.value for name in names}), answer.errors)


def _failures(*answers: Answer[list[tuple[str, None]]]) -> Errors:
    """The errors of an action, without those of daemons that have nothing to act on, if others have."""
    errors = tuple(error for answer in answers for error in answer.errors)
    done = any(answer.value for answer in answers)
    return tuple(error for error in errors if not (done and is_not_found(error)))


def _skipped(listings: Answer[list[tuple[str, _Listing]]]) -> Errors:
    return tuple(text for _, (_, texts) in listings.value for text in texts)


# --- Snapshots: pages with thousands of topics, and the history, read them, so that they do not query nsqd each time --


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole cluster at one moment."""

    taken_at: float
    """Unix seconds."""
    nodes: tuple[Node, ...] = ()
    node_stats: Mapping[str, NodeStats] = field(default_factory=dict)
    """By HTTP address, of the nodes that answered."""
    unreachable: tuple[str, ...] = ()
    """HTTP addresses of the nodes that did not answer. `nodes` lacks those that only the fixed list names."""
    topics: tuple[TopicStats, ...] = ()
    """Sums over all nodes, sorted by name. Topics that only nsqlookupd knows are empty."""
    errors: tuple[str, ...] = ()
    silent_lookupds: tuple[str, ...] = ()
    """HTTP addresses of the nsqlookupds that did not answer. `nodes` may lack nodes that only these know."""
    all_lookupds_silent: bool = False
    """No nsqlookupd answered, if there are any: `nodes` are those of earlier answers."""
    with_clients: bool = False
    answer_times: Mapping[str, float] = field(default_factory=dict)
    """Seconds until nodes answered a ping; empty unless requested."""

    @property
    def is_known(self) -> bool:
        """Whether the sums say anything: a node answered, or it is certain that there is none."""
        return bool(self.node_stats) or not (self.unreachable or self.silent_lookupds)


def take_snapshot(cluster: Cluster, now: float, *, clients: bool = False, timed: Sequence[str] = ()) -> Snapshot:
    """The clients, and the times of answers of the nodes in `timed`, are included if requested.

    Never raises ``AllFailed``: if the cluster does not answer, the snapshot has `errors`.
    """
    # First: a node that is stopped again and again would answer a ping at once that follows another request.
    answer_times = cluster.answer_times(timed)
    try:
        nodes = cluster.nodes(remembered=True)
    except AllFailed as failure:
        lookupds, nsqds = tuple(cluster.lookupds), () if cluster.lookupds else cluster.announced(cluster.nsqds)
        return Snapshot(
            taken_at=now,
            errors=(failure.named,),
            silent_lookupds=lookupds,
            all_lookupds_silent=bool(lookupds),
            unreachable=nsqds,
        )
    errors = nodes.errors + nodes.skipped
    node_stats: dict[str, NodeStats] = {}
    names: list[str] = []
    if cluster.lookupds and len(nodes.unreachable) < len(cluster.lookupds):
        try:
            names = cluster.topics().value
        except AllFailed as failure:
            errors += (failure.named,)
    try:
        stats = cluster.stats(nodes.value, clients=clients)
        node_stats = {node.http_address: of_node for node, of_node in stats.value}
        errors += stats.errors
    except AllFailed as failure:
        if nodes.value:  # otherwise there was no nsqd to query
            errors += (failure.named,)
    topics = sum_topics(topic for of_node in node_stats.values() for topic in of_node.topics)
    topics += [TopicStats(topic_name=name) for name in set(names) - {topic.topic_name for topic in topics}]
    silent = [address for node in nodes.value if (address := node.http_address) not in node_stats]
    return Snapshot(
        taken_at=now,
        nodes=tuple(nodes.value),
        node_stats=node_stats,
        unreachable=(*silent, *(() if cluster.lookupds else nodes.unreachable)),
        topics=tuple(sorted(topics, key=lambda topic: topic.topic_name)),
        errors=errors,
        silent_lookupds=nodes.unreachable if cluster.lookupds else (),
        all_lookupds_silent=bool(cluster.lookupds) and len(nodes.unreachable) == len(cluster.lookupds),
        with_clients=clients,
        answer_times=answer_times,
    )
