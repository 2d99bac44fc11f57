"""The command line, in the syntax of Go's flag package, read with a program's table of options.

`-name` and `--name` are the same flag; a value follows after `=` or as the next word, except for booleans, which take
one only after `=`. The first word that is no flag, or `--`, ends the flags, and the words behind it are not examined:
operators' scripts rely on both. Error texts, the usage text's layout and the exit codes are Go's too.

`parse` is pure. `parse_arguments` is for programs: it prints and exits. `flags_page` makes docs/flags.md.
"""

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nsq_compat.cli.kinds import OptionError, quoted
from nsq_compat.cli.logs import STDERR
from nsq_compat.cli.options import Option, Table

EXIT_FAILURE = 1
EXIT_USAGE = 2

_HELP = ("h", "help")
_QUOTED_NAME = re.compile("`([^`]*)`")
_MARGIN = "\n    \t"

_HEAD = """\
# Flags

Written by `scripts/flags-doc` from the tables in the programs. Do not edit.

This page lists every option of nsqd, nsqlookupd and nsqadmin. Set an option on the command line, or by its name *in the
file* in the TOML file that `--config` names. The command line takes precedence over the file.

- `-name` and `--name` are the same. Write the value after `=`, or as the next word; the value of a boolean only after
  `=`.
- Write durations as `1m30s`. In the file, an integer is a number of milliseconds.
- `--check-config` checks whether a daemon would start, and changes nothing.

[Differences](differences.md) lists the options that differ from NSQ's.
"""
_COLUMNS = """\
| Flag | In the file | Type | Default | Meaning |
|---|---|---|---|---|
"""


class FlagError(Exception):
    """A syntax error in the command line; the text is Go's."""


class HelpRequested(Exception):
    """-h or -help was given."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line that was read."""

    given: Mapping[str, Any]
    """Values by config key, of the flags that were given."""
    rest: tuple[str, ...]
    """The words behind the flags. The daemons ignore them."""


def parse(table: Table, words: Iterable[str]) -> Arguments:
    """Read the words behind the program's name. Raises FlagError, HelpRequested or (a bad percentile) OptionError."""
    rows = {row.flag: row for row in table}
    given: dict[str, Any] = {}
    left = deque(words)
    while left and len(left[0]) > 1 and left[0].startswith("-"):
        word = left.popleft()
        if word == "--":
            break
        name, joined, value = _name_and_value(word)
        row = rows.get(name)
        if row is None:
            raise HelpRequested if name in _HELP else FlagError(f"flag provided but not defined: -{name}")
        if not joined:
            value = _next_value(row, left)
        given[row.key] = _parsed(row, value, given.get(row.key, row.default))
    return Arguments(given, tuple(left))


def _name_and_value(word: str) -> tuple[str, str, str]:
    name, joined, value = word[2 if word.startswith("--") else 1 :].partition("=")
    if not name or name.startswith("-"):
        raise FlagError(f"bad flag syntax: {word}")
    return name, joined, value


def _next_value(row: Option[Any], left: deque[str]) -> str:
    if not row.kind.takes_value:
        return "true"
    if not left:
        raise FlagError(f"flag needs an argument: -{row.flag}")
    return left.popleft()


def _parsed(row: Option[Any], text: str, so_far: Any) -> Any:
    try:
        return row.kind.parse(text, so_far)
    except ValueError as error:
        if row.kind.takes_value:
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
    """`parse` for a program: help and errors go to stderr and end it, with exit code 0 for help, 2 for errors."""
    try:
        return parse(table, words)
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


def flags_page(programs: Mapping[str, Table]) -> str:
    """Markdown: a table for each program, by flag."""
    sections = [
        f"\n## {program}\n\n{_COLUMNS}" + "".join(map(_page_row, sorted(table, key=lambda row: row.flag)))
        for program, table in programs.items()
    ]
    return _HEAD + "".join(sections)


def _page_row(row: Option[Any]) -> str:
    cells = (
        f"`--{row.flag}`",
        f"`{row.key}`" if row.in_file else "",
        row.kind.type_name or "bool",
        _default(row),
        row.help.replace("`", "").replace("|", r"\|"),
    )
    return f"| {' | '.join(cells)} |\n"


def _default(row: Option[Any]) -> str:
    if row.follows_machine:
        return "the machine's"
    shown = row.kind.show(row.default)
    return "" if shown == row.kind.unset else f"`{shown}`"
