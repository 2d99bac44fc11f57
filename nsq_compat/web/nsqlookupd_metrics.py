"""nsqlookupd's figures for Prometheus: how much it knows, and of whom. None has a topic's name on it."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nsq_compat.web.nsqlookupd_service import NsqlookupdService


class NsqlookupdCollector(Collector):
    """Asked for every scrape."""

    def __init__(self, service: NsqlookupdService) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        service, db = self._service, self._service.db
        known = len(db.producers)
        active = sum(1 for _ in db.nodes(service.now()))
        nodes = GaugeMetricFamily("nsqlookupd_nodes", "nsqd daemons that registered, by state.", labels=("state",))
        nodes.add_metric(("active",), active)
        nodes.add_metric(("inactive",), known - active)
        yield nodes
        for name, help, value in (
            ("nsqlookupd_topics", "Topics it knows.", len(db.topics)),
            ("nsqlookupd_channels", "Channels it knows.", sum(len(db.channels(topic)) for topic in db.topics)),
            ("nsqlookupd_tombstones", "Topics of nodes nobody is sent to.", _tombstones(service)),
        ):
            yield GaugeMetricFamily(name, help, value=value)


def _tombstones(service: NsqlookupdService) -> int:
    now, db = service.now(), service.db
    return sum(db.is_tombstoned(producer, topic, now) for producer in db.producers for topic in producer.tombstones)
