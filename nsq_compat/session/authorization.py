"""What a client may do, where auth servers decide it: what they answered, how long it holds, NSQ's words for no.

Who asks them is handed in: an `Authorize` may take its time, as far as the session is concerned. Patterns are regular
expressions of Go's, which RE2 reads too: none takes longer than its text is long.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import re2

from nsq_compat.protocol.commands import CommandSpec
from nsq_compat.protocol.errors import E_AUTH_FAILED, E_AUTH_FIRST, E_INVALID, E_UNAUTHORIZED, FatalClientError, quote
from nsq_compat.protocol.go_json import INT64, STRING, JsonError, dumps, list_of, loads_object, object_of

_SUBSCRIBE: Final = "subscribe"
_PUBLISH: Final = "publish"
_COMPILED_PATTERNS: Final = 4096
# nsqd: takes answers of any size (auth-size).
LARGEST_ANSWER: Final = 256 * 1024
"""Bytes of JSON, which is parsed without letting other threads run."""
MOST_PATTERNS: Final = 2000
"""Topics and channels of one answer together. A decision may look at all of them, at some 1.2 us each."""
LONGEST_PATTERN: Final = 1024
"""Bytes."""
LARGEST_PATTERNS: Final = 100_000
"""Instructions of all compiled patterns of an answer together, which is what matching may have to go through."""
_PATTERN_MEMORY: Final = 1 << 18
"""Bytes RE2 may take for a pattern: bounds how long it compiles, with other threads waiting, to some 3 ms."""
_DECISIONS: Final = 1024
"""Remembered of one client."""
_ANSWER: Final = {
    "ttl": INT64,
    "identity": STRING,
    "identity_url": STRING,
    "authorizations": list_of(
        object_of({"topic": STRING, "channels": list_of(STRING), "permissions": list_of(STRING)}),
    ),
}


class AuthFailed(Exception):
    """No auth server gave an answer that can be used. The text is for the log, not for the client."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What an auth server is told of a client. `remote_ip` is "" on a unix socket, `common_name` that of a client
    certificate, "" without one.
    """

    secret: bytes = field(repr=False)
    remote_ip: str
    tls: bool
    common_name: str


@dataclass(frozen=True, slots=True)
class Authorization:
    """A permission for the topics and channels whose names hold a match of these patterns."""

    topic: Any
    channels: tuple[Any, ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """`channel` is "" for publishing, which one of the channels' patterns has to match, too (nsqd)."""
        return (
            (_SUBSCRIBE if channel else _PUBLISH) in self.permissions
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) is not None for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True)
class Grants:
    """An auth server's answer. `received_at` and `expires_at` are monotonic seconds."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    received_at: float
    expires_at: float

    def allow(self, topic: str, channel: str) -> bool:
        return any(authorization.allows(topic, channel) for authorization in self.authorizations)


Authorize = Callable[[Credentials], Grants]
"""Asks an auth server. Raises ``AuthFailed``."""


def not_asked(credentials: Credentials) -> Grants:
    """The `Authorize` of where there are no auth servers."""
    raise AuthFailed("there is no auth server")


def read_answer(body: bytes, now: float) -> Grants:
    """What an auth server's JSON means. Raises ``AuthFailed`` where NSQ would not take it, or there is too much of it.

    Takes long for large answers: to be called in a thread of its own.
    """
    if len(body) > LARGEST_ANSWER:
        raise AuthFailed(f"an answer of {len(body)} bytes, more than {LARGEST_ANSWER}")
    try:
        answer = loads_object(body, _ANSWER)
    except JsonError as error:
        raise AuthFailed(f"wrong JSON: {error}") from None
    count = sum(1 + len(each["channels"]) for each in answer["authorizations"])
    if count > MOST_PATTERNS:
        raise AuthFailed(f"{count} patterns for topics and channels, more than {MOST_PATTERNS}")
    authorizations: list[Authorization] = []
    size = 0
    for each in answer["authorizations"]:
        authorizations.append(_read_authorization(each))
        size += sum(pattern.programsize for pattern in (authorizations[-1].topic, *authorizations[-1].channels))
        if size > LARGEST_PATTERNS:
            raise AuthFailed(f"patterns of more than {LARGEST_PATTERNS} instructions together")
    ttl = answer["ttl"]
    if ttl <= 0:
        raise AuthFailed(f"invalid TTL {ttl} (must be >0)")
    return Grants(answer["identity"], answer["identity_url"], tuple(authorizations), now, now + ttl)


def _read_authorization(answer: dict[str, Any]) -> Authorization:
    for permission in answer["permissions"]:
        if permission not in (_SUBSCRIBE, _PUBLISH):
            raise AuthFailed(f"unknown permission {permission}")
    return Authorization(
        _compiled("topic", answer["topic"]),
        tuple(_compiled("channel", pattern) for pattern in answer["channels"]),
        frozenset(answer["permissions"]),
    )


@lru_cache(_COMPILED_PATTERNS)  # clients with the same rights are many
def _compiled(noun: str, pattern: str) -> Any:
    if len(pattern.encode("utf-8", "surrogatepass")) > LONGEST_PATTERN:
        raise AuthFailed(f"a pattern for a {noun} of more than {LONGEST_PATTERN} bytes")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace")
        raise AuthFailed(f"unable to compile {noun} {quote(pattern.encode())} {why}") from None


class Access:
    """What one client may do. `ask` is given its secret and raises ``AuthFailed``."""

    def __init__(self, ask: Callable[[bytes], Grants]) -> None:
        self.grants: Grants | None = None
        self._ask = ask
        self._secret = b""
        self._decisions: dict[tuple[bytes, bytes], bool] = {}

    @property
    def authed(self) -> bool:
        """There are authorizations, whatever they allow."""
        return self.grants is not None and bool(self.grants.authorizations)

    def authenticate(self, secret: bytes) -> bytes:
        """AUTH: the JSON of its response. Raises ``FatalClientError``."""
        if self.authed:
            raise FatalClientError(E_INVALID, "AUTH already set")
        self._secret = secret
        grants = self._renew()
        if not grants.authorizations:
            raise FatalClientError(E_UNAUTHORIZED, "AUTH no authorizations found")
        response = {
            "identity": grants.identity,
            "identity_url": grants.identity_url,
            "permission_count": len(grants.authorizations),
        }
        return dumps(response).encode("utf-8")

    def require(self, spec: CommandSpec, topic: bytes, channel: bytes, now: float) -> None:
        """Raises ``FatalClientError`` if the client may not do this. `channel` is empty for publishing."""
        grants = self.grants
        if grants is None or not grants.authorizations:
            raise FatalClientError(E_AUTH_FIRST, f"AUTH required before {spec.name}")
        if grants.expires_at < now:
            grants = self._renew()
        if not self._allows(grants, topic, channel):
            raise FatalClientError(E_UNAUTHORIZED, f"AUTH failed for {spec.name} on {quote(topic)} {quote(channel)}")

    def _allows(self, grants: Grants, topic: bytes, channel: bytes) -> bool:
        allowed = self._decisions.get((topic, channel))
        if allowed is None:
            if len(self._decisions) >= _DECISIONS:
                self._decisions.clear()
            allowed = grants.allow(topic.decode("ascii"), channel.decode("ascii"))
            self._decisions[topic, channel] = allowed
        return allowed

    def _renew(self) -> Grants:
        self._decisions.clear()
        try:
            self.grants = grants = self._ask(self._secret)
        except AuthFailed:
            # Why is in the log: a client nobody knows yet is not told about auth servers (nsqd).
            raise FatalClientError(E_AUTH_FAILED, "AUTH failed") from None
        return grants
