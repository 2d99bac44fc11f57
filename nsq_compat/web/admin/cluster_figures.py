"""nsqadmin's figures for Prometheus: the cluster as it was last seen. None has a topic's name on it."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nsq_compat.cluster.history import History


class ClusterCollector(Collector):
    """Sums over all nodes. Nothing before the first look at the cluster, nor with ``--sample-interval=0s``."""

    def __init__(self, history: History) -> None:
        self._history = history

    def collect(self) -> Iterable[Metric]:
        snapshot = self._history.latest
        if snapshot is None:
            return
        channels = [channel for topic in snapshot.topics for channel in topic.channels]
        for name, help, value in (
            ("nsqadmin_looked_at_seconds", "When the cluster was last looked at, Unix time.", snapshot.taken_at),
            ("nsqadmin_nodes", "nsqd daemons that are known.", len(snapshot.nodes)),
            ("nsqadmin_nodes_silent", "Those of them that did not answer.", len(snapshot.silent())),
            ("nsqadmin_errors", "What went wrong when it was looked at.", len(snapshot.errors)),
            ("nsqadmin_topics", "Topics.", len(snapshot.topics)),
            ("nsqadmin_channels", "Channels.", len(channels)),
            ("nsqadmin_topic_depth", "Messages no channel has got yet.", sum(each.depth for each in snapshot.topics)),
            ("nsqadmin_channel_depth", "Messages that wait for a consumer.", sum(each.depth for each in channels)),
            ("nsqadmin_in_flight", "Messages consumers have.", sum(each.in_flight_count for each in channels)),
        ):
            yield GaugeMetricFamily(name, help, value=float(value))
