"""Percentiles of processing time, and what can be said of them over several nodes.

A percentile of percentiles does not exist. As in NSQ's nsqadmin, the average weighted by the number of messages stands
for it, with the least and the greatest beside it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nsq_compat.cluster import reading


@dataclass(frozen=True, slots=True)
class Percentile:
    """One quantile; values in nanoseconds."""

    quantile: float
    average: float
    min: float
    max: float
    count: int


@dataclass(frozen=True, slots=True)
class Latency:
    count: int = 0
    percentiles: tuple[Percentile, ...] | None = None
    """None where nsqd was not asked to measure any."""


def read_latency(value: object) -> Latency:
    fields = reading.mapping(value)
    count = reading.integer(fields.get("count"))
    if fields.get("percentiles") is None:
        return Latency(count)

    def read(entry: object) -> Percentile:
        pair = reading.mapping(entry)
        ns = reading.number(pair.get("value"))
        return Percentile(reading.number(pair.get("quantile")), ns, ns, ns, count)

    return Latency(count, tuple(reading.each(read, fields["percentiles"])))


def merged(latencies: Iterable[Latency]) -> Latency:
    """Over several nodes, quantiles in the order they are first seen."""
    total = 0
    by_quantile: dict[float, list[Percentile]] = {}
    for latency in latencies:
        total += latency.count
        for percentile in latency.percentiles or ():
            by_quantile.setdefault(percentile.quantile, []).append(percentile)
    return Latency(total, tuple(_one(parts) for parts in by_quantile.values()) or None)


def _one(parts: list[Percentile]) -> Percentile:
    count = sum(part.count for part in parts)
    # Nodes that have measured nothing say 0, which is not the shortest time.
    measured = [part for part in parts if part.count] or parts
    return Percentile(
        parts[0].quantile,
        sum(part.average * part.count for part in parts) / count if count else 0.0,
        min(part.min for part in measured),
        max(part.max for part in parts),
        count,
    )
