"""Pages of the whole cluster: the overview, the counter, what nsqlookupd knows, and the nsqds with their tombstones."""

from operator import attrgetter
from typing import Final

from flask import Blueprint, Response, render_template, request, url_for

from nsq_compat.cluster.alerts import find_alerts
from nsq_compat.cluster.history import CLUSTER
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.actions import perform
from nsq_compat.web.admin.queries import Queries, current_snapshot
from nsq_compat.web.admin.tables import charts_of, page_of, rows_page, timeframe
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

cluster = Blueprint("cluster", __name__)

_MAX_ALERTS: Final = 25
_MAX_BUSIEST: Final = 20


@cluster.get("/")
def overview() -> str:
    snapshot = current_snapshot()
    history = service().history
    alerts, rate = find_alerts(snapshot, history), history.rate(CLUSTER)
    waiting = sum(topic.waiting for topic in snapshot.topics)
    return render_template(
        "cluster/overview.html",
        warnings=snapshot.errors,
        alerts=alerts[:_MAX_ALERTS],
        more_alerts=max(0, len(alerts) - _MAX_ALERTS),
        page=rows_page(snapshot.topics),
        rate=rate,
        charts=charts_of(CLUSTER, waiting, rate, snapshot.taken_at),
        totals={
            "Topics": len(snapshot.topics),
            "Channels": sum(len(topic.channels) for topic in snapshot.topics),
            "Nodes": len(snapshot.nodes),
            "Consumers": sum(topic.total("client_count") for topic in snapshot.topics),
            "Waiting": waiting,
            "In flight": sum(topic.total("in_flight_count") for topic in snapshot.topics),
        },
        timeframe=timeframe(),
    )


@cluster.get("/counter")
def counter() -> str:
    snapshot = current_snapshot()
    rate = service().history.rate
    rows = [
        (*channel.key, channel.message_count, rate(channel.key) or 0.0)
        for topic in snapshot.topics
        for channel in topic.channels
    ]
    return render_template(
        "cluster/counter.html",
        total=sum(count for _, _, count, _ in rows),
        rate=sum(rate for *_, rate in rows),
        busiest=sorted((row for row in rows if row[3]), key=lambda row: -row[3])[:_MAX_BUSIEST],
        warnings=snapshot.errors,
        timeframe=timeframe(),
    )


@cluster.get("/lookup")
def lookup() -> str:
    if request.args.get("confirm") == "delete":
        require(Role.ADMIN)
        names = {name: request.args.get(name, "") for name in ("topic", "channel")}
        return render_template("cluster/confirm.html", **names)
    queries = Queries()
    lookupds = service().cluster.lookupds
    page = page_of(queries.inactive_topics() if lookupds else [], request.args, {"name": str}, str)
    return render_template(
        "cluster/lookup.html",
        lookupds=lookupds,
        page=page,
        channels=queries.channels_of(page.rows),
        warnings=queries.warnings,
    )


# --- Nodes ------------------------------------------------------------------------------------------------------------

nodes = Blueprint("nodes", __name__)


@nodes.get("/nodes")
def list_() -> str:
    queries = Queries()
    columns = {
        "name": lambda node: node.hostname,
        "address": lambda node: node.http_address,
        "version": lambda node: node.version,
        "topics": lambda node: len(node.topics),
    }
    return render_template(
        "nodes/list.html",
        page=page_of(queries.nodes(), request.args, columns, lambda node: f"{node.hostname} {node.http_address}"),
        node_stats=current_snapshot().node_stats,
        lookupds=service().cluster.lookupds,
        warnings=queries.warnings,
    )


@nodes.get("/nodes/<node>")
def node(node: str) -> str:
    queries = Queries()
    described, stats = queries.node(node)
    if request.args.get("confirm") == "tombstone":
        require(Role.ADMIN)
        name = request.args.get("topic", "")
        topic = next((topic for topic in stats.topics if topic.topic_name == name), None)
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND")
        return render_template("nodes/confirm.html", node=node, topic=topic)
    return render_template(
        "nodes/node.html",
        node=described,
        stats=stats,
        page=page_of(stats.topics, request.args, {"name": attrgetter("name")}, attrgetter("name")),
        messages=sum(topic.message_count for topic in stats.topics),
        clients=sum(topic.total("client_count") for topic in stats.topics),
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


@nodes.post("/nodes/<node>")
def act(node: str) -> Response:
    topic = request.form.get("topic", "")
    if request.form.get("action") != "tombstone":
        raise ApiError(400, "INVALID_ACTION")
    here, done = url_for("topics.topic", topic=topic), f"Tombstoned {node} for {topic}."
    return perform(lambda: actions.tombstone(topic, node), done, here, Role.ADMIN)
