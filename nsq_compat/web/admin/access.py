"""Visitors of nsqadmin: identity, permissions, login, and protection against requests of other sites.

There are three modes. Without configuration, every visitor may do everything, as in NSQ. With `--admin-user`, a proxy
in front of nsqadmin names the user in a header, and users that are not listed may only view. With `--user-file`, every
visitor logs in and has a role; with `--oidc-issuer` at a provider, or with either.

A browser sends cookies and credentials even with requests that another site caused. A request that changes something
must therefore come from our own pages (`Origin`, `Sec-Fetch-Site`), and a form must contain its token. Programs that
are not browsers send neither header, and are accepted.
"""

import base64
import hmac
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from flask import Blueprint, Response, current_app, g, redirect, render_template, request, session, url_for

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.history import History
from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.policy.access import ADMIN, OPERATE, READ, AccessFile
from nsq_compat.protocol.names import network_of, printable
from nsq_compat.web.access import bearer
from nsq_compat.web.admin.request_queue import (
    MAX_OF_ADDRESS,
    MAX_OF_USER,
    ClientIsGone,
    Requester,
    RequestQueue,
    TooMany,
)
from nsq_compat.web.admin.sessions import Sessions
from nsq_compat.web.admin.users import (
    Account,
    LoginFailed,
    PasswordCheck,
    Role,
    TooBusy,
    TooManyAttempts,
    Users,
)
from nsq_compat.web.application import ApiError
from nsq_compat.web.metrics import Metrics

log = logging.getLogger(__name__)

_ANOTHER_SITE: Final = (
    "A page of another site sent this request, so nsqadmin did not perform it. If you used a page of nsqadmin, the "
    "proxy in front of it must pass on the header Host unchanged."
)
_OLD_FORM: Final = (
    "This form is out of date, because nsqadmin was restarted or your login has ended. Nothing was changed. Go back, "
    "reload the page and try again."
)
FORM_BYTES: Final = 16 * 1024
"""Of a visitor that may send no message. Parsing a form of a megabyte takes half a second."""
_MAX_FIELDS: Final = 25_000
"""Of a form of others: a thousand policies."""
_MAX_PATH: Final = 1000
"""Of the page that is shown after the login."""
_OF_PROVIDER: Final = "provider "
"""Begins the user of a session at the provider. No name of the user file has a blank."""
_METRICS: Final = "operations.metrics"
_WITHOUT_LOGIN: Final = (
    "operations.live",
    _METRICS,
    "assets.static",
    "login.show",
    "login.log_in",
    "login.begin",
    "login.finish",
    "documents.show",
)


# --- The interface that the program provides to its pages -------------------------------------------------------------


class AdminOptions(Protocol):
    """Options that the pages read, named like their config keys. Durations are integer nanoseconds."""

    base_path: str
    dev_static_dir: str
    graphite_url: str
    proxy_graphite: bool
    statsd_prefix: str
    statsd_counter_format: str
    statsd_gauge_format: str
    statsd_interval: int
    allow_config_from_cidr: str
    acl_http_header: str
    admin_users: tuple[str, ...]
    nsqlookupd_http_addresses: tuple[str, ...]
    page_timeout: int


class LoginProvider(Protocol):
    """A server at which users log in, and which sends their browsers back (`oidc.Provider`)."""

    host: str
    basis: bytes
    """What a login rests on, for `Sessions`."""

    def begin(self, redirect_uri: str) -> tuple[str, dict[str, Any]]: ...
    def finish(self, attempt: Mapping[str, Any], answer: Mapping[str, str], redirect_uri: str) -> Account: ...
    def logout_url(self, return_to: str) -> str: ...


class AdminService(Protocol):
    cluster: Cluster
    history: History
    metrics: Metrics
    users: Users | None
    provider: LoginProvider | None
    """If both are None, no login is required."""
    access: AccessFile | None
    """Tokens for programs; None if there is no access file."""
    password_check: PasswordCheck
    sessions: Sessions

    @property
    def options(self) -> AdminOptions: ...

    def now(self) -> float:
        """Unix seconds."""

    def notify(self, action: Mapping[str, Any]) -> None:
        """Queue a notification for the endpoint, if one is configured."""

    def config_value(self, name: str) -> object:
        """Raises KeyError."""

    def set_log_level(self, text: str) -> None:
        """Raises ValueError."""


def service() -> AdminService:
    """That of the current request."""
    found: AdminService = current_app.extensions["nsqadmin"]
    return found


_PLAIN: Final = re.compile(r"[\w.:@#+-]{1,80}")


def audited(text: str) -> str:
    """A name or value of others for the audit log, where the rest of a line could be forged with it: quoted if odd."""
    return text if _PLAIN.fullmatch(text) else printable(text)


# --- Visitors ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visitor:
    name: str
    role: Role
    subject: str = ""
    """Identifies an account of the login provider, unlike the name, which people can often choose."""

    def __str__(self) -> str:
        """As the audit log names the visitor."""
        name = audited(self.name)
        return f"{name} {self.subject!r}" if self.subject else name if self.name else "anonymous"

    def may(self, role: str) -> bool:
        """Whether the visitor's role is at least this one."""
        return self.role >= Role[role.upper()]


def visitor() -> Visitor:
    if "visitor" not in g:
        # If identification fails, the error page needs a visitor too.
        g.visitor = Visitor("", Role.NONE)
        g.users = service().users  # others may be in force when the password is checked
        g.visitor = _identify()
    found: Visitor = g.visitor
    return found


def authenticate(users: Users, name: str, password: str) -> Role:
    """As `Users.log_in`. Raises `ApiError` 429 after too many failed attempts, and 503 if too many are under way."""
    address = request.remote_addr or ""
    try:
        role = service().password_check.log_in(users, name, password, address, time.monotonic)
    except TooManyAttempts as failure:
        wait = ("Retry-After", str(math.ceil(failure.seconds)))
        raise ApiError(429, "TOO_MANY_ATTEMPTS", headers=(wait,)) from None
    except TooBusy:
        text = "nsqadmin is checking many other passwords. Try again in a moment."
        raise ApiError(503, "TOO_BUSY", text, (("Retry-After", "1"),)) from None
    if role is Role.NONE:
        log.warning("AUDIT: %s failed to log in as %r", address, name[:64])
    return role


def require(role: Role) -> None:
    """Raises `ApiError` 403 if the visitor's role is lower."""
    if visitor().role < role:
        text = f"Your role ({visitor().role}) does not allow this. It needs the role {role}."
        raise ApiError(403, "FORBIDDEN", text)


def check() -> Response | None:
    """Check every request: changes must not come from other sites, and visitors must have logged in."""
    if (request.endpoint or "").startswith("login."):  # these need no login
        request.max_content_length = FORM_BYTES
    if request.method not in ("GET", "HEAD", "OPTIONS") and _from_another_site():
        log.warning("refused %s %s: it came from another site (%s)", request.method, request.path, request.origin)
        raise ApiError(403, "FORBIDDEN", _ANOTHER_SITE)
    needs_token = service().access is not None and request.endpoint == _METRICS
    _limit_form()
    if request.endpoint in _WITHOUT_LOGIN and not needs_token:
        return None
    if visitor().role is not Role.NONE:
        _wait_in_queue()
        return None
    if request.path.startswith(("/api/", "/config/", "/metrics")) or not login_is_used():
        raise ApiError(401, "UNAUTHORIZED", headers=(("WWW-Authenticate", 'Bearer realm="nsqadmin"'),))
    here = request.full_path.rstrip("?") if request.method == "GET" else ""
    return redirect(url_for("login.show", next=_local_path(here) or None))  # type: ignore[return-value]


def _wait_in_queue() -> None:
    """Wait until the request may be answered.

    Raises `ApiError`: 503 if too many requests of the visitor wait, 401 if its login or token has ended meanwhile.
    """
    names_visitors = login_is_used() or service().options.admin_users or service().access is not None
    name = (visitor().subject or visitor().name) if names_visitors else ""
    key = Requester(f"user {name}", MAX_OF_USER)
    if not name:
        key = Requester(f"address {network_of(request.remote_addr or '')}", MAX_OF_ADDRESS)
    try:
        has_waited = _requests().enter(key, request.environ.get("nsqadmin.client_is_gone", _never))
    except TooMany:
        text = "Too many of your requests wait to be answered. Try again in a moment."
        raise ApiError(503, "TOO_BUSY", text, (("Retry-After", "1"),)) from None
    except ClientIsGone:
        raise ApiError(503, "CLIENT_IS_GONE") from None
    g.queued_as = key
    if has_waited:
        yield_to_loop()
    while has_waited or g.users is not service().users:
        has_waited = False
        _identify_again()


def _identify_again() -> None:
    before, users_before = visitor(), g.users
    g.users = service().users

    def check_password(users: Users, name: str, password: str) -> Role:
        return before.role if users is users_before else authenticate(users, name, password)  # which takes long

    g.visitor = Visitor("", Role.NONE)
    g.visitor = _identify(check_password)
    if visitor().role is Role.NONE:
        raise ApiError(401, "UNAUTHORIZED")


def _never() -> bool:
    return False


def leave_queue(error: BaseException | None = None) -> None:
    """Called at the end of every request."""
    if (key := g.pop("queued_as", None)) is not None:
        _requests().leave(key)


def _requests() -> RequestQueue:
    found: RequestQueue = current_app.extensions["requests"]
    return found


def _limit_form() -> None:
    """Other visitors wait while a form is parsed."""
    if visitor().role < Role.OPERATOR:
        request.max_content_length = FORM_BYTES
    elif request.mimetype == "multipart/form-data":
        raise ApiError(415, "UNSUPPORTED_MEDIA_TYPE", "nsqadmin's forms are application/x-www-form-urlencoded.")
    elif request.mimetype == "application/x-www-form-urlencoded" and request.get_data().count(b"&") > _MAX_FIELDS:
        raise ApiError(413, "FORM_TOO_LARGE", f"A form may have {_MAX_FIELDS:,} fields. Nothing was changed.")


def scheme() -> str:
    """What the browser uses, as the proxy tells: `http` or `https`."""
    told = request.headers.get("X-Scheme") or request.headers.get("X-Forwarded-Proto", "")
    return "https" if told == "https" else "http"


def csrf_token() -> str:
    """The token that the visitor's forms contain."""
    return str(session.setdefault("csrf", secrets.token_urlsafe(24)))


def check_form() -> None:
    """Raises `ApiError` 403 if the form lacks the visitor's token."""
    expected = str(session.get("csrf", ""))
    if not expected or not hmac.compare_digest(expected.encode(), request.form.get("csrf", "").encode()):
        raise ApiError(403, "FORBIDDEN", _OLD_FORM)


def basic_credentials() -> tuple[str, str]:
    """Name and password of HTTP Basic authentication; empty without it."""
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode("utf-8", "replace").partition(":")
    except ValueError:
        return "", ""
    return (name, password) if colon and scheme.lower() == "basic" else ("", "")


def may_change() -> bool:
    """Whether the visitor may change anything, by its login or token.

    Passwords are not checked: that takes long, and the answer would tell which one is right, without a limit.
    """
    return _identify(lambda *_: Role.NONE).role >= Role.OPERATOR


def _identify(check_password: Callable[[Users, str, str], Role] = authenticate) -> Visitor:
    users, options = service().users, service().options
    if (bearing := _bearer()) is not None:
        return bearing
    if login_is_used():
        # Pages that refresh themselves, or ask whether nsqadmin answers, do not keep a login alive.
        is_of_user = "X-Refresh" not in request.headers and request.endpoint not in _WITHOUT_LOGIN
        user = service().sessions.user_of(session, _basis_of, renew=is_of_user)
        if user and "role" in session:
            subject = user.removeprefix(_OF_PROVIDER)
            return Visitor(str(session["name"]), Role[str(session["role"]).upper()], subject)
        if user and users is not None:
            return Visitor(user, users.role_of(user))
        name, password = basic_credentials()
        return Visitor(name, check_password(users, name, password) if name and users is not None else Role.NONE)
    name = request.headers.get(options.acl_http_header, "")
    is_admin = not options.admin_users or (name != "" and name in options.admin_users)
    return Visitor(name, Role.ADMIN if is_admin else Role.VIEWER)


def _bearer() -> Visitor | None:
    """The visitor with a token, or one without a role where there is no other way to identify; None without a token."""
    access = service().access
    if access is None:
        return None
    secret = bearer(request.headers.get("Authorization", "").encode("utf-8", "replace"))
    if not secret:
        return None if login_is_used() or service().options.admin_users else Visitor("", Role.NONE)
    token = access.tokens.find(secret, service().now())
    if token is None or token.topics is not None:  # no page is about some topics only
        return Visitor("", Role.NONE)
    roles = ((ADMIN, Role.ADMIN), (OPERATE, Role.OPERATOR), (READ, Role.VIEWER))
    return Visitor(token.name, next((role for name, role in roles if name in token.permissions), Role.NONE))


def login_is_used() -> bool:
    return service().users is not None or service().provider is not None


def _basis_of(user: str) -> bytes:
    users, provider = service().users, service().provider
    if "role" in session:  # a login at the provider
        return provider.basis if provider is not None else b""
    return users.state_of(user) if users is not None else b""


def _from_another_site() -> bool:
    fetched_from = request.headers.get("Sec-Fetch-Site", "none")
    if fetched_from != "none":
        return fetched_from != "same-origin"
    # A request that no page caused, such as a form that is sent once more from the history, may name its first origin.
    origin = request.headers.get("Origin")
    try:
        return origin is not None and urlsplit(origin).netloc != request.host
    except ValueError:  # not a URL
        return True


# --- The login page ---------------------------------------------------------------------------------------------------

login = Blueprint("login", __name__)


@login.get("/login")
def show() -> str:
    if not login_is_used():
        raise ApiError(404, "NOT_FOUND")
    provider = service().provider
    end_url = ""
    if provider is not None and "ended" in request.args:
        end_url = provider.logout_url(url_for("login.show", _external=True, _scheme=scheme()))
    return _page(_local_path(request.args.get("next", "")), end_url=end_url)


@login.post("/login")
def log_in() -> "Response | tuple[str, int]":
    users = service().users
    if users is None:
        raise ApiError(404, "NOT_FOUND")
    check_form()
    name = request.form.get("name", "")
    next_path = _local_path(request.form.get("next", ""))
    if authenticate(users, name, request.form.get("password", "")) is Role.NONE:
        return _page(next_path, error="Wrong user name or password.", name=name), 401
    service().sessions.begin(session, name, users.state_of(name))
    log.info("AUDIT: %s logged in as %s (%s)", request.remote_addr, name, users.role_of(name))
    return _to(next_path)


@login.get("/login/provider")
def begin() -> "Response | tuple[str, int]":
    """Send the browser to the login provider."""
    try:
        url, attempt = _provider().begin(_callback())
    except LoginFailed as failure:
        return _page(_local_path(request.args.get("next", "")), error=str(failure)), failure.status
    session["attempt"] = {**attempt, "next": _local_path(request.args.get("next", ""))}
    return redirect(url)  # type: ignore[return-value]


@login.get("/login/callback")
def finish() -> "Response | tuple[str, int]":
    """The login provider has sent the browser back."""
    provider = _provider()
    attempt: dict[str, Any] = session.pop("attempt", {})
    next_path = _local_path(str(attempt.get("next", "")))
    try:
        account = provider.finish(attempt, request.args, _callback())
        if account.role is Role.NONE:
            text = (
                f"{provider.host} has confirmed that you are {account.name}, but this account has no role in nsqadmin."
            )
            raise LoginFailed(text)
    except LoginFailed as failure:
        log.warning("AUDIT: %s failed to log in at %s: %s", request.remote_addr, provider.host, failure)
        return _page(next_path, error=str(failure)), failure.status
    user = f"{_OF_PROVIDER}{account.subject}"
    service().sessions.begin(session, user, provider.basis, name=account.name, role=str(account.role))
    facts = (request.remote_addr, audited(account.name), account.role, provider.host, account.subject)
    log.info("AUDIT: %s logged in as %s (%s) at %s, where it is %r", *facts)
    return _to(next_path)


@login.post("/logout")
def log_out() -> Response:
    check_form()
    log.info("AUDIT: %s logged out", visitor())
    ended = "here" if "role" in session else None
    service().sessions.end(session)
    return redirect(url_for("login.show", ended=ended), 303)  # type: ignore[return-value]


def _page(next_path: str, *, error: str = "", name: str = "", end_url: str = "") -> str:
    users, provider = service().users, service().provider
    return render_template(
        "login.html",
        next=next_path,
        error=error,
        name=name,
        has_users=users is not None,
        host=provider.host if provider is not None else "",
        end_url=end_url,
    )


def _provider() -> LoginProvider:
    provider = service().provider
    if provider is None:
        raise ApiError(404, "NOT_FOUND")
    return provider


def _callback() -> str:
    return url_for("login.finish", _external=True, _scheme=scheme())


def _to(path: str) -> Response:
    return redirect(request.script_root + path if path else url_for("cluster.overview"), 303)  # type: ignore[return-value]


def _local_path(path: str) -> str:
    """The path, or "" if it leads to another site, or is too long for a cookie."""
    if len(path) > _MAX_PATH:
        return ""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else ""
