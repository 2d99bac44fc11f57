"""/topics: the list, pages of a topic and a channel with their actions, and views of their messages."""

from typing import Final

from flask import Blueprint, Response, render_template, request, url_for

from nsq_compat.cluster.http_client import AllFailed
from nsq_compat.cluster.peek import peek
from nsq_compat.cluster.stats import ChannelStats, TopicStats
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.actions import perform
from nsq_compat.web.admin.queries import Queries, current_snapshot
from nsq_compat.web.admin.tables import charts_of, part_of, row_of, rows_page, timeframe
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

topics = Blueprint("topics", __name__)

_CONFIRMED: Final = ("empty", "delete")
_LIMITS: Final = ("10", "25", "100")


@topics.get("/topics")
def list_() -> str:
    snapshot = current_snapshot()
    page = rows_page(snapshot.topics)
    return render_template("topics/list.html", page=page, warnings=snapshot.errors, timeframe=timeframe())


@topics.get("/topics/<topic>")
def topic(topic: str) -> str:
    queries = Queries()
    stats = _topic_or_inactive(queries, topic)
    if request.args.get("confirm") in _CONFIRMED:
        return _confirmation(stats)
    rate = service().history.rate(stats.key)
    return render_template(
        "topics/topic.html",
        topic=stats,
        rate=rate,
        page=rows_page(stats.channels),
        nodes=part_of(stats.nodes, request.args, "nodes"),
        silent=queries.silent,
        charts=charts_of(stats.key, stats.waiting, rate, service().now()),
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


@topics.get("/topics/<topic>/<channel>")
def channel(topic: str, channel: str) -> str:
    queries = Queries()
    stats = queries.channel(topic, channel)
    if request.args.get("confirm") in _CONFIRMED:
        return _confirmation(stats)
    row = row_of(stats)
    return render_template(
        "topics/channel.html",
        channel=stats,
        row=row,
        nodes=part_of(stats.nodes, request.args, "nodes"),
        silent=queries.silent,
        clients=part_of(stats.clients or [], request.args, "clients"),
        charts=charts_of(stats.key, stats.depth, row.rate, service().now()),
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


# --- Messages ---------------------------------------------------------------------------------------------------------


@topics.get("/topics/<topic>/<channel>/messages")
def messages(topic: str, channel: str) -> str:
    # Viewers see stats, but not the contents of messages.
    require(Role.OPERATOR)
    queries = Queries()
    stats = queries.channel(topic, channel)
    limit = _limit()
    return render_template(
        "topics/messages.html",
        channel=stats,
        peeks=peek(queries.client, [part.node for part in stats.nodes], int(limit), *stats.key),
        limit=limit,
        limits=_LIMITS,
        warnings=queries.warnings,
    )


@topics.get("/messages/<topic>")
def watch(topic: str) -> str:
    """The messages published last. Not below /topics, where "messages" may be a channel."""
    require(Role.OPERATOR)
    queries = Queries()
    stats = queries.topic(topic)
    limit = _limit()
    peeks = peek(queries.client, [part.node for part in stats.nodes], int(limit), topic)
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
    topic, channel = (request.form.get(name, "").strip() for name in ("topic", "channel"))
    node = request.form.get("node", "")
    name = f"{topic}/{channel}" if channel else topic
    return perform(lambda: actions.create(topic, channel, node), f"Created {name}.", url_for("cluster.lookup"))


@topics.post("/topics/<topic>/<channel>")
@topics.post("/topics/<topic>")
def act(topic: str, channel: str = "") -> Response:
    action, node = request.form.get("action", ""), request.form.get("node", "")
    parent = url_for("topics.topic", topic=topic) if channel else url_for("topics.list_")
    here = url_for("topics.channel", topic=topic, channel=channel) if channel else url_for("topics.topic", topic=topic)
    name = f"{topic}/{channel}" if channel else topic
    if action in actions.CHANGES:
        done = {"pause": "Paused", "unpause": "Unpaused", "empty": "Emptied"}[action]
        done = f"{done} {name} on {node}." if node else f"{done} {name}."
        return perform(lambda: actions.change(action, topic, channel, node), done, here, actions.CHANGES[action])
    if action == "delete":
        return perform(lambda: actions.delete(topic, channel), f"Deleted {name}.", parent, Role.ADMIN)
    if action == "publish" and not channel:
        body, defer = request.form.get("body", "").encode("utf-8", "replace"), request.form.get("defer", "")
        return perform(lambda: actions.publish(topic, node, body, defer), f"Published to {node}.", here)
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


def _confirmation(stats: TopicStats | ChannelStats) -> str:
    """The page that shows what an action deletes, before it is performed."""
    require(Role.ADMIN)
    action, node = request.args["confirm"], request.args.get("node", "")
    parts = [part for part in stats.nodes if node in ("", part.node)]
    loses_all = action == "delete" or isinstance(stats, ChannelStats)
    return render_template(
        "topics/confirm.html",
        action=action,
        topic=stats.topic_name,
        channel=stats.channel_name,
        node=node,
        messages=sum(part.lost_by(action) for part in parts),
        in_flight=sum(part.total("in_flight_count") for part in parts) if loses_all else 0,
        deferred=sum(part.total("deferred_count") for part in parts) if loses_all else 0,
        nodes=len(parts),
        channels=len(stats.channels) if isinstance(stats, TopicStats) else 0,
        consumers=sum(part.total("client_count") for part in parts),
    )
