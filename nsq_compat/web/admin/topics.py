"""/topics: the list, a topic, a channel, and what can be done to them."""

from flask import Blueprint, Response, render_template, request, url_for

from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.cluster.statistics import ChannelStats, TopicStats
from nsq_compat.web.admin import acting
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.forms import change, perform, submitted
from nsq_compat.web.admin.gathering import Gathering
from nsq_compat.web.admin.looking import (
    channel_page,
    channel_row,
    charts_of,
    current_snapshot,
    timeframe,
    topic_page,
    topic_row,
    wants_day,
)
from nsq_compat.web.admin.paging import part_of
from nsq_compat.web.admin.users import Role
from nsq_compat.web.responses import ApiError

topics = Blueprint("topics", __name__)

_CONFIRMED = ("empty", "delete")


@topics.get("/topics")
def list_() -> str:
    snapshot = current_snapshot(service())
    return render_template(
        "topics/list.html",
        snapshot=snapshot,
        warnings=snapshot.errors,
        page=topic_page(service(), snapshot),
        timeframe=timeframe(),
    )


@topics.get("/topics/<topic>")
def topic(topic: str) -> str:
    gathering = Gathering(service().cluster)
    stats = _topic_or_its_shadow(gathering, topic)
    if request.args.get("confirm") in _CONFIRMED:
        return _confirmation(stats, topic, "")
    return render_template(
        "topics/topic.html",
        topic=stats,
        row=topic_row(stats, service().history),
        page=channel_page(service(), stats),
        nodes=part_of(stats.nodes, request.args, "nodes"),
        charts=charts_of(service(), topic),
        day=wants_day(),
        warnings=gathering.warnings,
        timeframe=timeframe(),
    )


@topics.get("/topics/<topic>/<channel>")
def channel(topic: str, channel: str) -> str:
    gathering = Gathering(service().cluster)
    stats = gathering.channel(topic, channel)
    if request.args.get("confirm") in _CONFIRMED:
        return _confirmation(stats, topic, channel)
    return render_template(
        "topics/channel.html",
        channel=stats,
        row=channel_row(stats, service().history),
        nodes=part_of(stats.nodes, request.args, "nodes"),
        clients=part_of(stats.clients or [], request.args, "clients"),
        charts=charts_of(service(), topic, channel),
        day=wants_day(),
        warnings=gathering.warnings,
        timeframe=timeframe(),
    )


@topics.post("/topics")
def create() -> Response:
    topic, channel, node = submitted("topic").strip(), submitted("channel").strip(), submitted("node")
    what = f"{topic}/{channel}" if channel else topic
    return perform(lambda: acting.create(topic, channel, node), f"Created {what}.", url_for("lookup.show"))


@topics.post("/topics/<topic>")
def act_on_topic(topic: str) -> Response:
    here, action = url_for("topics.topic", topic=topic), submitted("action")
    if action in acting.CHANGES:
        return change(topic, "", here)
    if action == "delete":
        return perform(lambda: acting.delete(topic), f"Deleted {topic}.", url_for("topics.list_"), Role.ADMIN)
    if action == "publish":
        body, node = submitted("body").encode("utf-8", "replace"), submitted("node")
        return perform(
            lambda: acting.publish(topic, node, body, _milliseconds(submitted("defer"))), f"Published to {node}.", here
        )
    raise ApiError(400, "INVALID_ACTION")


@topics.post("/topics/<topic>/<channel>")
def act_on_channel(topic: str, channel: str) -> Response:
    here, action = url_for("topics.channel", topic=topic, channel=channel), submitted("action")
    if action in acting.CHANGES:
        return change(topic, channel, here)
    if action == "delete":
        above = url_for("topics.topic", topic=topic)
        return perform(lambda: acting.delete(topic, channel), f"Deleted {topic}/{channel}.", above, Role.ADMIN)
    raise ApiError(400, "INVALID_ACTION")


def _topic_or_its_shadow(gathering: Gathering, name: str) -> TopicStats:
    """A topic that no node has, but nsqlookupd still knows, is an empty one."""
    try:
        return gathering.topic(name)
    except AllFailed as failure:
        if name not in gathering.topics():
            raise ApiError(404, "TOPIC_NOT_FOUND") from None
        reason = str(failure).partition(": ")[2]
        gathering.note((str(failure),) if reason else ())
        return TopicStats(topic_name=name)


def _confirmation(stats: TopicStats | ChannelStats, topic: str, channel: str) -> str:
    """What would be lost, before it is."""
    require(Role.ADMIN)
    node = request.args.get("node", "")
    parts = [part for part in stats.nodes if node in ("", part.node)]
    inside = [each for part in parts if isinstance(part, TopicStats) for each in part.channels]
    action = request.args["confirm"]
    lost = sum(part.depth for part in parts)
    if action == "delete":
        lost += sum(each.depth for each in inside)
    return render_template(
        "topics/confirm.html",
        action=action,
        topic=topic,
        channel=channel,
        node=node,
        messages=lost,
        nodes=len(parts),
        channels=len({each.channel_name for each in inside}),
        consumers=sum(each.client_count for each in [*inside, *parts] if isinstance(each, ChannelStats)),
    )


def _milliseconds(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ApiError(400, "INVALID_DEFER")
    return int(text or 0)
