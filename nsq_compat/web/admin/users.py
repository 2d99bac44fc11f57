"""The user file: names, roles and passwords.

A line is ``name:role:scrypt$N$r$p$salt$hash``, salt and hash in base64, made by `make_line`. ``#`` starts a comment.
Checking a password takes the same time for names that do not exist.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

_COST: Final = (2**14, 8, 1)
_MAX_MEMORY: Final = 64 * 1024 * 1024
MAX_ATTEMPTS: Final = 10
_MINUTE: Final = 60.0
_MAX_REMEMBERED: Final = 10_000
"""Failed logins; each takes the time of scrypt, so that a minute has fewer."""
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


ROLES: Final[Mapping[str, Role]] = {str(role): role for role in Role if role}


class _User(NamedTuple):
    role: Role
    cost: tuple[int, int, int]
    salt: bytes
    key: bytes


class Users:
    """The users of a user file, and their failed logins. Raises ValueError with the number of an invalid line."""

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
        self._failed: deque[tuple[str, str, float]] = deque(maxlen=_MAX_REMEMBERED)

    def role_of(self, name: str) -> Role:
        return self._users.get(name, self._unknown_user).role

    def log_in(self, name: str, password: str) -> Role:
        """The role; NONE for a wrong name or password."""
        role, cost, salt, key = self._users.get(name, self._unknown_user)
        # Programs send the password with every request, and scrypt is slow.
        digest = hmac.digest(self._key, f"{name}:{password}".encode("utf-8", "replace"), "sha256")
        if hmac.compare_digest(self._verified.get(name, b""), digest):
            return role
        if not hmac.compare_digest(_derive(password, salt, cost), key):
            return Role.NONE
        self._verified[name] = digest
        return role

    def may_try(self, address: str, name: str, now: float) -> bool:
        """Whether a login may be checked: false after `MAX_ATTEMPTS` failures in a minute."""
        recent = [each for each in self._failed if each[:2] == (address, name) and each[2] > now - _MINUTE]
        return len(recent) < MAX_ATTEMPTS

    def add_failed(self, address: str, name: str, now: float) -> None:
        self._failed.append((address, name, now))


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
    salt, key = (base64.b64decode(text, validate=True) for text in numbers[3:])
    return name, _User(ROLES[role], (n, r, p), salt, key)


def _derive(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(password.encode("utf-8", "replace"), salt=salt, n=n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=32)
