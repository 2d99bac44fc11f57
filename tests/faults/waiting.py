"""Waiting for what a live process does, by asking it again and again."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
