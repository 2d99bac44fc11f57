"""Tokens of HTTP requests: ``Authorization: Bearer <token>``, as RFC 6750 describes it.

A token that is limited to topics permits only requests that name one of them, and are about nothing else
(`Route.topics_in`). It permits no request about all topics, such as /metrics.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from nsq_compat.policy.access import AccessFile, Token
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.application import Application, Route, error, parse_query

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_MAX_TOPICS: Final = 1000
_SCHEME: Final = b"bearer"


class TokenCheck:
    """The `web.application.Refusal` of a daemon with an access file. `realm` names the daemon."""

    def __init__(self, access: AccessFile, realm: str, now: Callable[[], float] = time.time) -> None:
        self._access = access
        self._realm = realm
        self._now = now

    def __call__(self, request: Request, route: Route) -> Response | None:
        if not route.permission:
            return None
        secret = bearer(request.headers.get(b"authorization", b""))
        token = self._access.tokens.find(secret, self._now()) if secret else None
        if token is None:
            why = ', error="invalid_token"' if secret else ""
            return error(401, "UNAUTHORIZED", self._challenge(why))
        missing = _missing(token, route, request)
        if not missing:
            return None
        scope = f', error="insufficient_scope", scope="{route.permission}"'
        return error(403, f"FORBIDDEN: the token {token.name} {missing}", self._challenge(scope))

    def collect(self, api: Application) -> "Iterator[Metric]":
        # prometheus_client is an extra.
        from prometheus_client.core import CounterMetricFamily

        help = "HTTP requests that were refused for lack of a token or a permission."
        yield CounterMetricFamily(f"{self._realm}_http_unauthorized", help, value=api.refused)

    def _challenge(self, why: str) -> tuple[tuple[str, str], ...]:
        return (("WWW-Authenticate", f'Bearer realm="{self._realm}"{why}'),)


def bearer(header: bytes) -> bytes:
    """The token in an Authorization header; empty without one."""
    scheme, _, secret = header.strip().partition(b" ")
    return secret.strip() if scheme.lower() == _SCHEME else b""


def _missing(token: Token, route: Route, request: Request) -> str:
    if route.permission not in token.permissions:
        return f"lacks the permission {route.permission}"
    if token.topics is None:
        return ""
    if not route.topics_in:
        return "is limited to topics, and this request is not about one"
    query = parse_query(request.query)
    topics = dict.fromkeys(name for key in route.topics_in if key in query for name in query[key].split(","))
    if len(topics) > _MAX_TOPICS:
        return "is limited to topics, and this request names too many"
    if not topics or not all(topics):
        return "is limited to topics, so the request must name one"
    return next((f"does not cover the topic {topic}" for topic in topics if not token.covers(topic)), "")
