"""/nodes: the list of nsqds, the page of an nsqd, and tombstones."""

from operator import attrgetter

from flask import Blueprint, Response, render_template, request, url_for

from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.actions import form_field, perform
from nsq_compat.web.admin.queries import Queries, current_snapshot
from nsq_compat.web.admin.tables import page_of, timeframe
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

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
    topic = form_field("topic")
    if form_field("action") != "tombstone":
        raise ApiError(400, "INVALID_ACTION")
    here, done = url_for("topics.topic", topic=topic), f"Tombstoned {node} for {topic}."
    return perform(lambda: actions.tombstone(topic, node), done, here, Role.ADMIN)
