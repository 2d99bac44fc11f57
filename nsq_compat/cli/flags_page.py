"""The page of all flags in the documentation, made from the tables that the programs read them with."""

from collections.abc import Mapping
from typing import Any

from nsq_compat.cli.options import Option, Table

_HEAD = """\
# Flags

Written by `scripts/flags-doc` from the programs' own tables; do not edit.

Flags are Go's: `-name` and `--name` are the same, a value follows after `=` or as the next word, of a boolean only
after `=`. A flag on the command line wins over the TOML file of `--config`, the file over the default. Durations are
written `1m30s`, in the file also as an integer of milliseconds. What differs from NSQ is in
[differences](differences.md); `--check-config` says whether a daemon would start, and changes nothing.
"""
_COLUMNS = """\
| Flag | In the file | Type | Default | |
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
