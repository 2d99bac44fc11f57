"""/topics: the list, pages of a topic and a channel with their actions, and views of their messages."""

from dataclasses import replace
from typing import Any, Final

from flask import Blueprint, Response, render_template, request, url_for

from nsq_compat.cluster.http_client import AllFailed
from nsq_compat.cluster.peek import Message, Peek, peek
from nsq_compat.cluster.stats import ChannelStats, TopicStats
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.actions import perform
from nsq_compat.web.admin.formatting import FORMS
from nsq_compat.web.admin.queries import Queries, current_snapshot
from nsq_compat.web.admin.tables import charts_of, part_of, row_of, rows_page, timeframe
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

topics = Blueprint("topics", __name__)

_CONFIRMED: Final = ("empty", "delete")
_LIMITS: Final = ("10", "25", "100")
_MAX_FIND: Final = 200


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
    peeks = peek(service().cluster.client, [part.node for part in stats.nodes], int(limit), *stats.key)
    return render_template(
        "topics/messages.html",
        channel=stats,
        peeks=[_matching(each) for each in peeks],
        supported=any(each.supported for each in peeks),
        chosen=request.args.get("all") == "1",
        **_view(limit),
        warnings=queries.warnings,
    )


@topics.get("/messages/<topic>")
def watch(topic: str) -> str:
    """The messages published last. Not below /topics, where "messages" may be a channel."""
    require(Role.OPERATOR)
    queries = Queries()
    stats = queries.topic(topic)
    limit = _limit()
    peeks = peek(service().cluster.client, [part.node for part in stats.nodes], int(limit), topic)
    published = [(each.node, message) for each in peeks for message in each.messages]
    published.sort(key=lambda pair: (pair[1].timestamp, pair[1].id), reverse=True)
    published = [pair for pair in published[: int(limit)] if _matches(pair[1])]
    return render_template(
        "topics/watch.html",
        topic=stats,
        published=published,
        failed=[each for each in peeks if each.error],
        **_view(limit),
        warnings=queries.warnings,
    )


def _view(limit: str) -> dict[str, Any]:
    """What the pages of messages have in common."""
    form = request.args.get("form", "")
    form = form if form in FORMS else FORMS[0]
    return {"limit": limit, "limits": _LIMITS, "find": _wanted(), "form": form, "forms": FORMS}


def _wanted() -> str:
    return request.args.get("find", "").strip()[:_MAX_FIND]


def _matches(message: Message) -> bool:
    """Whether the message has the text that the visitor looks for: in its id, or in the shown part of its body."""
    wanted = _wanted()
    if not wanted or wanted.lower() in message.id or wanted.encode() in message.body:
        return True
    return message.text is not None and wanted.lower() in message.text.lower()


def _matching(each: Peek) -> Peek:
    kinds = (each.messages, each.deferred, each.in_flight)
    messages, deferred, in_flight = (tuple(filter(_matches, found)) for found in kinds)
    return replace(each, messages=messages, deferred=deferred, in_flight=in_flight)


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
