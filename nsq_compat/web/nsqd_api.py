"""nsqd's HTTP API: the table of its routes. What they do lies in the module each comes from."""

from typing import TYPE_CHECKING

from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.web.administration import Administration
from nsq_compat.web.application import Application, TlsRequired
from nsq_compat.web.configuration import Configuration
from nsq_compat.web.metrics import READY, monitoring_routes
from nsq_compat.web.nsqd_service import NsqdOptions, NsqdService
from nsq_compat.web.peeking import Peeking
from nsq_compat.web.profiling import Profiling
from nsq_compat.web.publishing import Publishing
from nsq_compat.web.routing import Route, Routes
from nsq_compat.web.statistics import HEALTHY, Statistics

if TYPE_CHECKING:
    from nsq_compat.web.nsqd_metrics import NsqdCollector

__all__ = ["NsqdApi", "NsqdOptions", "NsqdService", "TlsRequired"]


class NsqdApi(Application):
    """The handler behind nsqd's HTTP and HTTPS ports. Wrap the plain port in `TlsRequired` when TLS is required.

    `publishing` answers without waiting where the disk is not synced before the answer.
    """

    def __init__(self, service: NsqdService, publish_batch: PublishBatch | None = None) -> None:
        self.publishing = Publishing(service, publish_batch)
        service.metrics.collect_from(lambda: _collector(service))
        super().__init__(_routes(service, self.publishing))


def _collector(service: NsqdService) -> "NsqdCollector":
    # prometheus_client is an extra.
    from nsq_compat.web.nsqd_metrics import NsqdCollector

    return NsqdCollector(service, service.options.metrics_max_names)


def _routes(service: NsqdService, publishing: Publishing) -> Routes:
    administration = Administration(service)
    statistics = Statistics(service)
    configuration = Configuration(service)
    profiling = Profiling(service)
    if service.options.publishing_over_http:
        pub = Route(publishing.publish, publishing.message_admission, logged=False)
        mpub = Route(publishing.publish_many, publishing.batch_admission, logged=False)
    else:
        pub = mpub = Route(publishing.refuse, publishing.refusal_admission)
    # docs/differences.md: peek
    peeking = Peeking(service, administration)
    looks: Routes = {"/channel/peek": {"GET": Route(peeking.peek)}, "/topic/recent": {"GET": Route(peeking.recent)}}
    return {
        "/ping": {"GET": Route(statistics.ping)},
        **monitoring_routes(service.metrics, lambda: _why_not_ready(service)),
        "/info": {"GET": Route(statistics.info)},
        "/stats": {"GET": Route(statistics.stats)},
        "/pub": {"POST": pub},
        "/mpub": {"POST": mpub},
        # Names of NSQ before 0.3 (docs/differences.md: http-put).
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
        **(looks if service.options.peeking_over_http else {}),
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
