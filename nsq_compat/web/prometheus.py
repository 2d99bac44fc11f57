"""A registry of figures, and the page Prometheus reads of it: all that asks prometheus_client for anything.

`web.metrics` does without where that package, an extra, is not installed; collectors are made only where it is.
"""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, GCCollector, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector


class Registry:
    """One daemon's figures; those of its process are among them from the beginning."""

    def __init__(self, program: str, version: str) -> None:
        self._registry = CollectorRegistry()
        Info(f"{program}_build", "What runs.", registry=self._registry).info({"version": version})
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def histogram(self, name: str, meaning: str, buckets: Sequence[float]) -> Callable[[float], None]:
        """What to call with each value."""
        return Histogram(name, meaning, buckets=buckets, registry=self._registry).observe

    def register(self, collector: Collector) -> None:
        self._registry.register(collector)

    def page(self, accept: str) -> tuple[bytes, str]:
        """All of it and its content type: OpenMetrics for who accepts that, else Prometheus' own text."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
