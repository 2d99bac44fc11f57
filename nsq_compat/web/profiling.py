"""/debug: profiles of the running process, at the paths of Go's pprof. The contents are Python's, as text.

As in nsqd, access is not restricted. One CPU profile runs at a time.
"""

import ctypes
import gc
import html
import re
import signal
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Final, Protocol

from nsq_compat.protocol.errors import quote, without_secrets
from nsq_compat.session.http_message import TEXT, Request, Response
from nsq_compat.web.application import Handler, Route, Routes
from nsq_compat.web.query import parse_query
from nsq_compat.web.responses import HTML, plain

_NO_SNIFF: Final = ("X-Content-Type-Options", "nosniff")
_is_integer = re.compile(r"[+-]?[0-9]{1,19}").fullmatch

_DEFAULT_SECONDS: Final = 30.0
_MAX_SECONDS: Final = 300.0
_SAMPLE_INTERVAL: Final = 0.01
_HEAP_LINES: Final = 100


class RunningProcess(Protocol):
    """What profiling needs from the daemon's event loop."""

    def sleep(self, seconds: float) -> None:
        """Sleep without blocking the event loop."""

    def greenlet_stacks(self) -> str:
        """The stacks of all greenlets and threads, as text."""


class Profiling:
    def __init__(self, process: RunningProcess) -> None:
        self._process = process
        self._sampling = False
        self._profiles: Mapping[str, tuple[Handler, str]] = {
            "block": (self.block, "empty: Python does not record contention"),
            "cmdline": (self.command_line, "the command line, arguments separated by NUL"),
            "goroutine": (self.greenlets, "the stacks of all greenlets and threads"),
            "heap": (self.heap, "live objects by type, and by line of allocation if tracemalloc runs"),
            "profile": (self.profile, "CPU samples for ?seconds=30, one stack per line, for flame graph tools"),
            "symbol": (self.symbol, "empty: samples contain names"),
            "threadcreate": (self.threads, "threads of the process"),
        }

    # --- /debug/pprof -------------------------------------------------------------------------------------------------

    def routes(self, index: str) -> Routes:
        """The profiles' routes. The path of the index has a trailing slash in nsqd, but not in nsqlookupd."""
        routes = {name: {"GET": Route(handler, logged=False)} for name, (handler, _) in self._profiles.items()}
        routes["symbol"]["POST"] = Route(self.symbol, logged=False)
        return {
            index: {"GET": Route(self.index, logged=False)},
            **{f"/debug/pprof/{name}": methods for name, methods in routes.items()},
        }

    def index(self, request: Request) -> Response:
        folder = "" if request.path.endswith("/") else "pprof/"
        rows = "".join(
            f'<tr><td><a href="{folder}{name}">{name}</a></td><td>{html.escape(text)}</td></tr>\n'
            for name, (_, text) in self._profiles.items()
        )
        page = f"<html>\n<head><title>/debug/pprof/</title></head>\n<body>\n<table>\n{rows}</table>\n</body>\n</html>\n"
        return Response(200, page.encode("utf-8"), (HTML, _NO_SNIFF))

    def command_line(self, request: Request) -> Response:
        return _dump("\0".join(map(without_secrets, sys.argv)))

    def symbol(self, request: Request) -> Response:
        return _dump("num_symbols: 0\n")

    def greenlets(self, request: Request) -> Response:
        return _dump(self._process.greenlet_stacks())

    def block(self, request: Request) -> Response:
        return _dump("--- contention:\nnot recorded: greenlets wait in the event loop, see goroutine\n")

    def threads(self, request: Request) -> Response:
        names = [f"{thread.name}{' daemon' if thread.daemon else ''}" for thread in threading.enumerate()]
        return _dump(f"threadcreate profile: total {len(names)}\n" + "".join(f"{name}\n" for name in names))

    def heap(self, request: Request) -> Response:
        counts = Counter(type(each).__qualname__ for each in gc.get_objects())
        lines = [f"heap profile: {sum(counts.values())} objects known to the garbage collector"]
        lines += [f"{count:>10} {name}" for name, count in counts.most_common(_HEAP_LINES)]
        if tracemalloc.is_tracing():
            lines += ["", "memory by line (tracemalloc):"]
            lines += map(str, tracemalloc.take_snapshot().statistics("lineno")[:_HEAP_LINES])
        return _dump("\n".join(lines) + "\n")

    def profile(self, request: Request) -> Response:
        """Samples of stacks, taken by CPU time: an idle daemon has none."""
        seconds = _seconds_of(parse_query(request.query).get("seconds", ""))
        if self._sampling:
            return _failed("cpu profiling already in use")
        self._sampling = True
        try:
            stacks = self._sample(seconds)
        except ValueError as error:  # not in the main thread, which alone may set signal handlers
            return _failed(str(error))
        finally:
            self._sampling = False
        return _dump("".join(f"{stack} {count}\n" for stack, count in stacks.most_common()))

    def _sample(self, seconds: float) -> Counter[str]:
        # Not cProfile: it does not support greenlets, and slows the process.
        stacks: Counter[str] = Counter()
        before = signal.signal(signal.SIGPROF, lambda _, frame: stacks.update((_stack_text(frame),)))
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_INTERVAL, _SAMPLE_INTERVAL)
        try:
            self._process.sleep(seconds)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            # A signal may still be pending; the default action would end the process.
            signal.signal(signal.SIGPROF, before if callable(before) else signal.SIG_IGN)
        return stacks

    # --- Others under /debug ------------------------------------------------------------------------------------------

    def set_block_rate(self, request: Request) -> Response:
        """Check the rate. There is no block profile (docs/differences.md: debug)."""
        rate = parse_query(request.query).get("rate", "")
        if not _is_integer(rate):
            quoted = quote(rate.encode("utf-8", errors="surrogateescape"))
            return plain(f"invalid block rate : strconv.Atoi: parsing {quoted}: invalid syntax", 400)
        return plain("")

    def free_memory(self, request: Request) -> Response:
        gc.collect()
        _trim_heap()
        return plain("")


def _dump(text: str) -> Response:
    return Response(200, text.encode("utf-8", errors="surrogateescape"), (TEXT, _NO_SNIFF))


def _failed(reason: str) -> Response:
    text = f"Could not enable CPU profiling: {reason}\n"
    return Response(500, text.encode("utf-8"), (TEXT, _NO_SNIFF))


def _seconds_of(text: str) -> float:
    """nsqd: anything but a positive number means the default."""
    try:
        seconds = float(text)
    except ValueError:
        return _DEFAULT_SECONDS
    return min(seconds, _MAX_SECONDS) if seconds > 0 else _DEFAULT_SECONDS


def _stack_text(frame: FrameType | None) -> str:
    """``outermost;...;innermost``."""
    names: list[str] = []
    while frame is not None:
        code = frame.f_code
        names.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))


def _trim_heap() -> None:
    """Return free pages to the system, if the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
