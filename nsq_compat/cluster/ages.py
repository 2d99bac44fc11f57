"""How long the oldest message of a channel has waited, for those channels where it matters most.

nsqd's statistics do not say; our nsqd is asked for the next message (`peek`), Go's cannot tell. So few channels are
asked about that it costs nobody much.
"""

from collections.abc import Mapping
from typing import Final

from nsq_compat.cluster.history import Key
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.cluster.peek import peek
from nsq_compat.cluster.snapshot import Snapshot
from nsq_compat.cluster.statistics import ChannelStats

MOST_CHANNELS: Final = 10
MOST_NODES: Final = 5
"""Of each channel, the deepest."""


def oldest_messages(client: HttpClient, snapshot: Snapshot) -> Mapping[Key, float]:
    """When the next message of the deepest channels was published, in Unix seconds. Raises nothing."""
    waiting = [channel for topic in snapshot.topics for channel in topic.channels if channel.depth]
    # Nobody reading it is what makes a message old.
    waiting.sort(key=lambda channel: (channel.client_count > 0, -channel.depth))
    found = {}
    for channel in waiting[:MOST_CHANNELS]:
        moments = _next_of_each_node(client, channel)
        if moments:
            found[channel.topic_name, channel.channel_name] = min(moments)
    return found


def _next_of_each_node(client: HttpClient, channel: ChannelStats) -> list[float]:
    deepest = sorted((part for part in channel.nodes if part.depth), key=lambda part: -part.depth)
    nodes = [part.node for part in deepest[:MOST_NODES]]
    looks = peek(client, nodes, channel.topic_name, channel.channel_name, 1)
    return [message.timestamp for look in looks for message in look.messages]
