"""/ping, /metrics, /livez and /readyz of nsqadmin."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from flask import Blueprint, Response, request

from nsq_compat.cluster.history import History
from nsq_compat.web.admin.access import service
from nsq_compat.web.metrics import MetricsUnavailable

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PLAIN: Final = "text/plain; charset=utf-8"

monitoring = Blueprint("monitoring", __name__)


@monitoring.get("/metrics")
def metrics() -> Response:
    try:
        page, content_type = service().metrics.page(request.headers.get("Accept", ""))
    except MetricsUnavailable as failure:
        return Response(str(failure), status=501, content_type=_PLAIN)
    return Response(page, content_type=content_type)


@monitoring.get("/livez")
def live() -> Response:
    return Response("OK", content_type=_PLAIN)


monitoring.add_url_rule("/readyz", "ready", live)
monitoring.add_url_rule("/ping", "ping", live)


def collect(history: History) -> Iterable["Metric"]:
    """Sums over the newest snapshot, for one scrape. Empty before the first, and with ``--sample-interval=0s``.

    No metric has the name of a topic.
    """
    # prometheus_client is an extra.
    from prometheus_client.core import GaugeMetricFamily

    snapshot = history.latest
    if snapshot is None:
        return
    channels = [channel for topic in snapshot.topics for channel in topic.channels]
    for name, help, value in (
        ("nsqadmin_looked_at_seconds", "Time of the last sample of the cluster, Unix time.", snapshot.taken_at),
        ("nsqadmin_nodes", "Known nsqd nodes.", len(snapshot.nodes)),
        ("nsqadmin_nodes_silent", "Nodes that did not answer.", len(snapshot.unreachable())),
        ("nsqadmin_errors", "Errors of the last sample.", len(snapshot.errors)),
        ("nsqadmin_topics", "Topics.", len(snapshot.topics)),
        ("nsqadmin_channels", "Channels.", len(channels)),
        ("nsqadmin_topic_depth", "Messages not yet copied to a channel.", sum(it.depth for it in snapshot.topics)),
        ("nsqadmin_channel_depth", "Messages waiting for a consumer.", sum(channel.depth for channel in channels)),
        ("nsqadmin_in_flight", "Messages in flight.", sum(channel.in_flight_count for channel in channels)),
    ):
        yield GaugeMetricFamily(name, help, value=float(value))
