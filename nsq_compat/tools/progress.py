"""Progress of a long-running utility: one line on a terminal, and lines of request times (--status-every)."""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, Self, TextIO

from nsq_compat.cluster.http_client import AllFailed
from nsq_compat.protocol.errors import without_secrets
from nsq_compat.tools.client_options import ReadingOptions, cluster_of
from nsq_compat.tools.program import say

_INTERVAL: Final = 2.0
_CLEAR_TO_END: Final = "\033[K"
_MIN_ACCURATE: Final = 100
"""With fewer times the 99th percentile is the longest one."""


class Progress:
    """A context manager that shows messages, rate and backlog every two seconds, if stderr is a terminal.

    `backlog` returns None if it is unknown. The cursor is left at the start of the line, so that a log line overwrites
    it.
    """

    def __init__(
        self,
        messages: Callable[[], int],
        backlog: Callable[[], int | None] = lambda: None,
        *,
        terminal: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._messages = messages
        self._backlog = backlog
        self._terminal = terminal or sys.stderr
        self._clock = clock
        self._last = (clock(), messages())
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._terminal.isatty():
            self._thread = threading.Thread(target=self._show_until_stopped, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            with suppress(OSError):
                self._write("")

    def show(self) -> None:
        """Write the line again; the rate is that since the last call."""
        backlog = self._backlog()
        now, messages = self._clock(), self._messages()
        then, before = self._last
        self._last = (now, messages)
        rate = (messages - before) / (now - then) if now > then else 0.0
        self._write(f"{messages:,} messages, {rate:,.0f}/s" + ("" if backlog is None else f", backlog {backlog:,}"))

    def _show_until_stopped(self) -> None:
        with suppress(OSError):  # the terminal is gone
            while not self._stopped.wait(_INTERVAL):
                self.show()

    def _write(self, text: str) -> None:
        self._terminal.write(f"\r{text}{_CLEAR_TO_END}\r")
        self._terminal.flush()


def channel_backlog(topics: Collection[str], channel: str, options: ReadingOptions) -> Callable[[], int | None]:
    """A backlog for `Progress`: the depth of a channel of these topics on all nodes, unknown without nsqlookupds.

    `topics` may change; it is read each time.
    """
    cluster = cluster_of(options, 1.0, 2.0)

    def depth(topic: str) -> int:
        stats = cluster.stats(cluster.producers(topic).value, topic, channel).value
        topics = [each for _, of_node in stats for each in of_node.topics]
        return sum(each.depth for of_topic in topics for each in of_topic.channels if each.channel_name == channel)

    def backlog() -> int | None:
        try:
            return sum(map(depth, list(topics))) if cluster.lookupds else None
        except AllFailed:
            return None

    return backlog


class RequestTimes:
    """Prints percentiles of request times: of all destinations together and, if there are several, of each.

    May be used by any thread.
    """

    def __init__(self, addresses: Sequence[str], every: int, say: Callable[[str], object] = say) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._all = _Times(every, "[aggregate]:")
        each = addresses if len(addresses) > 1 else ()
        self._each = {address: _Times(every, f"[{without_secrets(address)}]:") for address in each}
        if 0 < every < _MIN_ACCURATE:
            say(
                f"Warning: use more than {_MIN_ACCURATE} status values for accurate percentiles"
                f" (configured with {every})"
            )

    @property
    def count(self) -> int:
        """Requests so far."""
        return self._all.count

    def add(self, address: str, seconds: float) -> None:
        with self._lock:
            lines = [self._each[address].add(seconds) if address in self._each else None, self._all.add(seconds)]
        for line in filter(None, lines):
            self._say(line)


class _Times:
    def __init__(self, every: int, name: str) -> None:
        self.count = 0
        self._every = every
        self._name = name
        self._last: deque[float] = deque(maxlen=max(0, every))

    def add(self, seconds: float) -> str | None:
        """Returns the line when it is due."""
        self._last.append(seconds)
        self.count += 1
        # nsq_to_http: the line is printed with the request after the last one, which counts for the next line too.
        if self._every <= 0 or self.count == 1 or self.count % self._every != 1 % self._every:
            return None
        times = sorted(self._last)
        average, count = sum(times) / len(times), len(times)
        # nsq_to_http: percentiles are rounded up, and half a place further.
        tail, most = (times[min(count - 1, math.ceil(share * count + 0.5))] * 1000 for share in (0.99, 0.95))
        return f"{self._name} finished {count} - 99th: {tail:.2f}ms - 95th: {most:.2f}ms - avg: {average * 1000:.2f}ms"
