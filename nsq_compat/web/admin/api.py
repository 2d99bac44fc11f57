"""/api: the JSON API of NSQ's nsqadmin."""

import json
import re
from typing import Any

from flask import Blueprint, Response, request

from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.protocol.errors import quote
from nsq_compat.protocol.go_json import dumps
from nsq_compat.web.admin import actions, api_json
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.graphite import Graphite
from nsq_compat.web.admin.queries import Queries
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import JSON, V1, ApiError, parse_query

api = Blueprint("api", __name__)


def v1(value: Any, status: int = 200) -> Response:
    return Response(dumps(value), status, [JSON, V1])


def v1_error(error: ApiError) -> Response:
    return v1({"message": error.code}, error.status)


def upstream_error(failure: AllFailed) -> ApiError:
    return ApiError(502, f"UPSTREAM_ERROR: {failure}")


# --- Queries ----------------------------------------------------------------------------------------------------------


@api.get("/topics")
def topics() -> Response:
    try:
        parameters = parse_query(request.query_string)
    except ApiError:
        raise ApiError(400, _query_error(request.query_string)) from None
    queries = _queries()
    found: Any
    if parameters.get("inactive") == "true":
        found = {name: channels or None for name, channels in queries.channels_of(queries.inactive_topics()).items()}
    else:
        found = queries.topics() or None
    return v1({"topics": found, "message": queries.message()})


@api.get("/topics/<topic>")
def topic(topic: str) -> Response:
    queries = _queries()
    stats = queries.topic(topic)
    return v1({**api_json.topic(stats, service().now()), "message": queries.message()})


@api.get("/topics/<topic>/<channel>")
def channel(topic: str, channel: str) -> Response:
    queries = _queries()
    stats = queries.channel(topic, channel)
    return v1({**api_json.channel(stats, service().now()), "message": queries.message()})


@api.get("/nodes")
def nodes() -> Response:
    queries = _queries()
    found = [api_json.node(node) for node in queries.nodes()]
    return v1({"nodes": found or None, "message": queries.message()})


@api.get("/nodes/<node>")
def node(node: str) -> Response:
    queries = _queries()
    _, stats = queries.node(node)
    now = service().now()
    clients = [client for topic in stats.topics for channel in topic.channels for client in channel.clients or ()]
    return v1(
        {
            "node": node,
            "topics": [api_json.topic(topic, now) for topic in stats.topics] or None,
            "total_messages": sum(topic.message_count for topic in stats.topics),
            "total_clients": len(clients),
            "message": queries.message(),
        }
    )


@api.get("/counter")
def counter() -> Response:
    queries = _queries()
    stats = api_json.counters(queries.channels_by_node())
    return v1({"stats": stats, "message": queries.message()})


@api.get("/graphite")
def graphite() -> Response:
    parameters = parse_query(request.query_string)
    if parameters.get("metric") != "rate":
        raise ApiError(400, "INVALID_ARG_METRIC")
    if "target" not in parameters:
        raise ApiError(400, "INVALID_ARG_TARGET")
    return v1({"rate": Graphite(service()).rate(parameters["target"])})


# --- Actions ----------------------------------------------------------------------------------------------------------


@api.post("/topics")
def create() -> Response:
    require(Role.OPERATOR)
    topic, channel = read_texts(request.get_data(), "topic", "channel")
    return _done(actions.create(topic, channel))


@api.post("/topics/<topic>")
def change_topic(topic: str) -> Response:
    return _change(topic, "")


@api.post("/topics/<topic>/<channel>")
def change_channel(topic: str, channel: str) -> Response:
    return _change(topic, channel)


@api.delete("/topics/<topic>")
def delete_topic(topic: str) -> Response:
    require(Role.ADMIN)
    return _done(actions.delete(topic))


@api.delete("/topics/<topic>/<channel>")
def delete_channel(topic: str, channel: str) -> Response:
    require(Role.ADMIN)
    return _done(actions.delete(topic, channel))


@api.delete("/nodes/<node>")
def tombstone(node: str) -> Response:
    require(Role.ADMIN)
    try:
        (topic,) = read_texts(request.get_data(), "topic")
    except ApiError:
        # nsqadmin: only this route has this code.
        raise ApiError(400, "INVALID_BODY") from None
    return _done(actions.tombstone(topic, node))


def _change(topic: str, channel: str) -> Response:
    require(Role.OPERATOR)
    (action,) = read_texts(request.get_data(), "action")
    if action not in actions.CHANGES:
        raise ApiError(400, "INVALID_ACTION")
    require(actions.CHANGES[action])
    return _done(actions.change(action, topic, channel))


def _query_error(query: bytes) -> str:
    """Go's error text for a malformed query, which only /api/topics returns."""
    escape = re.search(rb"%(?![0-9a-fA-F]{2}).{0,2}", query)
    if escape is None:
        return "invalid semicolon separator in query"
    return f"invalid URL escape {quote(escape[0])}"


def _queries() -> Queries:
    return Queries(service().cluster)


def _done(errors: tuple[str, ...]) -> Response:
    queries = _queries()
    queries.add_warning(errors)
    return v1({"message": queries.message()})


# --- JSON bodies of requests, parsed as Go's decoder does -------------------------------------------------------------

_decoder = json.JSONDecoder()


def read_texts(body: bytes, *names: str) -> list[str]:
    """The strings at these keys, empty if absent. Raises `ApiError` with the text of Go's decoder.

    As in Go, bytes after the first JSON value are ignored.
    """
    value = _first_value(body.decode("utf-8", "replace").lstrip(" \t\r\n"))
    if value is None:
        return [""] * len(names)
    if not isinstance(value, dict):
        fields = "; ".join(f'{name.title()} string "json:\\"{name}\\""' for name in names)
        raise ApiError(400, f"json: cannot unmarshal {_kind(value)} into Go value of type struct {{ {fields} }}")
    found = {key.lower(): each for key, each in value.items()}
    texts = []
    for name in names:
        text = found.get(name)
        if text is not None and not isinstance(text, str):
            raise ApiError(400, f"json: cannot unmarshal {_kind(text)} into Go struct field .{name} of type string")
        texts.append((text or "").encode("utf-8", "replace").decode("utf-8"))
    return texts


def _first_value(text: str) -> Any:
    if not text:
        raise ApiError(400, "EOF")
    try:
        return _decoder.raw_decode(text)[0]
    except RecursionError:
        raise ApiError(400, "exceeded max depth") from None
    except json.JSONDecodeError as error:
        raise ApiError(400, _go_error(text, error)) from None


def _go_error(text: str, error: json.JSONDecodeError) -> str:
    rest = text[error.pos :].lstrip(" \t\r\n")
    if not rest or any(word.startswith(rest) for word in ("true", "false", "null")):
        return "unexpected EOF"
    where = "object key string" if "property name" in error.msg else "value"
    return f"invalid character {rest[0]!r} looking for beginning of {where}"


def _kind(value: object) -> str:
    kinds = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "value")
