"""Alerts: problems in a cluster, the most serious first. Rules over a snapshot and its history, without I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.history import History
from nsq_compat.cluster.mirroring import Standby
from nsq_compat.cluster.sightings import duration
from nsq_compat.cluster.stats import ChannelStats, NodeStats, Stats, TopicStats
from nsq_compat.protocol.names import is_ephemeral

_MIN_BACKLOG: Final = 1000
_RECENT_SECONDS: Final = 3600.0
_MIN_GROWTH: Final = 0.05
"""Messages a second."""


class Severity(IntEnum):
    SERIOUS = 0
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, slots=True)
class Alert:
    severity: Severity
    kind: str
    """The label under which docs/nsqadmin.md explains the rule."""
    text: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    lookupd: str = ""
    dead_letter_topic: str = ""
    """For dead letters, where they wait."""
    identity: str = ""
    """That of a primary whose topics the node can take over."""
    depth: int = 0
    """Orders alerts of one severity, largest first."""


def find_alerts(snapshot: Snapshot, history: History) -> list[Alert]:
    found = [*_lookupd_alerts(snapshot), *_node_alerts(snapshot, history)]
    found += _alerts_of(snapshot.topics, history, snapshot.taken_at)
    return _sorted(found)


def alerts_on_node(stats: NodeStats, history: History, now: float) -> list[Alert]:
    """Those of the topics and channels of one node. Growth and ages are those of the whole cluster."""
    return _sorted(list(_alerts_of(stats.topics, history, now)))


def _alerts_of(topics: Sequence[TopicStats], history: History, now: float) -> Iterator[Alert]:
    held = {topic.topic_name: topic.lost_by("delete") for topic in topics}
    for topic in topics:
        yield from _topic_alerts(topic, history, now)
        for channel in topic.channels:
            yield from _channel_alerts(channel, history, now)
            if channel.dead_letter_count:
                yield from _dead_letter_alerts(channel, held)


def _sorted(alerts: list[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda alert: (alert.severity, -alert.depth, alert.topic, alert.channel))


def _lookupd_alerts(snapshot: Snapshot) -> Iterator[Alert]:
    for address in snapshot.silent_lookupds:
        if not snapshot.all_lookupds_silent:
            yield Alert(Severity.WARNING, "no-lookupd", "nsqlookupd does not answer; others do", lookupd=address)
            continue
        known = "the nodes shown are those known before" if snapshot.nodes else "no node is known"
        text = f"nsqlookupd does not answer, and no other does: consumers find no nodes, and {known}"
        yield Alert(Severity.SERIOUS, "no-lookupd", text, lookupd=address)


def _node_alerts(snapshot: Snapshot, history: History) -> Iterator[Alert]:
    for address in snapshot.unreachable:
        sighting = history.sightings.of(address)
        text = sighting.text(snapshot.taken_at) if sighting and sighting.last_seen else "does not answer"
        yield Alert(Severity.SERIOUS, "unreachable", text, node=address)
    for sighting in history.sightings.gone():
        text, count = sighting.text(snapshot.taken_at), sighting.message_count
        severity = Severity.SERIOUS if count else Severity.WARNING
        yield Alert(severity, "gone", text, node=sighting.node.http_address, depth=count)
    for address, stats in snapshot.node_stats.items():
        if stats.health not in ("", "OK"):
            yield Alert(Severity.SERIOUS, "unhealthy", stats.health, node=address)
        elif (sighting := history.sightings.of(address)) and sighting.slowness:
            yield Alert(Severity.WARNING, "slow", f"slow: {sighting.slowness}", node=address)
        yield from _mirroring_alerts(address, stats, snapshot)
    for node in snapshot.nodes:
        if node.out_of_date:
            text = f"runs version {node.version}, older than other nodes"
            yield Alert(Severity.NOTE, "out-of-date", text, node=node.http_address)


def _mirroring_alerts(address: str, stats: NodeStats, snapshot: Snapshot) -> Iterator[Alert]:
    standby = stats.mirroring.standby
    if standby is not None and not standby.is_in_sync:
        severity = Severity.SERIOUS if standby.refuses else Severity.WARNING
        yield Alert(severity, "not-mirrored", _not_mirrored(standby), node=address)
    for primary in stats.mirroring.primaries:
        # A primary that answers has an alert of its own, or another standby.
        if primary.can_be_adopted and primary.http_address not in snapshot.node_stats:
            age = duration(snapshot.taken_at - primary.last_seen)
            copy = "a copy" if primary.complete else "an incomplete copy"
            text = f"has {copy} of {primary.address}, which is not connected and was last seen {age} ago"
            yield Alert(Severity.SERIOUS, "primary-gone", text, node=address, identity=primary.identity)


def _not_mirrored(standby: Standby) -> str:
    age = duration(standby.seconds)
    if standby.is_catching_up:
        text = f"not mirrored yet: its standby {standby.address} has been catching up for {age}"
    else:
        text = f"not mirrored for {age}: its standby {standby.address} is not connected"
    return f"{text}, and publishes are refused" if standby.refuses else text


def _topic_alerts(topic: TopicStats, history: History, now: float) -> Iterator[Alert]:
    if topic.depth and not topic.channels:
        yield _alert(topic, "no-channel", f"{_messages(topic.depth)} and no channel")
    if topic.paused:
        yield _alert(topic, "paused", f"paused, {_messages(topic.depth)} waiting", Severity.NOTE)
    yield from _loss_alerts(topic, history, now)


def _channel_alerts(channel: ChannelStats, history: History, now: float) -> Iterator[Alert]:
    growth = history.growth(channel.key)
    grows = growth > _MIN_GROWTH
    details = (f", growing by {growth:,.1f} a second" if grows else "") + _age(channel, history, now)
    messages = _messages(channel.depth)
    if channel.paused:
        yield _alert(channel, "paused", f"paused, {messages} waiting{details}", Severity.NOTE)
    elif channel.depth and not channel.client_count:
        severity = Severity.SERIOUS if grows else Severity.WARNING
        yield _alert(channel, "no-consumer", f"{messages} and no consumer{details}", severity)
    elif grows and channel.depth >= _MIN_BACKLOG:
        yield _alert(channel, "behind", f"{messages} behind{details}")
    elif channel.depth and channel.key in history.not_ready:
        count = channel.client_count
        consumers = "its consumer is" if count == 1 else f"all {count:,} consumers are"
        yield _alert(channel, "not-ready", f"{messages}, and {consumers} at RDY 0{details}")
    yield from _loss_alerts(channel, history, now)


def _dead_letter_alerts(channel: ChannelStats, held: Mapping[str, int]) -> Iterator[Alert]:
    """While the dead-letter topic has messages: nsqd's count of them does not decrease when they are redriven."""
    for name in sorted(channel.dead_letter_topics):
        if count := held.get(name):
            alert = _alert(channel, "dead-letters", f"{_messages(count)} in its dead-letter topic {name}")
            yield replace(alert, dead_letter_topic=name)


def _loss_alerts(stats: Stats, history: History, now: float) -> Iterator[Alert]:
    if stats.dropped_count:
        reason = "because memory was full" if any(map(is_ephemeral, stats.key)) else "because of a policy"
        yield from _recent(stats, history, now, "dropped", f"{_messages(stats.dropped_count)} dropped {reason}")
    if stats.rejected_count:
        kind = "channel" if stats.channel_name else "topic"
        text = f"{_messages(stats.rejected_count)} refused because the {kind} was full"
        yield from _recent(stats, history, now, "refused", text)


def _recent(stats: Stats, history: History, now: float, kind: str, text: str) -> Iterator[Alert]:
    """An alert of losses that are not dismissed, for an hour after the last one: nsqd's counts do not decrease."""
    losses = history.losses(kind, stats.key)
    if losses is None:  # without samples
        yield _alert(stats, kind, text)
    elif not losses.is_dismissed and now - losses.last_at < _RECENT_SECONDS:
        ago = _ago(now - losses.last_at) if losses.is_dated else ""
        yield _alert(stats, kind, f"{text}, the last {ago}" if ago else text)


def _age(channel: ChannelStats, history: History, now: float) -> str:
    published = history.oldest.get(channel.key)
    if published is None or not channel.depth:
        return ""
    ago = _ago(now - published)
    return f", oldest published {ago}" if ago else ""


def _ago(seconds: float) -> str:
    """``3 minutes ago``; empty for less than a minute."""
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            count = int(seconds // unit)
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return ""


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _alert(stats: Stats, kind: str, text: str, severity: Severity = Severity.WARNING) -> Alert:
    return Alert(severity, kind, text, *stats.key, depth=stats.depth)
