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
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, TypeVar

from nsq_compat import NSQ_VERSION, __version__, version_line
from nsq_compat.cli.flags import EXIT_FAILURE, parse_arguments
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.options import table_of

T = TypeVar("T")

_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})


class Refused(Exception):
    """The program cannot begin or go on; the text is for the operator."""


def options_of(program: str, options_type: type[T], words: Sequence[str]) -> T:
    """Options of a command line, as a dataclass with a field `version`; `-version` ends the program."""
    given = dict(parse_arguments(program, table_of(options_type), words).given)
    if given.get("version"):
        print(version_line(program).split(" (")[0])
        raise SystemExit(0)
    try:
        return options_type(**given)
    except OptionError as error:
        fail(str(error))


def user_agent(program: str) -> str:
    """The user agent that a utility sends to nsqd."""
    return f"{program}/{NSQ_VERSION} nsq_compat/{__version__}"


def say(text: str) -> None:
    """Print a dated line on stderr, as Go's utilities do."""
    print(time.strftime("%Y/%m/%d %H:%M:%S"), text, file=sys.stderr)


def fail(text: str) -> NoReturn:
    """Print an error and exit with code 1."""
    say(text)
    raise SystemExit(EXIT_FAILURE)


def one_kind_of_address(named: Sequence[str], lookupds: Sequence[str], flag: str = "--nsqd-tcp-address") -> None:
    """Raises ``Refused`` unless exactly one of the two kinds of addresses is given."""
    if not named and not lookupds:
        raise Refused(f"{flag} or --lookupd-http-address required")
    if named and lookupds:
        raise Refused(f"use {flag} or --lookupd-http-address not both")


def log_plainly(level: int = logging.INFO) -> None:
    """Log to stderr in the form of Go's utilities."""
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(levelname).3s %(message)s", datefmt="%Y/%m/%d %H:%M:%S"
    )


class Stopping:
    """Whether the program was asked to stop, by a signal or by itself.

    Must be created before any other thread, because it blocks the signals, which a thread of its own receives. With
    handlers, a signal that the system delivers to another thread might not wake the main thread.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._readable, self._writable = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def __bool__(self) -> bool:
        return self._asked.is_set()

    def fileno(self) -> int:
        """A descriptor that is readable after `ask`."""
        return self._readable

    def ask(self) -> None:
        if not self._asked.is_set():
            self._asked.set()
            os.write(self._writable, b"!")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for `ask`; returns whether it was called."""
        return self._asked.wait(timeout)

    def _listen(self) -> None:
        while True:
            signal.sigwait(_SIGNALS)
            self.ask()


def run(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Call a utility with the words of the command line; ``Refused`` becomes a line and an exit code."""
    try:
        main(sys.argv[1:])
    except Refused as error:
        fail(str(error))
    except BrokenPipeError:
        # The reader has closed its end. Buffered output must not fail again at exit.
        sys.stdout = None
        raise SystemExit(EXIT_FAILURE) from None
    raise SystemExit(0)
