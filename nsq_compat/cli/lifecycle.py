"""The first step of every daemon: options from the command line and the config file, or an exit code.

The config file is TOML with flat keys at the top level, read with the same table of options as the command line. A flag
takes precedence over the file, the file over the default. Unknown keys and whole sections are ignored, because config
files outlive versions. `docs/differences.md`, "Config file", lists where this is deliberately stricter than NSQ.
"""

import errno
import os
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from nsq_compat.cli.flags import EXIT_FAILURE, parse_arguments
from nsq_compat.cli.kinds import OptionError, toml_text
from nsq_compat.cli.logs import log_fatal
from nsq_compat.cli.options import Table, table_of

T = TypeVar("T")


def read_options(program: str, options_type: type[T], words: Iterable[str], version: str) -> T:
    """The options of a daemon from its command line and the config file named there.

    Exits instead of returning for -h and -version (0), a wrong flag (2), a wrong config file (1). `options_type` is a
    dataclass of `cli.options.option` fields, `version` and `config` among them. Only syntax is checked.
    """
    table = table_of(options_type)
    given = dict(parse_arguments(program, table, words).given)
    if given.get("version"):
        print(version)
        raise SystemExit(0)
    path = given.get("config", "")
    try:
        return options_type(**merge_config(table, given, path, load_config(path) if path else {}))
    except OptionError as error:
        exit_fatal(program, str(error))


def exit_checked(program: str) -> NoReturn:
    """Report that --check-config found no error, and exit."""
    print(f"{program}: configuration OK")
    raise SystemExit(0)


def exit_fatal(program: str, text: str) -> NoReturn:
    """Print a FATAL line and exit with code 1. nsqd: the prefix is the default one, whatever --log-prefix says."""
    log_fatal(f"[{program}] ", text)
    raise SystemExit(EXIT_FAILURE)


def load_config(path: str) -> dict[str, Any]:
    """The values in a config file, as tomllib gives them. Raises OptionError."""
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
            raise OptionError(f"failed to load config file {path} - {row.key}: {error}") from None
    return merged
