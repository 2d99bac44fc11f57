"""The command line, error messages, signals and exit codes of every utility, as Go's utilities have them.

An error is a dated line on stderr and exit code 1; wrong flags are exit code 2 (`cli.flags`). SIGINT and SIGTERM end
the work under way in order, with exit code 0.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn, TypeVar

from nsq_compat import NSQ_VERSION, __version__, build_line
from nsq_compat.bounded_http import reason_of
from nsq_compat.cli.flags import EXIT_FAILURE, parse_arguments, visible_secret
from nsq_compat.cli.kinds import BOOLEAN
from nsq_compat.cli.options import option, table_of
from nsq_compat.protocol.errors import one_line

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_DATE_FORMAT: Final = "%Y/%m/%d %H:%M:%S"


class Refused(Exception):
    """The program cannot begin or go on; the text is for the operator."""


@dataclass(kw_only=True)
class ProgramOptions:
    """The options of every utility. Each has a dataclass of its own, with NSQ's names and defaults."""

    program: ClassVar[str]
    ignores_arguments: ClassVar[bool] = True
    """Words behind the flags."""
    version: bool = option(BOOLEAN, False, "print the version and exit")

    @property
    def user_agent(self) -> str:
        return f"{self.program}/{NSQ_VERSION} nsq_compat/{__version__}"


T = TypeVar("T", bound=ProgramOptions)


def console_script(options_type: type[T]) -> Callable[[Callable[[T], None]], Callable[[], NoReturn]]:
    """Make a console script of a function of its options, which may raise ``Refused``."""

    def script(function: Callable[[T], None]) -> Callable[[], NoReturn]:
        return lambda: _run(options_type, function)

    return script


def _run(options_type: type[T], function: Callable[[T], None]) -> NoReturn:
    try:
        function(_read_options(options_type))
    except Refused as error:
        say(str(error))
        raise SystemExit(EXIT_FAILURE) from None
    except BrokenPipeError:
        # The reader has closed its end. Buffered output must not fail again at exit.
        sys.stdout = None
        raise SystemExit(EXIT_FAILURE) from None
    except OSError as error:  # of standard input or output
        sys.stdout = None
        say(reason_of(error))
        raise SystemExit(EXIT_FAILURE) from None
    raise SystemExit(0)


def _read_options(options_type: type[T]) -> T:
    arguments = parse_arguments(options_type.program, table_of(options_type), sys.argv[1:])
    if arguments.rest and not options_type.ignores_arguments:
        raise Refused(f"unknown arguments: [{' '.join(arguments.rest)}]")
    options = options_type(**arguments.given)
    if options.version:
        print(f"{options.program} v{NSQ_VERSION}\n{build_line()}")
        raise SystemExit(0)
    for flag in arguments.visible_secrets:
        say(f"WARNING: {visible_secret(options.program, flag)}")
    return options


def say(text: str) -> None:
    """Print a dated line on stderr, as Go's utilities do.

    It may have the text of a daemon, which must neither forge a line nor control the terminal.
    """
    print(time.strftime(_DATE_FORMAT), one_line(text), file=sys.stderr)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.msg, record.args = one_line(record.getMessage()), ()
        return "\n".join(map(one_line, super().format(record).splitlines()))  # a traceback has more of them


def log_plainly() -> None:
    """Log to stderr in the form of Go's utilities."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname).3s %(message)s", _DATE_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


# --- Checks of options ------------------------------------------------------------------------------------------------

Rule = tuple[object, str]
"""A condition, and the error text if it is true."""


def refuse(*rules: Rule) -> None:
    """Raises ``Refused`` with the text of the first rule that applies."""
    for applies, text in rules:
        if applies:
            raise Refused(text)


def unless_one_kind(named: Sequence[str], lookupds: Sequence[str], flag: str = "--nsqd-tcp-address") -> Iterator[Rule]:
    """Rules that refuse options without one of the two kinds of addresses, or with both."""
    yield not named and not lookupds, f"{flag} or --lookupd-http-address required"
    yield named and lookupds, f"use {flag} or --lookupd-http-address not both"


def unless_positive(options: object, *keys: str, text: str = "should be positive") -> Iterator[Rule]:
    """Rules that refuse options, named as attributes, that are not above 0."""
    for key in keys:
        yield getattr(options, key) <= 0, f"--{key.replace('_', '-')} {text}"


# --- Signals ----------------------------------------------------------------------------------------------------------


def on_signals(actions: Mapping[signal.Signals, Callable[[], object]]) -> None:
    """Call an action for each of these signals from now on, in a thread of its own.

    Must be called before any other thread starts, because it blocks the signals, and all threads inherit that. With
    handlers, a signal that the system delivers to another thread might not wake the main thread.
    """

    def receive() -> None:
        while True:
            actions[signal.Signals(signal.sigwait(actions))]()

    signal.pthread_sigmask(signal.SIG_BLOCK, actions)
    threading.Thread(target=receive, name="signals", daemon=True).start()


class Stopping(threading.Event):
    """Set by a signal, or by the program, to stop the program. Must be created before any other thread."""

    def __init__(self) -> None:
        super().__init__()
        self._failure = ""
        self._readable, self._writable = os.pipe()
        on_signals(dict.fromkeys(STOP_SIGNALS, self.set))

    def fileno(self) -> int:
        """A descriptor that is readable once this is set."""
        return self._readable

    def set(self) -> None:
        if not self.is_set():
            super().set()
            os.write(self._writable, b"!")

    def fail(self, text: str) -> None:
        """Stop the program with an error: `wait` raises ``Refused``. Of several errors the first counts."""
        self._failure = self._failure or text
        self.set()

    def wait(self, timeout: float | None = None) -> bool:
        is_set = super().wait(timeout)
        if self._failure:
            raise Refused(self._failure)
        return is_set
