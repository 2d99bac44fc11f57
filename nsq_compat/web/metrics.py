"""/metrics, /livez and /readyz: what Prometheus and whoever restarts daemons ask of every one of them.

Nothing is counted for the sake of a scrape: collectors read what the daemon knows anyway, when they are asked. The few
histograms there are (turns of the event loop, disk syncs) are fed by what does not happen once a message.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder

from nsq_compat.net.http_message import Request, Response
from nsq_compat.web import responses
from nsq_compat.web.routing import Route, Routes

READY: Final = ""
LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """One daemon's registry: its process, its event loop, and what is added to `registry`."""

    def __init__(self, program: str, version: str) -> None:
        self.registry = CollectorRegistry()
        Info(f"{program}_build", "What runs.", registry=self.registry).info({"version": version})
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.observe_lag = Histogram(
            f"{program}_event_loop_lag_seconds",
            "How late the event loop was with something that had a time.",
            buckets=LAG_BUCKETS,
            registry=self.registry,
        ).observe

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """All of it and its content type: OpenMetrics for who accepts that, else Prometheus' own text."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def monitoring_routes(metrics: Metrics, why_not_ready: Callable[[], str]) -> Routes:
    """`why_not_ready` gives `READY`, or a sentence."""

    def show(request: Request) -> Response:
        page, content_type = metrics.page(request.headers.get(b"accept", b"").decode("latin-1"))
        return Response(200, page, (("Content-Type", content_type),))

    def live(request: Request) -> Response:
        return responses.plain("OK")

    def ready(request: Request) -> Response:
        reason = why_not_ready()
        return responses.plain(reason, 503) if reason else responses.plain("OK")

    # Asked every few seconds by machines: a log line for each would be most of the log.
    return {
        "/metrics": {"GET": Route(show, logged=False)},
        "/livez": {"GET": Route(live, logged=False)},
        "/readyz": {"GET": Route(ready, logged=False)},
    }
