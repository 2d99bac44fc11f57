"""Where a pynsq program's handlers and callbacks run: on one event loop, one at a time, in the thread of ``run``.

It is asyncio's current loop, which is Tornado's too: coroutines, ``asyncio.run`` and Tornado's timers work as they did.
"""

import asyncio
import contextlib
import signal
import threading
import warnings
from typing import Protocol

STOP_SECONDS = 30.0


class Client(Protocol):
    """A Reader or Writer."""

    def shut_down(self, timeout: float) -> None:
        """Finish what there is to finish, while the loop still runs; then disconnect."""
        ...


_clients: list[Client] = []


def current_loop() -> asyncio.AbstractEventLoop:
    """The running loop, else this thread's, made if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            loop = asyncio.get_event_loop()
            if not loop.is_closed():
                return loop
    except RuntimeError:
        pass
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def register(client: Client) -> None:
    """Keep it alive, and end it when ``run`` ends."""
    _clients.append(client)


def unregister(client: Client) -> None:
    if client in _clients:
        _clients.remove(client)


def run() -> None:
    """Run every Reader and Writer until SIGTERM or SIGINT, or until the loop is stopped.

    A signal ends it in good order: nothing new is asked for, what has come is handled, for at most 30 seconds. A second
    signal ends it at once.
    """
    loop = current_loop()
    stopping = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if stopping.is_set():
            loop.call_soon_threadsafe(loop.stop)
            return
        stopping.set()
        threading.Thread(target=finish, name="nsq stop", daemon=True).start()

    def finish() -> None:
        _shut_down_all(STOP_SECONDS)
        with contextlib.suppress(RuntimeError):  # closed: a second signal was quicker
            loop.call_soon_threadsafe(loop.stop)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        loop.run_forever()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _shut_down_all(0.0)


def _shut_down_all(timeout: float) -> None:
    threads = [
        threading.Thread(target=client.shut_down, args=(timeout,), name="nsq stop", daemon=True)
        for client in list(_clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
