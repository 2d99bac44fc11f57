"""Logins of browsers: the signed cookie, what ends a login, and the file in which this outlives nsqadmin.

The cookie has the user, the id and the beginning of the login, the time of the last request, and a tag of what the
login rests on, such as the password's hash. A login ends when one of these happens:

- the user logs out: its id is then in `_State.ended`, so that copies of the cookie are refused, too;
- what it rests on changes: the tag is then another one;
- the user does nothing for the idle timeout, or the absolute timeout is over;
- the key changes: at each start without a file, and when `revoke` replaces the file.

The file may be shared by several nsqadmins. It is replaced as a whole, under a lock of the file itself, so that only
programs that may use it can hold the lock. It is read again when it has changed.
"""

import base64
import errno
import fcntl
import hmac
import json
import logging
import os
import secrets
import stat
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
            with _locked(path, make=True):
                self._seen = _version(path)
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
        self._reread()  # the request may have waited since its cookie was verified
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
            version = _version(self._path)
            if version != self._seen:
                self._state, self._seen = _read(self._path), version
        except (OSError, SessionFileError) as error:
            if self._seen is not None:
                # What was revoked is not known any more, so nothing is accepted.
                self._state, self._seen = _State(), None
                log.error("--session-file: all logins have ended - %s", error)


def revoke(path: str) -> None:
    """End all logins, by a new key. Raises `SessionFileError`, also if there is no such file: it has no logins."""
    with _locked(path) as real:
        _load(real)  # another file must not be replaced
        _write(real, _State())


# --- The file ---------------------------------------------------------------------------------------------------------


def _end_in_file(path: str, end: "Callable[[_State], None]") -> Exception | None:
    """The error is returned, because it may leave a thread."""
    try:
        with _locked(path) as real:
            state = _read(real)
            end(state)
            _write(real, state)
    except (OSError, SessionFileError) as error:
        return error
    return None


@contextmanager
def _locked(path: str, *, make: bool = False) -> Iterator[str]:
    """The path of the file without symbolic links, which `_write` would replace. `make` it if it is missing or empty.

    The file is locked, not its folder, because permission to list a folder is enough to lock it.
    """
    real = os.path.realpath(path)
    try:
        file = _lock(real, os.O_CREAT if make else 0)
        try:
            if make and not os.fstat(file).st_size:
                _write(real, _State())
            yield real
        finally:
            os.close(file)
    except OSError as error:
        raise SessionFileError(f"{path}: {error.strerror or error}") from None


def _lock(path: str, flags: int) -> int:
    """A descriptor of the locked file."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | flags, 0o600)  # NFS locks only what may be written
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
            file = os.open(path, os.O_RDONLY)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise SessionFileError(f"{path}: not a regular file")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was replaced meanwhile


def _version(path: str) -> object:
    """Changes when the file is replaced."""
    seen = os.stat(path)
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def _read(path: str) -> _State:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise SessionFileError(f"{path}: {error.strerror or error}") from None
    if mode & 0o007:
        raise SessionFileError(f"{path}: other users may access it, so they could log in; chmod o= it")
    return _load(path)


def _load(path: str) -> _State:
    try:
        with open(path, encoding="utf-8") as file:
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
        with suppress(OSError):  # not one of its groups
            before = os.stat(path)
            with suppress(PermissionError):  # only root may; what it writes must stay readable for nsqadmin
                os.fchown(file.fileno(), before.st_uid, -1)
            os.fchown(file.fileno(), -1, before.st_gid)
            os.fchmod(file.fileno(), 0o600 | before.st_mode & 0o060)
        json.dump(saved, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
