"""Logins of browsers: the signed cookie, what ends a login, and the file in which this outlives nsqadmin.

The cookie has the user, the id and the beginning of the login, the time of the last request, and a tag of what the
login rests on, such as the password's hash. A login ends when one of these happens:

- the user logs out: its id is then in `_State.ended`, so that copies of the cookie are refused, too;
- what it rests on changes: the tag is then another one;
- the user does nothing for the idle timeout, or the absolute timeout is over;
- the key changes: at each start without a file, and when `revoke` replaces the file.

The file may be shared by several nsqadmins. It is replaced as a whole, under a lock of its folder, and read again when
it has changed.
"""

import base64
import fcntl
import hmac
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

log = logging.getLogger(__name__)

_KEY_BYTES: Final = 32
MAX_ENDED: Final = 100
"""Ended logins of one user that are remembered one by one. With more, all of the user's logins end."""
_RENEWALS: Final = 20
"""The time of the last request is renewed when it is older than this part of the idle timeout."""
_CLOCK_ERROR: Final = 60.0


Run = Callable[[Callable[[], Exception | None]], Exception | None]


class SessionFileError(Exception):
    """The file cannot be used; the text says why."""


@dataclass(slots=True)
class _Ended:
    """The ended logins of a user: those that began until `before`, and those with these ids, which expire."""

    before: float = 0.0
    ids: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    key: bytes = field(default_factory=lambda: secrets.token_bytes(_KEY_BYTES))
    ended: dict[str, _Ended] = field(default_factory=dict)

    def end(self, user: str, session_id: str, expires: float, now: float) -> None:
        for name, each in list(self.ended.items()):
            each.ids = {number: end for number, end in each.ids.items() if end > now}
            if not each.ids and not each.before:
                del self.ended[name]
        ended = self.ended.setdefault(user, _Ended())
        ended.ids[session_id] = expires
        if len(ended.ids) > MAX_ENDED:
            ended.before, ended.ids = now, {}

    def end_all(self, user: str, now: float) -> None:
        self.ended[user] = _Ended(before=now)

    def has_ended(self, user: str, session_id: str, began: float) -> bool:
        ended = self.ended.get(user)
        return ended is not None and (session_id in ended.ids or began <= ended.before)


class Sessions:
    """The logins of one nsqadmin. Timeouts are in seconds. `path` is that of the file, or empty.

    `run` writes the file, in another thread. The constructor raises `SessionFileError`.
    """

    def __init__(
        self,
        now: Callable[[], float],
        idle_timeout: float,
        timeout: float,
        path: str = "",
        run: "Run" = lambda write: write(),
    ) -> None:
        self.timeout = timeout
        self._now = now
        self._idle_timeout = idle_timeout
        self._path = path
        self._run = run
        self._seen: object = None
        self._state = _State()
        self._unwritten = _State()
        if path:
            with _locked(path):
                if not os.path.exists(path):
                    _write(path, self._state)
            self._state = _read(path)

    @property
    def key(self) -> bytes:
        """The key that signs cookies now."""
        self._reread()
        return self._state.key

    def begin(self, cookie: MutableMapping[str, Any], user: str, basis: bytes, **more: str) -> None:
        """Make a login in the cookie, instead of what it has. It ends when the user's `basis` changes."""
        now = self._now()
        cookie.clear()
        cookie.update(user=user, id=secrets.token_urlsafe(16), began=now, seen=now, tag=self._tag(user, basis), **more)

    def user_of(self, cookie: MutableMapping[str, Any], basis_of: Callable[[str], bytes], *, renew: bool) -> str:
        """The user of the login; empty if there is none or it has ended. A request of the user renews it."""
        user, now = str(cookie.get("user", "")), self._now()
        if not user or not all(isinstance(cookie.get(name), int | float) for name in ("began", "seen")):
            return ""
        began, seen = cookie["began"], cookie["seen"]
        basis = basis_of(user)
        if (
            not basis
            or not hmac.compare_digest(str(cookie.get("tag", "")), self._tag(user, basis))
            or not began - _CLOCK_ERROR <= now < began + self.timeout
            or now >= seen + self._idle_timeout
            or any(state.has_ended(user, str(cookie.get("id", "")), began) for state in (self._state, self._unwritten))
        ):
            return ""
        if renew and now - seen > self._idle_timeout / _RENEWALS:
            cookie["seen"] = now
        return user

    def end(self, cookie: MutableMapping[str, Any]) -> None:
        """End the login of the cookie, and of its copies."""
        user, session_id, began = str(cookie.get("user", "")), str(cookie.get("id", "")), cookie.get("began")
        cookie.clear()
        if not user or not session_id or not isinstance(began, int | float):
            return
        now = self._now()
        self._state.end(user, session_id, began + self.timeout, now)
        if self._path:
            expires = began + self.timeout
            error = self._run(lambda: _end_in_file(self._path, lambda state: state.end(user, session_id, expires, now)))
            if error is not None:
                log.error("--session-file: the logout of %s is forgotten at the next start - %s", user, error)
                self._unwritten.end(user, session_id, began + self.timeout, now)

    def end_all(self, user: str) -> None:
        """End all logins of a user so far, for good: the user's password or role may become again what it was."""
        now = self._now()
        self._state.end_all(user, now)
        if self._path:
            error = self._run(lambda: _end_in_file(self._path, lambda state: state.end_all(user, now)))
            if error is not None:
                log.error("--session-file: ended logins of %s are forgotten at the next start - %s", user, error)
                self._unwritten.end_all(user, now)

    def _tag(self, user: str, basis: bytes) -> str:
        return hmac.digest(self._state.key, user.encode("utf-8", "replace") + b"\0" + basis, "sha256").hex()

    def _reread(self) -> None:
        if not self._path:
            return
        try:
            seen = os.stat(self._path)
            version = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
            if version != self._seen:
                self._state, self._seen = _read(self._path), version
        except (OSError, SessionFileError) as error:
            if self._seen is not None:
                # What was revoked is not known any more, so nothing is accepted.
                self._state, self._seen = _State(), None
                log.error("--session-file: all logins have ended - %s", error)


def revoke(path: str) -> None:
    """End all logins, by a new key. Raises `SessionFileError`."""
    with _locked(path):
        _write(path, _State())


# --- The file ---------------------------------------------------------------------------------------------------------


def _end_in_file(path: str, end: "Callable[[_State], None]") -> Exception | None:
    """The error is returned, because it may leave a thread."""
    try:
        with _locked(path):
            state = _read(path)
            end(state)
            _write(path, state)
    except (OSError, SessionFileError) as error:
        return error
    return None


@contextmanager
def _locked(path: str) -> Iterator[None]:
    try:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise SessionFileError(f"{path}: {error.strerror or error}") from None


def _read(path: str) -> _State:
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise SessionFileError(f"{path}: other users may access it, so they could log in; chmod o= it")
            saved = json.load(file)
        key = base64.b64decode(saved["key"], validate=True)
        if len(key) < _KEY_BYTES:
            raise ValueError("short key")
        ended = {
            str(user): _Ended(float(each["before"]), {str(name): float(end) for name, end in each["ids"].items()})
            for user, each in saved["ended"].items()
        }
    except OSError as error:
        raise SessionFileError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SessionFileError(f"{path}: it is not a file that nsqadmin has written") from None
    return _State(key, ended)


def _write(path: str, state: _State) -> None:
    saved = {
        "key": base64.b64encode(state.key).decode("ascii"),
        "ended": {user: {"before": each.before, "ids": each.ids} for user, each in state.ended.items()},
    }
    new = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        with suppress(OSError):  # a new file, or one of another user; root's must stay readable for nsqadmin
            owner = os.stat(path)
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        json.dump(saved, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
