"""Permissions of a client that auth servers grant: their answers, how long these are valid, and NSQ's errors.

The request to an auth server is passed in (`Authorize`) and may wait. Patterns are Go's regular expressions, which RE2
reads too and matches in linear time.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from nsq_compat.policy.access import CONSUME, PUBLISH, Token
from nsq_compat.policy.access import MIRROR as MIRROR_TOKEN
from nsq_compat.protocol.commands import AUTH, IDENTIFY, CommandSpec
from nsq_compat.protocol.errors import E_AUTH_FAILED, E_AUTH_FIRST, E_INVALID, E_UNAUTHORIZED, FatalClientError, quote
from nsq_compat.protocol.go_json import INT64, STRING, JsonError, dumps, list_of, loads_object, object_of
from nsq_compat.queue.schedule import NEVER

# nsqd: accepts answers of any size (auth-size).
MAX_ANSWER_BYTES: Final = 256 * 1024
"""Bytes of JSON. While it is parsed no other thread runs."""
MAX_PATTERNS: Final = 2000
"""Topics and channels of one answer. A decision may match all of them, at about 1.2 us each."""
MAX_PATTERN_BYTES: Final = 1024
MAX_PROGRAM_SIZE: Final = 100_000
"""Instructions of all compiled patterns of an answer, which bounds the time of a match."""
_PATTERN_MEMORY: Final = 1 << 18
"""Bytes RE2 may use for a pattern. This bounds compiling, which blocks other threads, to some 3 ms."""
MIRROR: Final = "mirror"
"""Not in NSQ: permits to use this nsqd as a standby."""
_PERMISSIONS: Final = ("subscribe", "publish", MIRROR)
_OF_TOKENS: Final = {CONSUME: "subscribe", PUBLISH: "publish", MIRROR_TOKEN: MIRROR}
_ANY: Final = re.compile("")
TOKEN_SECONDS: Final = 60.0
"""How long a client's permissions are used until its token is looked up again."""
MAX_COMMANDS_WITHOUT_AUTH: Final = 1000
"""More than the heartbeats that a client may answer within its time. A few compressed bytes may be millions of NOPs."""
_MAX_DECISIONS: Final = 1024
"""Decisions remembered for one client."""
_ANSWER: Final = {
    "ttl": INT64,
    "identity": STRING,
    "identity_url": STRING,
    "authorizations": list_of(
        object_of({"topic": STRING, "channels": list_of(STRING), "permissions": list_of(STRING)}),
    ),
}


class AuthFailed(Exception):
    """No auth server gave a valid answer. The text is for the log, not for the client."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The description of a client in a request to an auth server.

    `remote_ip` is "" on a unix socket, `common_name` that of a client certificate, "" without one. `renews`: the client
    has permissions already, which are over.
    """

    secret: bytes = field(repr=False)
    remote_ip: str
    tls: bool
    common_name: str
    renews: bool = False


@dataclass(frozen=True, slots=True)
class Authorization:
    """Permissions for the topics and channels with a match of these patterns in their names."""

    topic: Any
    channels: tuple[Any, ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether this is permitted. `channel` is "" for publishing; a channel pattern must match that too (nsqd)."""
        return (
            ("subscribe" if channel else "publish") in self.permissions
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


NO_GRANTS: Final = Grants("", "", (), 0.0, 0.0)

Authorize = Callable[[Credentials], Grants]
"""Asks an auth server. Raises ``AuthFailed``."""


def not_asked(credentials: Credentials) -> Grants:
    """The `Authorize` of a daemon without auth servers."""
    raise AuthFailed("there is no auth server")


def read_answer(body: bytes, now: float) -> Grants:
    """Parse an auth server's JSON. Raises ``AuthFailed`` if NSQ would refuse it, or if it exceeds a limit.

    Large answers take long: call it in a thread.
    """
    if len(body) > MAX_ANSWER_BYTES:
        raise AuthFailed(f"an answer of {len(body)} bytes, more than {MAX_ANSWER_BYTES}")
    try:
        answer = loads_object(body, _ANSWER)
    except JsonError as error:
        raise AuthFailed(f"wrong JSON: {error}") from None
    count = sum(1 + len(each["channels"]) for each in answer["authorizations"])
    if count > MAX_PATTERNS:
        raise AuthFailed(f"{count} patterns for topics and channels, more than {MAX_PATTERNS}")
    authorizations: list[Authorization] = []
    size = 0
    for each in answer["authorizations"]:
        for permission in each["permissions"]:
            if permission not in _PERMISSIONS:
                raise AuthFailed(f"unknown permission {permission}")
        topic = _compiled("topic", each["topic"])
        channels = tuple(_compiled("channel", pattern) for pattern in each["channels"])
        authorizations.append(Authorization(topic, channels, frozenset(each["permissions"])))
        size += sum(pattern.programsize for pattern in (topic, *channels))
        if size > MAX_PROGRAM_SIZE:
            raise AuthFailed(f"patterns of more than {MAX_PROGRAM_SIZE} instructions together")
    ttl = answer["ttl"]
    if ttl <= 0:
        raise AuthFailed(f"invalid TTL {ttl} (must be >0)")
    return Grants(answer["identity"], answer["identity_url"], tuple(authorizations), now, now + ttl)


def grants_of(token: Token, now: float) -> Grants:
    """The permissions that AUTH gives with a token of an access file."""
    return Grants(token.name, "", _authorizations_of(token), now, now + TOKEN_SECONDS)


@lru_cache(256)  # thousands of connections may have the same token
def _authorizations_of(token: Token) -> tuple[Authorization, ...]:
    permissions = frozenset(_OF_TOKENS[each] for each in token.permissions if each in _OF_TOKENS)
    topics = (token.topics or (_ANY,)) if permissions else ()
    return tuple(Authorization(topic, (_ANY,), permissions) for topic in topics)


@lru_cache(4096)  # many clients have the same permissions
def _compiled(noun: str, pattern: str) -> Any:
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise AuthFailed(f"a pattern for a {noun} of more than {MAX_PATTERN_BYTES} bytes")
    import re2  # 1.6 MB, which an nsqd without auth servers does not need

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace")
        raise AuthFailed(f"unable to compile {noun} {quote(pattern.encode())} {why}") from None


class Access:
    """The permissions of one client. `ask` is given its secret and raises ``AuthFailed``.

    Without permissions, a client costs little and soon has to authenticate (docs/differences.md: auth-first).
    """

    def __init__(self, ask: Callable[[bytes], Grants], due: float = NEVER) -> None:
        self.grants = NO_GRANTS
        self.due = due
        """When the client must have authenticated; monotonic seconds."""
        self.subscribed: tuple[str, str] | None = None
        """Topic and channel."""
        self._is_primary = False
        self._ask = ask
        self._secret = b""
        self._commands_left = MAX_COMMANDS_WITHOUT_AUTH
        self._decisions: dict[tuple[bytes, bytes], bool] = {}

    def authenticate(self, secret: bytes) -> bytes:
        """Execute AUTH and return the JSON of its response. Raises ``FatalClientError``."""
        if self.grants.authorizations:
            raise FatalClientError(E_INVALID, "AUTH already set")
        self._secret = secret
        grants = self._renew()
        if not grants.authorizations:
            raise FatalClientError(E_UNAUTHORIZED, "AUTH no authorizations found")
        self.due = NEVER
        response = {
            "identity": grants.identity,
            "identity_url": grants.identity_url,
            "permission_count": len(grants.authorizations),
        }
        return dumps(response).encode("utf-8")

    def admit(self, spec: CommandSpec, *, has_identified: bool) -> None:
        """Refuse a command of a client without permissions before its body is received. Raises ``FatalClientError``."""
        if self.grants.authorizations or spec is AUTH:
            return
        self._commands_left -= 1
        if self._commands_left < 0 or (has_identified if spec is IDENTIFY else spec.body is not None):
            raise FatalClientError(E_AUTH_FIRST, f"AUTH required before {spec.name}")

    def require(self, spec: CommandSpec, topic: bytes, channel: bytes, now: float) -> None:
        """Raise ``FatalClientError`` unless the client may do this. `channel` is empty for publishing."""
        grants = self.grants
        if not grants.authorizations:
            raise FatalClientError(E_AUTH_FIRST, f"AUTH required before {spec.name}")
        if grants.expires_at < now:
            self._renew()
        self._decide(spec, topic, channel)

    def recheck(self, spec: CommandSpec, topic: bytes) -> None:
        """As `require`, for a command that waits, but never waits itself: permissions that expire are not renewed."""
        if not self.grants.authorizations:
            raise FatalClientError(E_UNAUTHORIZED, f"AUTH failed for {spec.name} on {quote(topic)}")
        self._decide(spec, topic, b"")

    def _decide(self, spec: CommandSpec, topic: bytes, channel: bytes) -> None:
        allowed = self._decisions.get((topic, channel))
        if allowed is None:
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions.clear()
            allowed = self.grants.allow(topic.decode("ascii"), channel.decode("ascii"))
            self._decisions[topic, channel] = allowed
        if not allowed:
            raise FatalClientError(E_UNAUTHORIZED, f"AUTH failed for {spec.name} on {quote(topic)} {quote(channel)}")

    def require_mirror(self, spec: CommandSpec, now: float) -> None:
        """Raise ``FatalClientError`` unless the client may use this nsqd as its standby."""
        if not self.grants.authorizations:
            raise FatalClientError(E_AUTH_FIRST, f"AUTH required before {spec.name}")
        if self.grants.expires_at < now:
            self._renew()
        if not self._may_mirror():
            raise FatalClientError(E_UNAUTHORIZED, f"AUTH failed for {spec.name}")
        self._is_primary = True

    def renew(self, ask: Callable[[bytes], Grants]) -> bool:
        """Look up the permissions again, without waiting. Returns whether the connection may stay."""
        if not self.grants.authorizations:
            return True  # it cannot do anything yet
        self._decisions.clear()
        try:
            self.grants = ask(self._secret)
        except AuthFailed:
            self.grants = NO_GRANTS
            return False
        if self._is_primary and not self._may_mirror():
            return False  # while it is connected, its topics are not taken over
        if self.subscribed is not None:
            return self.grants.allow(*self.subscribed)
        return bool(self.grants.authorizations)

    def _may_mirror(self) -> bool:
        return any(MIRROR in each.permissions for each in self.grants.authorizations)

    def _renew(self) -> Grants:
        self._decisions.clear()
        try:
            self.grants = grants = self._ask(self._secret)
        except AuthFailed:
            # The reason is in the log: an unknown client is not told about auth servers (nsqd).
            raise FatalClientError(E_AUTH_FAILED, "AUTH failed") from None
        return grants
