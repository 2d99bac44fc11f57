"""How far a long-running utility has come, on one line of the terminal: messages, rate, backlog.

Where stderr is no terminal nothing is shown and nobody is asked. The line ends at its own beginning, so that a log line
that comes between is written over it.
"""

import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TextIO

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.tools.lookupds import cluster_of

_INTERVAL: Final = 2.0
_CLEAR_BEHIND: Final = "\033[K"
"""What the terminal takes for: nothing more on this line."""


class Progress:
    """A context manager that shows the figures every two seconds. `backlog` is None while nobody knows."""

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
            self._thread = threading.Thread(target=self._show_on, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            with suppress(OSError):
                self._write("")

    def show(self) -> None:
        """Write the line anew; the rate is that since the last time."""
        backlog = self._backlog()
        now, messages = self._clock(), self._messages()
        then, before = self._last
        self._last = (now, messages)
        rate = (messages - before) / (now - then) if now > then else 0.0
        self._write(f"{messages:,} messages, {rate:,.0f}/s" + ("" if backlog is None else f", backlog {backlog:,}"))

    def _show_on(self) -> None:
        with suppress(OSError):  # the terminal is gone
            while not self._stopped.wait(_INTERVAL):
                self.show()

    def _write(self, text: str) -> None:
        self._terminal.write(f"\r{text}{_CLEAR_BEHIND}\r")
        self._terminal.flush()


def channel_backlog(topics: Collection[str], channel: str, lookupds: Sequence[str]) -> Callable[[], int | None]:
    """A backlog for `Progress`: what waits in a channel of these topics, on all nodes that nsqlookupd knows.

    Without an nsqlookupd nobody knows. `topics` is looked at each time.
    """
    cluster = cluster_of(lookupds, connect_timeout=1.0, request_timeout=2.0)

    def ask() -> int | None:
        try:
            return sum(_depth(cluster, topic, channel) for topic in list(topics)) if lookupds else None
        except AllFailed:
            return None

    return ask


def _depth(cluster: Cluster, topic: str, channel: str) -> int:
    nodes = cluster.producers(topic).value
    found = cluster.stats(nodes, topic, channel).value
    return sum(
        each.depth
        for _, stats in found
        for of_topic in stats.topics
        for each in of_topic.channels
        if each.channel_name == channel
    )
