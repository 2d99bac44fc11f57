"""A WSGI application as a handler of our HTTP server, which limits the sizes and durations of requests."""

import io
import logging
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.web.application import INTERNAL_ERROR, error, log_access

log = logging.getLogger(__name__)

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class WsgiHandler:
    """An HTTP handler that calls a WSGI application for paths below `base_path`."""

    def __init__(self, application: WsgiApplication, *, base_path: str, body_limit: int, too_large: Response) -> None:
        self._application = application
        self._base_path = base_path.rstrip("/")
        self._admission = Admission(body_limit, too_large)

    def admit(self, method: str, path: str) -> Admission:
        return self._admission

    def respond(self, request: Request) -> Response:
        began = time.monotonic_ns()
        response = self._respond(request)
        log_access(request, response.status, time.monotonic_ns() - began)
        return response

    def _respond(self, request: Request) -> Response:
        raw_path = request.target.partition(b"?")[0]
        path = unquote_to_bytes(raw_path).decode("latin-1")
        base = self._base_path
        if path != base and not path.startswith(base + "/"):
            return error(404, "NOT_FOUND")
        try:
            return self._call(_environ(request, base, path[len(base) :] or "/"))
        except Exception:
            log.exception("panic in HTTP handler - %s %r", request.method, request.target)
            return INTERNAL_ERROR

    def _call(self, environ: dict[str, Any]) -> Response:
        begun: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
            begun.append((status, headers))

        pieces = self._application(environ, start_response)
        try:
            body = b"".join(pieces)
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
        status, headers = begun[-1]
        number, _, reason = status.partition(" ")
        # The server adds these headers itself.
        kept = tuple((name, value) for name, value in headers if name.lower() not in ("content-length", "date"))
        return Response(int(number), body, kept, reason=reason.title())


def _environ(request: Request, base: str, path: str) -> dict[str, Any]:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
    host, _, port = headers.get("host", "").partition(":")
    peer, _, _ = request.remote_address.rpartition(":")
    return {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": base,
        "PATH_INFO": path,
        "QUERY_STRING": request.query.decode("latin-1"),
        "CONTENT_TYPE": headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(request.body)),
        "SERVER_NAME": host or "localhost",
        "SERVER_PORT": port or "80",
        "SERVER_PROTOCOL": f"HTTP/{request.version}",
        "REMOTE_ADDR": peer.strip("[]"),
        "nsqadmin.remote_address": request.remote_address,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        **{
            f"HTTP_{name.upper().replace('-', '_')}": value
            for name, value in headers.items()
            # A name with an underscore would collide with the same name with a dash.
            if name not in ("content-type", "content-length") and "_" not in name
        },
    }
