"""Waiting for other threads, and handlers that make them wait."""

import threading
import time
from collections.abc import Callable

from nsq_compat.client.message import Message


def wait_until(condition: Callable[[], object], within: float = 20.0) -> None:
    """Poll a condition."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class Keeping(list[Message]):
    """A handler that keeps messages, to be answered later."""

    def __call__(self, message: Message) -> None:
        message.enable_async()
        self.append(message)


class Holding:
    """A handler that waits until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.bodies: list[bytes] = []

    def __call__(self, message: Message) -> None:
        self.begun.set()
        self.released.wait()
        self.bodies.append(message.body)
