"""Everything that changes the cluster: checks, the action itself, the notification, the audit log.

The API and the forms of the pages both use it, so that neither omits a step.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from flask import Response, flash, g, redirect, request

from nsq_compat.cluster import peek, topic_log
from nsq_compat.cluster.cluster import Cluster, Errors
from nsq_compat.cluster.http_client import AllFailed, Answer, call_all, named
from nsq_compat.cluster.nodes import canonical_address
from nsq_compat.protocol.durations import SECOND, parse_duration
from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.names import EPHEMERAL_SUFFIX, MAX_NAME_LENGTH, is_valid_name
from nsq_compat.web.admin.access import audited, basic_credentials, check_form, require, service, visitor
from nsq_compat.web.admin.formatting import clock, count_of
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

log = logging.getLogger(__name__)

CHANGES: Final = {"pause": Role.OPERATOR, "unpause": Role.OPERATOR, "empty": Role.ADMIN}
"""Actions of `change`, and the roles that they require."""
NAMING_RULE: Final = (
    f"A name has 1 to {MAX_NAME_LENGTH} letters (A to Z, a to z), digits, dots, dashes and underscores, and may end in "
    f"{EPHEMERAL_SUFFIX}."
)
_EXPLANATIONS: Final[Mapping[str | int, str]] = {
    "CHANNEL_NOT_FOUND": "No node has a channel {channel} of the topic {topic}.",
    "INVALID_CHANNEL": f"This is not a valid name of a channel. {NAMING_RULE}",
    "INVALID_DEFER": "The delay is a number of seconds, with up to three decimals.",
    "INVALID_NODE": "Choose a node of the cluster.",
    "INVALID_TOPIC": f"This is not a valid name of a topic. {NAMING_RULE}",
    "MIRROR_NOT_FOUND": (
        "The node {node} has no copy to take over now: the primary is connected, or its topics were taken over before."
    ),
    "MSG_EMPTY": "A message needs a body. Nothing was published.",
    "MSG_TOO_BIG": "nsqadmin publishes messages of up to 1 MiB. Nothing was published.",
    "NO_NODE_HAS_TOPIC": "Only nsqlookupd knows the topic {topic}. No nsqd has it, so it has no messages.",
    "OFFSET_OF_ONE_NODE": "An offset is the number of a message on one node. Choose one node, or enter a time.",
    "NODE_NOT_FOUND": "The cluster has no node {node}.",
    "TOPIC_NOT_FOUND": "The cluster has no topic {topic}.",
    400: "nsqadmin does not understand this request.",
    404: "This page does not exist.",
    405: "This address performs an action, and has no page. Go back and use the button there.",
    429: "Too many wrong passwords. Wait a minute and try again.",
    500: "nsqadmin could not make this page. The reason is in its log.",
    502: "No part of the cluster answered.",
}
_MAX_BODY_BYTES: Final = 1024 * 1024
_IDENTITY: Final = re.compile("[0-9a-f]{32}")
_CLIENT: Final = re.compile("[!-~]{1,100}")
"""The address of a client, which may be a unix socket's."""
_DELAY: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?", re.ASCII)
MAY_BE_DONE: Final = "What timed out may still be done when the daemon answers again."
_MAX_ERRORS_SHOWN: Final = 5
_MAX_IDS_AUDITED: Final = 50
_MAX_IDS_SHOWN: Final = 5
_DONE_TO_MESSAGES: Final = {"finish": "finished", "requeue": "requeued", "dead_letter": "moved"}
_MAX_ERROR_LENGTH: Final = 200
_LEFT_OUT: Final = ("topic", "channel", "node", "user")
"""Fields of a notification that are left out if they are empty."""


def create(topic: str, channel: str, node: str = "") -> Errors:
    _check_names(topic, channel)
    node = _known(node)
    errors = _cluster().create(topic, channel, node)
    _notify("create_topic", topic, node=node, errors=errors)
    if channel:
        _notify("create_channel", topic, channel, node=node, errors=errors)
    return errors


def create_on(nodes: Sequence[str], topic: str, channel: str, begin: str = "") -> Answer[list[str]]:
    """As `create`, also on these nodes; `value` has the nodes that did. The channel begins at the place `begin`."""
    _check_names(topic, channel)
    begin = place(begin, nodes) if channel else ""
    known = _known_all(nodes)
    answer = _cluster().create_on(known, topic, channel, begin)
    for node in known or [""]:
        errors = tuple(each for each in answer.errors if getattr(each, "daemon", "") not in {*known} - {node})
        _notify("create_topic", topic, node=node, errors=errors)
        if channel:
            _notify("create_channel", topic, channel, node=node, errors=errors, **({"from": begin} if begin else {}))
    return answer


def rewind(
    nodes: Sequence[str], topic: str, channel: str, to: str, *, drops_pending: bool = False
) -> list[topic_log.Moved]:
    """Move a channel on these nodes to a place in their logs."""
    _check_names(topic, channel)
    to = place(to, nodes)
    known = _known_all(nodes)
    moved = topic_log.rewind(_cluster().client, known, topic, channel, to, drops_pending=drops_pending)
    errors = tuple(f"{each.node}: {each.error}" for each in moved if each.error)
    details = {"to": to} | ({"drop_pending": "true"} if drops_pending else {})
    _notify("rewind_channel", topic, channel, known[0] if len(known) == 1 else "", errors, **details)
    return moved


def place(when: str, nodes: Sequence[str]) -> str:
    """A place in a log, with the time instead of a duration ago, so that it does not move.

    Raises `ApiError` 400 for an offset on several nodes.
    """
    if when.isdigit():
        if len(nodes) > 1:
            raise ApiError(400, "OFFSET_OF_ONE_NODE")
        return when  # also 0, which is a duration too
    with suppress(ValueError):
        if not when.startswith(("+", "-")):
            return clock(service().now() - parse_duration(when) / SECOND)
    return when


def change(action: str, topic: str, channel: str = "", node: str = "") -> Errors:
    name = f"{action}_{'channel' if channel else 'topic'}"
    node = _known(node)
    try:
        errors = _cluster().change(action, topic, channel, node)
    except AllFailed as failure:
        # nsqadmin: sends the notification even if no daemon answered.
        _notify(name, topic, channel, node, (str(failure),))
        raise
    _notify(name, topic, channel, node, errors)
    return errors


def delete(topic: str, channel: str = "") -> Errors:
    errors = _cluster().delete(topic, channel)
    _notify("delete_channel" if channel else "delete_topic", topic, channel, errors=errors)
    return errors


def tombstone(topic: str, node: str) -> Errors:
    _check_names(topic)
    node = _known(node)
    errors = _cluster().tombstone(topic, node)
    _notify("tombstone_topic_producer", topic, node=node, errors=errors)
    return errors


def close_client(node: str, topic: str, channel: str, address: str) -> Errors:
    """Close the connection of a consumer; its client library connects again unless it is stopped."""
    _check_names(topic, channel)
    node = _known(node)
    if not node:
        raise ApiError(400, "INVALID_NODE")
    if not _CLIENT.fullmatch(address):
        raise ApiError(400, "INVALID_ADDRESS")
    errors = _cluster().close_client(node, topic, channel, address)
    _notify("close_client", topic, channel, node, errors, address=address)
    return errors


def adopt(node: str, identity: str) -> Errors:
    """Let a standby take over the topics of a primary; flashes how many."""
    if not _IDENTITY.fullmatch(identity):
        raise ApiError(400, "INVALID_IDENTITY")
    node = _known(node)
    answer = _cluster().adopt(node, identity)
    _notify("adopt_mirror", "", node=node, errors=answer.errors, identity=identity)
    if not answer.errors:
        flash(f"{node} has taken over {count_of(len(answer.value), 'topic')}.", "done")
    return answer.errors


def dismiss(node: str) -> Errors:
    """Forget a node that is gone. Raises `ApiError` 404 if it is not."""
    if not service().history.sightings.dismiss(node):
        raise ApiError(404, "NODE_NOT_FOUND")
    _audit("dismiss_node", "", "", node, ())
    return ()


def dismiss_losses(kind: str, topic: str, channel: str) -> Errors:
    """Hide the alert of refused or dropped messages. Raises `ApiError` 404 if there are none."""
    if not service().history.dismiss_losses(kind, (topic, channel)):
        raise ApiError(404, "CHANNEL_NOT_FOUND" if channel else "TOPIC_NOT_FOUND")
    _audit(f"dismiss_{kind}", topic, channel, "", ())
    return ()


def publish(topic: str, node: str, body: bytes, delay: str) -> Errors:
    """`delay` is a number of seconds, or empty."""
    _check_names(topic)
    node = _known(node)
    if not node:
        raise ApiError(400, "INVALID_NODE")
    if not 0 < len(body) <= _MAX_BODY_BYTES:
        raise ApiError(400, "MSG_EMPTY" if not body else "MSG_TOO_BIG")
    if delay and not _DELAY.fullmatch(delay):
        raise ApiError(400, "INVALID_DEFER")
    errors = _cluster().publish(node, topic, body, round(1000 * float(delay or 0)))
    _audit("publish", topic, "", node, errors)
    return errors


def act_on_messages(
    action: str, topic: str, channel: str, chosen: Mapping[str, Sequence[str]], delay_ms: int
) -> Errors:
    """Perform an action of `peek.DONE` on messages by node and id; flashes what was done."""
    _check_names(topic, channel)
    client = _cluster().client
    by_node = dict(zip(_known_all(list(chosen)), chosen.values(), strict=True))

    def act(node: str) -> peek.Outcome:
        return peek.act_on_messages(client, node, action, topic, channel, by_node[node], delay_ms)

    answer = call_all(list(by_node), act, client.timeout)
    outcomes = dict(answer.value)
    failures = dict(zip(answer.unreachable, answer.errors, strict=True))
    errors: Errors = ()
    for known, ids in by_node.items():
        outcome = outcomes.get(known)
        if outcome is None:
            failed: Errors = (failures[known],)
        else:
            failed = tuple(_left(known, action, outcome))
            if outcome.done:
                to = f" to {outcome.topic}" if outcome.topic else ""
                flash(f"{known}: {_DONE_TO_MESSAGES[action]} {count_of(outcome.done, 'message')}{to}.", "done")
        named = " ".join(map(audited, ids[:_MAX_IDS_AUDITED])) + (" ..." if len(ids) > _MAX_IDS_AUDITED else "")
        _audit(f"{action} {count_of(len(ids), 'message')} ({named})", topic, channel, known, failed)
        errors += failed
    return errors


def _left(node: str, action: str, outcome: peek.Outcome) -> Iterator[str]:
    if outcome.not_found and not outcome.error:
        number = count_of(len(outcome.not_found), "message")
        yield f"{node}: {number} had left the channel: {' '.join(outcome.not_found[:_MAX_IDS_SHOWN])}"
    if outcome.pending:
        yield f"{node}: {count_of(len(outcome.pending), 'message')} will be moved when {outcome.topic} accepts them"
    if outcome.error:
        yield f"{node}: {action}: {outcome.error}"


def put_policies(nodes: Sequence[str], written: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    """Put policies into force on nodes, until they read their config files again; returns an error for each, or ""."""
    known = _known_all(nodes)
    body, client = dumps(list(written)).encode("utf-8"), _cluster().client
    answer = call_all(known, lambda node: client.put(node, "config/policies", body), client.timeout)
    errors = dict.fromkeys(known, "") | dict(zip(answer.unreachable, answer.errors, strict=True))
    number = "1 policy" if len(written) == 1 else f"{len(written)} policies"
    for node, error in errors.items():
        _audit(f"put_policies {number} {dumps(list(written))}", "-", "", node, (error,) if error else ())
    return {node: error.removeprefix(f"{node}: ") for node, error in errors.items()}


def audit_redrive(what: str, topic: str, channel: str, to: str, errors: Errors = ()) -> None:
    _audit(f"redrive to {to} {what}", topic, channel, "", errors)


def explanation(failure: ApiError, *, topic: str = "", channel: str = "", node: str = "") -> str:
    """What an error means, as a sentence; empty if its code says nothing more."""
    text = _EXPLANATIONS.get(failure.code) or _EXPLANATIONS.get(failure.status, "")
    return text.format(topic=topic, channel=channel, node=node)


# --- Forms of the pages -----------------------------------------------------------------------------------------------


def perform(action: Callable[[], Errors], done: str, next_url: str, role: Role = Role.OPERATOR) -> Response:
    """Check the form and the role, perform the action, and redirect to `next_url`, which shows the outcome."""
    check_form()
    require(role)
    try:
        errors = action()
    except AllFailed as failure:
        errors = (failure.named,)
    return show_outcome("" if errors else done, errors, next_url)


def show_outcome(done: str, errors: Errors, next_url: str) -> Response:
    """Redirect to a page that shows what was done, and what failed."""
    if done:
        flash(done, "done")
    # The outcome is stored in a cookie of limited size.
    texts = list(dict.fromkeys(map(named, errors)))
    for text in texts[:_MAX_ERRORS_SHOWN]:
        flash(text[:_MAX_ERROR_LENGTH], "error")
    if len(texts) > _MAX_ERRORS_SHOWN:
        flash(f"and {len(texts) - _MAX_ERRORS_SHOWN} more errors", "error")
    if any(text.endswith(": timeout") for text in texts):
        flash(MAY_BE_DONE, "error")
    return redirect(next_url, 303)  # type: ignore[return-value]


# --- Checks, notification, audit log ----------------------------------------------------------------------------------


def _check_names(topic: str, channel: str = "") -> None:
    if not is_valid_name(topic):
        raise ApiError(400, "INVALID_TOPIC")
    if channel and not is_valid_name(channel):
        raise ApiError(400, "INVALID_CHANNEL")


def _cluster() -> Cluster:
    """The cluster for all requests of one action: they end within `--http-client-request-timeout` together."""
    if "cluster" not in g:
        g.cluster = service().cluster.within(service().cluster.client.timeout)
    found: Cluster = g.cluster
    return found


def _known(node: str) -> str:
    """The node as the cluster spells it. Raises `ApiError` for other addresses, which must not receive requests."""
    if not node:
        return ""
    if canonical_address(node) is None:
        raise ApiError(400, "INVALID_NODE")
    known = _cluster().known_address(node)
    if known is None:
        raise ApiError(404, "NODE_NOT_FOUND")
    return known


def _known_all(nodes: Sequence[str]) -> list[str]:
    """As `_known`, with one query for all nodes, of which there may be hundreds, and none of them empty."""
    if "" in nodes:
        raise ApiError(400, "INVALID_NODE")
    asks = len(nodes) > 1 and _cluster().lookupds
    listed = {node.http_address for node in _cluster().nodes().value} if asks else ()
    return [node if node in listed else _known(node) for node in nodes]


def _notify(action: str, topic: str, channel: str = "", node: str = "", errors: Errors = (), **details: str) -> None:
    """`details` are what else the action was told."""
    told_besides = (f"{name}={audited(value)}" for name, value in details.items())
    _audit(" ".join([action, *told_besides]), topic, channel, node, errors)
    secure = request.is_secure or request.headers.get("X-Scheme") == "https"
    query = request.query_string.decode("latin-1")
    url = f"{'https' if secure else 'http'}://{request.host}{quote(request.script_root + request.path)}"
    # nsqadmin: only the user of HTTP Basic, whose password is checked only if there is a user file.
    user = visitor().name or basic_credentials()[0]
    told = {
        "action": action,
        "topic": topic,
        "channel": channel,
        "node": node,
        "timestamp": int(service().now()),
        "user": user,
        "remote_ip": request.environ.get("nsqadmin.remote_address", request.remote_addr or ""),
        "user_agent": request.headers.get("User-Agent", ""),
        "url": url + (f"?{query}" if query else ""),
        "via": os.uname().nodename,
        **details,
    }
    service().notify({key: value for key, value in told.items() if value or key not in _LEFT_OUT})


def _audit(action: str, topic: str, channel: str, node: str, errors: Errors) -> None:
    service().history.changed_at = service().now()
    user, address = visitor(), request.environ.get("nsqadmin.remote_address", "")
    target = "/".join(map(audited, filter(None, (topic, channel))))
    outcome = f"failed at {len(errors)}: {'; '.join(map(named, errors))}" if errors else "done"
    what = " ".join(filter(None, (action, target, f"at {node}" if node else "")))
    log.info("AUDIT: %s (%s) %s: %s", user, address, what, outcome)
