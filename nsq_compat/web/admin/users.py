"""The user file: names, roles and passwords.

A line is ``name:role:scrypt$N$r$p$salt$hash``, salt and hash in base64, made by `make_line`. ``#`` starts a comment.
Checking a password takes the same time for names that do not exist.
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
_MAX_MEMORY: Final = 64 * 1024 * 1024
MAX_ATTEMPTS: Final = 10
_MINUTE: Final = 60.0
_MAX_REMEMBERED: Final = 10_000
_NAME: Final = re.compile(r"[^\s:#]{1,64}")


class Role(IntEnum):
    """Permissions. A role includes those below it."""

    NONE = 0
    """Not logged in."""
    VIEWER = 1
    """View stats."""
    OPERATOR = 2
    """View messages, and actions that lose no messages: pause, unpause, create, publish."""
    ADMIN = 3
    """All actions: also empty, delete, tombstone."""


ROLES: Final[Mapping[str, Role]] = {role.name.lower(): role for role in Role if role}


class UserFileError(ValueError):
    """The text names the line and the problem."""


@dataclass(frozen=True, slots=True)
class Password:
    cost: tuple[int, int, int]
    salt: bytes
    key: bytes

    def matches(self, attempt: str) -> bool:
        return hmac.compare_digest(_derive(attempt, self.salt, self.cost), self.key)


class Users:
    """The users of a user file. Raises `UserFileError` for an invalid text."""

    def __init__(self, text: str) -> None:
        self._users: dict[str, tuple[Role, Password]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    name, role, password = _parse(line.strip())
                except ValueError as error:
                    raise UserFileError(f"line {number}: {error}") from None
                self._users[name] = (role, password)
        self._unknown_user = (Role.NONE, Password(_COST, b"unknown", b""))
        self._key = secrets.token_bytes(32)
        self._verified: dict[str, bytes] = {}

    def role_of(self, name: str) -> Role:
        return self._users.get(name, self._unknown_user)[0]

    def log_in(self, name: str, password: str) -> Role:
        """The role; NONE for a wrong name or password."""
        role, expected = self._users.get(name, self._unknown_user)
        # Programs send the password with every request, and scrypt is slow.
        digest = hmac.digest(self._key, f"{name}:{password}".encode("utf-8", "replace"), "sha256")
        if hmac.compare_digest(self._verified.get(name, b""), digest):
            return role
        if not expected.matches(password):
            return Role.NONE
        self._verified[name] = digest
        return role


class Attempts:
    """Failed logins, by address and name. After `MAX_ATTEMPTS` in a minute, further ones are refused unchecked."""

    def __init__(self) -> None:
        self._failed: dict[tuple[str, str], list[float]] = {}

    def allowed(self, address: str, name: str, now: float) -> bool:
        return len(self._recent(address, name, now)) < MAX_ATTEMPTS

    def add_failed(self, address: str, name: str, now: float) -> None:
        if len(self._failed) >= _MAX_REMEMBERED:
            self._failed = {key: times for key, times in self._failed.items() if times[-1] > now - _MINUTE}
        if len(self._failed) < _MAX_REMEMBERED:
            self._failed[address, name] = [*self._recent(address, name, now), now]

    def _recent(self, address: str, name: str, now: float) -> list[float]:
        return [at for at in self._failed.get((address, name), ()) if at > now - _MINUTE]


def make_line(name: str, role: str, password: str) -> str:
    """A line for the user file. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError("invalid user name: it must have 1 to 64 characters, without blanks, ':' and '#'")
    if role not in ROLES:
        raise ValueError(f"invalid role: it must be one of {', '.join(ROLES)}")
    if not password:
        raise ValueError("the password must not be empty")
    salt = secrets.token_bytes(16)
    parts = [*map(str, _COST), _encode(salt), _encode(_derive(password, salt, _COST))]
    return f"{name}:{role}:scrypt${'$'.join(parts)}"


def _parse(line: str) -> tuple[str, Role, Password]:
    name, role, password = [*line.split(":", 2), "", ""][:3]
    if not _NAME.fullmatch(name):
        raise ValueError("the line must begin with a valid user name and ':'")
    if role not in ROLES:
        raise ValueError(f"the role must be one of {', '.join(ROLES)}")
    scheme, *numbers = password.split("$")
    if scheme != "scrypt" or len(numbers) != 5:
        raise ValueError("the password must be scrypt$N$r$p$salt$hash")
    cost = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    return name, ROLES[role], Password(cost, _decode(numbers[3]), _decode(numbers[4]))


def _derive(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(password.encode("utf-8", "replace"), salt=salt, n=n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=32)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
