"""/metrics, /livez and /readyz of nsqadmin."""

from flask import Blueprint, Response, request

from nsq_compat.web.admin.access import service
from nsq_compat.web.metrics import NoFigures

_PLAIN = "text/plain; charset=utf-8"

monitoring = Blueprint("monitoring", __name__)


@monitoring.get("/metrics")
def metrics() -> Response:
    try:
        page, content_type = service().metrics.page(request.headers.get("Accept", ""))
    except NoFigures as failure:
        return Response(str(failure), status=501, content_type=_PLAIN)
    return Response(page, content_type=content_type)


@monitoring.get("/livez")
def live() -> Response:
    return Response("OK", content_type=_PLAIN)


@monitoring.get("/readyz")
def ready() -> Response:
    return live()
