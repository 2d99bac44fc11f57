"""Waits for other threads by polling a condition."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
