"""The event loop of a pynsq program: handlers and callbacks run on it, one at a time, in the thread of ``run``.

It is asyncio's current loop, which Tornado also uses, so coroutines, ``asyncio.run`` and Tornado's timers work.
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
        """Finish pending work while the loop still runs, then disconnect."""
        ...


_clients: list[Client] = []


def current_loop() -> asyncio.AbstractEventLoop:
    """The running loop, or this thread's loop, which is made if necessary."""
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
    """Keep a reference to the client, and shut it down when ``run`` ends."""
    _clients.append(client)


def unregister(client: Client) -> None:
    if client in _clients:
        _clients.remove(client)


def run() -> None:
    """Run every Reader and Writer until SIGTERM or SIGINT, or until the loop is stopped.

    On a signal, clients receive no more messages and handle those that have arrived, for at most 30 seconds. A second
    signal stops the loop at once.
    """
    loop = current_loop()
    stopping = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if stopping.is_set():
            loop.call_soon_threadsafe(loop.stop)
            return
        stopping.set()
        threading.Thread(target=stop, name="nsq stop", daemon=True).start()

    def stop() -> None:
        _shut_down_all(STOP_SECONDS)
        with contextlib.suppress(RuntimeError):  # closed by a second signal
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
