"""/metrics, /livez and /readyz: what Prometheus and whoever restarts daemons ask of every one of them.

Nothing is counted for the sake of a scrape: collectors read what the daemon knows anyway, when they are asked. The few
histograms there are (turns of the event loop, disk syncs) are fed by what does not happen once a message.

Without prometheus_client, which is an extra, there are no figures, and /metrics says so.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from nsq_compat import missing_package
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web import responses
from nsq_compat.web.routing import Route, Routes

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from nsq_compat.web.prometheus import Registry

READY: Final = ""
LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class NoFigures(Exception):
    """prometheus_client is not installed; the text says how that is changed."""


class Metrics:
    """One daemon's figures: its process, its event loop, and what is added."""

    def __init__(self, program: str, version: str) -> None:
        self._registry = _registry(program, version)
        self.observe_lag = self.histogram(
            f"{program}_event_loop_lag_seconds",
            "How late the event loop was with something that had a time.",
            LAG_BUCKETS,
        )
        self.observe_held = self.histogram(
            f"{program}_event_loop_held_seconds",
            "CPU time for which one piece of work kept the event loop from something that had a time.",
            LAG_BUCKETS,
        )

    def histogram(self, name: str, meaning: str, buckets: Sequence[float]) -> Callable[[float], None]:
        """What to call with each value."""
        return self._registry.histogram(name, meaning, buckets) if self._registry else _forget

    def collect_from(self, make: Callable[[], "Collector"]) -> None:
        """Have a collector asked for every scrape; where nobody can ask it is not even made, nor need be imported."""
        if self._registry:
            self._registry.register(make())

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """All of it and its content type, as Prometheus accepts it. Raises ``NoFigures``."""
        if self._registry is None:
            raise NoFigures(missing_package("prometheus_client", "metrics"))
        return self._registry.page(accept)


def _registry(program: str, version: str) -> "Registry | None":
    try:
        from nsq_compat.web.prometheus import Registry
    except ModuleNotFoundError as failure:
        if failure.name != "prometheus_client":
            raise
        return None
    return Registry(program, version)


def _forget(value: float) -> None:
    """Nobody will ask."""


def monitoring_routes(metrics: Metrics, why_not_ready: Callable[[], str]) -> Routes:
    """`why_not_ready` gives `READY`, or a sentence."""

    def show(request: Request) -> Response:
        try:
            page, content_type = metrics.page(request.headers.get(b"accept", b"").decode("latin-1"))
        except NoFigures as failure:
            return responses.plain(str(failure), 501)
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
