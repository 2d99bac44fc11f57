"""Limits of topics and channels from nsqd's options, and why a publish is refused."""

from dataclasses import dataclass
from typing import Final, Protocol

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


class Refused(Exception):
    """A message is not accepted. The text is for the client."""


class Exiting(Refused):
    """The topic or channel is being deleted, or nsqd stops or drains. The text is NSQ's."""

    def __str__(self) -> str:
        return "exiting"


class Admission(Protocol):
    """A check before each publish to a topic. NSQ refuses for one reason only: the topic is exiting."""

    def admit(self, count: int, now: float) -> None:
        """Allow `count` messages to be published, or raise ``Refused``."""


class _Closed:
    def admit(self, count: int, now: float) -> None:
        raise Exiting


REFUSES_ALL: Final[Admission] = _Closed()
