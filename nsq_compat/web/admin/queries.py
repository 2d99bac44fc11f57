"""Queries for one page or API answer, with the warnings that they caused."""

import logging
from collections.abc import Sequence
from typing import Final, TypeVar

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.fan_out import Answer, call_all
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.snapshot import channel_over_nodes, topic_over_nodes
from nsq_compat.cluster.stats import ChannelStats, NodeStats, TopicStats
from nsq_compat.web.application import ApiError

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_CONCURRENT: Final = 4
"""Concurrent queries for channels: all go to the same few nsqlookupds."""


class Queries:
    """Every query may raise `AllFailed`. The errors of single daemons become an entry of `warnings` for each query."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.warnings: list[str] = []

    def message(self) -> str:
        """The warnings, as NSQ's API shows them."""
        return "WARNING: " + "; ".join(self.warnings) if self.warnings else ""

    def add_warning(self, errors: tuple[str, ...]) -> None:
        if errors:
            log.warning("%s", "\n".join(errors))
            self.warnings.append("\n".join(errors))

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
        producers = self._value(self._cluster.producers(name))
        answers = self._value(self._cluster.stats(producers, name))
        return topic_over_nodes(name, (topic for _, stats in answers for topic in stats.topics))

    def channel(self, topic: str, name: str) -> ChannelStats:
        """Raises `ApiError` 404 if no node has the channel."""
        producers = self._value(self._cluster.producers(topic))
        answers = self._value(self._cluster.stats(producers, topic, name, clients=True))
        parts = [
            channel
            for _, stats in answers
            for each in stats.topics
            for channel in each.channels
            if channel.channel_name == name
        ]
        if not parts:
            raise ApiError(404, "CHANNEL_NOT_FOUND")
        return channel_over_nodes(name, parts)

    def nodes(self) -> list[Node]:
        return self._value(self._cluster.nodes())

    def node(self, address: str) -> tuple[Node, NodeStats]:
        """Raises `ApiError` 404 if the cluster does not have the node."""
        found = next((node for node in self.nodes() if node.http_address == address), None)
        if found is None:
            raise ApiError(404, "NODE_NOT_FOUND")
        return self._cluster.stats([found], clients=True).value[0]

    def channels_by_node(self) -> list[ChannelStats]:
        """All channels of all nodes, one by one."""
        answers = self._value(self._cluster.stats(self.nodes()))
        return [channel for _, stats in answers for topic in stats.topics for channel in topic.channels]

    def _value(self, answer: Answer[T]) -> T:
        self.add_warning(answer.errors)
        if answer.skipped:
            # Already logged. Several queries skip the same registrations.
            text = "\n".join(answer.skipped)
            if text not in self.warnings:
                self.warnings.append(text)
        return answer.value
