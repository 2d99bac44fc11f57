"""nsqd's HTTP API: the table of its routes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nsq_compat.policy.access import ADMIN, READ
from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.web.administration import Administration, Configuration
from nsq_compat.web.application import OPEN, TOPIC, Application, Refusal, Route
from nsq_compat.web.consuming import Consuming
from nsq_compat.web.message_state import MessageStateApi
from nsq_compat.web.metrics import READY, monitoring_routes
from nsq_compat.web.mirroring import Mirroring, not_mirrored
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.profiling import Profiling
from nsq_compat.web.publishing import Publishing
from nsq_compat.web.stats import HEALTHY, Stats

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class NsqdApi(Application):
    """The handler of nsqd's HTTP and HTTPS ports. If TLS is required, the plain port has `TlsRequired` instead.

    `publishing` answers without waiting, unless the disk is synced before the response.
    """

    def __init__(
        self, service: NsqdService, publish_batch: PublishBatch | None = None, refuse: Refusal | None = None
    ) -> None:
        self.publishing = Publishing(service, publish_batch)
        service.metrics.collect_from(lambda: _collect(service))
        stats, profiling = Stats(service, hides_others=refuse is not None), Profiling()
        super().__init__(
            {
                "/ping": {"GET": Route(stats.ping, OPEN)},
                **monitoring_routes(service.metrics, lambda: _readiness(service)),
                "/info": {"GET": Route(stats.info, READ)},
                "/stats": {"GET": Route(stats.stats, READ, topics_in=TOPIC)},
                **self.publishing.routes(),
                **Administration(service).routes(),
                **Consuming(service).routes(),
                **MessageStateApi(service).routes(),
                **Configuration(service).routes(),
                **Mirroring(service).routes(),
                **profiling.routes("/debug/pprof/"),
                "/debug/setblockrate": {"PUT": Route(profiling.set_block_rate, ADMIN)},
                "/debug/freememory": {"POST": Route(profiling.free_memory, ADMIN)},
            },
            refuse,
        )


def _collect(service: NsqdService) -> Iterable["Metric"]:
    # prometheus_client is an extra.
    from nsq_compat.web.nsqd_metrics import collect

    return collect(service)


def _readiness(service: NsqdService) -> str:
    health = "draining" if service.draining else service.health()
    return (not_mirrored(service) or READY) if health == HEALTHY else health
