"""The Flask application: blueprints, errors, headers, compression, static files; and its handler for our server."""

import io
import logging
import mimetypes
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from flask import Blueprint, Flask, Request, Response, current_app, render_template, request
from flask.sessions import SecureCookieSession, SecureCookieSessionInterface
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import MapAdapter
from werkzeug.test import run_wsgi_app

import nsq_compat
from nsq_compat.cluster.http_client import AllFailed, named
from nsq_compat.protocol.errors import target_without_secrets
from nsq_compat.session.http_message import Admission
from nsq_compat.session.http_message import Request as HttpRequest
from nsq_compat.session.http_message import Response as HttpResponse
from nsq_compat.web.admin import access
from nsq_compat.web.admin.access import AdminService, login, service
from nsq_compat.web.admin.actions import explanation
from nsq_compat.web.admin.api import api, v1
from nsq_compat.web.admin.cluster import cluster, nodes
from nsq_compat.web.admin.documents import documents
from nsq_compat.web.admin.formatting import FILTERS
from nsq_compat.web.admin.graphite import TIMEFRAMES, Graphite, proxy
from nsq_compat.web.admin.messages import Redrives, messages
from nsq_compat.web.admin.operations import operations
from nsq_compat.web.admin.policies import policies
from nsq_compat.web.admin.request_queue import RequestQueue
from nsq_compat.web.admin.tables import address, wants_day, wants_whole_peaks
from nsq_compat.web.admin.topics import topics
from nsq_compat.web.application import INTERNAL_ERROR, ApiError, cooperatively, error, log_access, moved

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 1024 * 1024 + 64 * 1024
_TOO_LARGE: Final = error(413, "INVALID_VALUE")
_FORM_SECONDS: Final = 31 * 24 * 3600.0
"""How long a form of an open page can be sent."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_PACKED_AT_ONCE: Final = 256 * 1024
"""Bytes, which take some milliseconds."""
_PACKAGE: Final = Path(nsq_compat.__file__).parent


class _Cookies(SecureCookieSessionInterface):
    """Signs with the present key, and marks cookies as secure for browsers that use HTTPS, as the proxy tells."""

    def open_session(self, app: Flask, request: Request) -> SecureCookieSession | None:
        app.secret_key = app.extensions["nsqadmin"].sessions.key
        return super().open_session(app, request)

    def get_cookie_secure(self, app: Flask) -> bool:
        return access.scheme() == "https"


def create_app(program: AdminService) -> Flask:
    app = Flask("nsqadmin", template_folder=str(_PACKAGE / "templates"), static_folder=None)
    app.extensions["nsqadmin"] = program
    app.extensions["redrives"] = Redrives()
    app.extensions["requests"] = RequestQueue()
    app.session_interface = _Cookies()
    app.permanent_session_lifetime = timedelta(seconds=max(_FORM_SECONDS, program.sessions.timeout))
    app.config.update(
        SESSION_COOKIE_NAME="nsqadmin",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_COOKIE_PATH=program.options.base_path or "/",
    )
    app.url_map.merge_slashes = False
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(FILTERS, named=named)
    app.jinja_env.globals["address"] = address
    for blueprint in (cluster, topics, messages, nodes, policies, login, assets, operations, documents, proxy):
        app.register_blueprint(blueprint)
    app.register_blueprint(api, url_prefix="/api")
    app.before_request(_answer_options)
    app.before_request(access.check)
    app.teardown_request(access.leave_queue)
    app.after_request(_finish)
    app.context_processor(_template_variables)
    app.register_error_handler(ApiError, _error_response)
    app.register_error_handler(AllFailed, _upstream_error_response)
    app.register_error_handler(HTTPException, _http_error_response)
    return app


def body_limit(app: Flask, environ: dict[str, Any]) -> int:
    """Bytes. Many visitors without a login could otherwise use up the memory with bodies that they do not complete."""
    with app.request_context(environ):
        return MAX_BODY_BYTES if access.may_change() else access.FORM_BYTES


def _template_variables() -> dict[str, object]:
    return {
        "visitor": access.visitor(),
        "csrf_token": access.csrf_token,
        "version": nsq_compat.__version__,
        "nsq_version": nsq_compat.NSQ_VERSION,
        "login_used": access.login_is_used(),
        "graphite": Graphite(service()),
        "timeframes": TIMEFRAMES,
        "day": wants_day(),
        "whole_peaks": wants_whole_peaks(),
        "now": service().now(),
        "sampled": service().history.latest is not None,
    }


# --- Errors -----------------------------------------------------------------------------------------------------------


def _answer_options() -> Response | None:
    if request.method != "OPTIONS" or request.url_rule is None:
        return None
    response = Response("", 200, {"Allow": _allowed(_adapter().allowed_methods())})
    del response.headers["Content-Type"]
    return response


def _allowed(methods: Iterable[str]) -> str:
    # nsqadmin: without HEAD, always with OPTIONS.
    return ", ".join(sorted({*methods, "OPTIONS"} - {"HEAD"}))


def _error_response(failure: ApiError) -> Response:
    if _wants_json():
        response = v1({"message": failure.code}, failure.status)
    else:
        text = failure.explanation or _explanation(failure)
        page = render_template("error.html", status=failure.status, code=failure.code, text=text)
        response = Response(page, failure.status)
    response.headers.extend(failure.headers)
    return response


def _upstream_error_response(failure: AllFailed) -> Response:
    # NSQ's API does not name the daemons.
    return _error_response(ApiError(502, f"UPSTREAM_ERROR: {failure if _wants_json() else failure.named}"))


def _explanation(failure: ApiError) -> str:
    form = request.__dict__.get("form")  # only if a view has parsed it: that takes long, and fails for large forms
    given = {**request.args.to_dict(), **(form.to_dict() if form is not None else {}), **(request.view_args or {})}
    return explanation(failure, **{name: given.get(name, "") for name in ("topic", "channel", "node")})


def _http_error_response(failure: HTTPException) -> Response:
    if isinstance(failure, MethodNotAllowed):
        response = _error_response(ApiError(405, "METHOD_NOT_ALLOWED"))
        response.headers["Allow"] = _allowed(failure.valid_methods or ())
        return response
    if isinstance(failure, NotFound):
        if corrected := _corrected_path():
            redirect = moved(request.method, request.script_root + corrected, request.query_string)
            return Response(redirect.body, redirect.status, list(redirect.headers))
        return _error_response(ApiError(404, "NOT_FOUND"))
    name = "INTERNAL_ERROR" if failure.code in (None, 500) else failure.name.upper().replace(" ", "_")
    return _error_response(ApiError(failure.code or 500, name))


def _corrected_path() -> str:
    """An existing path that differs only in slashes or in letter case; empty if there is none."""
    clean = "/" + "/".join(part for part in request.path.split("/") if part)
    candidates = (path for path in (clean, clean.lower()) if path != request.path)
    return next((path for path in candidates if _adapter().test(path, request.method)), "")


def _adapter() -> MapAdapter:
    adapter = current_app.create_url_adapter(request)
    assert adapter is not None, "a request always has an adapter"
    return adapter


def _wants_json() -> bool:
    if request.path.startswith(("/api/", "/config/", "/static/", "/fonts/", "/render")):
        return True
    # For other paths, programs get NSQ's JSON, and browsers get a page.
    return "text/html" not in request.headers.get("Accept", "")


# --- Headers and compression ------------------------------------------------------------------------------------------


def _finish(response: Response) -> Response:
    headers = response.headers
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("X-Frame-Options", "DENY")
    headers.setdefault("Referrer-Policy", "same-origin")
    headers.setdefault("Cache-Control", "no-store")  # what only some visitors may see
    if response.mimetype == "text/html":
        images = f"'self' data: {Graphite(service()).origin}".strip()
        headers["Content-Security-Policy"] = (
            f"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src {images}; "
            "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
    # The first of gzip and deflate that the client lists. nsqadmin: an encoding with a weight is ignored.
    for word in request.headers.get("Accept-Encoding", "").split(","):
        name = word.strip()
        if name in ("gzip", "deflate"):
            response.set_data(_packed(response.get_data(), name))
            response.headers["Content-Encoding"] = name
            response.headers["Vary"] = "Accept-Encoding"
            break
    return response


def _packed(body: bytes, encoding: str) -> bytes:
    # nsqadmin: deflate is a raw stream, without a zlib header.
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP if encoding == "gzip" else -zlib.MAX_WBITS)
    packed = [packer.compress(body[:_PACKED_AT_ONCE])]
    for begin in cooperatively(range(_PACKED_AT_ONCE, len(body), _PACKED_AT_ONCE), 1):
        packed.append(packer.compress(body[begin : begin + _PACKED_AT_ONCE]))
    return b"".join([*packed, packer.flush()])


# --- Static files -----------------------------------------------------------------------------------------------------

assets = Blueprint("assets", __name__)


# nsqadmin: both paths serve the same files. The last one is the URL.
@assets.get("/fonts/<asset>")
@assets.get("/static/<asset>")
def static(asset: str) -> Response:
    folder = Path(service().options.dev_static_dir or _PACKAGE / "static")
    try:
        if asset.startswith("."):
            raise FileNotFoundError(asset)
        content = (folder / asset).read_bytes()
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return Response("NOT_FOUND", 404, {"Content-Type": "text/plain; charset=utf-8"})
    kind = mimetypes.guess_type(asset)[0] or "application/octet-stream"
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    return Response(content, 200, {"Content-Type": kind, "Cache-Control": "max-age=300"})


# --- WSGI -------------------------------------------------------------------------------------------------------------


class WsgiHandler:
    """A handler of our HTTP server, which limits sizes and durations: it calls the application below `base_path`.

    `body_limit` is given the environment of a request without its body.
    """

    def __init__(
        self,
        application: Callable[..., Any],
        base_path: str,
        body_limit: Callable[[dict[str, Any]], int] = lambda environ: MAX_BODY_BYTES,
    ) -> None:
        self._application = application
        self._base_path = base_path.rstrip("/")
        self._body_limit = body_limit

    def admit(self, head: HttpRequest) -> Admission:
        return Admission(self._body_limit(_environ(head, self._base_path, "/")), _TOO_LARGE)

    def respond(self, request: HttpRequest) -> HttpResponse:
        began = time.monotonic_ns()
        response = self._respond(request)
        log_access(request, response.status, time.monotonic_ns() - began)
        return response

    def _respond(self, request: HttpRequest) -> HttpResponse:
        raw_path = request.target.partition(b"?")[0]
        path = unquote_to_bytes(raw_path).decode("latin-1")
        base = self._base_path
        if path != base and not path.startswith(base + "/"):
            return error(404, "NOT_FOUND")
        environ = _environ(request, base, path[len(base) :] or "/")
        try:
            pieces, status, headers = run_wsgi_app(self._application, environ, buffered=True)
        except Exception:
            log.exception("panic in HTTP handler - %s %s", request.method, target_without_secrets(request.target))
            return INTERNAL_ERROR
        number, _, reason = status.partition(" ")
        # The server adds the other headers itself.
        kept = tuple((name, value) for name, value in headers if name.lower() not in ("content-length", "date"))
        return HttpResponse(int(number), b"".join(pieces), kept, reason=reason.title())


def _environ(request: HttpRequest, base: str, path: str) -> dict[str, Any]:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
    host, _, port = headers.get("host", "").partition(":")
    peer, _, _ = request.remote_address.rpartition(":")
    return {
        # The server answers HEAD as GET, without the body.
        "REQUEST_METHOD": "GET" if request.method == "HEAD" else request.method,
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
        "nsqadmin.client_is_gone": request.client_is_gone,
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
