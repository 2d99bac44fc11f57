"""Snapshots of the queue: the values of `stats`, read from a broker at one moment.

A topic's snapshot holds plain values, so the caller may render it later, and may let the event loop run between two
topics: ten thousand topics take a quarter of a second.
"""

from collections.abc import Iterable, Iterator

from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.stats import ChannelStats, LatencyStats, TopicStats
from nsq_compat.queue.topic import Topic


def snapshot(
    broker: Broker, now: float, topic: str = "", channel: str = "", include_clients: bool = True
) -> Iterator[TopicStats]:
    """Topics and their channels sorted by name; a filter left empty lets everything through.

    Each is looked at when it is asked for. nsqd: with a channel filter, topics that lack the channel are left out.
    """
    for name in [topic] if topic else broker.sorted_names():
        found = broker.topics.get(name)
        if found is not None and (not channel or channel in found.channels):
            yield _topic_stats(found, now, channel, include_clients)


def _topic_stats(topic: Topic, now: float, channel: str, include_clients: bool) -> TopicStats:
    channels = tuple(
        _channel_stats(topic.channels[name], now, include_clients)
        for name in sorted(topic.channels)
        if channel in ("", name)
    )
    alone = len(channels) == len(topic.channels) == 1  # then its latency is the topic's, and need not be made twice
    return TopicStats(
        topic_name=topic.name,
        channels=channels,
        depth=topic.depth,
        backend_depth=topic.backlog.backend_depth,
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        paused=topic.paused,
        e2e_processing_latency=channels[0].e2e_processing_latency
        if alone
        else _latency_stats(topic.channels.values(), now),
        dropped_count=topic.dropped_count,
        rejected_count=topic.rejected_count,
        log_bytes=topic.store.log.disk_bytes if topic.store is not None else 0,
        damaged_records=topic.store.log.damaged_records if topic.store is not None else 0,
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
        clients=tuple(consumer.stats() for consumer in channel.consumers) if include_clients else None,
        paused=channel.paused,
        e2e_processing_latency=_latency_stats([channel], now),
        dropped_count=channel.dropped_count,
        dead_letter_count=channel.dead_letter_count,
        rejected_count=channel.rejected_count,
        policy=channel.describe_policy(channel.topic_name, channel.name) if channel.describe_policy else {},
    )


def _latency_stats(channels: Iterable[Channel], now: float) -> LatencyStats:
    watched = [channel.latency for channel in channels if channel.latency is not None]
    return watched[0].stats(now, watched[1:]) if watched else LatencyStats()
