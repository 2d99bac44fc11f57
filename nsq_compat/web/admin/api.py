"""/api: NSQ's nsqadmin API, key by key."""

import re
from typing import Any

from flask import Blueprint, Response, request

from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.protocol.errors import quote
from nsq_compat.protocol.go_json import dumps
from nsq_compat.web.admin import acting, api_json
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.gathering import Gathering
from nsq_compat.web.admin.graphite import Graphite
from nsq_compat.web.admin.request_json import read_texts
from nsq_compat.web.admin.users import Role
from nsq_compat.web.query import parse_query
from nsq_compat.web.responses import JSON, V1, ApiError

api = Blueprint("api", __name__)


def v1(value: Any, status: int = 200) -> Response:
    return Response(dumps(value), status, [JSON, V1])


def refusal(error: ApiError) -> Response:
    return v1({"message": error.code}, error.status)


def upstream_failure(failure: AllFailed) -> ApiError:
    return ApiError(502, f"UPSTREAM_ERROR: {failure}")


# --- Looking ----------------------------------------------------------------------------------------------------------


@api.get("/topics")
def topics() -> Response:
    try:
        parameters = parse_query(request.query_string)
    except ApiError:
        raise ApiError(400, _what_is_wrong(request.query_string)) from None
    gathering = _gathering()
    found: Any
    if parameters.get("inactive") == "true":
        found = {
            name: channels or None for name, channels in gathering.channels_of(gathering.inactive_topics()).items()
        }
    else:
        found = gathering.topics() or None
    return v1({"topics": found, "message": gathering.message()})


@api.get("/topics/<topic>")
def topic(topic: str) -> Response:
    gathering = _gathering()
    stats = gathering.topic(topic)
    return v1({**api_json.topic(stats, service().now()), "message": gathering.message()})


@api.get("/topics/<topic>/<channel>")
def channel(topic: str, channel: str) -> Response:
    gathering = _gathering()
    stats = gathering.channel(topic, channel)
    return v1({**api_json.channel(stats, service().now()), "message": gathering.message()})


@api.get("/nodes")
def nodes() -> Response:
    gathering = _gathering()
    found = [api_json.node(node) for node in gathering.nodes()]
    return v1({"nodes": found or None, "message": gathering.message()})


@api.get("/nodes/<node>")
def node(node: str) -> Response:
    gathering = _gathering()
    _, stats = gathering.node(node)
    now = service().now()
    clients = [client for topic in stats.topics for channel in topic.channels for client in channel.clients or ()]
    return v1(
        {
            "node": node,
            "topics": [api_json.topic(topic, now) for topic in stats.topics] or None,
            "total_messages": sum(topic.message_count for topic in stats.topics),
            "total_clients": len(clients),
            "message": gathering.message(),
        }
    )


@api.get("/counter")
def counter() -> Response:
    gathering = _gathering()
    stats = api_json.counters(gathering.channels_everywhere())
    return v1({"stats": stats, "message": gathering.message()})


@api.get("/graphite")
def graphite() -> Response:
    parameters = parse_query(request.query_string)
    if parameters.get("metric") != "rate":
        raise ApiError(400, "INVALID_ARG_METRIC")
    if "target" not in parameters:
        raise ApiError(400, "INVALID_ARG_TARGET")
    return v1({"rate": Graphite(service()).rate(parameters["target"])})


# --- Doing ------------------------------------------------------------------------------------------------------------


@api.post("/topics")
def create() -> Response:
    require(Role.OPERATOR)
    topic, channel = read_texts(request.get_data(), "topic", "channel")
    return _done(acting.create(topic, channel))


@api.post("/topics/<topic>")
def change_topic(topic: str) -> Response:
    return _change(topic, "")


@api.post("/topics/<topic>/<channel>")
def change_channel(topic: str, channel: str) -> Response:
    return _change(topic, channel)


@api.delete("/topics/<topic>")
def delete_topic(topic: str) -> Response:
    require(Role.ADMIN)
    return _done(acting.delete(topic))


@api.delete("/topics/<topic>/<channel>")
def delete_channel(topic: str, channel: str) -> Response:
    require(Role.ADMIN)
    return _done(acting.delete(topic, channel))


@api.delete("/nodes/<node>")
def tombstone(node: str) -> Response:
    require(Role.ADMIN)
    try:
        (topic,) = read_texts(request.get_data(), "topic")
    except ApiError:
        # nsqadmin: here, and only here, by this name.
        raise ApiError(400, "INVALID_BODY") from None
    return _done(acting.tombstone(topic, node))


def _change(topic: str, channel: str) -> Response:
    require(Role.OPERATOR)
    (action,) = read_texts(request.get_data(), "action")
    if action not in acting.CHANGES:
        raise ApiError(400, "INVALID_ACTION")
    require(acting.CHANGES[action])
    return _done(acting.change(action, topic, channel))


def _what_is_wrong(query: bytes) -> str:
    """Of a query that cannot be read, in Go's words; this one route says it."""
    escape = re.search(rb"%(?![0-9a-fA-F]{2}).{0,2}", query)
    if escape is None:
        return "invalid semicolon separator in query"
    return f"invalid URL escape {quote(escape[0])}"


def _gathering() -> Gathering:
    return Gathering(service().cluster)


def _done(errors: tuple[str, ...]) -> Response:
    gathering = _gathering()
    gathering.note(errors)
    return v1({"message": gathering.message()})
