"""The first lines of every daemon, and the last line of one that cannot start."""

from collections.abc import Iterable
from typing import NoReturn, TypeVar

from nsq_compat.cli import config_file
from nsq_compat.cli.errors import OptionError
from nsq_compat.cli.flags import EXIT_FAILURE, parse_arguments
from nsq_compat.cli.logs import log_fatal
from nsq_compat.cli.options import table_of

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
        return options_type(**config_file.merge(table, given, path, config_file.load(path) if path else {}))
    except OptionError as error:
        exit_fatal(program, str(error))


def exit_checked(program: str) -> NoReturn:
    """The end of --check-config: nothing was found that a start would refuse."""
    print(f"{program}: configuration OK")
    raise SystemExit(0)


def exit_fatal(program: str, text: str) -> NoReturn:
    """Print a FATAL line and exit with code 1. nsqd: the prefix is the default one, whatever --log-prefix says."""
    log_fatal(f"[{program}] ", text)
    raise SystemExit(EXIT_FAILURE)
