"""A client as a consumer of its channel: its ready count, its messages in flight, its counters.

Invariants:

- A delivery never makes more messages in flight than the ready count.
- The settings negotiated before SUB stay in force: IDENTIFY is not allowed afterwards.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nsq_compat.protocol.message import message_ids
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.stats import ClientStats
from nsq_compat.queue.wait_queue import Locality


class Counts(NamedTuple):
    """The counters of a consumer, as ``ClientStats`` names them; all 0 for other clients."""

    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0


class Subscription:
    """From SUB to the end of the connection. It is the ``queue.channel.Consumer`` of its channel.

    `msg_timeout` is the time limit of a delivery in seconds, `touch_timeout` the seconds that a TOUCH adds. `stats`
    returns the client's figures for /stats. Raises ``Exiting`` and ``TooManyConsumers``.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        msg_timeout: float,
        touch_timeout: float,
        locality: Locality,
        sample_rate: int,
        wake: Callable[[], None],
        close: Callable[[], None],
        stats: Callable[[], ClientStats],
    ) -> None:
        self.in_flight = InFlight()
        self.locality = locality
        self.ready_count = 0
        self.has_more = False
        self.wake = wake
        self.close = close
        self.stats = stats
        self._channel = channel
        self._msg_timeout = msg_timeout
        self._touch_timeout = touch_timeout
        self._sample_rate = sample_rate
        self._message_count = 0
        self._finish_count = 0
        self._requeue_count = 0
        channel.add_consumer(self)

    def counts(self) -> Counts:
        by_locality = [0 for _ in Locality]
        if self._channel.topology_aware:
            by_locality[self.locality] = self._message_count
        return Counts(
            self.ready_count,
            len(self.in_flight),
            self._message_count,
            self._finish_count,
            self._requeue_count,
            *by_locality,
        )

    # --- Messages out -------------------------------------------------------------------------------------------------

    def next_batch(self, now: float) -> Sequence[bytes]:
        """Frames to send now; `has_more` says whether there may be more."""
        channel = self._channel
        self.has_more = False
        room = self.ready_count - len(self.in_flight.frames)  # Hot: not `len(self.in_flight)`, which is one call more
        if room <= 0:
            channel.stand_back(self)
            return ()
        frames = channel.take(self, room, now, self._msg_timeout)
        self.has_more = 0 < len(frames) < room and channel.depth > 0 and not channel.paused
        if self._sample_rate:
            taken, frames = len(frames), self._sample(frames)
            self.has_more |= len(frames) < taken  # messages that were not drawn leave room for others
        self._message_count += len(frames)
        return frames

    def _sample(self, frames: Sequence[bytes]) -> list[bytes]:
        # nsqd: a message that is not drawn is finished, and a rate of N delivers N + 1 percent.
        kept: list[bytes] = []
        discarded: list[bytes] = []
        for frame in frames:
            (kept if random.randrange(100) <= self._sample_rate else discarded).append(frame)
        self._channel.finish(self, message_ids(discarded))
        return kept

    def stand_back(self) -> None:
        """Let messages go to other consumers while this client takes none."""
        self._channel.stand_back(self)

    # --- FIN, REQ, TOUCH ----------------------------------------------------------------------------------------------

    def finish(self, ids: Sequence[bytes], now: float, now_ns: int) -> list[bytes]:
        """Finish messages; return the ids that are not in flight to this client."""
        latency = self._channel.latency
        if latency is not None:
            latency.add(self.in_flight.frames_of(ids), now, now_ns)
        missing = self._channel.finish(self, ids)
        self._finish_count += len(ids) - len(missing)
        return missing

    def requeue(self, message_id: bytes, now: float, delay: float) -> None:
        """Requeue a message for another delivery after `delay` seconds. Raises ``NotInFlight``."""
        self._channel.requeue(self, message_id, now, delay)
        self._requeue_count += 1

    def touch(self, message_id: bytes, now: float) -> None:
        """Extend the time limit of a message. Raises ``NotInFlight``."""
        self._channel.touch(self, message_id, now, self._touch_timeout)

    def why_not(self, message_id: bytes) -> str:
        """NSQ's text for why the client cannot finish, requeue or touch this message."""
        return self._channel.why_not(message_id)

    @property
    def consumer_count(self) -> int:
        """The number of the channel's consumers."""
        return len(self._channel.consumers)

    def leave(self) -> None:
        """Leave the channel when the connection is closed. May be called twice."""
        self._channel.remove_consumer(self)
