"""What every utility begins and ends with: flags, complaints as Go's utilities word them, signals.

A utility complains with a dated line on stderr and exits with 1; wrong flags are 2 (`cli.flags`). SIGINT and SIGTERM
ask it to stop: what it is at is ended in order, and the exit code is 0.
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
    """It cannot begin, or not go on; the text is for the operator."""


def options_of(program: str, options_type: type[T], words: Sequence[str]) -> T:
    """The options a command line gives, of a dataclass with `version` among them; `-version` ends the program."""
    given = dict(parse_arguments(program, table_of(options_type), words).given)
    if given.get("version"):
        print(version_line(program).split(" (")[0])
        raise SystemExit(0)
    try:
        return options_type(**given)
    except OptionError as error:
        complain(str(error))


def user_agent(program: str) -> str:
    """What a utility tells nsqd of itself."""
    return f"{program}/{NSQ_VERSION} nsq_compat/{__version__}"


def say(text: str) -> None:
    """A dated line on stderr, as Go's utilities have them."""
    print(time.strftime("%Y/%m/%d %H:%M:%S"), text, file=sys.stderr)


def complain(text: str) -> NoReturn:
    """The last line of a program that cannot go on; exits with 1."""
    say(text)
    raise SystemExit(EXIT_FAILURE)


def one_kind_of_address(named: Sequence[str], lookupds: Sequence[str], flag: str = "--nsqd-tcp-address") -> None:
    """Raises ``Refused`` unless exactly one of the two kinds is given."""
    if not named and not lookupds:
        raise Refused(f"{flag} or --lookupd-http-address required")
    if named and lookupds:
        raise Refused(f"use {flag} or --lookupd-http-address not both")


def log_plainly(level: int = logging.INFO) -> None:
    """Log lines of the client library, in the plain form of Go's utilities, on stderr."""
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(levelname).3s %(message)s", datefmt="%Y/%m/%d %H:%M:%S"
    )


class Stopping:
    """Whether the program was asked to stop, by a signal or by itself.

    To be made before there are other threads. A thread of its own fetches the signals: of those that come close
    together the system gives some to threads that would never be woken by them.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._readable, self._writable = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def __bool__(self) -> bool:
        return self._asked.is_set()

    def fileno(self) -> int:
        """Readable once somebody has asked."""
        return self._readable

    def ask(self) -> None:
        if not self._asked.is_set():
            self._asked.set()
            os.write(self._writable, b"!")

    def wait(self, timeout: float | None = None) -> bool:
        """Until somebody asks, or so long; whether somebody has."""
        return self._asked.wait(timeout)

    def _listen(self) -> None:
        while True:
            signal.sigwait(_SIGNALS)
            self.ask()


def run(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Call a utility with the words behind its name; what it cannot do becomes a line and an exit code."""
    try:
        main(sys.argv[1:])
    except Refused as error:
        complain(str(error))
    except BrokenPipeError:
        # Who reads us has seen enough. What is still buffered must not fail once more at exit.
        sys.stdout = None
        raise SystemExit(EXIT_FAILURE) from None
    raise SystemExit(0)
