"""docs/flags.md, the page of all flags, made from the options tables of the programs."""

from collections.abc import Mapping
from typing import Any

from nsq_compat.cli.options import Option, Table

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


def flags_page(programs: Mapping[str, Table]) -> str:
    """Markdown: a table for each program, by flag."""
    sections = [
        f"\n## {program}\n\n{_COLUMNS}" + "".join(map(_row, sorted(table, key=lambda row: row.flag)))
        for program, table in programs.items()
    ]
    return _HEAD + "".join(sections)


def _row(row: Option[Any]) -> str:
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
