"""Graphs that Graphite draws from nsqd's statsd metrics: targets, URLs, and /render, which fetches them for browsers.

Keys are those that nsqd sends (`--statsd-prefix`), as statsd and Graphite wrap them (`--statsd-*-format`).
"""

import base64
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlencode, urlsplit

from flask import Blueprint, Response, request

from nsq_compat.cluster import reading
from nsq_compat.cluster.reading import InvalidAnswer, UpstreamError
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.errors import without_user
from nsq_compat.web.admin.access import AdminService, service
from nsq_compat.web.application import ApiError

log = logging.getLogger(__name__)

TIMEFRAMES: Final = ("1h", "2h", "12h", "24h", "48h", "168h", "off")
DEFAULT_TIMEFRAME: Final = "2h"
_COUNTERS: Final = frozenset({"requeue_count", "timeout_count", "message_count", "gc_runs"})
_SPARKLINE: Final = (
    "height=20&width=120&hideGrid=true&hideLegend=true&hideAxes=true&bgcolor=ff000000&fgcolor=black&margin=0&yMin=0"
    "&lineMode=connected&drawNullAsZero=false"
)
_LARGE: Final = "height=450&width=800&bgcolor=ff000000&fgcolor=999999&yMin=0&lineMode=connected&drawNullAsZero=false"

_RATE_BYTES: Final = 64 * 1024
"""Of Graphite's answer with a rate. A visitor names the target, and parsing the series of all nodes takes seconds."""


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    sparkline: str
    large: str


class Graphite:
    def __init__(self, service: AdminService) -> None:
        self._service = service
        self._options = service.options
        self._interval = max(1, service.options.statsd_interval // SECOND)
        self.enabled = bool(self._options.graphite_url)

    @property
    def origin(self) -> str:
        """The origin of graphs for the content security policy; empty if they come from nsqadmin."""
        if not self.enabled or self._options.proxy_graphite:
            return ""
        return _origin(urlsplit(self._options.graphite_url))

    def target(self, metric: str, topic: str = "", channel: str = "") -> str:
        """The sum of a metric of a topic or channel; "counter" is the sum of the messages of all channels."""
        if metric == "counter":
            metric, key = "message_count", "topic.*.channel.*.message_count"
        else:
            path = f"topic.{_key(topic)}" + (f".channel.{_key(channel)}" if channel else "")
            key = f"{path}.{metric}"
        return f"sumSeries({self._wrapped(metric, '*', key)})"

    def memory_target(self, metric: str, node: str) -> str:
        return self._wrapped(metric, node, f"mem.{metric}")

    def picture(self, title: str, metric: str, targets: Sequence[str], timeframe: str) -> Picture:
        colours = {"depth": "red", "deferred_count": "red", "counter": "green"}.get(metric, "blue")
        if len(targets) > 1:
            colours = "red,green,blue,purple"
        span = {"colorList": colours, "from": f"-{timeframe}", "until": "-1min"}
        small = [f'summarize({target},"{self._interval}sec","avg")' for target in targets]
        rate = metric in _COUNTERS or metric == "counter"
        large = [f"scale({target},{1 / self._interval:g})" if rate else target for target in small]
        return Picture(title, self._render(_SPARKLINE, span, small), self._render(_LARGE, span, large))

    def rate(self, target: str) -> str:
        """Messages a second, two decimals, or N/A. Raises `ApiError`."""
        parameters = {"format": "json", "from": f"-{2 * self._interval}sec", "target": target}
        parameters["until"] = f"-{self._interval}sec"
        # The target of a request may have bytes that are not UTF-8.
        url = f"{self._options.graphite_url}/render?{urlencode(parameters, errors='surrogateescape')}"
        log.info("GRAPHITE: rate of %s", target)
        try:
            status, _, body, _ = self._service.cluster.client.exchange("GET", url, cut_at=_RATE_BYTES)
            if status != 200:
                raise UpstreamError(f"got response {status}")
            value = _first_datapoint(body)
        except UpstreamError as error:
            log.error("graphite request failed - %s", error)
            raise ApiError(500, "INTERNAL_ERROR") from None
        return "N/A" if value < 0 else f"{value / self._interval:.2f}"

    def _render(self, form: str, span: Mapping[str, str], targets: Sequence[str]) -> str:
        query = f"{form}&{urlencode(span)}&{urlencode([('target', target) for target in targets])}"
        # nsqadmin: its /render is not below the base path. Ours is.
        # A page does not show user and password, with which browsers load no pictures anyway.
        shown = without_user(self._options.graphite_url)
        base = self._options.base_path.rstrip("/") if self._options.proxy_graphite else shown
        return f"{base}/render?{query}"

    def _wrapped(self, metric: str, node: str, key: str) -> str:
        prefix = self._options.statsd_prefix.replace("%s", re.sub(r"[.:]", "_", node)) + "."
        counter = metric in _COUNTERS
        wrapper = self._options.statsd_counter_format if counter else self._options.statsd_gauge_format
        return wrapper.replace("%s", prefix + key)


def _origin(url: SplitResult) -> str:
    """Scheme, host and port, without user and password."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def _first_datapoint(body: bytes) -> float:
    series = reading.array(reading.mapping, reading.load(body))
    points = reading.array(lambda point: point, series[0].get("datapoints")) if series else []
    first = points[0] if points else None
    if not isinstance(first, list) or not first or first[0] is None:
        raise InvalidAnswer("no datapoint")
    return reading.number(first[0])


def _key(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_.-]", "", name.replace(" ", "_").replace("/", "-"))


# --- /render ----------------------------------------------------------------------------------------------------------

proxy = Blueprint("proxy", __name__)

_TRUSTED_TYPES: Final = ("image/", "application/json")
"""Content types that are passed on. Graphite must not send the browser anything else from our origin."""
_POLICY: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The scripts of a picture in SVG, which may contain what a URL of /render says, must not run in our origin."""


@proxy.get("/render")
def render() -> Response:
    options = service().options
    if not (options.proxy_graphite and options.graphite_url):
        raise ApiError(404, "NOT_FOUND")
    parts = urlsplit(options.graphite_url)
    headers = {"X-Forwarded-For": request.remote_addr or ""}
    if parts.username is not None:
        pair = f"{parts.username}:{parts.password or ''}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
    url = f"{_origin(parts)}/render?{request.query_string.decode('latin-1')}"
    try:
        status, kind, body, _ = service().cluster.client.exchange("GET", url, headers=headers)
    except UpstreamError as error:
        raise ApiError(502, f"UPSTREAM_ERROR: {error}") from None
    if not kind.startswith(_TRUSTED_TYPES):
        kind = "text/plain; charset=utf-8"
    return Response(body, status, {"Content-Type": kind, "Content-Security-Policy": _POLICY})
