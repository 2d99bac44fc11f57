"""/api: the JSON API of NSQ's nsqadmin."""

import json
import re
from typing import Any, Final

from flask import Blueprint, Response, request

from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.stats import ChannelStats, ClientStats, Stats, TopicStats
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.errors import quote
from nsq_compat.protocol.go_json import dumps
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.graphite import Graphite
from nsq_compat.web.admin.queries import Queries
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import JSON, V1, ApiError, cooperatively, parse_query, picked

api = Blueprint("api", __name__)

_ROWS_AT_ONCE: Final = 1000
"""At about 10 us each."""


def v1(value: Any, status: int = 200) -> Response:
    return Response(dumps(value), status, [JSON, V1])


def _answer(queries: Queries, **fields: Any) -> Response:
    return v1({**fields, "message": queries.message()})


# --- Queries ----------------------------------------------------------------------------------------------------------


@api.get("/topics")
def topics() -> Response:
    try:
        parameters = parse_query(request.query_string)
    except ApiError:
        # nsqadmin: only this route has Go's error text for a malformed query.
        escape = re.search(rb"%(?![0-9a-fA-F]{2}).{0,2}", request.query_string)
        text = f"invalid URL escape {quote(escape[0])}" if escape else "invalid semicolon separator in query"
        raise ApiError(400, text) from None
    queries = Queries(only_listed=True)
    if parameters.get("inactive") == "true":
        channels = queries.channels_of(queries.inactive_topics())
        return _answer(queries, topics={topic: names or None for topic, names in channels.items()})
    return _answer(queries, topics=queries.topics() or None)


@api.get("/topics/<topic>")
def topic(topic: str) -> Response:
    queries = Queries(only_listed=True)
    return _answer(queries, **_topic(queries.topic(topic)))


@api.get("/topics/<topic>/<channel>")
def channel(topic: str, channel: str) -> Response:
    queries = Queries(only_listed=True)
    return _answer(queries, **_channel(queries.channel(topic, channel)))


@api.get("/nodes")
def nodes() -> Response:
    queries = Queries(only_listed=True)
    return _answer(queries, nodes=[_node(node) for node in queries.nodes()] or None)


@api.get("/nodes/<node>")
def node(node: str) -> Response:
    queries = Queries(only_listed=True)
    _, stats = queries.node(node)
    clients = [client for topic in stats.topics for channel in topic.channels for client in channel.clients or ()]
    return _answer(
        queries,
        node=node,
        topics=[_topic(topic) for topic in stats.topics] or None,
        total_messages=sum(topic.message_count for topic in stats.topics),
        total_clients=len(clients),
    )


@api.get("/counter")
def counter() -> Response:
    queries = Queries(only_listed=True)
    rows = sorted((":".join((*each.key, each.node)), each) for each in queries.channels_by_node())
    stats = ",".join(
        f"{dumps(key)}:{dumps(picked(each, _COUNTER))}" for key, each in cooperatively(rows, _ROWS_AT_ONCE)
    )
    return Response(f'{{"stats":{{{stats}}},"message":{dumps(queries.message())}}}', 200, [JSON, V1])


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
@api.post("/topics/<topic>/<channel>")
def change(topic: str, channel: str = "") -> Response:
    require(Role.OPERATOR)
    (action,) = read_texts(request.get_data(), "action")
    if action not in actions.CHANGES:
        raise ApiError(400, "INVALID_ACTION")
    require(actions.CHANGES[action])
    return _done(actions.change(action, topic, channel))


@api.delete("/topics/<topic>")
@api.delete("/topics/<topic>/<channel>")
def delete(topic: str, channel: str = "") -> Response:
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


def _done(errors: tuple[str, ...]) -> Response:
    queries = Queries(only_listed=True)
    queries.add_warning(errors)
    return _answer(queries)


# --- JSON of answers: keys and their order are NSQ's ------------------------------------------------------------------

_DELIVERY: Final = "zone_local_msg_count? region_local_msg_count? global_msg_count?"
_TOPIC: Final = (
    f"node hostname topic_name depth memory_depth backend_depth message_count delivery_msg_count {_DELIVERY}"
)
_CHANNEL: Final = (
    "node hostname topic_name channel_name depth memory_depth backend_depth in_flight_count deferred_count "
    f"requeue_count timeout_count message_count delivery_msg_count? {_DELIVERY} client_count"
)
_COUNTER: Final = "node topic_name channel_name message_count"
_CLIENT: Final = "node remote_address version client_id hostname user_agent connect_ts"
_CLIENT_REST: Final = (
    "in_flight_count ready_count finish_count requeue_count message_count sample_rate deflate snappy authed "
    "auth_identity auth_identity_url node_topology_region? node_topology_zone? topology_region? topology_zone? tls "
    "tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
)
_NODE: Final = "remote_address hostname broadcast_address tcp_port http_port version topology_zone? topology_region?"


def _topic(stats: TopicStats) -> dict[str, Any]:
    return {
        **picked(stats, _TOPIC),
        "nodes": [_topic(part) for part in stats.nodes] or None,
        "channels": _list(stats, [_channel(each) for each in stats.channels]),
        "paused": stats.paused,
        "e2e_processing_latency": _latency(stats),
    }


def _channel(stats: ChannelStats) -> dict[str, Any]:
    return {
        **picked(stats, _CHANNEL),
        "nodes": [_channel(part) for part in stats.nodes] or None,
        "clients": None if stats.clients is None else _list(stats, [_client(each) for each in stats.clients]),
        "paused": stats.paused,
        "e2e_processing_latency": _latency(stats),
    }


def _client(stats: ClientStats) -> dict[str, Any]:
    connected = (int(service().now()) - stats.connect_ts) * SECOND
    return {**picked(stats, _CLIENT), "connected": connected, **picked(stats, _CLIENT_REST)}


def _node(described: Node) -> dict[str, Any]:
    topics = [{"topic": name, "tombstoned": tombstoned} for name, tombstoned in described.topics.items()]
    return {
        "remote_addresses": described.remote_addresses or None,
        **picked(described, _NODE),
        "topics": topics or None,
        "out_of_date": described.out_of_date,
    }


def _latency(stats: Stats) -> dict[str, Any]:
    # nsqadmin: only a sum has the names of its topic and channel, and only a node has the value.
    is_sum = bool(stats.nodes)
    percentiles = [
        picked(each, "average count max min quantile") | ({} if is_sum else {"value": each.average})
        for each in stats.latency.percentiles or ()
    ]
    return {
        "count": stats.latency.count,
        "percentiles": None if stats.latency.percentiles is None else percentiles,
        "topic": stats.topic_name if is_sum else "",
        "channel": stats.channel_name if is_sum else "",
        "host": stats.node if is_sum else "",
    }


def _list(stats: Stats, values: list[Any]) -> list[Any] | None:
    """nsqadmin: an empty list is null in a sum, and [] on a node."""
    return values or (None if stats.nodes else [])


# --- JSON bodies of requests, parsed as Go's decoder does -------------------------------------------------------------


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
        return json.JSONDecoder().raw_decode(text)[0]
    except RecursionError:
        raise ApiError(400, "exceeded max depth") from None
    except json.JSONDecodeError as error:
        rest = text[error.pos :].lstrip(" \t\r\n")
        if not rest or any(word.startswith(rest) for word in ("true", "false", "null")):
            raise ApiError(400, "unexpected EOF") from None
        where = "object key string" if "property name" in error.msg else "value"
        raise ApiError(400, f"invalid character {rest[0]!r} looking for beginning of {where}") from None
    except ValueError:  # an integer of thousands of digits, which Python does not convert
        raise ApiError(400, "json: cannot unmarshal number") from None


def _kind(value: object) -> str:
    kinds = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "value")
