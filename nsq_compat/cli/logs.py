"""Log lines on stderr through the standard library's logging, in NSQ's form or as JSON objects.

NSQ's form is `[nsqd] 2024/01/31 12:00:00.000000 INFO: text`. Modules log to `logging.getLogger(__name__)`; the program
calls `configure` once, and one handler on the root logger writes everything. Invariants:

- One record is one line. Control characters in a message are escaped, so that a newline in a topic name cannot forge a
  line; a traceback follows its line, indented (in JSON it is a member).
- Logging never raises: if stderr or its reader is closed, lines are lost and the program continues.
- Logging never waits for a slow reader. Data that a pipe or socket does not accept at once is kept, up to a bound, and
  written with the next line. Lines beyond the bound are counted, and the count is logged when the reader continues.
"""

import _socket  # not socket: gevent may have replaced that, and a log call must never switch greenlets
import json
import logging
import os
import stat
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from nsq_compat.protocol.errors import one_line

DEBUG: Final = 1
INFO: Final = 2
WARN: Final = 3
ERROR: Final = 4
FATAL: Final = 5

LEVEL_NAMES: Final = {DEBUG: "DEBUG", INFO: "INFO", WARN: "WARNING", ERROR: "ERROR", FATAL: "FATAL"}
"""NSQ's levels as options store them, and their names in log lines. The standard library's are ten times these."""
_LEVELS: Final = ("debug", "info", "warn", "error", "fatal")

STDERR: Final = 2
MAX_BACKLOG_BYTES: Final = 1024 * 1024
"""Bytes of log lines that are kept for a slow reader."""
TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)

MAX_FLUSH_SECONDS: Final = 1.0
"""Seconds that a program waits at its end for such a reader."""


def parse_log_level(text: str) -> int:
    """The level of a name, in any case. Raises ValueError with NSQ's text."""
    if text.lower() not in _LEVELS:
        raise ValueError(f"invalid log level '{text}' ({', '.join(_LEVELS)})")
    return DEBUG + _LEVELS.index(text.lower())


def configure(prefix: str, level: int, fd: int = STDERR, form: str = TEXT) -> None:
    """Send all logging of this process to `fd`, from `level` (1 to 5) upwards. Replaces any earlier configuration."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    root.addHandler(JsonHandler(prefix, fd) if form == JSON else LineHandler(prefix, fd))
    set_level(level)
    # These are not shown, and under gevent asking for the current thread creates an object for it.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.setLogRecordFactory(_Record)
    logging.Logger.findCaller = _find_caller  # type: ignore[method-assign]


def set_level(level: int) -> None:
    """Log from this level (1 to 5) upwards, from now on."""
    logging.getLogger().setLevel(level * 10)


def log_fatal(prefix: str, text: str, fd: int = STDERR) -> None:
    """Write one FATAL line, whether or not logging is configured; in its form, if it is."""
    is_json = any(isinstance(handler, JsonHandler) for handler in logging.getLogger().handlers)
    handler = JsonHandler(prefix, fd) if is_json else LineHandler(prefix, fd)
    handler.write(handler.line(time.time(), FATAL, text))
    handler.close()


_find_line_of_code: Final = logging.Logger.findCaller
_NOT_SHOWN: Final[dict[str, object]] = {
    **dict.fromkeys(("pathname", "filename", "module", "funcName"), ""),
    **dict.fromkeys(("thread", "threadName", "process", "processName", "taskName", "exc_text")),
    **dict.fromkeys(("lineno", "msecs", "relativeCreated"), 0),
}


class _Record(logging.LogRecord):
    """A record without a value for what no line shows. With `_find_caller` a log call takes 40 % less time.

    nsqd writes three lines for each client, which are a quarter of the work for one that connects and leaves.
    """

    def __init__(
        self,
        name: str,
        level: int,
        _path: str,
        _line: int,
        msg: object,
        args: Any,
        exc_info: Any,
        _function: str | None = None,
        sinfo: str | None = None,
    ) -> None:
        if args and len(args) == 1 and isinstance(args[0], Mapping) and args[0]:
            args = args[0]  # for `%(name)s`
        self.__dict__.update(_NOT_SHOWN)
        self.name = name
        self.levelno = level
        self.levelname = logging.getLevelName(level)
        self.msg = msg
        self.args = args
        self.exc_info = exc_info
        self.stack_info = sinfo
        self.created = time.time()


def _find_caller(
    self: logging.Logger, stack_info: bool = False, stacklevel: int = 1
) -> tuple[str, int, str, str | None]:
    """Find the stack if it is to be shown, and otherwise not even the line of code."""
    return _find_line_of_code(self, stack_info, stacklevel + 1) if stack_info else ("", 0, "", None)


class Output(NamedTuple):
    """A descriptor that never blocks. `write` returns the number of bytes taken, or raises BlockingIOError for none."""

    write: Callable[[bytearray], int]
    close: Callable[[], None]


NOWHERE: Final = Output(write=len, close=lambda: None)
"""Discards everything."""


class LineHandler(logging.Handler):
    """Formats records and writes them to a copy of the file descriptor `fd`."""

    def __init__(self, prefix: str, fd: int = STDERR) -> None:
        super().__init__()
        self._prefix = prefix
        self._output = open_output(fd)
        self._backlog = bytearray()
        self._lost = 0
        self._second = -1
        self._stamp = ""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception as error:  # a wrong argument in a log call must not stop the program
            what = record.msg if type(record.msg) is str else type(record.msg).__name__
            text = self.line(record.created, ERROR, f"a log call failed ({type(error).__name__}): {what}")
        self.write(text)

    def format(self, record: logging.LogRecord) -> str:
        """The record's line or lines, each ending in a newline."""
        more = {"logger": record.name}
        if record.exc_info:
            more["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        if record.stack_info:
            more["stack"] = record.stack_info
        return self.line(record.created, min(max(record.levelno // 10, DEBUG), FATAL), record.getMessage(), **more)

    def line(self, created: float, level: int, text: str, **more: str) -> str:
        """One line in NSQ's form, local time, and the lines of a `traceback` and a `stack`."""
        second = int(created)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
        micros = int((created - second) * 1e6)
        line = f"{self._prefix}{self._stamp}.{micros:06d} {LEVEL_NAMES[level]}: {one_line(text)}\n"
        for name in ("traceback", "stack"):
            if name in more:
                line += _indented(more[name])
        return line

    def write(self, text: str) -> None:
        """Write lines, keep them until the next call, or count them as lost. Neither raises nor waits."""
        data = text.encode("utf-8", "backslashreplace")
        if len(self._backlog) + len(data) <= MAX_BACKLOG_BYTES:
            self._backlog += data
        else:
            self._lost += 1
        if self._drain() and self._lost:
            notice, self._lost = f"{self._lost} log lines were lost: their reader was too slow", 0
            self._backlog += self.line(time.time(), WARN, notice).encode("utf-8", "backslashreplace")
            self._drain()

    def _drain(self) -> bool:
        try:
            while self._backlog:
                del self._backlog[: self._output.write(self._backlog)]
        except BlockingIOError:
            return False
        except OSError:
            self._lost += self._backlog.count(b"\n")
            self._backlog.clear()
            return False
        return True

    def flush(self) -> None:
        """Wait briefly for a slow reader. Called when the program ends."""
        deadline = time.monotonic() + MAX_FLUSH_SECONDS
        while not self._drain() and self._backlog and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        self.flush()
        self._output.close()
        self._output = NOWHERE
        super().close()


class JsonHandler(LineHandler):
    """Writes records as JSON objects, each on a line: `time` (UTC), `level`, `prefix`, `message`, `logger` and more."""

    def line(self, created: float, level: int, text: str, **more: str) -> str:
        seconds = int(created)
        time_of_day = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        members = {
            "time": f"{time_of_day}.{int((created - seconds) * 1e6):06d}Z",
            "level": LEVEL_NAMES[level],
            "prefix": self._prefix.strip(),
            "message": text,
            **{name: value for name, value in more.items() if value},
        }
        return json.dumps(members) + "\n"


def _indented(text: str) -> str:
    """Lines that belong to the one before, because no log line begins with a blank."""
    return "".join(f"    {one_line(line)}\n" for line in text.splitlines())


def open_output(fd: int) -> Output:
    """Open the file behind `fd` again so that writing never blocks, as far as the system allows.

    The descriptor itself is shared with other processes, so it cannot be made non-blocking.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return NOWHERE  # closed, and the number may be a client's socket later
    if stat.S_ISFIFO(mode):
        # Opening a pipe again gives flags of its own. It fails if the pipe has no reader, and without /proc.
        with suppress(OSError):
            return _file(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK))
    own = os.dup(fd)
    if stat.S_ISSOCK(mode):
        connection = _socket.socket(fileno=own)
        return Output(lambda data: connection.send(data, _socket.MSG_DONTWAIT), connection.close)
    return _file(own)


def _file(fd: int) -> Output:
    return Output(partial(os.write, fd), partial(os.close, fd))
