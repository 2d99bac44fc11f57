"""/metrics, /livez and /readyz of every daemon.

Collectors read values that the daemon keeps anyway. The histograms (event-loop lag, disk syncs) record events that are
rarer than messages. prometheus_client is an extra: without it, /metrics answers 501 and names the extra. The first
/metrics imports it, so that a daemon that is not scraped starts faster, with 6 MB less: it brings an HTTP server, and
with that OpenSSL.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from nsq_compat import NSQ_VERSION, __version__, build, missing_package
from nsq_compat.net.event_loop import ClientLocks
from nsq_compat.policy.access import READ
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.application import OPEN, Route, Routes, plain

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

READY: Final = ""
LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class MetricsUnavailable(Exception):
    """prometheus_client is not installed. The text says how to install it."""


class _Histogram:
    """Counts of values by size, since `created`."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._created = time.time()

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator["Metric"]:
        from prometheus_client.core import Metric

        family = Metric(self._name, self._help, "histogram")
        count = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), accumulate(self._counts), strict=True):
            family.add_sample(f"{self._name}_bucket", {"le": bound}, count)
        family.add_sample(f"{self._name}_count", {}, count)
        family.add_sample(f"{self._name}_sum", {}, self._sum)
        family.add_sample(f"{self._name}_created", {}, self._created)
        yield family


class Metrics:
    """The metrics of one daemon: its process, its event loop, and those of added collectors."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._collectors: list[Callable[[], Iterable[Metric]]] = []
        self._registry: CollectorRegistry | None = None
        self._locks = ClientLocks()
        self.observe_lag = self.histogram(
            f"{program}_event_loop_lag_seconds", "Delay of timers in the event loop.", LAG_BUCKETS
        )
        self.observe_held = self.histogram(
            f"{program}_event_loop_held_seconds",
            "CPU time for which one piece of work delayed a timer.",
            LAG_BUCKETS,
        )

    def histogram(self, name: str, help: str, buckets: Sequence[float]) -> Callable[[float], None]:
        """A function that records a value. `buckets` are upper bounds, in ascending order."""
        histogram = _Histogram(name, help, buckets)
        self.collect_from(histogram.collect)
        return histogram.observe

    def collect_from(self, collect: Callable[[], Iterable["Metric"]]) -> None:
        """Call `collect` for each scrape. It may import prometheus_client: without that, it is not called."""
        self._collectors.append(collect)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, OpenMetrics if `accept` names it. Raises `MetricsUnavailable`."""
        try:
            from prometheus_client.exposition import choose_encoder
        except ModuleNotFoundError as failure:
            if failure.name != "prometheus_client":
                raise
            raise MetricsUnavailable(missing_package("prometheus_client", "metrics")) from None
        if self._registry is None:
            self._registry = _registry(self._program, self._collect)
        encode, content_type = choose_encoder(accept)
        # The values of a page take much memory while it is made, seven times as much as the page.
        with self._locks.mine():
            return encode(self._registry), content_type

    def _collect(self) -> Iterator["Metric"]:
        for collect in self._collectors:
            yield from collect()


def count_refused_connections(metrics: Metrics, program: str, refused: Mapping[str, int]) -> None:
    """Show the connections that were refused, by limit (see ``net.server.ConnectionLimits``)."""
    count_refused(metrics, f"{program}_connections_refused", "Connections beyond a limit for their address.", refused)


def count_refused(metrics: Metrics, name: str, help: str, refused: Mapping[str, int]) -> None:
    """Show a counter of what was refused, by limit."""

    def collect() -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(name, help, labels=["limit"])
        for limit, count in refused.items():
            family.add_metric([limit], float(count))
        yield family

    metrics.collect_from(collect)


def _registry(program: str, collect: Callable[[], Iterable["Metric"]]) -> "CollectorRegistry":
    import prometheus_client
    from prometheus_client.registry import Collector

    class FromFunction(Collector):
        def collect(self) -> Iterable["Metric"]:
            return collect()

    registry = prometheus_client.CollectorRegistry()
    versions = {"version": NSQ_VERSION, "nsq_compat": __version__, "build": build()}
    about = "Versions of NSQ and of nsq_compat, and the build."
    prometheus_client.Info(f"{program}_build", about, registry=registry).info(versions)
    prometheus_client.ProcessCollector(registry=registry)
    prometheus_client.GCCollector(registry=registry)
    registry.register(FromFunction())
    return registry


def monitoring_routes(metrics: Metrics, readiness: Callable[[], str]) -> Routes:
    """`readiness` returns `READY`, or the reason as a sentence."""

    def show(request: Request) -> Response:
        try:
            page, content_type = metrics.page(request.headers.get(b"accept", b"").decode("latin-1"))
        except MetricsUnavailable as failure:
            return plain(str(failure), 501)
        return Response(200, page, (("Content-Type", content_type),))

    def ready(request: Request) -> Response:
        reason = readiness()
        return plain(reason, 503) if reason else plain("OK")

    # Probes come every few seconds: their lines would fill the log.
    return {
        "/metrics": {"GET": Route(show, READ, logged=False)},
        "/livez": {"GET": Route(lambda request: plain("OK"), OPEN, logged=False)},
        "/readyz": {"GET": Route(ready, OPEN, logged=False)},
    }
