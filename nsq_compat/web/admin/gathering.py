"""Figures for one page or one answer of the API, with the warnings that came up on the way."""

import logging
from collections.abc import Sequence
from typing import TypeVar

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.fan_out import Answer, tell_all
from nsq_compat.cluster.merge import channel_over_nodes, topic_over_nodes
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.statistics import ChannelStats, NodeStats, TopicStats
from nsq_compat.web.responses import ApiError

log = logging.getLogger(__name__)

T = TypeVar("T")

_QUESTIONS_AT_ONCE = 4


class Gathering:
    """Every question may raise `AllFailed`; who fails alone adds to `warnings`, one entry for each question."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.warnings: list[str] = []

    def message(self) -> str:
        """As the API says it."""
        return "WARNING: " + "; ".join(self.warnings) if self.warnings else ""

    def note(self, errors: tuple[str, ...]) -> None:
        if errors:
            log.warning("%s", "\n".join(errors))
            self.warnings.append("\n".join(errors))

    def topics(self) -> list[str]:
        return self._value(self._cluster.topics())

    def inactive_topics(self) -> list[str]:
        """Those that only nsqlookupd knows."""
        names = self.topics()
        if not self._cluster.lookupds:
            return []
        nodes = self._value(self._cluster.nodes())
        active = {topic for node in nodes for topic, tombstoned in node.topics.items() if not tombstoned}
        return [name for name in names if name not in active]

    def channels_of(self, topics: Sequence[str]) -> dict[str, list[str]]:
        """What nsqlookupd knows of each topic."""
        # All of them go to the same few.
        answer = tell_all(topics, self._cluster.channels, self._cluster.client.timeout, width=_QUESTIONS_AT_ONCE)
        return {name: self._value(channels) for name, channels in self._value(answer)}

    def topic(self, name: str) -> TopicStats:
        producers = self._value(self._cluster.producers(name))
        statistics = self._value(self._cluster.statistics(producers, name))
        return topic_over_nodes(name, (topic for _, stats in statistics for topic in stats.topics))

    def channel(self, topic: str, name: str) -> ChannelStats:
        """Raises `ApiError` where no node has the channel."""
        producers = self._value(self._cluster.producers(topic))
        statistics = self._value(self._cluster.statistics(producers, topic, name, clients=True))
        parts = [
            channel
            for _, stats in statistics
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
        """Raises `ApiError` for one that is not in the cluster."""
        found = next((node for node in self.nodes() if node.http_address == address), None)
        if found is None:
            raise ApiError(404, "NODE_NOT_FOUND")
        return self._cluster.statistics([found], clients=True).value[0]

    def channels_everywhere(self) -> list[ChannelStats]:
        """Each channel on each node."""
        statistics = self._value(self._cluster.statistics(self.nodes()))
        return [channel for _, stats in statistics for topic in stats.topics for channel in topic.channels]

    def _value(self, answer: Answer[T]) -> T:
        self.note(answer.errors)
        if answer.skipped:
            # Logged already, when they appeared. The same ones come with several questions.
            self.warnings += [text for text in ["\n".join(answer.skipped)] if text not in self.warnings]
        return answer.value
