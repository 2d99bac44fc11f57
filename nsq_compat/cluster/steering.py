"""What can be done to a cluster. Every call returns the errors of those who did not do it.

First it is found out who has the topic (which raises `AllFailed` when nobody answers), then nsqlookupds are told, then
the nodes. Telling goes side by side; that somebody was not reached stops nobody else.
"""

from collections.abc import Sequence

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.fan_out import AllFailed, tell_all

Errors = tuple[str, ...]


class Steering:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create(self, topic: str, channel: str = "") -> Errors:
        """nsqadmin: a topic is announced to nsqlookupds only, and appears at an nsqd with its first message."""
        errors = self._tell_lookupds("topic/create", topic=topic)
        if not channel:
            return errors
        errors += self._tell_lookupds("channel/create", topic=topic, channel=channel)
        if not self._cluster.lookupds:
            # nsqadmin: without nsqlookupds there is nobody to ask who has the topic.
            raise AllFailed("failed to query any nsqlookupd: ")
        producers = self._cluster.producers(topic)
        nodes = [node.http_address for node in producers.value]
        return (
            errors
            + producers.errors
            + producers.skipped
            + self._tell(nodes, "channel/create", topic=topic, channel=channel)
        )

    def create_on(self, nodes: Sequence[str], topic: str, channel: str = "") -> Errors:
        """Make a topic, and a channel, at these nodes themselves."""
        errors = self._tell(nodes, "topic/create", topic=topic)
        return errors + (self._tell(nodes, "channel/create", topic=topic, channel=channel) if channel else ())

    def delete(self, topic: str, channel: str = "") -> Errors:
        nodes, errors = self._who_has(topic)
        path, names = _target("delete", topic, channel)
        return errors + self._tell_lookupds(path, **names) + self._tell(nodes, path, **names)

    def change(self, action: str, topic: str, channel: str = "", node: str = "") -> Errors:
        """`action` is pause, unpause or empty; on one node or on all that have the topic."""
        nodes, errors = ([node], ()) if node else self._who_has(topic)
        path, names = _target(action, topic, channel)
        return errors + self._tell(nodes, path, **names)

    def tombstone(self, topic: str, node: str) -> Errors:
        """Take a node out of a topic: consumers stop finding it there, and its messages of the topic are deleted."""
        errors = self._tell_lookupds("topic/tombstone", topic=topic, node=node)
        self._cluster.describe(node)  # raises for one that does not answer
        # The order goes where the answer came from, not where the answer says the node is.
        return errors + self._tell([node], "topic/delete", topic=topic)

    def publish(self, node: str, topic: str, body: bytes, defer_ms: int = 0) -> Errors:
        """One message to one node."""
        client = self._cluster.client

        def send(address: str) -> None:
            client.post(address, "pub", {"topic": topic} | ({"defer": str(defer_ms)} if defer_ms else {}), body)

        return tell_all([node], send, client.timeout).errors

    def _who_has(self, topic: str) -> tuple[list[str], Errors]:
        producers = self._cluster.producers(topic)
        return [node.http_address for node in producers.value], producers.errors + producers.skipped

    def _tell_lookupds(self, path: str, **parameters: str) -> Errors:
        return self._tell(self._cluster.lookupds, path, **parameters)

    def _tell(self, addresses: Sequence[str], path: str, **parameters: str) -> Errors:
        client = self._cluster.client
        return tell_all(addresses, lambda address: client.post(address, path, parameters), client.timeout).errors


def _target(action: str, topic: str, channel: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"channel/{action}", {"topic": topic, "channel": channel}
    return f"topic/{action}", {"topic": topic}
