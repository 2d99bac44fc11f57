"""The command line and the config file, read with a program's table of options.

The command line has the syntax of Go's flag package. `-name` and `--name` are the same flag; a value follows after `=`
or as the next word, except for booleans, which take one only after `=`. The first word that is no flag, or `--`, ends
the flags, and the words after it are not examined: operators' scripts rely on both. Error texts, the usage text's
layout and the exit codes are Go's too.

The config file is TOML with flat keys at the top level. A flag takes precedence over the file, the file over the
default. Unknown keys and whole sections are reported and ignored, because config files outlive versions.
`docs/differences.md`, "Config file", lists where this is deliberately stricter than NSQ.

An option that may have a secret (`Option.secret`) is also read from a file, `--X-file`, and from the environment, for
nsqd's `--mirror-auth-secret` from NSQD_MIRROR_AUTH_SECRET. The command line takes precedence over the environment, and
that over the config file. Values of a flag that may be repeated are collected from the first two. A secret on the
command line is visible in the process list: the program warns of it, and replaces it in `sys.argv`.

`read_options` is for the daemons, `parse_arguments` for other programs: both print and exit. `parse` is pure.
"""

import errno
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

from nsq_compat.cli.kinds import STRINGS, OptionError, quoted, toml_text
from nsq_compat.cli.logs import STDERR, log_fatal
from nsq_compat.cli.options import DaemonOptions, Option, Table, table_of
from nsq_compat.policy.access import AccessError, AccessFile

T = TypeVar("T", bound=DaemonOptions)

log = logging.getLogger(__name__)

EXIT_FAILURE = 1
EXIT_USAGE = 2

_HELP = ("h", "help")
_QUOTED_NAME = re.compile("`([^`]*)`")
_MARGIN = "\n    \t"


class FlagError(Exception):
    """A syntax error in the command line; the text is Go's."""


class HelpRequested(Exception):
    """-h or -help was given."""


class Arguments(NamedTuple):
    """A command line that was read."""

    given: Mapping[str, Any]
    """Values by config key, of the flags that were given."""
    rest: tuple[str, ...]
    """The words after the flags. The daemons ignore them."""
    secrets: Mapping[int, tuple[str, str]] = MappingProxyType({})
    """The words with a secret, by their index: the flag, and the word without the secret."""

    @property
    def visible_secrets(self) -> tuple[str, ...]:
        """The flags with secrets."""
        return tuple(dict.fromkeys(flag for flag, _ in self.secrets.values()))


def parse(table: Table, words: Iterable[str]) -> Arguments:
    """Read the words after the program's name. Raises FlagError, HelpRequested or (a bad percentile) OptionError."""
    rows = {row.flag: row for row in table}
    given: dict[str, Any] = {}
    secrets: dict[int, tuple[str, str]] = {}
    left = deque(words)
    count = len(left)
    while left and len(left[0]) > 1 and left[0].startswith("-"):
        word = left.popleft()
        if word == "--":
            break
        name, joined, value = word[2 if word.startswith("--") else 1 :].partition("=")
        if not name or name.startswith("-"):
            raise FlagError(f"bad flag syntax: {word.partition('=')[0] + '=' if name and joined else word}")
        row = rows.get(name)
        if row is None:
            raise HelpRequested if name in _HELP else FlagError(f"flag provided but not defined: -{name}")
        if not joined and not row.kind.type_name:
            value = "true"
        elif not joined:
            if not left:
                raise FlagError(f"flag needs an argument: -{row.flag}")
            value = left.popleft()
        if row.secret is not None and (shown := row.secret(value)) != value:
            secrets[count - len(left) - 1] = row.flag, word.removesuffix(value) + shown if joined else shown
        given[row.key] = _parsed(row, value, given.get(row.key, row.default))
    return Arguments(given, tuple(left), secrets)


def _parsed(row: Option[Any], text: str, so_far: Any) -> Any:
    try:
        return row.kind.parse(text, so_far)
    except ValueError as error:
        if row.kind.type_name:
            raise FlagError(f"invalid value {quoted(text)} for flag -{row.flag}: {error}") from None
        raise FlagError(f"invalid boolean value {quoted(text)} for -{row.flag}: {error}") from None


def usage(program: str, table: Table) -> str:
    """The text of -h: every flag by name, its type, help and default."""
    return f"Usage of {program}:\n" + "".join(map(_usage_of, sorted(table, key=lambda row: row.flag)))


def _usage_of(row: Option[Any]) -> str:
    quoted_name = _QUOTED_NAME.search(row.help)
    type_name = quoted_name[1] if quoted_name else row.kind.type_name
    head = f"  -{row.flag} {type_name}" if type_name else f"  -{row.flag}"
    gap = "\t" if len(head) <= len("  -x") else _MARGIN
    text = _QUOTED_NAME.sub(r"\1", row.help, count=1).replace("\n", _MARGIN)
    default = row.kind.show(row.default)
    return f"{head}{gap}{text}" + ("\n" if default == row.kind.unset else f" (default {default})\n")


def parse_arguments(program: str, table: Table, words: Iterable[str]) -> Arguments:
    """`parse` for a program: help and errors go to stderr and end it, with exit code 0 for help, 2 for errors.

    Adds secrets from files and the environment, and replaces those in `sys.argv`.
    """
    words = list(words)
    try:
        arguments = parse(table, words)
        if sys.argv[1:] == words:
            for index, (_, shown) in arguments.secrets.items():
                sys.argv[1 + index] = shown
        return arguments._replace(given=_with_secrets(program, table, arguments.given))
    except HelpRequested:
        _complain(usage(program, table))
        raise SystemExit(0) from None
    except FlagError as error:
        _complain(f"{error}\n{usage(program, table)}")
        raise SystemExit(EXIT_USAGE) from None
    except OptionError as error:
        _complain(f"{time.strftime('%Y/%m/%d %H:%M:%S')} {error}\n")
        raise SystemExit(EXIT_FAILURE) from None


def _complain(text: str) -> None:
    # Not through sys.stderr: text that is not read would stay in its buffer and change the exit code.
    with suppress(OSError):
        os.write(STDERR, text.encode("utf-8", "surrogateescape"))


# --- Secrets ----------------------------------------------------------------------------------------------------------


def _with_secrets(program: str, table: Table, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by config key: those given on the command line, in files that it names, and by environment variables.

    Raises OptionError.
    """
    found = dict(given)
    for row in filter(lambda row: row.secret is not None, table):
        if row.kind is not STRINGS and row.key in given and given.get(row.file_key):
            raise OptionError(f"use --{row.flag} or --{row.flag}-file, not both")
        _read_file(row, found)
        text = os.environ.get(_variable(program, row.flag), "")
        if text and (row.kind is STRINGS or row.key not in found):
            _add(row, found, text)
    return found


def _variable(program: str, flag: str) -> str:
    return f"{program}_{flag}".upper().replace("-", "_")


def visible_secret(program: str, flag: str) -> str:
    """The warning of a secret on the command line."""
    instead = f"use --{flag}-file, or the environment variable {_variable(program, flag)}"
    return f"the secret in --{flag} is visible in the process list: {instead}"


def _read_file(row: Option[Any], values: dict[str, Any]) -> None:
    """Replace the path of a file with a secret by the secret. Raises OptionError."""
    path = values.pop(row.file_key, "")
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                _add(row, values, file.read())
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
        except ValueError:
            why = "not UTF-8"
        else:
            return
        raise OptionError(f"cannot read --{row.flag}-file: open {path}: {why}")


def _add(row: Option[Any], values: dict[str, Any], text: str) -> None:
    lines = filter(None, text.splitlines()) if row.kind is STRINGS else [text.rstrip("\r\n")]
    for line in lines:
        values[row.key] = row.kind.parse(line, values.get(row.key, row.default))


# --- Daemons ----------------------------------------------------------------------------------------------------------


def read_options(
    program: str, options_type: type[T], words: Iterable[str], version: str, tables: AbstractSet[str] = frozenset()
) -> T:
    """The options of a daemon from its command line and the config file named there.

    The program reads the `tables` of the file itself.

    Exits instead of returning for -h and -version (0), a wrong flag (2), a wrong config file (1). `options_type` is a
    dataclass of `cli.options.option` fields, `version` and `config` among them. Only syntax is checked.
    """
    table = table_of(options_type)
    arguments = parse_arguments(program, table, words)
    given = dict(arguments.given)
    if given.get("version"):
        print(version)
        raise SystemExit(0)
    path = given.get("config", "")
    try:
        content = load_config(path) if path else {}
        merged = merge_config(table, given, path, content)
        options = options_type(
            **merged,
            unknown_keys=tuple(content.keys() - _file_keys(table) - tables),
            visible_secrets=arguments.visible_secrets,
            ignored_words=len(arguments.rest),
        )
        for key in ("max_connections_per_address", "max_new_connections_per_second"):
            if getattr(options, key) < 0:  # else it would be no limit
                raise OptionError(f"--{key.replace('_', '-')} must not be negative")
        return options
    except OptionError as error:
        exit_fatal(program, str(error))


def warn_of_options(options: DaemonOptions, program: str) -> None:
    """Name what the program ignores in the config file and on the command line, and secrets in the process list: in the
    log, and on stdout for --check-config."""
    texts = []
    keys = sorted(_file_keys(table_of(type(options))))
    for key in sorted(options.unknown_keys):
        from difflib import get_close_matches

        similar = get_close_matches(key.lower().replace("-", "_"), keys, 1, 0.8)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        texts.append(f"config file {options.config}: unknown option {quoted(key)} is ignored{hint}")
    if options.ignored_words:  # they are not shown, because they may be secrets
        texts.append(
            f"ignored words at the end of the command line: {options.ignored_words}, because the first of them is no "
            "flag, or comes after --"
        )
    for flag in options.visible_secrets:
        texts.append(visible_secret(program, flag))
    for text in texts:
        if options.check_config:
            print(f"{program}: {text}")
        else:
            log.warning("%s", text)


def _file_keys(table: Table) -> set[str]:
    return {row.key for row in table if row.in_file}


def exit_checked(program: str) -> NoReturn:
    """Report that --check-config found no error, and exit."""
    print(f"{program}: configuration OK")
    raise SystemExit(0)


def exit_fatal(program: str, text: str) -> NoReturn:
    """Print a FATAL line and exit with code 1. nsqd: the prefix is the default one, even with --log-prefix."""
    log_fatal(f"[{program}] ", text)
    raise SystemExit(EXIT_FAILURE)


def load_config(path: str) -> dict[str, Any]:
    """The values in a config file, as tomllib gives them. Raises OptionError."""
    import tomllib  # many daemons have no config file

    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read().decode("utf-8-sig"))
    except OSError as error:
        # nsqd: the call that failed, the path, and the reason in lower case.
        call = "read" if error.errno == errno.EISDIR else "open"
        reason = f"{call} {path}: {os.strerror(error.errno or 0).lower()}"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:  # not TOML, or not UTF-8
        reason = str(error)
    raise OptionError(f"failed to load config file {path} - {reason}")


def load_access(path: str) -> AccessFile | None:
    """The file of `--access-file`; None if `path` is empty. Raises OptionError."""
    try:
        return AccessFile(path) if path else None
    except AccessError as error:
        raise OptionError(str(error)) from None


def merge_config(table: Table, given: Mapping[str, Any], path: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Values by config key: those `given` on the command line, then the `content` of the file. Raises OptionError."""
    merged = dict(given)
    rows = [row for row in table if row.in_file and row.key in content]
    # nsqd: names are checked first, and even when a flag overrides them; other values only when no flag does.
    for row in sorted(rows, key=lambda row: not row.kind.named):
        value = content[row.key]
        if not row.kind.named and row.key in given:
            continue
        try:
            merged.setdefault(row.key, row.kind.convert(value))
        except ValueError as error:
            if row.kind.named:
                shown = value if isinstance(value, str) else toml_text(value)
                raise OptionError(f"failed parsing {row.key} {shown}") from None
            why = error if row.secret is None else f"expected {row.kind.expected}"  # the error shows the value
            raise OptionError(f"failed to load config file {path} - {row.key}: {why}") from None
    for row in filter(lambda row: row.secret is not None, table):
        if row.file_key not in merged:
            continue
        if row.key in given:
            del merged[row.file_key]
        elif row.key in merged:
            raise OptionError(f"failed to load config file {path} - use {row.key} or {row.file_key}, not both")
        else:
            _read_file(row, merged)
    return merged
