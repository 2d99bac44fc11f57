"""The access file: tokens and what their bearers may do, over HTTP and with AUTH.

The file is TOML, with a table for each token. It has only hashes, which give no access::

    [[tokens]]
    name = "billing"
    hash = "sha256:0b0f..."
    permissions = ["read", "publish"]
    topics = ["orders", "billing_.*"]    # regular expressions (RE2) for whole names; without this, all topics
    expires = 2027-01-01T00:00:00Z       # without this, never

Tokens are random and long, so a plain hash cannot be reversed, and needs no salt.

Every daemon imports this module, and few have an access file: what only that needs is imported where it is used.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nsq_compat.protocol.names import is_host

log = logging.getLogger(__name__)

READ: Final = "read"
PUBLISH: Final = "publish"
CONSUME: Final = "consume"
OPERATE: Final = "operate"
ADMIN: Final = "admin"
MIRROR: Final = "mirror"
REGISTER: Final = "register"
PERMISSIONS: Final[Mapping[str, str]] = {
    READ: "statistics, metrics, lookups and lists",
    PUBLISH: "publish messages",
    CONSUME: "subscribe, and read messages over HTTP",
    OPERATE: "read, and create, pause, empty, rewind, tombstone, finish or requeue messages, take over a primary",
    ADMIN: "all of these, and delete, change the configuration, debug",
    MIRROR: "use an nsqd as standby",
    REGISTER: "register an nsqd with nsqlookupd",
}
"""Their descriptions."""
_INCLUDED: Final[Mapping[str, tuple[str, ...]]] = {OPERATE: (READ,), ADMIN: (READ, PUBLISH, CONSUME, OPERATE)}
_HASH: Final = "sha256:"
_PREFIX: Final = "nsq_"
_TOKEN_BYTES: Final = 32
_PATTERN_MEMORY: Final = 1 << 18


class AccessError(ValueError):
    """An invalid access file."""


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """What the bearer of a token may do. `topics` and `addresses` are patterns of whole names; None stands for all.

    `addresses` are the broadcast addresses that an nsqd with this token may register. `expires` is in Unix seconds.
    """

    name: str
    permissions: frozenset[str]
    topics: tuple[Any, ...] | None = None
    addresses: tuple[Any, ...] | None = None
    expires: float | None = None

    def covers(self, topic: str) -> bool:
        return self.topics is None or (topic.isascii() and _matches(self.topics, topic))

    def may_register(self, address: str) -> bool:
        return REGISTER in self.permissions and (self.addresses is None or self._covers_address(address))

    def _covers_address(self, address: str) -> bool:
        # The zone of an IPv6 address may be any text, such as the end of a name, and Go's programs connect to
        # ``::1%x.example`` nevertheless. So only a pattern with a zone is compared with it.
        without_zone = address.partition("%")[0]
        return is_host(address) and any(
            pattern.search(address if "%" in pattern.pattern else without_zone) is not None
            for pattern in self.addresses or ()
        )


class Tokens:
    """The tokens of an access file. Raises ``AccessError``."""

    def __init__(self, text: str = "") -> None:
        import tomllib

        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise AccessError(str(error)) from None
        except RecursionError:
            raise AccessError("it is nested too deeply") from None
        rows = tables.pop("tokens", [])
        if tables:
            raise AccessError(f"unknown setting {next(iter(tables))!r}")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise AccessError("tokens must be tables, [[tokens]]")
        self._by_hash: dict[str, Token] = {}
        names: set[str] = set()
        for number, row in enumerate(rows, 1):
            try:
                hashed, token = _parse(row)
            except ValueError as error:
                raise AccessError(f"token {number}: {error}") from None
            if token.name in names or hashed in self._by_hash:
                raise AccessError(f"token {number}: another one has its name or hash")
            names.add(token.name)
            self._by_hash[hashed] = token

    def __len__(self) -> int:
        return len(self._by_hash)

    def __iter__(self) -> Iterator[Token]:
        return iter(self._by_hash.values())

    def find(self, secret: bytes, now: float) -> Token | None:
        """The token, unless it has expired. `now` is in Unix seconds."""
        token = self._by_hash.get(hash_of(secret))
        return None if token is None or (token.expires is not None and token.expires <= now) else token


class AccessFile:
    """The access file at `path`, as of its last successful reading. The constructor raises ``AccessError``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tokens = Tokens()
        self._read()

    def reload(self) -> bool:
        """Read the file again, and return whether it is valid. If not, log that, and keep the tokens as they are."""
        try:
            self._read()
        except AccessError as error:
            log.error("ACCESS: keeping the tokens in force - %s", error)
            return False
        level = logging.INFO if self.tokens else logging.WARNING
        log.log(level, "ACCESS: %d tokens in force", len(self.tokens))
        return True

    def _read(self) -> None:
        try:
            with open(self.path, encoding="utf-8-sig") as file:
                self.tokens = Tokens(file.read())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise AccessError(f"failed to load the access file {self.path} - {why}") from None


def hash_of(secret: bytes) -> str:
    import hashlib

    return _HASH + hashlib.sha256(secret).hexdigest()


def is_token(text: str) -> bool:
    """Whether a header can have this text as token. "" stands for none."""
    return text.isascii() and text.isprintable() and " " not in text


def make_token() -> str:
    import secrets

    return _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def _parse(row: Mapping[str, Any]) -> tuple[str, Token]:
    for key in row:
        if key not in _KEYS:
            raise ValueError(f"unknown setting {key!r}")
    for key in ("name", "hash", "permissions"):
        if key not in row:
            raise ValueError(f"{key} is missing")
    values = {}
    for key, value in row.items():
        try:
            values[key] = _KEYS[key](value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    if "topics" in values and values["permissions"] & {MIRROR, REGISTER}:
        raise ValueError("topics: mirror and register cannot be limited to topics")
    if "addresses" in values and REGISTER not in values["permissions"]:
        raise ValueError("addresses: has no effect without the permission register")
    hashed = values.pop("hash")
    return hashed, Token(**values)


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 64 or not value.isprintable() or value != value.strip():
        raise ValueError("must be a text of 1 to 64 printable characters")
    return value


def _hash(value: object) -> str:
    if isinstance(value, str) and value.startswith(_HASH) and len(value) == len(_HASH) + 64:
        try:
            int(value.removeprefix(_HASH), 16)
        except ValueError:
            pass
        else:
            return value.lower()
    raise ValueError("must be sha256: and 64 hexadecimal digits")


def _permissions(value: object) -> frozenset[str]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list with at least one permission")
    for each in value:
        if not isinstance(each, str) or each not in PERMISSIONS:
            raise ValueError(f"unknown permission {each!r}, not one of {', '.join(PERMISSIONS)}")
    return frozenset(value).union(*(_INCLUDED.get(each, ()) for each in value))


def _patterns(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list with at least one regular expression")
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        for pattern in value:
            re2.compile(pattern, options)  # by itself, so that no parenthesis ends the group below
        return tuple(re2.compile(rf"\A(?:{pattern})\z", options) for pattern in value)
    except (re2.error, TypeError) as error:
        raise ValueError(f"not a regular expression: {error}") from None


def _matches(patterns: tuple[Any, ...], text: str) -> bool:
    return any(pattern.search(text) is not None for pattern in patterns)


def _time(value: object) -> float:
    from datetime import UTC, datetime

    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("must be a time with its zone, such as 2027-01-01T00:00:00Z")
    try:
        return value.astimezone(UTC).timestamp()
    except OverflowError:
        raise ValueError("must be a time from the year 1 to 9999 in UTC") from None


_KEYS: Final[Mapping[str, Callable[[object], Any]]] = {
    "name": _name,
    "hash": _hash,
    "permissions": _permissions,
    "topics": _patterns,
    "addresses": _patterns,
    "expires": _time,
}
