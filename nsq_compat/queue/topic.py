"""A topic: makes messages of bodies and hands the same frames to each of its channels.

While there is no channel, or the topic is paused, messages wait here; the first channel gets all of them, a later one
only what comes after it.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from nsq_compat.protocol.message import make_frames
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.backlog import Backlog
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.deferred import Deferred
from nsq_compat.queue.exiting import Exiting
from nsq_compat.queue.guid import GuidFactory
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.queue.schedule import Schedule

log = logging.getLogger(__name__)

_EVERYTHING = 1 << 62


class TopicObserver(Protocol):
    """Who wants to know what comes and goes: metadata, nsqlookupd, and the broker itself."""

    def channel_created(self, topic: "Topic", channel: Channel) -> None: ...

    def channel_deleted(self, topic: "Topic", channel: Channel) -> None: ...


class Topic:
    """Made by a broker; `exiting` once it is deleted or the daemon stops."""

    def __init__(self, name: str, limits: QueueLimits, schedule: Schedule, observer: TopicObserver) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        self.exiting = False
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        self.dropped_count = 0
        self._limits = limits
        self._schedule = schedule
        self._observer = observer
        self._ids = GuidFactory(limits.node_id)
        self._backlog = Backlog()
        self._deferred = Deferred()

    @property
    def depth(self) -> int:
        """Messages no channel has got yet."""
        return len(self._backlog) + len(self._deferred)

    @property
    def backend_depth(self) -> int:
        """The part of the depth that is not in memory."""
        return 0

    def publish(self, bodies: Sequence[bytes], now: float, now_ns: int, defer: float = 0.0) -> None:
        """Make messages, all of them or none. `defer` in seconds. Raises ``Exiting``."""
        if self.exiting:
            raise Exiting
        frames = make_frames(self._ids.take(len(bodies), now_ns), now_ns, bodies)
        self.message_count += len(bodies)
        self.message_bytes += sum(map(len, bodies))
        if self.paused or not self.channels:
            self._keep(frames, now + defer if defer > 0 else 0)
        elif defer > 0:
            for channel in self.channels.values():
                channel.defer(frames, now + defer)
        else:
            for channel in self.channels.values():
                channel.put(frames)

    def channel(self, name: str) -> Channel:
        """The channel of that (valid) name, made if need be. Raises ``Exiting``."""
        channel = self.channels.get(name)
        if channel is None:
            if self.exiting:
                raise Exiting
            channel = Channel(self.name, name, self._limits, self._schedule, self._delete)
            self.channels[name] = channel
            log.info("TOPIC(%s): new channel(%s)", self.name, name)
            self._fan_out()
            self._observer.channel_created(self, channel)
        return channel

    def delete_channel(self, name: str) -> None:
        """End a channel with all it holds. Raises ``KeyError``."""
        self._delete(self.channels[name])

    def pause(self) -> None:
        """Keep what is published; the channels go on with what they have."""
        self.paused = True

    def unpause(self) -> None:
        """Give the channels what was kept."""
        self.paused = False
        self._fan_out()

    def empty(self) -> None:
        """Drop what no channel has got yet; the channels keep what they have (nsqd)."""
        self._backlog.empty()
        self._deferred.empty()

    def close(self) -> None:
        """The topic ends, with its channels."""
        self.exiting = True
        for channel in self.channels.values():
            channel.close()

    def _fan_out(self) -> None:
        if self.paused or not self.channels:
            return
        frames = self._backlog.take(_EVERYTHING, _EVERYTHING)
        deferred, self._deferred = self._deferred, Deferred()
        for channel in self.channels.values():
            if frames:
                channel.put(frames)
            if deferred:
                channel.adopt(deferred)

    def _keep(self, frames: Sequence[bytes], due: float) -> None:
        room = self._limits.mem_queue_size - self.depth
        if len(frames) > room:
            self._drop(len(frames) - max(room, 0))
            frames = frames[: max(room, 0)]
        if due:
            self._deferred.add(frames, due)
        else:
            self._backlog.extend(frames)

    def _drop(self, count: int) -> None:
        if not self.dropped_count:
            log.warning(
                "TOPIC(%s): more than %d messages wait, dropping what comes now (see dropped_count in /stats)",
                self.name, self._limits.mem_queue_size,
            )  # fmt: skip
        self.dropped_count += count

    def _delete(self, channel: Channel) -> None:
        log.info("TOPIC(%s): deleting channel %s", self.name, channel.name)
        del self.channels[channel.name]
        channel.close()
        self._observer.channel_deleted(self, channel)
