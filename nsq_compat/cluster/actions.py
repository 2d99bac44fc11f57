"""Actions on a cluster. Each returns the errors of the daemons that did not perform it.

An action first finds the nodes that have the topic (which raises `AllFailed` if no daemon answers), then calls the
nsqlookupds, then the nodes. Calls are concurrent, and a failure does not stop the others.
"""

from collections.abc import Sequence

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.fan_out import AllFailed, call_all

Errors = tuple[str, ...]


class Actions:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create(self, topic: str, channel: str = "") -> Errors:
        """nsqadmin: a topic is created in nsqlookupds only. An nsqd creates it with its first message."""
        errors = self._post_lookupds("topic/create", topic=topic)
        if not channel:
            return errors
        errors += self._post_lookupds("channel/create", topic=topic, channel=channel)
        if not self._cluster.lookupds:
            # nsqadmin: only nsqlookupds can tell which nodes have the topic.
            raise AllFailed("failed to query any nsqlookupd: ")
        nodes, lookup_errors = self._nodes_of(topic)
        return errors + lookup_errors + self._post(nodes, "channel/create", topic=topic, channel=channel)

    def create_on(self, nodes: Sequence[str], topic: str, channel: str = "") -> Errors:
        """Create a topic, and a channel, on these nodes."""
        errors = self._post(nodes, "topic/create", topic=topic)
        return errors + (self._post(nodes, "channel/create", topic=topic, channel=channel) if channel else ())

    def delete(self, topic: str, channel: str = "") -> Errors:
        nodes, errors = self._nodes_of(topic)
        path, names = _target("delete", topic, channel)
        return errors + self._post_lookupds(path, **names) + self._post(nodes, path, **names)

    def change(self, action: str, topic: str, channel: str = "", node: str = "") -> Errors:
        """`action` is pause, unpause or empty; on one node, or on all that have the topic."""
        nodes, errors = ([node], ()) if node else self._nodes_of(topic)
        path, names = _target(action, topic, channel)
        return errors + self._post(nodes, path, **names)

    def tombstone(self, topic: str, node: str) -> Errors:
        """Hide a node from lookups of a topic, and delete the topic and its messages on the node."""
        errors = self._post_lookupds("topic/tombstone", topic=topic, node=node)
        self._cluster.describe(node)  # raises if the node does not answer
        # Sent to the address that answered, not to the address that the answer contains.
        return errors + self._post([node], "topic/delete", topic=topic)

    def publish(self, node: str, topic: str, body: bytes, defer_ms: int = 0) -> Errors:
        """Publish one message to one node."""
        client = self._cluster.client

        def send(address: str) -> None:
            client.post(address, "pub", {"topic": topic} | ({"defer": str(defer_ms)} if defer_ms else {}), body)

        return call_all([node], send, client.timeout).errors

    def _nodes_of(self, topic: str) -> tuple[list[str], Errors]:
        producers = self._cluster.producers(topic)
        return [node.http_address for node in producers.value], producers.errors + producers.skipped

    def _post_lookupds(self, path: str, **parameters: str) -> Errors:
        return self._post(self._cluster.lookupds, path, **parameters)

    def _post(self, addresses: Sequence[str], path: str, **parameters: str) -> Errors:
        client = self._cluster.client
        return call_all(addresses, lambda address: client.post(address, path, parameters), client.timeout).errors


def _target(action: str, topic: str, channel: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"channel/{action}", {"topic": topic, "channel": channel}
    return f"topic/{action}", {"topic": topic}
