"""/nodes: the list of nsqds, the page of an nsqd, and tombstones."""

from flask import Blueprint, Response, render_template, request, url_for

from nsq_compat.cluster.stats import NodeStats, TopicStats
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.actions import form_field, perform
from nsq_compat.web.admin.queries import Queries
from nsq_compat.web.admin.tables import current_snapshot, page_of, timeframe
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

nodes = Blueprint("nodes", __name__)


@nodes.get("/nodes")
def list_() -> str:
    queries = Queries(service().cluster)
    found = queries.nodes()
    columns = {
        "name": lambda node: node.hostname,
        "address": lambda node: node.http_address,
        "version": lambda node: node.version,
        "topics": lambda node: len(node.topics),
    }
    snapshot = current_snapshot(service())
    return render_template(
        "nodes/list.html",
        page=page_of(found, request.args, columns, lambda node: f"{node.hostname} {node.http_address}"),
        answers=snapshot.answers,
        lookupds=service().cluster.lookupds,
        warnings=queries.warnings,
    )


@nodes.get("/nodes/<node>")
def node(node: str) -> str:
    queries = Queries(service().cluster)
    described, stats = queries.node(node)
    if request.args.get("confirm") == "tombstone":
        return _confirmation(node, stats, request.args.get("topic", ""))
    return render_template(
        "nodes/node.html",
        node=described,
        stats=stats,
        page=page_of(stats.topics, request.args, {"name": _topic_name}, _topic_name),
        messages=sum(topic.message_count for topic in stats.topics),
        clients=sum(channel.client_count for topic in stats.topics for channel in topic.channels),
        warnings=queries.warnings,
        timeframe=timeframe(),
    )


@nodes.post("/nodes/<node>")
def act(node: str) -> Response:
    topic = form_field("topic")
    if form_field("action") != "tombstone":
        raise ApiError(400, "INVALID_ACTION")
    return perform(
        lambda: actions.tombstone(topic, node),
        f"Tombstoned {node} for {topic}.",
        url_for("topics.topic", topic=topic),
        Role.ADMIN,
    )


def _topic_name(topic: TopicStats) -> str:
    return topic.topic_name


def _confirmation(node: str, stats: NodeStats, name: str) -> str:
    require(Role.ADMIN)
    topic = next((topic for topic in stats.topics if topic.topic_name == name), None)
    if topic is None:
        raise ApiError(404, "TOPIC_NOT_FOUND")
    return render_template(
        "nodes/confirm.html",
        node=node,
        topic=topic,
        messages=topic.waiting,
    )
