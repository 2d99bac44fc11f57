"""/config/<option>, /ping, /livez, /readyz and /metrics."""

import ipaddress
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from flask import Blueprint, Response, request

from nsq_compat.cluster import reading
from nsq_compat.cluster.history import History
from nsq_compat.cluster.reading import InvalidAnswer
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.api import v1
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import V1, ApiError
from nsq_compat.web.metrics import MetricsUnavailable

if TYPE_CHECKING:
    from prometheus_client.core import Metric

operations = Blueprint("operations", __name__)

_PLAIN: Final = "text/plain; charset=utf-8"
_MAX_VALUE_BYTES: Final = 1024 * 1024
_OF_NODES: Final = (
    *("nsqadmin_nodes", "nsqadmin_topics", "nsqadmin_channels", "nsqadmin_topic_depth", "nsqadmin_channel_depth"),
    "nsqadmin_in_flight",
)
"""Metrics that are not known if no node is."""


@operations.get("/config/<name>")
def show(name: str) -> Response:
    _check_address()
    try:
        value = service().config_value(name)
    except KeyError:
        raise ApiError(400, "INVALID_OPTION") from None
    # nsqadmin: strings are shown raw, everything else as JSON.
    if isinstance(value, str):
        return Response(value, 200, [("Content-Type", _PLAIN), V1])
    return v1(value)


@operations.put("/config/<name>")
def change(name: str) -> Response:
    _check_address()
    require(Role.ADMIN)
    body = request.get_data()
    if not 0 < len(body) <= _MAX_VALUE_BYTES:
        raise ApiError(413, "INVALID_VALUE")
    try:
        if name == "nsqlookupd_http_addresses":
            service().options.nsqlookupd_http_addresses = service().cluster.lookupds = _addresses(body)
        elif name == "log_level":
            service().set_log_level(body.decode("utf-8"))
        else:
            raise ApiError(400, "INVALID_OPTION")
    except (ValueError, InvalidAnswer):
        raise ApiError(400, "INVALID_VALUE") from None
    return show(name)


def _check_address() -> None:
    """Raises `ApiError` 403 for addresses outside `--allow-config-from-cidr`."""
    if cidr := service().options.allow_config_from_cidr:
        try:
            peer = ipaddress.ip_address(request.remote_addr or "")
        except ValueError:
            raise ApiError(400, "INVALID_REMOTE_ADDR") from None
        if peer not in ipaddress.ip_network(cidr, strict=False):
            raise ApiError(403, "FORBIDDEN")


def _addresses(body: bytes) -> tuple[str, ...]:
    value = reading.load(body)
    if value is not None and not (isinstance(value, list) and all(isinstance(address, str) for address in value)):
        raise ValueError("not a list of strings")
    if any("@" in address for address in value or ()):
        raise ValueError("an address with a user, whom pages would show")
    return tuple(value or ())


@operations.get("/ping")
@operations.get("/livez")
@operations.get("/readyz")
def live() -> Response:
    return Response("OK", content_type=_PLAIN)


@operations.get("/metrics")
def metrics() -> Response:
    try:
        page, content_type = service().metrics.page(request.headers.get("Accept", ""))
    except MetricsUnavailable as failure:
        return Response(str(failure), status=501, content_type=_PLAIN)
    return Response(page, content_type=content_type)


def collect(history: History) -> Iterable["Metric"]:
    """Sums over the newest snapshot, for one scrape. Empty before the first, and with ``--sample-interval=0s``.

    No metric has the name of a topic.
    """
    # prometheus_client is an extra.
    from prometheus_client.core import GaugeMetricFamily

    snapshot = history.latest
    if snapshot is None:
        return
    topics, unknown = snapshot.topics, not snapshot.is_known
    for name, help, value in (
        (
            "nsqadmin_last_sample_timestamp_seconds",
            "Time of the last sample of the cluster, Unix time.",
            snapshot.taken_at,
        ),
        ("nsqadmin_nodes", "Known nsqd nodes.", len(snapshot.nodes)),
        ("nsqadmin_nodes_silent", "Nodes that did not answer.", len(snapshot.unreachable)),
        ("nsqadmin_nodes_gone", "Nodes that vanished and were not dismissed.", len(history.sightings.gone())),
        ("nsqadmin_errors", "Errors of the last sample.", len(snapshot.errors)),
        ("nsqadmin_topics", "Topics.", len(topics)),
        ("nsqadmin_channels", "Channels.", sum(len(topic.channels) for topic in topics)),
        ("nsqadmin_topic_depth", "Messages not yet copied to a channel.", sum(topic.depth for topic in topics)),
        ("nsqadmin_channel_depth", "Messages waiting for a consumer.", sum(topic.total("depth") for topic in topics)),
        ("nsqadmin_in_flight", "Messages in flight.", sum(topic.total("in_flight_count") for topic in topics)),
    ):
        # Nothing is 0 because no daemon answered.
        yield GaugeMetricFamily(name, help, value=math.nan if unknown and name in _OF_NODES else float(value))
