"""The Flask application: blueprints, one place for errors, and what every reply carries."""

from collections.abc import Iterable
from typing import Final

from flask import Flask, Request, Response, current_app, render_template, request
from flask.sessions import SecureCookieSessionInterface
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import MapAdapter

from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.session import http_message
from nsq_compat.web.admin import access
from nsq_compat.web.admin.api import api, refusal, upstream_failure
from nsq_compat.web.admin.assets import assets, folder
from nsq_compat.web.admin.compression import compress
from nsq_compat.web.admin.configuration import configuration
from nsq_compat.web.admin.counter import counter
from nsq_compat.web.admin.formatting import FILTERS
from nsq_compat.web.admin.graphite import TIMEFRAMES, Graphite
from nsq_compat.web.admin.home import home
from nsq_compat.web.admin.login import login
from nsq_compat.web.admin.lookup import lookup
from nsq_compat.web.admin.messages import messages
from nsq_compat.web.admin.monitoring import monitoring
from nsq_compat.web.admin.nodes import nodes
from nsq_compat.web.admin.paging import address
from nsq_compat.web.admin.proxy import proxy
from nsq_compat.web.admin.service import AdminService
from nsq_compat.web.admin.topics import topics
from nsq_compat.web.admin.users import Attempts
from nsq_compat.web.responses import ApiError
from nsq_compat.web.routing import moved

_PAGES: Final = (home, topics, messages, nodes, counter, lookup, login)
_EXPLAINED: Final = {
    401: "This page is for users who have logged in.",
    403: "You may not do this.",
    404: "There is no such page, topic, channel or node.",
    405: "This cannot be done here.",
    429: "Too many wrong passwords. Wait a minute.",
    502: "The cluster could not be asked.",
}


class _Sessions(SecureCookieSessionInterface):
    """A cookie that came to be over HTTPS stays there; the proxy in front says so."""

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
    for blueprint in (*_PAGES, assets, configuration, monitoring, proxy):
        app.register_blueprint(blueprint)
    app.register_blueprint(api, url_prefix="/api")
    app.before_request(_options)
    app.before_request(access.guard)
    app.after_request(_finish)
    app.context_processor(_for_every_page)
    app.register_error_handler(ApiError, _refused)
    app.register_error_handler(AllFailed, lambda failure: _refused(upstream_failure(failure)))
    app.register_error_handler(HTTPException, _http_error)
    return app


def _for_every_page() -> dict[str, object]:
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


def _options() -> Response | None:
    if request.method != "OPTIONS" or request.url_rule is None:
        return None
    response = Response("", 200, {"Allow": _allowed(_adapter(request).allowed_methods())})
    del response.headers["Content-Type"]
    return response


def _allowed(methods: Iterable[str]) -> str:
    # nsqadmin: HEAD is not named, OPTIONS always.
    return ", ".join(sorted({*methods, "OPTIONS"} - {"HEAD"}))


def _refused(error: ApiError) -> Response:
    if _wants_json(request):
        return refusal(error)
    page = render_template("error.html", status=error.status, code=error.code, text=_EXPLAINED.get(error.status, ""))
    return Response(page, error.status)


def _http_error(error: HTTPException) -> "Response | HTTPException":
    if isinstance(error, MethodNotAllowed):
        response = refusal(ApiError(405, "METHOD_NOT_ALLOWED"))
        response.headers["Allow"] = _allowed(error.valid_methods or ())
        return response
    if isinstance(error, NotFound) and (meant := _meant(request)):
        return _flask_response(moved(request.method, request.script_root + meant, request.query_string))
    if isinstance(error, NotFound):
        return _refused(ApiError(404, "NOT_FOUND"))
    name = "INTERNAL_ERROR" if error.code in (None, 500) else error.name.upper().replace(" ", "_")
    return _refused(ApiError(error.code or 500, name))


def _meant(asked: Request) -> str:
    """A path of ours that this one differs from only in slashes or in letter case; empty if there is none."""
    clean = "/" + "/".join(part for part in asked.path.split("/") if part)
    for candidate in (clean, clean.lower()):
        if candidate != asked.path and _adapter(asked).test(candidate, asked.method):
            return candidate
    return ""


def _adapter(asked: Request) -> MapAdapter:
    adapter = current_app.create_url_adapter(asked)
    assert adapter is not None, "there is one for every request"
    return adapter


def _flask_response(answer: http_message.Response) -> Response:
    return Response(answer.body, answer.status, list(answer.headers))


def _wants_json(asked: Request) -> bool:
    if asked.path.startswith(("/api/", "/config/", "/static/", "/fonts/", "/render")):
        return True
    # A path that is none of ours answers programs as NSQ does; people see a page.
    return "text/html" not in asked.headers.get("Accept", "")


def _finish(response: Response) -> Response:
    headers = response.headers
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("X-Frame-Options", "DENY")
    headers.setdefault("Referrer-Policy", "same-origin")
    if response.mimetype == "text/html":
        headers["Cache-Control"] = "no-store"
        headers["Content-Security-Policy"] = _policy(Graphite(access.service()).origin)
    return compress(request, response)


def _policy(graphite: str) -> str:
    pictures = f"'self' data: {graphite}".strip()
    return (
        f"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src {pictures}; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
