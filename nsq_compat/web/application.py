"""An HTTP API as the server sees it: dispatch by a table of routes, one place for errors, the access log."""

import logging
import time
from typing import Final

from nsq_compat.protocol.durations import format_duration
from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.web.responses import JSON, V1, ApiError, error
from nsq_compat.web.routing import IGNORED_BODY_LIMIT, Answer, Router, Routes

log = logging.getLogger(__name__)

INTERNAL_ERROR: Final = error(500, "INTERNAL_ERROR")
# nsqd: what the router answers by itself is logged only when it is a refusal.
_LOGGED_UNMATCHED: Final = frozenset({404, 405})


class Application:
    """A handler for `HttpServer` made of routes."""

    def __init__(self, routes: Routes) -> None:
        self._router = Router(routes)

    def admit(self, method: str, path: str) -> Admission:
        route = self._router.methods(path).get(method)
        if route is not None:
            return route.admission
        return Admission(IGNORED_BODY_LIMIT, self._router.unmatched(method, path, b""))

    def respond(self, request: Request) -> Response:
        route = self._router.methods(request.path).get(request.method)
        if route is not None and not route.logged:
            return _answered(request, route.answer)
        began = time.monotonic_ns()
        if route is None:
            response = self._router.unmatched(request.method, request.path, request.query)
            if response.status not in _LOGGED_UNMATCHED:
                return response
        else:
            response = _answered(request, route.answer)
        log_access(request, response.status, time.monotonic_ns() - began)
        return response

    __call__ = respond


class TlsRequired:
    """Stands before an application on the plain port while TLS is required: nothing else is said there."""

    def __init__(self, https_port: int) -> None:
        # nsqd: written by hand, with blanks, and read by nsqadmin and nsq_stat.
        body = f'{{"message": "TLS_REQUIRED", "https_port": {https_port}}}'
        self._response = Response(403, body.encode("ascii"), (JSON, V1))

    def admit(self, method: str, path: str) -> Admission:
        return Admission(IGNORED_BODY_LIMIT, self._response)

    def respond(self, request: Request) -> Response:
        return self._response


def _answered(request: Request, answer: Answer) -> Response:
    try:
        return answer(request)
    except ApiError as refusal:
        return error(refusal.status, refusal.code)
    except Exception:
        log.exception("panic in HTTP handler - %s %r", request.method, request.target)
        return INTERNAL_ERROR


def log_access(request: Request, status: int, elapsed_ns: int) -> None:
    target = request.target.decode("ascii", errors="backslashreplace")
    elapsed = format_duration(elapsed_ns)
    log.info("%d %s %s (%s) %s", status, request.method, target, request.remote_address, elapsed)
