"""Everything that changes the cluster goes through here: allowed, done, told to the notification endpoint, and logged.

Both the API and the forms of the pages come here, so that neither can forget a step.
"""

import logging
from typing import Final
from urllib.parse import quote

from flask import request

from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.cluster.nodes import is_address
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.web.admin.access import basic_credentials, require, service, visitor
from nsq_compat.web.admin.users import Role
from nsq_compat.web.responses import ApiError

log = logging.getLogger(__name__)

Errors = tuple[str, ...]

CHANGES: Final = {"pause": Role.OPERATOR, "unpause": Role.OPERATOR, "empty": Role.ADMIN}
"""What one may ask for by name of a topic or channel, and what one must be."""
_LONGEST_BODY: Final = 1024 * 1024


def create(topic: str, channel: str, node: str = "") -> Errors:
    _check_names(topic, channel)
    node = _known(node)
    steering = service().steering
    errors = steering.create_on([node], topic, channel) if node else steering.create(topic, channel)
    _tell("create_topic", topic, node=node, errors=errors)
    if channel:
        _tell("create_channel", topic, channel, node=node, errors=errors)
    return errors


def change(action: str, topic: str, channel: str = "", node: str = "") -> Errors:
    name = f"{action}_{'channel' if channel else 'topic'}"
    node = _known(node)
    try:
        errors = service().steering.change(action, topic, channel, node)
    except AllFailed as failure:
        # nsqadmin: tried is told, even when nobody could be reached.
        _tell(name, topic, channel, node, (str(failure),))
        raise
    _tell(name, topic, channel, node, errors)
    return errors


def delete(topic: str, channel: str = "") -> Errors:
    errors = service().steering.delete(topic, channel)
    _tell("delete_channel" if channel else "delete_topic", topic, channel, errors=errors)
    return errors


def tombstone(topic: str, node: str) -> Errors:
    if not is_valid_name(topic):
        raise ApiError(400, "INVALID_TOPIC")
    node = _known(node)
    errors = service().steering.tombstone(topic, node)
    _tell("tombstone_topic_producer", topic, node=node, errors=errors)
    return errors


def publish(topic: str, node: str, body: bytes, defer_ms: int) -> Errors:
    require(Role.OPERATOR)
    _check_names(topic, "")
    node = _known(node)
    if not node:
        raise ApiError(400, "INVALID_NODE")
    if not 0 < len(body) <= _LONGEST_BODY:
        raise ApiError(400, "MSG_EMPTY" if not body else "MSG_TOO_BIG")
    errors = service().steering.publish(node, topic, body, defer_ms)
    _log("publish", topic, "", node, errors)
    return errors


def _check_names(topic: str, channel: str) -> None:
    if not is_valid_name(topic):
        raise ApiError(400, "INVALID_TOPIC")
    if channel and not is_valid_name(channel):
        raise ApiError(400, "INVALID_CHANNEL")


def _known(node: str) -> str:
    """The node as the cluster spells it, so that no request goes where the cluster has no node; "" is no node."""
    if not node:
        return ""
    if not is_address(node):
        raise ApiError(400, "INVALID_NODE")
    known = service().cluster.known_address(node)
    if known is None:
        raise ApiError(404, "NODE_NOT_FOUND")
    return known


def _tell(action: str, topic: str, channel: str = "", node: str = "", errors: Errors = ()) -> None:
    _log(action, topic, channel, node, errors)
    secure = request.is_secure or request.headers.get("X-Scheme") == "https"
    query = request.query_string.decode("latin-1")
    url = f"{'https' if secure else 'http'}://{request.host}{quote(request.script_root + request.path)}"
    # nsqadmin: the user of HTTP Basic only; ours are known otherwise too.
    user = (basic_credentials(request) or ("", ""))[0] or visitor().name
    optional = {"channel": channel, "node": node}
    service().notify(
        {
            "action": action,
            "topic": topic,
            **{name: value for name, value in optional.items() if value},
            "timestamp": int(service().now()),
            **({"user": user} if user else {}),
            "remote_ip": request.environ.get("nsqadmin.remote_address", request.remote_addr or ""),
            "user_agent": request.headers.get("User-Agent", ""),
            "url": url + (f"?{query}" if query else ""),
            "via": service().hostname,
        }
    )


def _log(action: str, topic: str, channel: str, node: str, errors: Errors) -> None:
    who, where = visitor().name or "anybody", request.environ.get("nsqadmin.remote_address", "")
    what = f"{topic}/{channel}" if channel else topic
    outcome = f"failed at {len(errors)}: {'; '.join(errors)}" if errors else "done"
    log.info("AUDIT: %s (%s) %s %s%s: %s", who, where, action, what, f" at {node}" if node else "", outcome)
