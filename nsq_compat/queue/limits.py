"""What bounds the queue, from the daemon's options."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Durations in seconds; `max_channel_consumers` 0 means no limit."""

    mem_queue_size: int = 10_000
    max_msg_timeout: float = 900.0
    max_channel_consumers: int = 0
    node_id: int = 0
