"""/topics: the list, pages of a topic and a channel with their actions, and views of their messages."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from flask import Blueprint, Response, redirect, render_template, request, url_for

from nsq_compat.cluster.http_client import AllFailed, explained, named
from nsq_compat.cluster.peek import Message, Peek, find_message, peek, query_message
from nsq_compat.cluster.reading import UpstreamError
from nsq_compat.cluster.stats import ChannelStats, Retained, TopicStats
from nsq_compat.cluster.topic_log import LATEST, query_retained, read_messages
from nsq_compat.policy.policies import REJECT
from nsq_compat.protocol.headers import (
    ATTEMPTS,
    DEAD_LETTER_REASON,
    EXPIRES,
    FIRST_PUBLISHED,
    ORIGIN_CHANNEL,
    ORIGIN_MESSAGE_ID,
    ORIGIN_TOPIC,
)
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import check_form, require, service, visitor
from nsq_compat.web.admin.actions import perform, show_outcome
from nsq_compat.web.admin.formatting import FORMS
from nsq_compat.web.admin.queries import STATS_SHARE, Queries, current_snapshot
from nsq_compat.web.admin.tables import charts_of, part_of, row_of, rows_page, timeframe
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

topics = Blueprint("topics", __name__)

_CONFIRMED: Final = ("empty", "delete")
_LIMITS: Final = ("10", "25", "100")
_MAX_FIND: Final = 200
_MAX_SEARCHED: Final = 256
"""Topics of nodes that are asked for a message, to find its topic."""
_is_message_id: Final = re.compile("[0-9a-f]{16}", re.ASCII).fullmatch


@topics.get("/topics")
def list_() -> str | Response:
    snapshot = current_snapshot()
    page = rows_page(snapshot.topics)
    if not page.found and _is_message_id(page.search) and visitor().may("operator"):
        places = [(part.node, each.topic_name) for each in snapshot.topics for part in each.nodes][:_MAX_SEARCHED]
        if found := find_message(Queries(STATS_SHARE).client, places, page.search):
            node, topic = found
            return redirect(url_for("topics.message", topic=topic, message_id=page.search, node=node))  # type: ignore[return-value]
    return render_template("topics/list.html", page=page, warnings=snapshot.errors, timeframe=timeframe())


@topics.get("/topics/<topic>")
def topic(topic: str) -> str:
    return _topic_page(Queries(), topic, request.args)


def _topic_page(queries: Queries, topic: str, values: Mapping[str, str], errors: Sequence[str] = ()) -> str:
    """`values` are those of the form to publish, `errors` why that failed."""
    stats = queries.topic_or_inactive(topic)
    if request.args.get("confirm") in _CONFIRMED and stats.nodes:
        return _confirmation(stats, queries)
    rate = service().history.rate(stats.key)
    return render_template(
        "topics/topic.html",
        topic=stats,
        values=values,
        errors=errors,
        gone=_gone_with(topic),
        rate=rate,
        page=rows_page(stats.channels),
        nodes=part_of(stats.nodes, request.args, "nodes"),
        retained=_sum_retained(stats),
        silent=queries.silent,
        charts=charts_of(stats.key, stats.waiting, rate, service().now()),
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


@topics.get("/topics/<topic>/<channel>")
def channel(topic: str, channel: str) -> str:
    queries = Queries()
    stats = queries.channel_or_silent(topic, channel)
    if request.args.get("confirm") in _CONFIRMED and stats.nodes:
        return _confirmation(stats, queries)
    row = row_of(stats)
    return render_template(
        "topics/channel.html",
        channel=stats,
        row=row,
        gone=_gone_with(topic),
        existing={each.topic_name for each in queries.snapshot().topics},
        nodes=part_of(stats.nodes, request.args, "nodes"),
        silent=queries.silent,
        clients=part_of(stats.clients or [], request.args, "clients"),
        charts=charts_of(stats.key, stats.depth, row.rate, service().now()),
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


def _sum_retained(stats: TopicStats) -> Retained | None:
    """What all nodes retain; None if none tells."""
    parts = [part.retained for part in stats.nodes if part.retained is not None]
    if not parts:
        return None
    return Retained(
        next=sum(part.count for part in parts),
        first_timestamp=min((part.first_timestamp for part in parts if part.first_timestamp), default=None),
        last_timestamp=max((part.last_timestamp for part in parts if part.last_timestamp), default=None),
        bytes=sum(part.bytes for part in parts),
    )


def _gone_with(topic: str) -> list[tuple[str, int]]:
    """Nodes that are gone, with the messages of the topic that they had."""
    gone = [(sighting.node.http_address, dict(sighting.largest)) for sighting in service().history.sightings.gone()]
    return [(address, messages[topic]) for address, messages in gone if messages.get(topic)]


# --- Messages ---------------------------------------------------------------------------------------------------------


@topics.get("/topics/<topic>/<channel>/messages")
def messages(topic: str, channel: str) -> str:
    # Viewers see stats, but not the contents of messages.
    require(Role.OPERATOR)
    queries = Queries(STATS_SHARE)
    stats = queries.channel_or_silent(topic, channel)
    limit = _limit()
    peeks = peek(queries.client, [part.node for part in stats.nodes], int(limit), *stats.key)
    return render_template(
        "topics/messages.html",
        channel=stats,
        peeks=[_matching(each) for each in peeks],
        supported=any(each.supported for each in peeks),
        chosen=request.args.get("all") == "1",
        **_view(limit),
        silent=queries.silent,
        warnings=queries.warnings,
    )


@topics.get("/messages/<topic>")
def watch(topic: str) -> str:
    """The messages published last. Not below /topics, where "messages" may be a channel."""
    require(Role.OPERATOR)
    queries = Queries(STATS_SHARE)
    stats = queries.topic_or_silent(topic)
    limit = _limit(_LIMITS[-1])
    wanted = _LIMITS[-1] if _wanted() else limit  # the filter searches all that there are
    peeks = peek(queries.client, [part.node for part in stats.nodes], int(wanted), topic)
    published = [(each.node, message) for each in peeks for message in each.messages]
    searched = len(published)
    published.sort(key=lambda pair: (pair[1].timestamp, pair[1].id), reverse=True)
    published = [pair for pair in published if _matches(pair[1])][: int(limit)]
    return render_template(
        "topics/watch.html",
        topic=stats,
        published=published,
        searched=searched,
        failed=[each for each in peeks if each.error],
        **_view(limit),
        silent=queries.silent,
        warnings=queries.warnings,
    )


@topics.get("/log/<topic>")
def log(topic: str) -> str:
    """Messages that a node retains, from a place on. Not below /topics, where "log" may be a channel."""
    require(Role.OPERATOR)
    queries = Queries(STATS_SHARE)
    stats = queries.topic_or_silent(topic)
    nodes = [part.node for part in stats.nodes if part.retained is not None]
    node, limit = request.args.get("node") or next(iter(nodes), ""), _limit()
    at = request.args.get("at", "").strip() or LATEST
    retained, part, error = None, None, ""
    if node in nodes:
        (retained,) = query_retained(queries.client, [node], topic, at=at)
        begin = max(retained.first, retained.next - int(limit)) if at == LATEST else retained.offset
        try:
            if not retained.error and begin < retained.next:
                end = min(begin + int(limit), retained.next)
                part = read_messages(queries.client, node, topic, begin, end)
        except UpstreamError as failure:
            error = explained(str(failure))
    return render_template(
        "topics/log.html",
        topic=stats,
        nodes=nodes,
        node=node,
        at=at,
        retained=retained,
        part=part and replace(part, messages=tuple(filter(_matches, part.messages))),
        previous=max(retained.first, begin - int(limit)) if retained and begin > retained.first else None,
        error=error,
        **_view(limit),
        silent=queries.silent,
        warnings=queries.warnings,
    )


@topics.get("/message/<topic>/<message_id>")
def message(topic: str, message_id: str) -> str:
    """One message of a node, and where it is in each channel. Not below /topics, where "message" may be a channel."""
    require(Role.OPERATOR)
    queries = Queries(STATS_SHARE)
    stats = queries.topic_or_silent(topic)
    node = request.args.get("node") or next((each.node for each in stats.nodes), "")
    part = next((each for each in stats.nodes if each.node == node), None)
    found = query_message(queries.client, node, topic, message_id) if part is not None else None
    headers = dict(found.message.headers) if found is not None and found.message is not None else {}
    first = headers.get(FIRST_PUBLISHED, "")
    return render_template(
        "topics/message.html",
        topic=stats,
        node=node,
        message_id=message_id,
        found=found,
        counts={each.channel_name: each for each in part.channels} if part is not None else {},
        existing={each.topic_name for each in queries.snapshot().topics},
        first_published=int(first) / 1e9 if first.isascii() and first.isdigit() and len(first) < 20 else None,
        expires=_seconds_in(headers.get(EXPIRES, "")),
        origin=[
            headers.get(name, "")
            for name in (ORIGIN_TOPIC, ORIGIN_CHANNEL, ATTEMPTS, DEAD_LETTER_REASON, ORIGIN_MESSAGE_ID)
        ],
        form=_form(),
        silent=queries.silent,
        warnings=queries.warnings,
    )


def _seconds_in(text: str) -> float | None:
    """The time in a header, which a clock can show."""
    return float(text) if re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,9})?", text, re.ASCII) else None


def _view(limit: str) -> dict[str, Any]:
    """What the pages of messages have in common."""
    return {"limit": limit, "limits": _LIMITS, "find": _wanted(), "form": _form(), "forms": FORMS}


def _form() -> str:
    form = request.args.get("form", "")
    return form if form in FORMS else FORMS[0]


def _wanted() -> str:
    return request.args.get("find", "").strip()[:_MAX_FIND]


def _matches(message: Message) -> bool:
    """Whether the message has the wanted text in its id, its headers, or what is shown of its body."""
    wanted = _wanted()
    if not wanted or wanted.lower() in message.id or wanted.encode() in message.body:
        return True
    if any(wanted.lower() in each.lower() for header in message.headers for each in header):
        return True
    return message.text is not None and wanted.lower() in message.text.lower()


def _matching(each: Peek) -> Peek:
    kinds = (each.messages, each.deferred, each.in_flight)
    messages, deferred, in_flight = (tuple(filter(_matches, found)) for found in kinds)
    return replace(each, messages=messages, deferred=deferred, in_flight=in_flight)


def _limit(default: str = _LIMITS[0]) -> str:
    limit = request.args.get("limit", "")
    return limit if limit in _LIMITS else default


# --- Actions ----------------------------------------------------------------------------------------------------------


@topics.get("/create")
def new() -> str:
    """The form that creates a topic, or a channel of the given topic."""
    require(Role.OPERATOR)
    return _creation_form(Queries(), request.args)


@topics.post("/topics")
def create() -> "Response | tuple[str, int]":
    """NSQ's API registers a topic at nsqlookupd only. The form also creates it on nodes, where it can be used."""
    check_form()
    require(Role.OPERATOR)
    queries, form = Queries(), request.form
    topic, channel = (form.get(name, "").strip() for name in ("topic", "channel"))
    try:
        nodes = _chosen_nodes(queries, topic)
        answer = actions.create_on(nodes, topic, channel, form.get("from", "").strip())
    except ApiError as error:
        if error.code not in ("INVALID_TOPIC", "INVALID_CHANNEL", "NO_NODE", "OFFSET_OF_ONE_NODE"):
            raise
        return _creation_form(queries, form, invalid=error.code), 400
    name = f"{topic}/{channel}" if channel else topic
    if not answer.value and (nodes or answer.errors):
        return _creation_form(Queries(), form, errors=answer.errors), 502
    if not nodes:
        done = f"Registered {name} at nsqlookupd. No nsqd has it yet."
    elif len(nodes) == 1:
        done = f"Created {name} on {nodes[0]}."
    else:
        of_all = f"{len(nodes)} nodes" if answer.value == nodes else f"{len(answer.value)} of {len(nodes)} nodes"
        done = f"Created {name} on {of_all}."
    if channel and form.get("on") == "holders":
        return show_outcome(done, answer.errors, url_for("topics.channel", topic=topic, channel=channel))
    return show_outcome(done, answer.errors, url_for("topics.topic", topic=topic, form="publish"))


def _creation_form(queries: Queries, values: Mapping[str, str], invalid: str = "", errors: Sequence[str] = ()) -> str:
    topic = values.get("topic", "")
    return render_template(
        "topics/new.html",
        values=values,
        invalid=invalid,
        errors=[named(error) for error in errors],
        naming_rule=actions.NAMING_RULE,
        holders=queries.holders(topic),
        nodes=queries.nodes(),
        least=_least_loaded([node.http_address for node in queries.nodes()]),
        lookupds=service().cluster.lookupds,
        warnings=queries.warnings,
    )


def _chosen_nodes(queries: Queries, topic: str) -> list[str]:
    """The nodes that the form of a new topic selects. Raises `ApiError` if none is selected."""
    chosen = request.form.getlist("node")
    where = request.form.get("on", "chosen" if chosen else "all")
    if where == "holders":
        return queries.holders(topic)
    if where == "chosen":
        if not chosen:
            raise ApiError(400, "NO_NODE")
        return chosen
    addresses = [node.http_address for node in queries.nodes()]
    return [_least_loaded(addresses)] if where == "least" and addresses else addresses


def _least_loaded(addresses: Sequence[str]) -> str:
    """The node with the fewest messages, of those that answer; empty without nodes."""
    stats = current_snapshot().node_stats

    def load(address: str) -> tuple[bool, int, int]:
        topics = stats[address].topics if address in stats else []
        return address not in stats, sum(topic.lost_by("delete") for topic in topics), len(topics)

    return min(addresses, key=load, default="")


@topics.post("/topics/<topic>/<channel>")
@topics.post("/topics/<topic>")
def act(topic: str, channel: str = "") -> "Response | tuple[str, int]":
    action, node = request.form.get("action", ""), request.form.get("node", "")
    parent = url_for("topics.topic", topic=topic) if channel else url_for("topics.list_")
    here = url_for("topics.channel", topic=topic, channel=channel) if channel else url_for("topics.topic", topic=topic)
    name = f"{topic}/{channel}" if channel else topic
    on_nodes = partial(partial, Queries().on_nodes, topic)
    if action in actions.CHANGES:
        done = {"pause": "Paused", "unpause": "Unpaused", "empty": "Emptied"}[action]
        done = f"{done} {name} on {node}." if node else f"{done} {name}."
        here = url_for("cluster.overview") if request.form.get("next") == "overview" else here
        return perform(
            on_nodes(lambda: actions.change(action, topic, channel, node)), done, here, actions.CHANGES[action]
        )
    if action == "delete":
        return perform(on_nodes(lambda: actions.delete(topic, channel)), f"Deleted {name}.", parent, Role.ADMIN)
    if action == "dismiss":
        kind = request.form.get("kind", "")
        overview, done = (
            url_for("cluster.overview"),
            f"Dismissed the alert of {name}. More {kind} messages are a new one.",
        )
        return perform(lambda: actions.dismiss_losses(kind, topic, channel), done, overview)
    if action == "close_client" and channel:
        address = request.form.get("address", "")
        done = f"Closed the connection of {address} at {node}."
        here = url_for("nodes.node", node=node) if request.form.get("next") == "node" else here
        return perform(lambda: actions.close_client(node, topic, channel, address), done, here)
    if action == "publish" and not channel:
        return _publish(topic)
    raise ApiError(400, "INVALID_ACTION")


def _publish(topic: str) -> "Response | tuple[str, int]":
    """Publish the message of the form. If no chosen node accepts it, show the form again, with what was typed."""
    check_form()
    require(Role.OPERATOR)
    form, queries = request.form, Queries()
    chosen = form.get("node", "")
    errors: list[str] = []
    status = 502
    for node in [chosen] if chosen else queries.holders(topic) or [""]:
        try:
            failed = actions.publish(
                topic, node, form.get("body", "").encode("utf-8", "replace"), form.get("delay", "")
            )
        except ApiError as failure:
            failed = (actions.explanation(failure, topic=topic, node=node) or failure.code,)
            status = failure.status
        except AllFailed as failure:
            failed = (failure.named,)
        if not failed:
            again = url_for("topics.topic", topic=topic, form="publish", node=chosen or None)
            return show_outcome(f"Published a message to {topic} on {node}.", (), again)
        errors += [_full(queries, topic, node) if "TOPIC_FULL" in error else named(error) for error in failed]
        if errors[-1].endswith(": timeout"):
            # Another node might be the second one that has the message.
            errors.append(actions.MAY_BE_DONE)
            break
    return _topic_page(queries, topic, form, list(dict.fromkeys(errors))), status


def _full(queries: Queries, topic: str, node: str) -> str:
    """Why a node refuses messages of a topic: the channels that have reached the limit of their policy."""
    channels: list[ChannelStats] = []
    with suppress(AllFailed, ApiError):
        channels = [each for part in queries.topic(topic).nodes if part.node == node for each in part.channels]
    full = [
        f"channel {each.channel_name} is full (max_depth {each.policy['max_depth']})"
        for each in channels
        if each.policy.get("when_full") == REJECT and each.depth >= float(each.policy.get("max_depth", "inf"))
    ]
    return f"{node}: {', '.join(full) or f'{topic}, or a channel of it, has reached a limit of its policy'}"


def _confirmation(stats: TopicStats | ChannelStats, queries: Queries) -> str:
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
        silent=() if node else queries.silent,
        warnings=queries.warnings,
    )
