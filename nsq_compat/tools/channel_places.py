"""Places of a channel in the logs of a topic's nsqd: what a move would bring, the moves, and ``--from`` of utilities.

All nodes are asked before anything is moved, so a place that one of them refuses moves nothing on the others.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from nsq_compat.cli.kinds import STRING
from nsq_compat.cli.options import option, repeated
from nsq_compat.cluster import reading
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import Refusal, call_all, named
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.reading import UpstreamError
from nsq_compat.tools.client_options import ReadingOptions, Unreachable, cluster_of, producers_of, without_a_user
from nsq_compat.tools.program import Refused, Rule, refuse, say

T = TypeVar("T")

WHEN: Final = "oldest, latest, an offset, a time such as 2026-01-31T15:04:05Z, or a duration ago such as 15m"


class Place(NamedTuple):
    """A channel on a node, and what it would have to deliver after a move to `offset`."""

    node: Node
    channel_offset: int | None
    """Where it is; None if the node does not have the channel."""
    channel_depth: int
    offset: int
    depth: int


def nodes_of(cluster: Cluster, topic: str, when: str) -> list[Node]:
    """The nodes of a topic, none if no nsqd has it. Raises ``Refused`` for a WHEN that cannot be for all of them."""
    found = producers_of(cluster, topic, all_named=True)
    for complaint in found.errors:
        say(f"WARNING: {complaint}")
    refuse((len(found.value) > 1 and when.isdigit(), "an offset is a place on one nsqd; use a time, or name one nsqd"))
    return found.value


def places(
    cluster: Cluster, nodes: Sequence[Node], topic: str, channel: str, when: str, drops: Mapping[str, str]
) -> list[Place]:
    """What a move would do on each node. `drops` has ``drop_pending``, or nothing. Raises ``Refused``."""

    def place(node: Node) -> Place:
        get = partial(cluster.client.get, node.http_address, "topic/offsets", topic=topic, at=when)
        try:
            found = reading.mapping(get(channel=channel, **drops))
        except Refusal as refusal:
            if refusal.message != "CHANNEL_NOT_FOUND":
                raise
            found = reading.mapping(get())
            offset, end = reading.integer(found.get("offset")), reading.integer(found.get("next"))
            return Place(node, None, 0, offset, end - offset)
        keys = ("channel_offset", "channel_depth", "offset", "depth")
        return Place(node, *(reading.integer(found.get(key)) for key in keys))

    return list(_at_all(cluster, nodes, place))


def move(
    cluster: Cluster, found: Iterable[Place], topic: str, channel: str, when: str, drops: Mapping[str, str]
) -> Iterator[Place]:
    """Move the channel on one node after the other, or create it; yields where it is then. Raises ``Refused``."""
    for place in found:
        query = {"topic": topic, "channel": channel}
        post = partial(cluster.client.post_for_answer, place.node.http_address)
        if place.channel_offset is None:
            request = partial(post, "channel/create", query | {"from": when})
        else:
            request = partial(post, "channel/rewind", query | {"to": when, **drops})
        (answer,) = _at_all(cluster, [place.node], partial(_answer_of, request))
        yield place._replace(offset=reading.integer(answer.get("offset")), depth=reading.integer(answer.get("depth")))


def _answer_of(request: Callable[[], object], _: Node) -> Mapping[str, object]:
    return reading.mapping(request())


def _at_all(cluster: Cluster, nodes: Sequence[Node], call: Callable[[Node], T]) -> Iterable[T]:
    """The results for all nodes, in their order. Raises ``Refused``, with the reasons of all that fail."""
    final = threading.Event()

    def explained(node: Node) -> T:
        try:
            return call(node)
        except Refusal as refusal:
            final.set()
            text = refusal.message
            if text == "NOT_FOUND":
                text = "it is Go's nsqd, which does not offer offsets"
            raise UpstreamError(f"{node}: {text}" if text else str(refusal)) from None

    answers = call_all(nodes, explained, cluster.client.timeout)
    if answers.errors:
        kind = Refused if final.is_set() else Unreachable
        raise kind("; ".join(f"nsqd {named(each)}" for each in answers.errors))
    return (result for _, result in answers.value)


@dataclass(kw_only=True)
class BeginningOptions(ReadingOptions):
    """The flags of a utility that can begin at a place of the log, with a new channel."""

    begin: str = option(STRING, "", f"where to begin, unless the channel exists: {WHEN}", flag="from")
    nsqd_http_addresses: tuple[str, ...] = repeated(
        "host:port of an nsqd for HTTP, with --from", flag="nsqd-http-address"
    )

    def address_rules(self) -> Iterator[Rule]:
        yield from super().address_rules()
        yield without_a_user(*self.nsqd_http_addresses)
        lacks_address = self.begin and len(self.nsqd_http_addresses) < len(self.nsqd_tcp_addresses)
        yield lacks_address, "--from requires --nsqd-http-address too, for each nsqd"

    def make_channels(self, topics: Iterable[str], channel: str, stopping: threading.Event) -> None:
        """``make_channel`` for each topic, with ``--retry`` until the daemons can be reached. Raises ``Refused``."""
        for topic in topics:
            self.reached(partial(self.make_channel, topic, channel), stopping)

    def make_channel(self, topic: str, channel: str) -> None:
        """With ``--from``, create the channel on each nsqd that has the topic without it. Raises ``Refused``."""
        if not self.begin:
            return
        cluster = cluster_of(self, nsqds=self.nsqd_http_addresses)
        found = places(cluster, nodes_of(cluster, topic, self.begin), topic, channel, self.begin, {})
        for place in found:
            if place.channel_offset is not None:
                exists = f"channel {channel} of {topic} exists, and stays at {place.channel_offset}"
                say(f"nsqd {place.node}: {exists}; --from is for a new channel, nsq_rewind moves this one")
        missing = [place for place in found if place.channel_offset is None]
        for place in move(cluster, missing, topic, channel, self.begin, {}):
            begins = f"channel {channel} of {topic} begins at {place.offset}"
            say(f"nsqd {place.node}: {begins}: {place.depth} messages will come")
