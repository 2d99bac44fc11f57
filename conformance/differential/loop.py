"""A scheduler for many plays in one thread.

A play is a generator that yields its deadline; it is resumed when data has arrived for it, or at the deadline.
"""

import heapq
import itertools
import select
import socket
import time
from collections.abc import Callable, Generator
from typing import Any, Final

Task = Generator[float, None, Any]
"""A generator that yields deadlines in monotonic time."""

MAX_SLEEP_SECONDS: Final = 1.0
"""Longest sleep in seconds, so that signals are handled."""


class Running:
    """A started task, and the callback for its result."""

    __slots__ = ("deadline", "done", "task")

    def __init__(self, task: Task, done: Callable[[Any], None]) -> None:
        self.task, self.done = task, done
        self.deadline = 0.0


class Loop:
    """Starts tasks, and resumes each when it has new data or its deadline passes."""

    def __init__(self) -> None:
        self.current: Running
        """The task that is running now."""
        self.running = 0
        """The number of unfinished tasks."""
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Callable[[], None], Running | None]] = {}
        self._timers: list[tuple[float, int, Running]] = []
        self._timer_numbers = itertools.count()
        self._ready: dict[Running, None] = {}

    def start(self, task: Task, done: Callable[[Any], None]) -> None:
        self.running += 1
        self._ready[Running(task, done)] = None

    def wake(self, running: Running) -> None:
        self._ready[running] = None

    def watch(self, watched: socket.socket, receive: Callable[[], None]) -> None:
        """Call `receive` when the socket is readable, and then resume the current task."""
        if watched.fileno() not in self._watched:
            self._epoll.register(watched, select.EPOLLIN)
        self._watched[watched.fileno()] = receive, self.current

    def leave_alone(self, watched: socket.socket) -> None:
        """Call `receive` without resuming a task."""
        receive, _ = self._watched[watched.fileno()]
        self._watched[watched.fileno()] = receive, None

    def forget(self, watched: socket.socket) -> None:
        """Stop watching a socket; call this before closing it."""
        if self._watched.pop(watched.fileno(), None) is not None:
            self._epoll.unregister(watched)

    def turn(self) -> None:
        """Wait for data or a deadline, and resume the tasks concerned."""
        timeout = MAX_SLEEP_SECONDS
        if self._ready:
            timeout = 0.0
        elif self._timers:
            timeout = min(MAX_SLEEP_SECONDS, max(0.0, self._timers[0][0] - time.monotonic()))
        for descriptor, _ in self._epoll.poll(timeout):
            receive, running = self._watched[descriptor]
            receive()
            if running is not None:
                self._ready[running] = None
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, running = heapq.heappop(self._timers)
            if running.deadline <= now:
                self._ready[running] = None
        ready, self._ready = self._ready, {}
        for running in ready:
            self._go_on(running)

    def close(self) -> None:
        self._epoll.close()

    def _go_on(self, running: Running) -> None:
        self.current = running
        try:
            deadline = next(running.task)
        except StopIteration as end:
            running.deadline = float("inf")
            self.running -= 1
            running.done(end.value)
            return
        if deadline != running.deadline:
            running.deadline = deadline
            heapq.heappush(self._timers, (deadline, next(self._timer_numbers), running))
