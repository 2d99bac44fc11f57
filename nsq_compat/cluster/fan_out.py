"""Concurrent requests to many daemons. A daemon that fails or hangs does not delay the answers of the others."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from nsq_compat.cluster.http_client import UpstreamError
from nsq_compat.cluster.reading import InvalidAnswer

T = TypeVar("T")
R = TypeVar("R")

MAX_CONCURRENT: Final = 128
"""Concurrent calls, as long as some of them finish."""
_STUCK_SECONDS: Final = 1.0
"""If no call finishes for so long, as many calls again are started."""
_GRACE_SECONDS: Final = 1.0
"""How long a call may exceed its own timeout."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The combined answer, with the errors of daemons that did not answer."""

    value: T
    errors: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    """The daemons behind `errors`, named as in the query."""
    skipped: tuple[str, ...] = ()
    """Invalid parts of answers, which are left out of `value`, with reasons."""


class AllFailed(Exception):
    """No daemon answered. The text is that of NSQ's nsqadmin."""


def query_all(kind: str, items: Sequence[T], query: Callable[[T], R], timeout: float) -> Answer[list[tuple[T, R]]]:
    """The results of `query` in the order of `items`. Raises `AllFailed` if there is none.

    nsqadmin: an empty `items` counts as failed.
    """
    answer = call_all(items, query, timeout)
    if not answer.value:
        raise AllFailed(f"failed to query any {kind}: " + "\n".join(answer.errors))
    return answer


def call_all(
    items: Sequence[T], call: Callable[[T], R], timeout: float, max_concurrent: int = MAX_CONCURRENT
) -> Answer[list[tuple[T, R]]]:
    """As `query_all`, but does not raise if no call succeeds."""
    outcomes = _run_concurrently(items, call, timeout, max_concurrent)
    done, errors, unreachable = [], [], []
    for item, outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, UpstreamError | InvalidAnswer):
            errors.append(str(outcome))
            unreachable.append(str(item))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            done.append((item, outcome))
    return Answer(done, tuple(errors), tuple(unreachable))


def _run_concurrently(
    items: Sequence[T], call: Callable[[T], R], timeout: float, max_concurrent: int
) -> list[R | BaseException]:
    outcomes: list[R | BaseException] = [UpstreamError(f"{item}: timeout") for item in items]
    finished: queue.Queue[tuple[int, R | BaseException]] = queue.Queue()
    waiting = iter(list(enumerate(items)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index, item = next(waiting, (-1, None))
            if item is None:
                return
            try:
                finished.put((index, call(item)))
            except BaseException as error:
                finished.put((index, error))

    def start(count: int) -> None:
        for _ in range(count):
            # A daemon thread, because a thread that hangs must not keep the program running.
            threading.Thread(target=work, daemon=True).start()

    start(min(len(items), max_concurrent))
    started = max_concurrent
    deadline = time.monotonic() + -(-len(items) // max_concurrent) * (timeout + _GRACE_SECONDS)
    missing = len(items)
    while missing and (left := deadline - time.monotonic()) > 0:
        try:
            index, outcome = finished.get(timeout=min(left, _STUCK_SECONDS))
        except queue.Empty:
            if started < len(items):
                start(max_concurrent)
                started += max_concurrent
            continue
        outcomes[index] = outcome
        missing -= 1
    return outcomes
