"""/metrics, /livez and /readyz of nsqadmin: its process, and the cluster as it was last seen."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flask import Blueprint, Response, request
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nsq_compat.web.admin.access import service

if TYPE_CHECKING:
    from nsq_compat.cluster.history import History

monitoring = Blueprint("monitoring", __name__)


class ClusterCollector(Collector):
    """Sums over all nodes. Nothing before the first look at the cluster, nor with ``--sample-interval=0s``."""

    def __init__(self, history: "History") -> None:
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


@monitoring.get("/metrics")
def metrics() -> Response:
    page, content_type = service().metrics.page(request.headers.get("Accept", ""))
    return Response(page, content_type=content_type)


@monitoring.get("/livez")
def live() -> Response:
    return Response("OK", content_type="text/plain; charset=utf-8")


@monitoring.get("/readyz")
def ready() -> Response:
    return live()
