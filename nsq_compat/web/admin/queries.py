"""The data of a page or API answer: a snapshot of the whole cluster, or queries with the warnings that they caused."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from nsq_compat.cluster.cluster import Cluster, Snapshot, take_snapshot
from nsq_compat.cluster.http_client import AllFailed, Answer, call_all, is_not_found, named
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.stats import ChannelStats, NodeStats, TopicStats, sum_channel, sum_topic
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.web.admin.access import service
from nsq_compat.web.application import ApiError

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_SNAPSHOT_AGE: Final = 60.0
_QUERY_SHARE: Final = 0.8
"""The part of `--page-timeout` that is for queries; the rest is for making the page."""
STATS_SHARE: Final = 0.4
"""For pages that ask the nodes again after their stats."""
_MAX_CONCURRENT: Final = 4
"""Concurrent queries for channels: all go to the same few nsqlookupds."""


def current_snapshot(cluster: Cluster | None = None) -> Snapshot:
    """The newest sample, or a new snapshot if there is no recent sample, or none since the last action.

    `cluster` is that of a page's other queries, with which a new snapshot shares `--page-timeout`.
    """
    history, now = service().history, service().now()
    latest = history.latest
    if latest is not None and latest.taken_at >= max(now - _MAX_SNAPSHOT_AGE, history.changed_at):
        return latest
    return take_snapshot(cluster or _cluster_for_a_page(), now)


def _cluster_for_a_page() -> Cluster:
    return service().cluster.within(_QUERY_SHARE * service().options.page_timeout / SECOND)


class Queries:
    """Every query may raise `AllFailed`. The errors of single daemons become an entry of `warnings` for each query.

    All queries together take `--page-timeout` at most. `stats_share` is the part of it that a query for stats may take,
    if the page sends other requests afterwards, with `client`. Unless `only_listed`, as NSQ's API, queries include the
    nodes that are known from nsqlookupds that do not answer now.
    """

    def __init__(self, stats_share: float = 1.0, *, only_listed: bool = False) -> None:
        self._remembered = not only_listed
        self._cluster = _cluster_for_a_page()
        self.client = self._cluster.client
        self._cluster.client = self.client.at_most(stats_share * self.client.timeout)
        self._messages: list[str] = []
        self.warnings: list[str] = []
        """For the pages: these name the daemons."""
        self.silent: list[str] = []
        """The nsqds that did not answer for the topic or channel of the page, and may have it."""

    def message(self) -> str:
        """The warnings, as NSQ's API shows them."""
        return "WARNING: " + "; ".join(self._messages) if self._messages else ""

    def add_warning(self, errors: tuple[str, ...]) -> None:
        if errors:
            log.warning("%s", "\n".join(map(named, errors)))
            self._messages.append("\n".join(errors))
        failed = "\n".join(named(error) for error in errors if not is_not_found(error))
        if failed and failed not in self.warnings:
            self.warnings.append(failed)

    def snapshot(self) -> Snapshot:
        return current_snapshot(self._cluster)

    def topics(self) -> list[str]:
        return self._value(self._cluster.topics())

    def inactive_topics(self) -> list[str]:
        """Topics that only nsqlookupd knows."""
        names = self.topics()
        if not self._cluster.lookupds:
            return []
        active = {topic for node in self.nodes() for topic, tombstoned in node.topics.items() if not tombstoned}
        return [name for name in names if name not in active]

    def channels_of(self, topics: Sequence[str]) -> dict[str, list[str]]:
        """The channels of each topic that nsqlookupd knows."""
        timeout = self._cluster.client.timeout
        answer = call_all(topics, self._cluster.channels, timeout, max_concurrent=_MAX_CONCURRENT)
        return {name: self._value(channels) for name, channels in self._value(answer)}

    def topic(self, name: str) -> TopicStats:
        """With what its nodes retain."""
        return sum_topic(name, self._topic_parts(name, retained=self._remembered))

    def channel(self, topic: str, name: str) -> ChannelStats:
        """Raises `ApiError` 404 if no node has the channel."""
        channels = (each for part in self._topic_parts(topic, name, clients=True) for each in part.channels)
        parts = [channel for channel in channels if channel.channel_name == name]
        if not parts:
            raise ApiError(404, "CHANNEL_NOT_FOUND")
        return sum_channel(name, parts)

    def topic_or_inactive(self, name: str) -> TopicStats:
        """As `topic_or_silent`; an empty one also if only nsqlookupd knows the topic."""
        try:
            return self.topic_or_silent(name)
        except ApiError as error:
            if error.code != "NO_NODE_HAS_TOPIC":
                raise
            return TopicStats(topic_name=name)

    def topic_or_silent(self, name: str) -> TopicStats:
        return self._or_silent(name, lambda: self.topic(name), TopicStats(topic_name=name))

    def channel_or_silent(self, topic: str, name: str) -> ChannelStats:
        missing = ChannelStats(topic_name=topic, channel_name=name)
        return self._or_silent(topic, lambda: self.channel(topic, name), missing)

    def _or_silent(self, topic: str, query: Callable[[], T], missing: T) -> T:
        """As `on_nodes`; `missing` if only nodes that did not answer may have the topic or channel."""
        try:
            return self.on_nodes(topic, query)
        except AllFailed as failure:
            if not self.silent:
                raise
            self.add_warning(failure.errors)
        except ApiError as error:
            if error.code == "NO_NODE_HAS_TOPIC" or not self.silent:
                raise
        return missing

    def on_nodes(self, topic: str, query: Callable[[], T]) -> T:
        """The result of a query for a topic. Raises `ApiError` 404 if the cluster, or its nodes, do not have it."""
        try:
            return query()
        except AllFailed as failure:
            if self.silent:
                raise  # its nodes took all of the time, so the nsqlookupds could not answer
            if topic not in self.topics():
                raise ApiError(404, "TOPIC_NOT_FOUND") from None
            if failure.errors:
                raise
            raise ApiError(404, "NO_NODE_HAS_TOPIC") from None

    def holders(self, topic: str) -> list[str]:
        """The nodes that have the topic; empty if that is not known."""
        with suppress(AllFailed):
            return [node.http_address for node in self._cluster.producers(topic).value] if is_valid_name(topic) else []
        return []

    def nodes(self) -> list[Node]:
        return self._value(self._cluster.nodes(remembered=self._remembered))

    def node(self, address: str) -> tuple[Node, NodeStats]:
        """Raises `ApiError` 404 if the cluster does not have the node."""
        return self._cluster.stats([self._listed(address)], clients=True).value[0]

    def node_or_silent(self, address: str) -> tuple[Node, NodeStats | None]:
        """As `node`, without stats if the node does not answer, or is gone."""
        remembered = service().history.sightings.of(address)
        try:
            found = self._listed(address)
        except (ApiError, AllFailed) as failure:
            if remembered is None:
                raise
            self.add_warning(failure.errors if isinstance(failure, AllFailed) else ())
            return remembered.node, None
        try:
            return self._cluster.stats([found], clients=True).value[0]
        except AllFailed as failure:
            self.add_warning(failure.errors)
            return found, None

    def health_of(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """What each of these daemons answers to /ping now, without those that do not answer."""
        return self._cluster.health_of(addresses)

    def settings_of(self, node: str, names: Sequence[str]) -> Mapping[str, str]:
        return self._cluster.settings_of(node, names)

    def _listed(self, address: str) -> Node:
        found = next((node for node in self.nodes() if node.http_address == address), None)
        if found is None:
            raise ApiError(404, "NODE_NOT_FOUND")
        return found

    def channels_by_node(self) -> list[ChannelStats]:
        """All channels of all nodes, one by one."""
        answers = self._value(self._cluster.stats(self.nodes()))
        return [channel for _, stats in answers for topic in stats.topics for channel in topic.channels]

    def _topic_parts(
        self, topic: str, channel: str = "", *, clients: bool = False, retained: bool = False
    ) -> list[TopicStats]:
        """A topic on each of its nodes."""
        found = self._cluster.producers(topic, remembered=self._remembered)
        producers = self._value(found)
        self.silent += found.unreachable
        try:
            answer = self._cluster.stats(producers, topic, channel, clients=clients, retained=retained)
        except AllFailed:
            self.silent += map(str, producers)
            if found.skipped and not producers:
                raise AllFailed("failed to query any nsqd: " + "\n".join(found.skipped)) from None
            raise
        self.silent += answer.unreachable
        answers = self._value(answer)
        return [part for _, stats in answers for part in stats.topics]

    def _value(self, answer: Answer[T]) -> T:
        self.add_warning(answer.errors)
        if answer.skipped:
            # Already logged. Several queries skip the same registrations.
            text = "\n".join(answer.skipped)
            if text not in self.warnings:
                self._messages.append(text)
                self.warnings.append(text)
        return answer.value
