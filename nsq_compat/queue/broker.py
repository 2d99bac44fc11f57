"""The topics of one nsqd: created on demand, deleted, restored after a restart, closed, and read for /stats."""

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from nsq_compat.log.checkpoint import TopicState
from nsq_compat.log.recovery import StoredTopic, recover
from nsq_compat.log.storage import Storage, TopicStore
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.schedule import Schedule
from nsq_compat.queue.topic import ChannelObserver, Topic
from nsq_compat.queue.values import (
    ChannelStats,
    ClientStats,
    Exiting,
    LatencyStats,
    QueueLimits,
    TopicStats,
    refuse_all,
)

log = logging.getLogger(__name__)


class BrokerObserver(ChannelObserver, Protocol):
    """An observer that is also notified after a topic was added or removed."""

    def topic_created(self, topic: Topic) -> None: ...

    def topic_deleted(self, topic: Topic) -> None: ...


class Broker:
    """All topics. Without a storage they are in memory only."""

    def __init__(self, limits: QueueLimits, storage: Storage | None = None) -> None:
        self.limits = limits
        self.schedule = Schedule()
        self.topics: dict[str, Topic] = {}
        self.observers: list[BrokerObserver] = []
        self.sorted_names: list[str] = []
        self.creation_check: Callable[[str, str], None] | None = None
        """Called before a client creates a topic (with an empty second name) or a channel; may raise ``Refused``."""
        self._storage = storage
        self._changed: dict[Topic, None] = {}
        self._refuses_publishing = False

    def topic(self, name: str, *, checked: bool = True, waits: bool = True) -> Topic:
        """Return the topic of that (valid) name; create it if it is missing. Raises ``Refused`` and ``OSError``.

        Not `checked`: whatever limits there are for clients. Unless it `waits`, the standby has the topic later.
        """
        topic = self.topics.get(name)
        if topic is None:
            if self._refuses_publishing:
                raise Exiting
            if checked and self.creation_check is not None:
                self.creation_check(name, "")
            store = None
            if self._storage is not None and not is_ephemeral(name):
                store = self._storage.create(name)
            topic = Topic(name, self.limits, self.schedule, self, store)
            self._add(topic)
            log.info("TOPIC(%s): created", name)
            for observer in self.observers:
                observer.topic_created(topic)
            if store is not None and waits:
                store.commit()  # last, because it may block while other greenlets run
        return topic

    def channel(self, topic: Topic, name: str) -> Channel:
        """The channel of that (valid) name, made for a client if it is missing. Raises ``Refused`` and ``OSError``."""
        self.check_channel(topic, name)
        return topic.channel(name)

    def check_channel(self, topic: Topic, name: str) -> None:
        """Raises ``Refused`` if a client may not create this channel."""
        if self.creation_check is not None and name not in topic.channels:
            self.creation_check(topic.name, name)

    def restore(self, name: str, channels: Iterable[str], now: float, now_ns: int) -> Topic:
        """Restore a topic from the storage, with the channels it had and `channels`. Raises ``OSError``."""
        assert self._storage is not None, "topics are restored from a storage"
        store, last = self._storage.open(name)
        try:
            before = recover(last, store.log)
        except OSError:
            store.log.close()
            raise
        if last is None:
            _log_missing_checkpoint(name, store, before)
        return self._restore(name, store, before, channels, now, now_ns)

    def _restore(
        self, name: str, store: TopicStore, before: TopicState, channels: Iterable[str], now: float, now_ns: int
    ) -> Topic:
        topic = Topic(name, self.limits, self.schedule, self, store)
        topic.restore(before, channels, now, now_ns)
        self._add(topic)
        return topic

    def adopt(
        self, name: str, store: TopicStore, stored: StoredTopic, channels: Iterable[str], now: float, now_ns: int
    ) -> Topic:
        """Restore a topic that was put into the storage just now, as the `store`. Raises ``OSError``."""
        if not stored.has_checkpoint:
            _log_missing_checkpoint(name, store, stored.recovered)
        try:
            topic = self._restore(name, store, stored.recovered, channels, now, now_ns)
        except OSError:
            store.log.close()
            raise
        for observer in self.observers:
            observer.topic_created(topic)
            for channel in list(topic.channels.values()):
                observer.channel_created(topic, channel)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels and messages. Raises ``KeyError``."""
        topic = self.topics.pop(name)
        del self.sorted_names[bisect_left(self.sorted_names, name)]
        log.info("TOPIC(%s): deleting", name)
        self._changed.pop(topic, None)
        topic.delete()
        for observer in self.observers:
            observer.topic_deleted(topic)

    def _add(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        insort(self.sorted_names, topic.name)  # sorting 20,000 names takes milliseconds

    def refuse_publishing(self) -> None:
        """Refuse publishes and new topics from now on. Consumers are still served."""
        self._refuses_publishing = True
        for topic in self.topics.values():
            topic.admission = refuse_all

    def close(self) -> None:
        """Close all topics, before nsqd stops: they neither accept nor deliver messages any more."""
        self._refuses_publishing = True
        for topic in self.topics.values():
            topic.close()

    @property
    def has_changed(self) -> bool:
        """Whether the checkpoint of any topic is out of date."""
        return bool(self._changed)

    def take_changed(self) -> list[Topic]:
        """Return the topics with outdated checkpoints, and start a new list."""
        changed, self._changed = list(self._changed), {}
        return changed

    def changed(self, topic: Topic) -> None:
        self._changed[topic] = None

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        for observer in self.observers:
            observer.channel_created(topic, channel)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        for observer in self.observers:
            observer.channel_deleted(topic, channel)
        # nsqd: an ephemeral topic ends with its last channel, not before it ever had one.
        if topic.ephemeral and not topic.channels and self.topics.get(topic.name) is topic:
            self.delete_topic(topic.name)


def _log_missing_checkpoint(topic: str, store: TopicStore, before: TopicState) -> None:
    """Log if a topic with channels has no checkpoint. The first one is written soon after its first channel."""
    if not before.end.seq or not before.channels:
        return
    if store.log.is_whole:
        log.warning(
            "TOPIC(%s): there is no checkpoint, all messages in the log are delivered again, finished or not (expected "
            "only if nsqd ended right after the topic got its first channel)",
            topic,
        )
    else:
        log.error(
            "TOPIC(%s): the checkpoint is missing, all messages that are left in the log are delivered again, finished "
            "or not, by every channel",
            topic,
        )


def snapshot(
    broker: Broker,
    now: float,
    topic: str = "",
    channel: str = "",
    include_clients: bool = True,
    in_steps: Callable[[Sequence[str]], Iterable[str]] | None = None,
) -> Iterator[TopicStats]:
    """Yield the values of topics and channels, sorted by name. An empty filter selects all.

    Each topic is read when the iterator gets to it, and the values are plain. So the caller may let the event loop run
    in between: ten thousand topics take a quarter of a second. `in_steps` iterates over the names of a topic's
    channels, and may do the same: ten thousand take 0.15 s. nsqd: with a channel filter, topics that lack the channel
    are left out.
    """
    for name in [topic] if topic else broker.sorted_names.copy():
        found = broker.topics.get(name)
        if found is not None and (not channel or channel in found.channels):
            names = [channel] if channel else sorted(found.channels)
            yield _topic_stats(found, now, names if in_steps is None else in_steps(names), include_clients)


def _topic_stats(topic: Topic, now: float, names: Iterable[str], include_clients: bool) -> TopicStats:
    found = (topic.channels.get(name) for name in names)
    channels = tuple(_channel_stats(each, now, include_clients) for each in found if each is not None)
    alone = len(channels) == len(topic.channels) == 1  # then its latency is the topic's, and is computed once
    latency = channels[0].e2e_processing_latency if alone else _latency_stats(topic.channels.values(), now)
    retained_bytes, retained_seconds = topic.store.retained(now) if topic.store is not None else (0, 0.0)
    return TopicStats(
        topic_name=topic.name,
        channels=channels,
        depth=topic.depth,
        backend_depth=topic.backlog.backend_depth,
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        paused=topic.paused,
        e2e_processing_latency=latency,
        dropped_count=topic.dropped_count,
        rejected_count=topic.rejected_count,
        duplicate_count=topic.publish_ids.duplicate_count if topic.publish_ids is not None else 0,
        forgotten_id_count=topic.publish_ids.forgotten_count if topic.publish_ids is not None else 0,
        dedup_window=topic.publish_ids.window if topic.publish_ids is not None else 0.0,
        publish_ids=len(topic.publish_ids) if topic.publish_ids is not None else 0,
        log_bytes=topic.store.log.disk_bytes if topic.store is not None else 0,
        damaged_records=topic.store.log.damage.records if topic.store is not None else 0,
        retained_bytes=retained_bytes,
        retained_seconds=retained_seconds,
        released_segments=topic.store.log.released_count if topic.store is not None else 0,
    )


def _channel_stats(channel: Channel, now: float, include_clients: bool) -> ChannelStats:
    zone_local, region_local, elsewhere = channel.delivered
    return ChannelStats(
        channel_name=channel.name,
        depth=channel.depth,
        backend_depth=channel.backlog.backend_depth,
        in_flight_count=channel.in_flight_count,
        deferred_count=channel.deferred_count,
        message_count=channel.message_count,
        zone_local_msg_count=zone_local,
        region_local_msg_count=region_local,
        global_msg_count=elsewhere,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=len(channel.consumers),
        clients=_clients_of(channel) if include_clients else None,
        paused=channel.paused,
        e2e_processing_latency=_latency_stats([channel], now),
        dropped_count=channel.dropped_count,
        dead_letter_count=channel.dead_letter_count,
        expired_count=channel.expired_count,
        rejected_count=channel.rejected_count,
        policy=channel.policy,
    )


def _clients_of(channel: Channel) -> tuple[ClientStats, ...]:
    clients = [consumer.stats() for consumer in channel.consumers]
    if clients and channel.policy.get("exclusive"):
        clients[0] = replace(clients[0], active=True)  # see ``wait_queue.Throttle``
    return tuple(clients)


def _latency_stats(channels: Iterable[Channel], now: float) -> LatencyStats:
    watched = [channel.latency for channel in channels if channel.latency is not None]
    return watched[0].stats(now, watched[1:]) if watched else LatencyStats()
