"""/topics: the list, pages of a topic and a channel with their actions, and views of their messages."""

from typing import Final

from flask import Blueprint, Response, render_template, request, url_for

from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.cluster.peek import peek, recent
from nsq_compat.cluster.stats import ChannelStats, TopicStats
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.actions import form_field, perform, perform_change
from nsq_compat.web.admin.queries import Queries
from nsq_compat.web.admin.tables import (
    channel_page,
    channel_row,
    charts_of,
    current_snapshot,
    part_of,
    timeframe,
    topic_page,
    topic_row,
    wants_day,
)
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

topics = Blueprint("topics", __name__)

_CONFIRMED: Final = ("empty", "delete")
_LIMITS: Final = ("10", "25", "100")


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
    queries = Queries(service().cluster)
    stats = _topic_or_inactive(queries, topic)
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
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


@topics.get("/topics/<topic>/<channel>")
def channel(topic: str, channel: str) -> str:
    queries = Queries(service().cluster)
    stats = queries.channel(topic, channel)
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
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


# --- Messages ---------------------------------------------------------------------------------------------------------


@topics.get("/topics/<topic>/<channel>/messages")
def messages(topic: str, channel: str) -> str:
    # Viewers see stats, but not the contents of messages.
    require(Role.OPERATOR)
    queries = Queries(service().cluster)
    stats = queries.channel(topic, channel)
    limit = _limit()
    nodes = [part.node for part in stats.nodes]
    return render_template(
        "topics/messages.html",
        channel=stats,
        peeks=peek(service().cluster.client, nodes, topic, channel, int(limit)),
        limit=limit,
        limits=_LIMITS,
        warnings=queries.warnings,
    )


@topics.get("/messages/<topic>")
def watch(topic: str) -> str:
    """The messages published last. Not below /topics, where "messages" may be a channel."""
    require(Role.OPERATOR)
    queries = Queries(service().cluster)
    stats = queries.topic(topic)
    limit = _limit()
    peeks = recent(service().cluster.client, [part.node for part in stats.nodes], topic, int(limit))
    published = [(each.node, message) for each in peeks for message in each.messages]
    published.sort(key=lambda pair: (pair[1].timestamp, pair[1].id), reverse=True)
    return render_template(
        "topics/watch.html",
        topic=stats,
        published=published[: int(limit)],
        failed=[each for each in peeks if each.error],
        limit=limit,
        limits=_LIMITS,
        warnings=queries.warnings,
    )


def _limit() -> str:
    limit = request.args.get("limit", "")
    return limit if limit in _LIMITS else _LIMITS[0]


# --- Actions ----------------------------------------------------------------------------------------------------------


@topics.post("/topics")
def create() -> Response:
    topic, channel, node = form_field("topic").strip(), form_field("channel").strip(), form_field("node")
    name = f"{topic}/{channel}" if channel else topic
    return perform(lambda: actions.create(topic, channel, node), f"Created {name}.", url_for("cluster.lookup"))


@topics.post("/topics/<topic>")
def act_on_topic(topic: str) -> Response:
    here, action = url_for("topics.topic", topic=topic), form_field("action")
    if action in actions.CHANGES:
        return perform_change(topic, "", here)
    if action == "delete":
        return perform(lambda: actions.delete(topic), f"Deleted {topic}.", url_for("topics.list_"), Role.ADMIN)
    if action == "publish":
        body, node = form_field("body").encode("utf-8", "replace"), form_field("node")
        defer = form_field("defer")
        return perform(lambda: actions.publish(topic, node, body, _milliseconds(defer)), f"Published to {node}.", here)
    raise ApiError(400, "INVALID_ACTION")


@topics.post("/topics/<topic>/<channel>")
def act_on_channel(topic: str, channel: str) -> Response:
    here, action = url_for("topics.channel", topic=topic, channel=channel), form_field("action")
    if action in actions.CHANGES:
        return perform_change(topic, channel, here)
    if action == "delete":
        parent = url_for("topics.topic", topic=topic)
        return perform(lambda: actions.delete(topic, channel), f"Deleted {topic}/{channel}.", parent, Role.ADMIN)
    raise ApiError(400, "INVALID_ACTION")


def _topic_or_inactive(queries: Queries, name: str) -> TopicStats:
    """The topic; an empty one if only nsqlookupd knows it."""
    try:
        return queries.topic(name)
    except AllFailed as failure:
        if name not in queries.topics():
            raise ApiError(404, "TOPIC_NOT_FOUND") from None
        reason = str(failure).partition(": ")[2]
        queries.add_warning((str(failure),) if reason else ())
        return TopicStats(topic_name=name)


def _confirmation(stats: TopicStats | ChannelStats, topic: str, channel: str) -> str:
    """The page that shows what an action deletes, before it is performed."""
    require(Role.ADMIN)
    node = request.args.get("node", "")
    parts = [part for part in stats.nodes if node in ("", part.node)]
    channels = [each for part in parts if isinstance(part, TopicStats) for each in part.channels]
    action = request.args["confirm"]
    lost = sum(part.depth for part in parts)
    if action == "delete":
        lost += sum(each.depth for each in channels)
    return render_template(
        "topics/confirm.html",
        action=action,
        topic=topic,
        channel=channel,
        node=node,
        messages=lost,
        nodes=len(parts),
        channels=len({each.channel_name for each in channels}),
        consumers=sum(each.client_count for each in [*channels, *parts] if isinstance(each, ChannelStats)),
    )


def _milliseconds(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ApiError(400, "INVALID_DEFER")
    return int(text or 0)
