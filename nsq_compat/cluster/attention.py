"""What in a cluster wants somebody's attention, the worst first. Rules over a snapshot and its history; no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from nsq_compat.cluster.history import History
from nsq_compat.cluster.snapshot import Snapshot
from nsq_compat.cluster.statistics import ChannelStats, TopicStats
from nsq_compat.protocol.names import is_ephemeral

_BACKLOG_WORTH_A_WORD: Final = 1000
_GROWTH_WORTH_A_WORD: Final = 0.05


class Severity(IntEnum):
    SERIOUS = 0
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    severity: Severity
    kind: str
    """A word for each rule, under which it is explained in docs/nsqadmin.md."""
    text: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    weight: int = 0
    """Among concerns of one severity the heavier comes first."""


def concerns(snapshot: Snapshot, history: History) -> list[Concern]:
    found = [*_of_nodes(snapshot)]
    for topic in snapshot.topics:
        found += _of_topic(topic)
        for channel in topic.channels:
            found += _of_channel(channel, history, snapshot.taken_at)
    return sorted(found, key=lambda concern: (concern.severity, -concern.weight, concern.topic, concern.channel))


def _of_nodes(snapshot: Snapshot) -> Iterator[Concern]:
    for address in snapshot.silent():
        yield Concern(severity=Severity.SERIOUS, kind="unreachable", text="does not answer", node=address)
    for address, stats in snapshot.answers.items():
        if stats.health not in ("", "OK"):
            yield Concern(severity=Severity.SERIOUS, kind="unhealthy", text=stats.health, node=address)
    for node in snapshot.nodes:
        if node.out_of_date:
            text = f"runs {node.version}, others a newer version"
            yield Concern(severity=Severity.NOTE, kind="out-of-date", text=text, node=node.http_address)


def _of_topic(topic: TopicStats) -> Iterator[Concern]:
    if topic.depth and not topic.channels:
        yield Concern(
            severity=Severity.WARNING,
            kind="no-channel",
            text=f"{_messages(topic.depth)} and no channel to read them",
            topic=topic.topic_name,
            weight=topic.depth,
        )
    if topic.paused:
        yield _about(topic, Severity.NOTE, "paused", f"paused, {_messages(topic.depth)} waiting")
    yield from _of_losses(topic, topic.topic_name)


def _of_channel(channel: ChannelStats, history: History, now: float) -> Iterator[Concern]:
    growth = history.growth(channel.topic_name, channel.channel_name)
    grows = growth > _GROWTH_WORTH_A_WORD
    more = (f", growing by {growth:,.1f} a second" if grows else "") + _age(channel, history, now)
    if channel.paused:
        yield _about(channel, Severity.NOTE, "paused", f"paused, {_messages(channel.depth)} waiting{more}")
    elif channel.depth and not channel.client_count:
        severity = Severity.SERIOUS if grows else Severity.WARNING
        yield _about(channel, severity, "no-consumer", f"{_messages(channel.depth)} and no consumer{more}")
    elif grows and channel.depth >= _BACKLOG_WORTH_A_WORD:
        yield _about(channel, Severity.WARNING, "behind", f"{_messages(channel.depth)} behind{more}")
    elif channel.depth and (channel.topic_name, channel.channel_name) in history.not_ready:
        text = f"{_messages(channel.depth)}, and all {channel.client_count:,} consumers at RDY 0{more}"
        yield _about(channel, Severity.WARNING, "not-ready", text)
    if channel.dead_letter_count:
        text = f"{_messages(channel.dead_letter_count)} went to its dead-letter topic"
        yield _about(channel, Severity.WARNING, "dead-letters", text)
    yield from _of_losses(channel, channel.topic_name if is_ephemeral(channel.topic_name) else channel.channel_name)


def _of_losses(stats: TopicStats | ChannelStats, name: str) -> Iterator[Concern]:
    if stats.dropped_count:
        why = "because memory was full" if is_ephemeral(name) else "because of a policy"
        yield _about(stats, Severity.WARNING, "dropped", f"{_messages(stats.dropped_count)} dropped {why}")
    if stats.rejected_count:
        text = f"{_messages(stats.rejected_count)} refused because it was full"
        yield _about(stats, Severity.WARNING, "refused", text)


def _age(channel: ChannelStats, history: History, now: float) -> str:
    published = history.oldest.get((channel.topic_name, channel.channel_name))
    if published is None or not channel.depth:
        return ""
    seconds = max(0.0, now - published)
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            count = int(seconds // unit)
            return f", the oldest {count} {name}{'' if count == 1 else 's'} old"
    return ""


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _about(stats: TopicStats | ChannelStats, severity: Severity, kind: str, text: str) -> Concern:
    channel = stats.channel_name if isinstance(stats, ChannelStats) else ""
    return Concern(severity=severity, kind=kind, text=text, topic=stats.topic_name, channel=channel, weight=stats.depth)
