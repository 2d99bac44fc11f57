"""/render: Graphite's pictures through nsqadmin (`--proxy-graphite`), for browsers that cannot reach it."""

import base64
from typing import Final
from urllib.parse import urlsplit

from flask import Blueprint, Response, request

from nsq_compat.cluster.http_client import UpstreamError
from nsq_compat.web.admin.access import service
from nsq_compat.web.responses import ApiError

proxy = Blueprint("proxy", __name__)

# What a browser may be told is not Graphite's to decide: only pictures and JSON pass.
_PASSED: Final = ("image/", "application/json")


@proxy.get("/render")
def render() -> Response:
    options = service().options
    if not (options.proxy_graphite and options.graphite_url):
        raise ApiError(404, "NOT_FOUND")
    parts = urlsplit(options.graphite_url)
    host = f"{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    headers = {"X-Forwarded-For": request.remote_addr or ""}
    if parts.username is not None:
        pair = f"{parts.username}:{parts.password or ''}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
    query = request.query_string.decode("latin-1")
    try:
        status, kind, body = service().cluster.client.fetch(f"{parts.scheme}://{host}/render?{query}", headers)
    except UpstreamError as error:
        raise ApiError(502, f"UPSTREAM_ERROR: {error}") from None
    if not kind.startswith(_PASSED):
        kind = "text/plain; charset=utf-8"
    return Response(body, status, {"Content-Type": kind})
