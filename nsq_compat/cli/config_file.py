"""The config file: TOML with flat keys at the top level, read with the same table of options as the command line.

A flag given on the command line wins over the file, the file over the default. Keys the table does not know, and
whole sections, are ignored: config files outlive versions. What is deliberately stricter than NSQ stands in
docs/differences.md, "Config file".
"""

import errno
import os
import tomllib
from collections.abc import Mapping
from typing import Any

from nsq_compat.cli.errors import OptionError
from nsq_compat.cli.kinds import toml_text
from nsq_compat.cli.options import Option, Table


def load(path: str) -> dict[str, Any]:
    """What the file says, as tomllib gives it. Raises OptionError."""
    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read().decode("utf-8-sig"))
    except OSError as error:
        raise OptionError(f"failed to load config file {path} - {_os_error(path, error)}") from None
    except RecursionError:
        raise OptionError(f"failed to load config file {path} - nested too deeply") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise OptionError(f"failed to load config file {path} - {error}") from None


def _os_error(path: str, error: OSError) -> str:
    # nsqd: the call that failed, the path, and the reason in lower case.
    call = "read" if error.errno == errno.EISDIR else "open"
    return f"{call} {path}: {os.strerror(error.errno or 0).lower()}"


def merge(table: Table, given: Mapping[str, Any], path: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Values by config key: what the command line gave, then what the file at `path` says. Raises OptionError."""
    from_file = [row for row in table if row.in_file and row.key in content]
    # nsqd: names are checked first, and even when a flag overrides them; other values only when no flag does.
    names = {row.key: _named(row, content[row.key]) for row in from_file if row.kind.named}
    others = {
        row.key: _converted(row, path, content[row.key])
        for row in from_file
        if not row.kind.named and row.key not in given
    }
    return {**names, **others, **given}


def _named(row: Option[Any], value: Any) -> Any:
    try:
        return row.kind.convert(value)
    except ValueError:
        shown = value if isinstance(value, str) else toml_text(value)
        raise OptionError(f"failed parsing {row.key} {shown}") from None


def _converted(row: Option[Any], path: str, value: Any) -> Any:
    try:
        return row.kind.convert(value)
    except ValueError as error:
        raise OptionError(f"failed to load config file {path} - {row.key}: {error}") from None
