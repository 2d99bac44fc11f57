"""Who may log in, with which role: the user file, and its passwords.

A line is ``name:role:scrypt$N$r$p$salt$hash``, salt and hash in base64; ``#`` begins a comment. `make_line` makes one.
A password that is wrong and a user that does not exist cost the same time.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_COST: Final = (2**14, 8, 1)
_MOST_MEMORY: Final = 64 * 1024 * 1024
MOST_ATTEMPTS: Final = 10
_MINUTE: Final = 60.0
_MOST_REMEMBERED: Final = 10_000
_NAME: Final = re.compile(r"[^\s:#]{1,64}")


class Role(IntEnum):
    """What one may do; the higher may all the lower may."""

    NOBODY = 0
    VIEWER = 1
    """Look at figures."""
    OPERATOR = 2
    """Do what loses nothing: pause, unpause, create, publish, look at messages."""
    ADMIN = 3
    """Everything: empty, delete, tombstone."""


ROLES: Final[Mapping[str, Role]] = {role.name.lower(): role for role in Role if role}


class UserFileError(ValueError):
    """The text says which line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Password:
    cost: tuple[int, int, int]
    salt: bytes
    key: bytes

    def matches(self, attempt: str) -> bool:
        return hmac.compare_digest(_derive(attempt, self.salt, self.cost), self.key)


class Users:
    """Raises `UserFileError` for a text that is no user file."""

    def __init__(self, text: str) -> None:
        self._users: dict[str, tuple[Role, Password]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    name, role, password = _parse(line.strip())
                except ValueError as error:
                    raise UserFileError(f"line {number}: {error}") from None
                self._users[name] = (role, password)
        self._nobody = Password(_COST, b"nobody", b"")
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}

    def role_of(self, name: str) -> Role:
        return self._users.get(name, (Role.NOBODY, self._nobody))[0]

    def log_in(self, name: str, password: str) -> Role:
        """The role, NOBODY for a wrong name or password."""
        role, expected = self._users.get(name, (Role.NOBODY, self._nobody))
        # A program that sends its password with every request need not cost scrypt's price every time.
        digest = hmac.digest(self._key, f"{name}:{password}".encode("utf-8", "replace"), "sha256")
        if hmac.compare_digest(self._known.get(name, b""), digest):
            return role
        if not expected.matches(password):
            return Role.NOBODY
        self._known[name] = digest
        return role


class Attempts:
    """Wrong passwords of one visitor for one name: after `MOST_ATTEMPTS` a minute they are not even looked at."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], list[float]] = {}

    def allowed(self, who: str, name: str, now: float) -> bool:
        return len(self._recent(who, name, now)) < MOST_ATTEMPTS

    def failed(self, who: str, name: str, now: float) -> None:
        if len(self._failed) >= _MOST_REMEMBERED:
            self._failed = {key: moments for key, moments in self._failed.items() if moments[-1] > now - _MINUTE}
        if len(self._failed) < _MOST_REMEMBERED:
            self._failed[who, name] = [*self._recent(who, name, now), now]

    def _recent(self, who: str, name: str, now: float) -> list[float]:
        return [moment for moment in self._failed.get((who, name), ()) if moment > now - _MINUTE]


def make_line(name: str, role: str, password: str) -> str:
    """A line for the user file. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 64 characters, none of them a blank, ':' or '#'")
    if role not in ROLES:
        raise ValueError(f"a role is one of {', '.join(ROLES)}")
    if not password:
        raise ValueError("a password is not empty")
    salt = secrets.token_bytes(16)
    parts = [*map(str, _COST), _encode(salt), _encode(_derive(password, salt, _COST))]
    return f"{name}:{role}:scrypt${'$'.join(parts)}"


def _parse(line: str) -> tuple[str, Role, Password]:
    name, role, password = [*line.split(":", 2), "", ""][:3]
    if not _NAME.fullmatch(name):
        raise ValueError("a name must stand before the first ':'")
    if role not in ROLES:
        raise ValueError(f"the role must be one of {', '.join(ROLES)}")
    scheme, *numbers = password.split("$")
    if scheme != "scrypt" or len(numbers) != 5:
        raise ValueError("the password must be scrypt$N$r$p$salt$hash")
    cost = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    return name, ROLES[role], Password(cost, _decode(numbers[3]), _decode(numbers[4]))


def _derive(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(password.encode("utf-8", "replace"), salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY, dklen=32)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
