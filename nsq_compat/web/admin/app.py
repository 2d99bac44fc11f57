"""The Flask application: blueprints, errors, headers and compression of responses, static files."""

import gzip
import mimetypes
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flask import Blueprint, Flask, Request, Response, current_app, render_template, request
from flask.sessions import SecureCookieSessionInterface
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import MapAdapter

import nsq_compat
from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.web.admin import access
from nsq_compat.web.admin.access import login
from nsq_compat.web.admin.api import api, upstream_error, v1_error
from nsq_compat.web.admin.cluster import cluster
from nsq_compat.web.admin.configuration import configuration
from nsq_compat.web.admin.formatting import FILTERS
from nsq_compat.web.admin.graphite import TIMEFRAMES, Graphite, proxy
from nsq_compat.web.admin.monitoring import monitoring
from nsq_compat.web.admin.nodes import nodes
from nsq_compat.web.admin.service import AdminService
from nsq_compat.web.admin.tables import address
from nsq_compat.web.admin.topics import topics
from nsq_compat.web.admin.users import Attempts
from nsq_compat.web.application import ApiError, moved

_EXPLANATIONS: Final = {
    401: "Log in to see this page.",
    403: "You do not have permission for this.",
    404: "This page, topic, channel or node does not exist.",
    405: "This page does not support the request.",
    429: "Too many wrong passwords. Wait a minute and try again.",
    502: "No part of the cluster answered.",
}


class _Sessions(SecureCookieSessionInterface):
    """Marks cookies as secure for browsers that use HTTPS, as the proxy's header tells."""

    def get_cookie_secure(self, app: Flask) -> bool:
        return request.headers.get("X-Scheme") == "https"


def create_app(service: AdminService) -> Flask:
    app = Flask("nsqadmin", template_folder=str(folder("templates")), static_folder=None)
    app.extensions["nsqadmin"] = service
    app.extensions["nsqadmin.attempts"] = Attempts()
    app.session_interface = _Sessions()
    app.secret_key = service.secret_key
    app.config.update(
        SESSION_COOKIE_NAME="nsqadmin",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_COOKIE_PATH=service.options.base_path or "/",
    )
    app.url_map.merge_slashes = False
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(FILTERS)
    app.jinja_env.globals["address"] = address
    for blueprint in (cluster, topics, nodes, login, assets, configuration, monitoring, proxy):
        app.register_blueprint(blueprint)
    app.register_blueprint(api, url_prefix="/api")
    app.before_request(_answer_options)
    app.before_request(access.check)
    app.after_request(_finish)
    app.context_processor(_template_variables)
    app.register_error_handler(ApiError, _error_response)
    app.register_error_handler(AllFailed, lambda failure: _error_response(upstream_error(failure)))
    app.register_error_handler(HTTPException, _http_error_response)
    return app


def _template_variables() -> dict[str, object]:
    service = access.service()
    return {
        "visitor": access.visitor(),
        "csrf_token": access.csrf_token,
        "version": service.version,
        "login_used": service.users is not None,
        "graphite": Graphite(service),
        "timeframes": TIMEFRAMES,
        "now": service.now(),
    }


# --- Errors -----------------------------------------------------------------------------------------------------------


def _answer_options() -> Response | None:
    if request.method != "OPTIONS" or request.url_rule is None:
        return None
    response = Response("", 200, {"Allow": _allowed(_adapter(request).allowed_methods())})
    del response.headers["Content-Type"]
    return response


def _allowed(methods: Iterable[str]) -> str:
    # nsqadmin: without HEAD, always with OPTIONS.
    return ", ".join(sorted({*methods, "OPTIONS"} - {"HEAD"}))


def _error_response(error: ApiError) -> Response:
    if _wants_json(request):
        return v1_error(error)
    page = render_template("error.html", status=error.status, code=error.code, text=_EXPLANATIONS.get(error.status, ""))
    return Response(page, error.status)


def _http_error_response(error: HTTPException) -> Response:
    if isinstance(error, MethodNotAllowed):
        response = v1_error(ApiError(405, "METHOD_NOT_ALLOWED"))
        response.headers["Allow"] = _allowed(error.valid_methods or ())
        return response
    if isinstance(error, NotFound):
        if corrected := _corrected_path(request):
            redirect = moved(request.method, request.script_root + corrected, request.query_string)
            return Response(redirect.body, redirect.status, list(redirect.headers))
        return _error_response(ApiError(404, "NOT_FOUND"))
    name = "INTERNAL_ERROR" if error.code in (None, 500) else error.name.upper().replace(" ", "_")
    return _error_response(ApiError(error.code or 500, name))


def _corrected_path(asked: Request) -> str:
    """An existing path that differs only in slashes or in letter case; empty if there is none."""
    clean = "/" + "/".join(part for part in asked.path.split("/") if part)
    for candidate in (clean, clean.lower()):
        if candidate != asked.path and _adapter(asked).test(candidate, asked.method):
            return candidate
    return ""


def _adapter(asked: Request) -> MapAdapter:
    adapter = current_app.create_url_adapter(asked)
    assert adapter is not None, "a request always has an adapter"
    return adapter


def _wants_json(asked: Request) -> bool:
    if asked.path.startswith(("/api/", "/config/", "/static/", "/fonts/", "/render")):
        return True
    # For other paths, programs get NSQ's JSON, and browsers get a page.
    return "text/html" not in asked.headers.get("Accept", "")


# --- Headers and compression ------------------------------------------------------------------------------------------


def _finish(response: Response) -> Response:
    headers = response.headers
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("X-Frame-Options", "DENY")
    headers.setdefault("Referrer-Policy", "same-origin")
    if response.mimetype == "text/html":
        headers["Cache-Control"] = "no-store"
        headers["Content-Security-Policy"] = _security_policy(Graphite(access.service()).origin)
    return compress(request, response)


def _security_policy(graphite: str) -> str:
    images = f"'self' data: {graphite}".strip()
    return (
        f"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src {images}; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def compress(request: Request, response: Response) -> Response:
    """Use the first of gzip and deflate that the client lists. nsqadmin: an encoding with a weight is ignored."""
    for word in request.headers.get("Accept-Encoding", "").split(","):
        name = word.strip()
        if name in ("gzip", "deflate"):
            body = response.get_data()
            response.set_data(gzip.compress(body, 6, mtime=0) if name == "gzip" else _deflate(body))
            response.headers["Content-Encoding"] = name
            response.headers["Vary"] = "Accept-Encoding"
            break
    return response


def _deflate(body: bytes) -> bytes:
    # nsqadmin: a raw stream, without a zlib header.
    stream = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()


# --- Static files -----------------------------------------------------------------------------------------------------

assets = Blueprint("assets", __name__)


def folder(name: str) -> Path:
    """The folder `templates` or `static`: inside the package if it is installed, beside it in a checkout."""
    package = Path(nsq_compat.__file__).parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


@assets.get("/static/<asset>")
def static(asset: str) -> Response:
    try:
        return _file(asset)
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return Response("NOT_FOUND", 404, {"Content-Type": "text/plain; charset=utf-8"})


# nsqadmin: both paths serve the same files.
assets.add_url_rule("/fonts/<asset>", "fonts", static)


def _file(name: str) -> Response:
    if name.startswith("."):
        raise FileNotFoundError(name)
    development = access.service().options.dev_static_dir
    content = ((Path(development) if development else folder("static")) / name).read_bytes()
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    return Response(content, 200, {"Content-Type": kind, "Cache-Control": "max-age=300"})
