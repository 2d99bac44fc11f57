"""nsqd's HTTP API: the table of its routes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.web.administration import Administration
from nsq_compat.web.application import Application, Route, Routes, TlsRequired
from nsq_compat.web.configuration import Configuration
from nsq_compat.web.metrics import READY, monitoring_routes
from nsq_compat.web.nsqd_service import NsqdOptions, NsqdService
from nsq_compat.web.profiling import Profiling
from nsq_compat.web.publishing import Publishing
from nsq_compat.web.stats import HEALTHY, Stats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["NsqdApi", "NsqdOptions", "NsqdService", "TlsRequired"]


class NsqdApi(Application):
    """The handler behind nsqd's HTTP and HTTPS ports. If TLS is required, the plain port has `TlsRequired` instead.

    `publishing` answers without waiting, unless the disk is synced before the response.
    """

    def __init__(self, service: NsqdService, publish_batch: PublishBatch | None = None) -> None:
        self.publishing = Publishing(service, publish_batch)
        service.metrics.collect_from(lambda: _collect(service))
        super().__init__(_routes(service, self.publishing))


def _collect(service: NsqdService) -> Iterable["Metric"]:
    # prometheus_client is an extra.
    from nsq_compat.web.nsqd_metrics import collect

    return collect(service)


def _routes(service: NsqdService, publishing: Publishing) -> Routes:
    administration = Administration(service)
    stats = Stats(service)
    configuration = Configuration(service)
    profiling = Profiling(service)
    if service.options.publishing_over_http:
        pub = Route(publishing.publish, publishing.message_admission, logged=False)
        mpub = Route(publishing.publish_many, publishing.batch_admission, logged=False)
    else:
        pub = mpub = Route(publishing.refuse, publishing.refusal_admission)
    # docs/differences.md: peek
    peek_routes: Routes = {
        "/channel/peek": {"GET": Route(administration.peek)},
        "/topic/recent": {"GET": Route(administration.recent)},
    }
    return {
        "/ping": {"GET": Route(stats.ping)},
        **monitoring_routes(service.metrics, lambda: _why_not_ready(service)),
        "/info": {"GET": Route(stats.info)},
        "/stats": {"GET": Route(stats.stats)},
        "/pub": {"POST": pub},
        "/mpub": {"POST": mpub},
        # Names before NSQ 0.3 (docs/differences.md: http-put).
        "/put": {"POST": pub},
        "/mput": {"POST": mpub},
        "/topic/create": {"POST": Route(administration.create_topic)},
        "/topic/delete": {"POST": Route(administration.delete_topic)},
        "/topic/empty": {"POST": Route(administration.empty_topic)},
        "/topic/pause": {"POST": Route(administration.pause_topic)},
        "/topic/unpause": {"POST": Route(administration.unpause_topic)},
        "/channel/create": {"POST": Route(administration.create_channel)},
        "/channel/delete": {"POST": Route(administration.delete_channel)},
        "/channel/empty": {"POST": Route(administration.empty_channel)},
        "/channel/pause": {"POST": Route(administration.pause_channel)},
        "/channel/unpause": {"POST": Route(administration.unpause_channel)},
        **(peek_routes if service.options.peeking_over_http else {}),
        "/config/:opt": {
            "GET": Route(configuration.show),
            "PUT": Route(configuration.change, configuration.admission),
        },
        **profiling.routes("/debug/pprof/"),
        "/debug/setblockrate": {"PUT": Route(profiling.set_block_rate)},
        "/debug/freememory": {"POST": Route(profiling.free_memory)},
    }


def _why_not_ready(service: NsqdService) -> str:
    if service.draining:
        return "draining"
    health = service.health()
    return READY if health == HEALTHY else health
