"""``nsq_access``: make, list and revoke the tokens of an access file, which nsqd, nsqlookupd and nsqadmin read.

    nsq_access new    --access-file=... --name=... --permission=... [--topic=...] [--address=...] [--expires-in=720h]
    nsq_access list   --access-file=... [--json]
    nsq_access revoke --access-file=... --name=...

A new token is printed once; the file has only its hash. Daemons read the file again at SIGHUP. Exit code 0: success; 1:
nothing was changed; 2: wrong usage.
"""

import fcntl
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from nsq_compat import version_text
from nsq_compat.cli.flags import EXIT_FAILURE, EXIT_USAGE, parse_arguments
from nsq_compat.cli.kinds import BOOLEAN, DURATION, STRING
from nsq_compat.cli.options import option, repeated, table_of
from nsq_compat.policy.access import PERMISSIONS, AccessError, Tokens, hash_of, make_token
from nsq_compat.protocol.durations import SECOND
from nsq_compat.tools.program import Refused, say

PROGRAM = "nsq_access"
_TABLE = re.compile(r"^[ \t]*\[\[[ \t]*tokens[ \t]*\]\]", re.MULTILINE)


@dataclass(kw_only=True)
class AccessOptions:
    access_file: str = option(STRING, "", "access file")


@dataclass(kw_only=True)
class NamedOptions(AccessOptions):
    name: str = option(STRING, "", "name of the token, which logs and errors show")


@dataclass(kw_only=True)
class NewOptions(NamedOptions):
    permissions: tuple[str, ...] = repeated(f"one of {', '.join(PERMISSIONS)}", flag="permission")
    topics: tuple[str, ...] = repeated(
        "regular expression (RE2) for whole names of topics; by default all", flag="topic"
    )
    addresses: tuple[str, ...] = repeated(
        "regular expression for the broadcast addresses that may be registered; by default all", flag="address"
    )
    expires_in: int = option(DURATION, 0, "how long the token is valid; by default for ever")


@dataclass(kw_only=True)
class ListOptions(AccessOptions):
    json: bool = option(BOOLEAN, False, "print one JSON object instead of text")


def main() -> NoReturn:
    raise SystemExit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run the subcommand of a command line; returns the exit code."""
    name = words[0] if words else ""
    if name in ("-h", "--help", "-help"):
        print((__doc__ or "").strip())
        return 0
    if name in ("-version", "--version"):
        print(version_text(PROGRAM))
        return 0
    if name not in _SUBCOMMANDS:
        say(f"give a subcommand: {', '.join(_SUBCOMMANDS)} (--help describes them)")
        return EXIT_USAGE
    options_type, act = _SUBCOMMANDS[name]
    arguments = parse_arguments(f"{PROGRAM} {name}", table_of(options_type), words[1:])
    options = options_type(**arguments.given)
    try:
        options.access_file = os.path.realpath(options.access_file) if options.access_file else ""
        for missing in [key for key in ("access_file", "name") if getattr(options, key, "x") == ""]:
            raise Refused(f"--{missing.replace('_', '-')} is required")
        act(options)
    except Refused as error:
        say(str(error))
        return EXIT_FAILURE
    except OSError as error:
        say(f"{options.access_file}: {str(error.strerror or error).lower()}")
        return EXIT_FAILURE
    return 0


def _new(options: NewOptions) -> None:
    if options.expires_in < 0:
        raise Refused("--expires-in must be positive")
    token = make_token()
    row: dict[str, Any] = {
        "name": options.name,
        "hash": hash_of(token.encode("ascii")),
        "topics": list(options.topics),
        "addresses": list(options.addresses),
    }
    lines = ["[[tokens]]", *(_line(key, value) for key, value in row.items() if value)]
    if options.expires_in > 0:
        expires = datetime.now(UTC) + timedelta(seconds=options.expires_in / SECOND)
        lines.append(f"expires = {expires.isoformat(timespec='seconds').replace('+00:00', 'Z')}")
    # Last: of a file that other programs copy, a daemon may read a part, in which no token may have fewer limits.
    lines += [_line("permissions", list(options.permissions))] if options.permissions else []
    with _locked(options.access_file, make=True):
        text = _read(options.access_file)
        _parsed(text, options.access_file)
        separator = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        text += separator + "\n".join(lines) + "\n"
        _parsed(text, "the new token")
        _replace(options.access_file, text)
    print(token)
    say(f"the token {options.name} is in {options.access_file}; daemons read that at SIGHUP")


def _line(key: str, value: object) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _list(options: ListOptions) -> None:
    tokens = _parsed(_read(options.access_file), options.access_file)
    rows: list[dict[str, Any]] = [
        {
            "name": token.name,
            "permissions": sorted(token.permissions),
            "limited": token.topics is not None,
            "expires": None if token.expires is None else datetime.fromtimestamp(token.expires, UTC).isoformat(),
        }
        for token in tokens
    ]
    if options.json:
        print(json.dumps({"tokens": rows}, ensure_ascii=False))
        return
    for row in rows:
        limited = " for some topics" if row["limited"] else ""
        expires = f", expires {row['expires']}" if row["expires"] else ""
        print(f"{row['name']}: {', '.join(row['permissions'])}{limited}{expires}")


def _revoke(options: NamedOptions) -> None:
    with _locked(options.access_file):
        text = _read(options.access_file)
        before = _parsed(text, options.access_file)
        begins = [match.start() for match in _TABLE.finditer(text)]
        parts = [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=False)]
        kept = [part for part in parts if _name_in(part) != options.name]
        if len(kept) == len(parts):
            known = options.name in {token.name for token in before}
            why = "is not in a table [[tokens]] of its own; delete it by hand" if known else "does not exist"
            raise Refused(f"the token {options.name} {why}")
        after = text[: begins[0]] + "".join(kept)
        if len(_parsed(after, options.access_file)) != len(before) - 1:
            raise Refused(f"cannot delete the token {options.name} alone; delete it by hand")
        _replace(options.access_file, after)
    say(f"the token {options.name} is not in {options.access_file} any more; daemons read that at SIGHUP")


def _name_in(part: str) -> str:
    """The name of the token in a table; empty if it is damaged by the cut."""
    with suppress(AccessError):
        return next(iter(Tokens(part))).name
    return ""


def _parsed(text: str, where: str) -> Tokens:
    try:
        return Tokens(text)
    except AccessError as error:
        raise Refused(f"{where}: {error}") from None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except ValueError:
        raise Refused(f"{path}: not UTF-8") from None


@contextmanager
def _locked(path: str, *, make: bool = False) -> Iterator[None]:
    """One program at a time changes the file. `make` it if it is missing.

    The file is locked, not its folder, because permission to list a folder is enough to lock it.
    """
    file, is_new = _lock(path, make=make)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            if is_new and os.path.samestat(os.fstat(file), os.stat(path)):  # it was not replaced
                os.unlink(path)
        os.close(file)


def _lock(path: str, *, make: bool) -> tuple[int, bool]:
    """A descriptor of the locked file, and whether this has made it."""
    while True:
        is_new = False
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for the writer of a pipe
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                os.fchmod(file, 0o640)
                os.close(file)
                is_new = True
            file = os.open(path, os.O_RDONLY)
        if not stat.S_ISREG(os.fstat(file).st_mode):  # a device would be replaced by a file
            os.close(file)
            raise Refused(f"{path}: not a regular file")
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file, is_new
        os.close(file)  # it was replaced meanwhile


def _replace(path: str, text: str) -> None:
    """Replace the file as a whole. Its mode and owner stay; a new one is for its owner and group."""
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".access-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            status = os.stat(path)
            os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, status.st_mode & 0o777)
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


_SUBCOMMANDS: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
    "new": (NewOptions, _new),
    "list": (ListOptions, _list),
    "revoke": (NamedOptions, _revoke),
}
