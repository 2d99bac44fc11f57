"""/debug: profiles of the running process, at the paths of Go's pprof. The contents are Python's, as text.

As in nsqd, access is not restricted without an access file. One CPU profile runs at a time.
"""

import gc
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from nsq_compat.net.process import greenlet_stacks, sleep
from nsq_compat.policy.access import ADMIN
from nsq_compat.protocol.errors import quote
from nsq_compat.session.http_message import TEXT, Request, Response
from nsq_compat.web.application import HTML, Handler, Route, Routes, parse_query, plain

_NO_SNIFF: Final = ("X-Content-Type-Options", "nosniff")
_is_integer = re.compile(r"[+-]?[0-9]{1,19}").fullmatch

_DEFAULT_SECONDS: Final = 30.0
_MAX_SECONDS: Final = 300.0
_SAMPLE_INTERVAL: Final = 0.01
_HEAP_LINES: Final = 100
_NO_CONTENTION: Final = "--- contention:\nnot recorded: greenlets wait in the event loop, see goroutine\n"
_NO_SYMBOLS: Final = "num_symbols: 0\n"


class Profiling:
    def __init__(self) -> None:
        self._sampling = False
        self._profiles: Mapping[str, tuple[Handler, str]] = {
            "block": (_shows(lambda: _NO_CONTENTION), "empty: Python does not record contention"),
            "cmdline": (_shows(_command_line), "the command line, arguments separated by NUL"),
            "goroutine": (_shows(greenlet_stacks), "the stacks of all greenlets and threads"),
            "heap": (_shows(_heap), "live objects by type, and by line of allocation if tracemalloc runs"),
            "profile": (self.profile, "CPU samples for ?seconds=30, one stack per line, for flame graph tools"),
            "symbol": (_shows(lambda: _NO_SYMBOLS), "empty: samples contain names"),
            "threadcreate": (_shows(_threads), "threads of the process"),
        }

    # --- /debug/pprof -------------------------------------------------------------------------------------------------

    def routes(self, index: str) -> Routes:
        """The profiles' routes. The path of the index has a trailing slash in nsqd, but not in nsqlookupd."""
        routes = {name: {"GET": Route(handler, ADMIN, logged=False)} for name, (handler, _) in self._profiles.items()}
        routes["symbol"]["POST"] = routes["symbol"]["GET"]
        return {
            index: {"GET": Route(self.index, ADMIN, logged=False)},
            **{f"/debug/pprof/{name}": methods for name, methods in routes.items()},
        }

    def index(self, request: Request) -> Response:
        import html

        folder = "" if request.path.endswith("/") else "pprof/"
        rows = "".join(
            f'<tr><td><a href="{folder}{name}">{name}</a></td><td>{html.escape(text)}</td></tr>\n'
            for name, (_, text) in self._profiles.items()
        )
        page = f"<html>\n<head><title>/debug/pprof/</title></head>\n<body>\n<table>\n{rows}</table>\n</body>\n</html>\n"
        return Response(200, page.encode("utf-8"), (HTML, _NO_SNIFF))

    def profile(self, request: Request) -> Response:
        """Samples of stacks, taken by CPU time: an idle daemon has none."""
        seconds = _seconds_of(parse_query(request.query).get("seconds", ""))
        if self._sampling:
            return _dump("Could not enable CPU profiling: cpu profiling already in use\n", 500)
        self._sampling = True
        try:
            stacks = self._sample(seconds)
        except ValueError as error:  # not in the main thread, which alone may set signal handlers
            return _dump(f"Could not enable CPU profiling: {error}\n", 500)
        finally:
            self._sampling = False
        return _dump("".join(f"{stack} {count}\n" for stack, count in stacks.most_common()))

    def _sample(self, seconds: float) -> Counter[str]:
        # Not cProfile: it does not support greenlets, and slows the process.
        stacks: Counter[str] = Counter()
        before = signal.signal(signal.SIGPROF, lambda _, frame: stacks.update((_stack_text(frame),)))
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_INTERVAL, _SAMPLE_INTERVAL)
        try:
            sleep(seconds)
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
        import ctypes

        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)  # returns free pages to the system, if the C library can (glibc)
        return plain("")


def _dump(text: str, status: int = 200) -> Response:
    return Response(status, text.encode("utf-8", errors="surrogateescape"), (TEXT, _NO_SNIFF))


def _shows(make_text: Callable[[], str]) -> Handler:
    return lambda request: _dump(make_text())


def _command_line() -> str:
    return "\0".join(sys.argv)


def _threads() -> str:
    names = [f"{thread.name}{' daemon' if thread.daemon else ''}\n" for thread in threading.enumerate()]
    return f"threadcreate profile: total {len(names)}\n" + "".join(names)


def _heap() -> str:
    import tracemalloc

    counts = Counter(type(each).__qualname__ for each in gc.get_objects())
    lines = [f"heap profile: {sum(counts.values())} objects known to the garbage collector"]
    lines += [f"{count:>10} {name}" for name, count in counts.most_common(_HEAP_LINES)]
    if tracemalloc.is_tracing():
        lines += ["", "memory by line (tracemalloc):"]
        lines += map(str, tracemalloc.take_snapshot().statistics("lineno")[:_HEAP_LINES])
    return "\n".join(lines) + "\n"


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
