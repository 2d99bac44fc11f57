"""Many daemons asked side by side. One that fails or hangs costs its own answer and nobody else's time."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from nsq_compat.cluster.http_client import UpstreamError
from nsq_compat.cluster.reading import BadAnswer

T = TypeVar("T")
R = TypeVar("R")

WIDTH: Final = 128
"""How many are asked at the same time, as long as they answer."""
_STUCK_SECONDS: Final = 1.0
"""When nobody has answered for so long, as many again are asked beside those that hang."""
_GRACE: Final = 1.0
# Seconds a call may take beyond its own timeout before it is given up: a daemon that sends its headers byte by byte.


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What could be learned, and the errors of those who did not answer."""

    value: T
    errors: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    """Who they are, as they were asked for."""
    skipped: tuple[str, ...] = ()
    """Parts of the answers that make no sense and are left out, and why."""


class AllFailed(Exception):
    """Nobody answered; the text is what NSQ's nsqadmin says."""


def ask_all(who: str, items: Sequence[T], ask: Callable[[T], R], timeout: float) -> Answer[list[tuple[T, R]]]:
    """`ask` of every item, in the order of the items. Raises `AllFailed` if there is no answer at all.

    nsqadmin: nobody to ask is nobody answered.
    """
    answer = tell_all(items, ask, timeout)
    if not answer.value:
        raise AllFailed(f"failed to query any {who}: " + "\n".join(answer.errors))
    return answer


def tell_all(
    items: Sequence[T], call: Callable[[T], R], timeout: float, width: int = WIDTH
) -> Answer[list[tuple[T, R]]]:
    """As `ask_all`, but nobody at all is as good as all. `width` at the same time."""
    outcomes = _side_by_side(items, call, timeout, width)
    done, errors, silent = [], [], []
    for item, outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, UpstreamError | BadAnswer):
            errors.append(str(outcome))
            silent.append(str(item))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            done.append((item, outcome))
    return Answer(done, tuple(errors), tuple(silent))


def _side_by_side(items: Sequence[T], call: Callable[[T], R], timeout: float, width: int) -> list[R | BaseException]:
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

    def begin(count: int) -> None:
        for _ in range(count):
            # A daemon thread: one that hangs must not keep the program from ending.
            threading.Thread(target=work, daemon=True).start()

    begin(min(len(items), width))
    begun = width
    deadline = time.monotonic() + -(-len(items) // width) * (timeout + _GRACE)
    missing = len(items)
    while missing and (left := deadline - time.monotonic()) > 0:
        try:
            index, outcome = finished.get(timeout=min(left, _STUCK_SECONDS))
        except queue.Empty:
            if begun < len(items):
                begin(width)
                begun += width
            continue
        outcomes[index] = outcome
        missing -= 1
    return outcomes
