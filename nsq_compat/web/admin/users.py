"""The user file: names, roles and passwords; and the checks of passwords, which are limited.

A line is ``name:role:scrypt$N$r$p$salt$hash``, salt and hash in base64, made by `make_line`. ``#`` starts a comment.
Checking a password takes the same time for names that do not exist. Hashing takes tens of milliseconds, so it is done
outside the event loop.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from threading import Event
from typing import Final, NamedTuple

from nsq_compat.protocol.names import network_of

_COST: Final = (2**14, 8, 1)
_MAX_MEMORY: Final = 64 * 1024 * 1024
_NAME: Final = re.compile(r"[^\s:#]{1,64}")


class Role(IntEnum):
    """Permissions. A role includes those below it."""

    NONE = 0
    """Not logged in."""
    VIEWER = 1
    """View stats."""
    OPERATOR = 2
    """View messages, and actions that lose no messages: pause, unpause, create, publish. Also finish single messages,
    requeue them, move them to the dead-letter topic, and redrive."""
    ADMIN = 3
    """All actions: also empty, delete, tombstone."""

    def __str__(self) -> str:
        return self.name.lower()


class LoginFailed(Exception):
    """A login at a provider failed; the text is for the user."""

    def __init__(self, text: str, status: int = 403) -> None:
        super().__init__(text)
        self.status = status


class Account(NamedTuple):
    """An account of a login provider."""

    subject: str
    """Identifies the account, unlike the name, which people can often choose."""
    name: str
    role: Role
    """NONE if the account has no role here."""


ROLES: Final[Mapping[str, Role]] = {str(role): role for role in Role if role}


def parse_role(text: str) -> tuple[str, Role]:
    """A value of `--oidc-role-map`: `value=role`. Raises ValueError."""
    value, _, role = text.rpartition("=")
    if not value or role not in ROLES:
        raise ValueError(f"it must be value=role, and the role one of {', '.join(ROLES)}")
    return value, ROLES[role]


class _User(NamedTuple):
    role: Role
    cost: tuple[int, int, int]
    salt: bytes
    key: bytes


class Users:
    """The users of a user file. Raises ValueError with the number of an invalid line."""

    def __init__(self, text: str) -> None:
        self._users: dict[str, _User] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    self._users.update([_parse(line.strip())])
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None
        self._unknown_user = _User(Role.NONE, _COST, b"unknown", b"")
        self._key = secrets.token_bytes(32)
        self._verified: dict[str, bytes] = {}

    def role_of(self, name: str) -> Role:
        return self._find(name).role

    def state_of(self, name: str) -> bytes:
        """Changes with the role and the password; empty for a name that does not exist."""
        return repr(self._users[name]).encode() if name in self._users else b""

    def changed(self, later: "Users") -> list[str]:
        """The names whose role or password is another in a later file, or which it does not have."""
        return [name for name in self._users if self.state_of(name) != later.state_of(name)]

    def digest(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{name}:{password}".encode("utf-8", "replace"), "sha256")

    def log_in(self, name: str, password: str, run: "Run" = lambda work: work()) -> Role:
        """The role; NONE for a wrong name or password. `run` computes the hash, unless the password is known."""
        role, cost, salt, key = self._find(name)
        # Programs send the password with every request, and scrypt is slow.
        digest = self.digest(name, password)
        if hmac.compare_digest(self._verified.get(name, b""), digest):
            return role
        if not hmac.compare_digest(run(lambda: _derive(password, salt, cost)), key):
            return Role.NONE
        self._verified[name] = digest
        return role

    def _find(self, name: str) -> _User:
        return self._users.get(name, self._unknown_user)


# --- Limits -----------------------------------------------------------------------------------------------------------

Run = Callable[[Callable[[], bytes]], bytes]
"""Calls a function, in another thread, and returns its result. Raises `TooBusy`."""
MAX_OF_PAIR: Final = 10
MAX_OF_ADDRESS: Final = 30
MAX_OF_NAME: Final = 50
_WINDOW: Final = 60.0
_MAX_KNOWN: Final = 1000
_Keys = tuple[tuple[str, ...], ...]
"""What failures are counted by: the pair, the address, the name."""
_Attempt = tuple[float, _Keys]


class TooBusy(Exception):
    """Too many passwords are being checked."""


class TooManyAttempts(Exception):
    """Too many attempts failed within a minute; the argument is the number of seconds until the next is checked."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class PasswordCheck:
    """Checks passwords with `run`, unless too many attempts of a client or for a user failed within a minute.

    Failures are counted by address and name together, by address, and by name. The last two limits do not apply to an
    address from which this user has logged in: attempts from elsewhere do not lock the user out there. An attempt
    counts until it succeeds, so that concurrent ones cannot exceed a limit.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._failed: dict[tuple[str, ...], deque[float]] = {}
        self._attempts: deque[_Attempt] = deque()
        self._known: dict[tuple[str, ...], None] = {}
        self._running: dict[bytes, Event] = {}

    def log_in(self, users: Users, name: str, password: str, address: str, now: Callable[[], float]) -> Role:
        """As `Users.log_in`. `now` is in monotonic seconds. Raises `TooManyAttempts` and `TooBusy`."""
        digest = users.digest(name, password)
        # Concurrent requests of one program are one attempt if the password is right.
        while (other := self._running.get(digest)) is not None:
            other.wait()
        keys = _keys(address, name)
        if (seconds := self._seconds_to_wait(keys, now())) > 0:
            raise TooManyAttempts(seconds)
        ended = self._running[digest] = Event()
        attempt = self._add(keys, now())
        try:
            role = users.log_in(name, password, self._run)
        except TooBusy:
            self._remove(attempt)
            raise
        finally:
            del self._running[digest]
            ended.set()
        if role is not Role.NONE:
            self._remove(attempt)
            self._known.pop(keys[0], None)
            self._known[keys[0]] = None
            if len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return role

    def _seconds_to_wait(self, keys: _Keys, now: float) -> float:
        while self._attempts and self._attempts[0][0] <= now - _WINDOW:
            self._remove(self._attempts[0])
        limits = (MAX_OF_PAIR,) if keys[0] in self._known else (MAX_OF_PAIR, MAX_OF_ADDRESS, MAX_OF_NAME)
        waits = [0.0]
        for key, limit in zip(keys, limits, strict=False):
            failed = self._failed.get(key, ())
            if len(failed) >= limit:
                waits.append(failed[-limit] + _WINDOW - now)
        return max(waits)

    def _add(self, keys: _Keys, now: float) -> _Attempt:
        for key in keys:
            self._failed.setdefault(key, deque()).append(now)
        self._attempts.append((now, keys))
        return now, keys

    def _remove(self, attempt: _Attempt) -> None:
        if attempt not in self._attempts:  # its password was hashed for longer than a minute
            return
        self._attempts.remove(attempt)
        began, keys = attempt
        for key in keys:
            self._failed[key].remove(began)
            if not self._failed[key]:
                del self._failed[key]


def _keys(address: str, name: str) -> _Keys:
    address = network_of(address)
    name = name[:65]
    return (address, name), ("address", address, ""), ("name", name, "")


# --- The file ---------------------------------------------------------------------------------------------------------


def make_line(name: str, role: str, password: str) -> str:
    """A line for the user file. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError("invalid user name: it must have 1 to 64 characters, without blanks, ':' and '#'")
    if role not in ROLES:
        raise ValueError(f"invalid role: it must be one of {', '.join(ROLES)}")
    if not password:
        raise ValueError("the password must not be empty")
    salt = secrets.token_bytes(16)
    encoded = [base64.b64encode(part).decode("ascii") for part in (salt, _derive(password, salt, _COST))]
    return f"{name}:{role}:{'$'.join(['scrypt', *map(str, _COST), *encoded])}"


def _parse(line: str) -> tuple[str, _User]:
    name, role, password = [*line.split(":", 2), "", ""][:3]
    if not _NAME.fullmatch(name):
        raise ValueError("the line must begin with a valid user name and ':'")
    if role not in ROLES:
        raise ValueError(f"the role must be one of {', '.join(ROLES)}")
    scheme, *numbers = password.split("$")
    if scheme != "scrypt" or len(numbers) != 5:
        raise ValueError("the password must be scrypt$N$r$p$salt$hash")
    n, r, p = map(int, numbers[:3])
    if n < 2 or n & (n - 1) or r < 1 or p < 1 or 128 * r * (n + p + 2) > _MAX_MEMORY:
        raise ValueError(f"invalid cost of scrypt: {n}, {r}, {p}")
    salt, key = (base64.b64decode(text, validate=True) for text in numbers[3:])
    return name, _User(ROLES[role], (n, r, p), salt, key)


def _derive(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(password.encode("utf-8", "replace"), salt=salt, n=n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=32)
