"""Who is asking, what they may do, and that it was them who asked.

Three ways, by what was configured: everybody may do everything (as NSQ's nsqadmin); the ACL header of a proxy in front
names the user, and only `--admin-user`s may do more than look; or `--user-file`: everybody logs in, with a role.

A browser sends cookies and a proxy's credentials along with requests that another site made it send. So a request that
changes something must come from our own pages (`Origin`, `Sec-Fetch-Site`), and a form must carry its token. A program
that is no browser sends neither header and is not in the way.
"""

import base64
import binascii
import hmac
import logging
import secrets
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from flask import Request, Response, current_app, g, redirect, request, session, url_for

from nsq_compat.web.admin.service import AdminService
from nsq_compat.web.admin.users import Attempts, Role, Users
from nsq_compat.web.responses import ApiError

log = logging.getLogger(__name__)

_PROBES: Final = {"assets.ping", "monitoring.metrics", "monitoring.live", "monitoring.ready"}
_WITHOUT_LOGIN: Final = frozenset({"assets.static", "assets.fonts", "login.show", "login.log_in", *_PROBES})
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Visitor:
    name: str
    role: Role

    def may(self, role: str) -> bool:
        """Whether the role is at least this one."""
        return self.role >= Role[role.upper()]

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN


def service() -> AdminService:
    found: AdminService = current_app.extensions["nsqadmin"]
    return found


def visitor() -> Visitor:
    """Who made this request."""
    if "visitor" not in g:
        # Nobody, should finding out be refused: the page that says so is for somebody, too.
        g.visitor = Visitor("", Role.NOBODY)
        g.visitor = _identify(service(), request)
    found: Visitor = g.visitor
    return found


def log_in(users: Users, name: str, password: str) -> Role:
    """As `Users.log_in`. Raises `ApiError` for somebody who only tries."""
    attempts: Attempts = current_app.extensions["nsqadmin.attempts"]
    who, now = request.remote_addr or "", service().now()
    if not attempts.allowed(who, name, now):
        raise ApiError(429, "TOO_MANY_ATTEMPTS")
    role = users.log_in(name, password)
    if role is Role.NOBODY:
        log.warning("AUDIT: %s failed to log in as %r", who, name)
        attempts.failed(who, name, now)
    return role


def require(role: Role) -> None:
    """Raises `ApiError` for a visitor with less."""
    if visitor().role < role:
        raise ApiError(403, "FORBIDDEN")


def guard() -> Response | None:
    """Before every request: nobody gets past the login, and no other site acts in a visitor's name."""
    if request.method not in _SAFE_METHODS and _from_another_site(request):
        log.warning("refused %s %s: it came from another site (%s)", request.method, request.path, request.origin)
        raise ApiError(403, "FORBIDDEN")
    if visitor().role is not Role.NOBODY or request.endpoint in _WITHOUT_LOGIN:
        return None
    if request.path.startswith(("/api/", "/config/")):
        raise ApiError(401, "UNAUTHORIZED")
    here = request.full_path.rstrip("?") if request.method == "GET" else ""
    return redirect(url_for("login.show", next=here or None))  # type: ignore[return-value]


def csrf_token() -> str:
    """The token every form of this visitor carries."""
    if "csrf" not in session:
        session["csrf"] = secrets.token_urlsafe(24)
    return str(session["csrf"])


def check_form() -> None:
    """Raises `ApiError` for a form that did not come from our pages."""
    expected = str(session.get("csrf", ""))
    if not expected or not hmac.compare_digest(expected.encode(), request.form.get("csrf", "").encode()):
        raise ApiError(403, "FORBIDDEN")


def basic_credentials(asked: Request) -> tuple[str, str] | None:
    """Name and password of HTTP Basic authentication."""
    scheme, _, encoded = asked.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode("utf-8", "replace").partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _identify(asked_of: AdminService, asked: Request) -> Visitor:
    users, options = asked_of.users, asked_of.options
    if users is not None:
        name = str(session.get("user", ""))
        if name:
            # The file's role counts, not the cookie's: it may have changed.
            return Visitor(name, users.role_of(name))
        name, password = basic_credentials(asked) or ("", "")
        return Visitor(name, log_in(users, name, password) if name else Role.NOBODY)
    header = asked.headers.get(options.acl_http_header, "")
    if not options.admin_users:
        return Visitor(header, Role.ADMIN)
    return Visitor(header, Role.ADMIN if header in options.admin_users else Role.VIEWER)


def _from_another_site(asked: Request) -> bool:
    fetched_from = asked.headers.get("Sec-Fetch-Site")
    if fetched_from is not None:
        return fetched_from not in ("same-origin", "none")
    origin = asked.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc != asked.host
