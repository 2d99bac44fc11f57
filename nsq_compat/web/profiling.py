"""/debug: a look into the running process, under the paths Go's pprof has. The contents are Python's, as text.

Whoever may reach the HTTP port may look, as with nsqd; nothing here changes what the daemon does, and one CPU profile
runs at a time.
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
from types import FrameType
from typing import Final, Protocol

from nsq_compat.protocol.errors import quote, without_secrets
from nsq_compat.session.http_message import TEXT, Request, Response
from nsq_compat.web.query import parse_query
from nsq_compat.web.responses import HTML, plain
from nsq_compat.web.routing import Route, Routes

_NO_SNIFF: Final = ("X-Content-Type-Options", "nosniff")
_is_integer = re.compile(r"[+-]?[0-9]{1,19}").fullmatch

_PROFILES: Final = {
    "block": "not recorded by Python: says so",
    "cmdline": "the command line, arguments separated by NUL",
    "goroutine": "the stacks of all greenlets and threads",
    "heap": "live objects by type; where they were made, if tracemalloc runs",
    "profile": "CPU samples for ?seconds=30, one stack a line, as flame graph tools read them",
    "symbol": "nothing to look up: samples carry names",
    "threadcreate": "threads of the process",
}

_DEFAULT_SECONDS: Final = 30.0
_LONGEST_SECONDS: Final = 300.0
_SAMPLE_INTERVAL: Final = 0.01
_HEAP_LINES: Final = 100


class RunningProcess(Protocol):
    """What cannot be known here."""

    def sleep(self, seconds: float) -> None:
        """Wait while others run."""

    def greenlet_stacks(self) -> str:
        """Every greenlet's and thread's stack, as text."""


class Profiling:
    def __init__(self, process: RunningProcess) -> None:
        self._process = process
        self._sampling = False

    # --- /debug/pprof -------------------------------------------------------------------------------------------------

    def routes(self, index: str) -> Routes:
        """The profiles' routes; at which path their index is differs between NSQ's daemons in a slash."""
        symbol = Route(self.symbol, logged=False)
        return {
            index: {"GET": Route(self.index, logged=False)},
            "/debug/pprof/cmdline": {"GET": Route(self.command_line, logged=False)},
            "/debug/pprof/symbol": {"GET": symbol, "POST": symbol},
            "/debug/pprof/profile": {"GET": Route(self.profile, logged=False)},
            "/debug/pprof/heap": {"GET": Route(self.heap, logged=False)},
            "/debug/pprof/goroutine": {"GET": Route(self.greenlets, logged=False)},
            "/debug/pprof/block": {"GET": Route(self.block, logged=False)},
            "/debug/pprof/threadcreate": {"GET": Route(self.threads, logged=False)},
        }

    def index(self, request: Request) -> Response:
        folder = "" if request.path.endswith("/") else "pprof/"
        rows = "".join(
            f'<tr><td><a href="{folder}{name}">{name}</a></td><td>{html.escape(text)}</td></tr>\n'
            for name, text in _PROFILES.items()
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
        """Samples of where CPU time goes; an idle daemon gives none."""
        seconds = _seconds_of(parse_query(request.query).get("seconds", ""))
        if self._sampling:
            return _failed("cpu profiling already in use")
        self._sampling = True
        try:
            stacks = self._sample(seconds)
        except ValueError as error:  # only the main thread may have signal handlers
            return _failed(str(error))
        finally:
            self._sampling = False
        return _dump("".join(f"{stack} {count}\n" for stack, count in stacks.most_common()))

    def _sample(self, seconds: float) -> Counter[str]:
        # A signal rather than cProfile: that one cannot follow greenlets, and slows everything it watches.
        stacks: Counter[str] = Counter()
        before = signal.signal(signal.SIGPROF, lambda _, frame: stacks.update((_stack_text(frame),)))
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_INTERVAL, _SAMPLE_INTERVAL)
        try:
            self._process.sleep(seconds)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            # A last signal may still be on its way; the default action would end the process.
            signal.signal(signal.SIGPROF, before if callable(before) else signal.SIG_IGN)
        return stacks

    # --- Others under /debug ------------------------------------------------------------------------------------------

    def set_block_rate(self, request: Request) -> Response:
        """Checked and otherwise without effect: there is no block profile (docs/differences.md: debug)."""
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
    """nsqd: what is no positive number means the default."""
    try:
        seconds = float(text)
    except ValueError:
        return _DEFAULT_SECONDS
    return min(seconds, _LONGEST_SECONDS) if seconds > 0 else _DEFAULT_SECONDS


def _stack_text(frame: FrameType | None) -> str:
    """``outermost;...;innermost``."""
    names: list[str] = []
    while frame is not None:
        code = frame.f_code
        names.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}")
        frame = frame.f_back
    return ";".join(reversed(names))


def _trim_heap() -> None:
    """Give free pages back to the system, where the C library can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
