"""Limits of topics and channels, from nsqd's options."""

from dataclasses import dataclass

from nsq_compat.queue.latency import LatencyOptions


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Durations are in seconds. `max_channel_consumers` 0 means no limit; without `latency` none is measured.

    `topology_aware`: nearby consumers come first.
    """

    mem_queue_size: int = 10_000
    max_msg_timeout: float = 900.0
    max_channel_consumers: int = 0
    node_id: int = 0
    latency: LatencyOptions | None = None
    topology_aware: bool = False
