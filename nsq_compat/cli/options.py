"""Options, declared once: a program's dataclass of options is its table of flags.

A field made with `option()` carries the kind of value and the help text beside its type and default. The field's name
is the key in the config file, and with dashes the flag. `table_of()` returns the rows; the command line, the usage
text, the config file and the values shown at run time are all made from them, so they cannot differ.

    @dataclass(slots=True, kw_only=True)
    class Options:
        msg_timeout: int = option(DURATION, MINUTE, "how long a consumer may keep a message")
"""

import os
import zlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Generic, TypeVar

from nsq_compat.cli.kinds import BOOLEAN, INTEGER, LOG_LEVEL, STRING, STRINGS, Kind, choice
from nsq_compat.cli.logs import FORMATS, INFO, TEXT

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One row of a program's table."""

    flag: str
    key: str
    """The key in the config file, and the attribute of the options object."""
    kind: Kind[T]
    default: T
    help: str
    """For the usage text, where a word in back quotes replaces the type name."""
    in_file: bool
    """False: only a flag, unknown to the config file and not shown at run time."""
    follows_machine: bool
    """The default depends on the machine."""
    secret: Callable[[str], str] | None = None
    """For an option that may have a secret: makes a value that may be shown. The option can also be given by a file,
    and by an environment variable."""
    file_of: str = ""
    """For the option that names such a file: the key of the option with the secret."""

    @property
    def file_key(self) -> str:
        """The key of the option that names the file of this one."""
        return self.flag.replace("-", "_") + "_file"


Table = tuple[Option[Any], ...]


Secret = Callable[[str], str] | None
"""See `Option.secret`."""


def option(
    kind: Kind[T],
    default: T | Callable[[], T],
    help: str,
    *,
    flag: str = "",
    in_file: bool = True,
    secret: Secret = None,
) -> T:
    """The dataclass field of one option, typed as its value. A callable default is called for each options object.

    Without a `flag` it is the field's name with dashes.
    """
    metadata = {"flag": flag, "kind": kind, "help": help, "in_file": in_file, "secret": secret}
    if callable(default):
        return field(default_factory=default, metadata=metadata, repr=secret is None)
    return field(default=default, metadata=metadata, repr=secret is None)


def repeated(help: str, *, flag: str = "", secret: Secret = None) -> tuple[str, ...]:
    """The field of a flag that may be given several times, with one value each time."""
    return option(STRINGS, (), f"{help} (repeat for several)", flag=flag, secret=secret)


def table_of(options_type: type[Any]) -> Table:
    """The rows of a dataclass of options, in the order of declaration, without fields that are no flags.

    Behind an option that may have a secret comes the one that names a file with it, which is no field.
    """
    rows = [
        Option(
            key=column.name,
            default=column.default if column.default_factory is MISSING else column.default_factory(),
            follows_machine=column.default_factory is not MISSING,
            **{**column.metadata, "flag": column.metadata["flag"] or column.name.replace("_", "-")},
        )
        for column in fields(options_type)
        if column.metadata
    ]
    return tuple(each for row in rows for each in ((row, _file_of(row)) if row.secret is not None else (row,)))


def _file_of(row: Option[Any]) -> Option[str]:
    each = ", one on each line" if row.kind is STRINGS else ""
    help = f"path of a file with what --{row.flag} would show in the process list{each}"
    return Option(f"{row.flag}-file", row.file_key, STRING, "", help, row.in_file, False, file_of=row.key)


def option_value(options: Any, key: str) -> Any:
    """An option's value as GET /config/<key> shows it: durations in nanoseconds, lists, without secrets.

    Raises KeyError for a key the config file does not know.
    """
    row = next((row for row in table_of(type(options)) if row.key == key and row.in_file and not row.file_of), None)
    if row is None:
        raise KeyError(key)
    value = getattr(options, key)
    if isinstance(value, tuple):
        return [row.secret(each) if row.secret is not None else each for each in value]
    return row.secret(value) if row.secret is not None else value


def node_id(host: str) -> int:
    """The default of --node-id: a number in [0,1024) that stays the same for a host name."""
    try:
        # hashlib loads OpenSSL, which takes 4 MB of memory.
        from _md5 import md5  # type: ignore[import-not-found]
    except ImportError:  # some distributions build Python without it
        from hashlib import md5
    return zlib.crc32(md5(os.fsencode(host), usedforsecurity=False).digest()) % 1024


@dataclass(slots=True, kw_only=True)
class DaemonOptions:
    """The options that all daemons have."""

    version: bool = option(BOOLEAN, False, "print the version and exit", in_file=False)
    config: str = option(STRING, "", "TOML file with more options; flags override it", in_file=False)
    check_config: bool = option(
        BOOLEAN, False, "check options, config file and the files they name, and exit", in_file=False
    )
    log_level: int = option(LOG_LEVEL, INFO, "least severe messages to log: debug, info, warn, error or fatal")
    log_format: str = option(choice(*FORMATS), TEXT, "format of log lines: text, like NSQ's, or json")
    max_connections_per_address: int = option(
        INTEGER, 0, "most connections of one address to all ports; by default no limit"
    )
    max_new_connections_per_second: int = option(
        INTEGER, 0, "most connections that one address may begin in a second; by default no limit"
    )
    unknown_keys: tuple[str, ...] = ()
    """What the config file has and the program does not know, for ``flags.warn_of_options``."""
    visible_secrets: tuple[str, ...] = ()
    """The flags with secrets on the command line, for ``flags.warn_of_options``."""
    ignored_words: int = 0
    """The number of words behind the flags, for ``flags.warn_of_options``."""
    verbose: bool = option(BOOLEAN, False, "deprecated and ignored: use --log-level", in_file=False)
