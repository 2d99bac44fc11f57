import asyncio
import os
import signal
import threading

import pytest

from nsq_compat.client import event_loop


class Client:
    """Shuts down when `gate` opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.timeouts: list[float] = []

    def shut_down(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        self.gate.wait(min(timeout, 20))
        event_loop.unregister(self)


@pytest.fixture
def client():
    asyncio.set_event_loop(None)
    client = Client()
    event_loop.register(client)
    yield client
    client.gate.set()
    event_loop.unregister(client)
    event_loop.current_loop().close()
    asyncio.set_event_loop(None)


def test_the_current_loop_is_the_running_one():
    async def ask() -> bool:
        return event_loop.current_loop() is asyncio.get_running_loop()

    assert asyncio.run(ask())


def test_the_current_loop_is_the_threads_if_none_runs(client):
    assert event_loop.current_loop() is event_loop.current_loop()


def test_a_closed_loop_is_replaced(client):
    closed = event_loop.current_loop()
    closed.close()
    assert event_loop.current_loop() is not closed


def test_a_signal_stops_the_loop_after_the_clients(client):
    loop = event_loop.current_loop()
    before = signal.getsignal(signal.SIGTERM)
    loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
    loop.call_later(0.05, client.gate.set)
    event_loop.run()
    assert client.timeouts == [event_loop.STOP_SECONDS]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_stops_the_loop_at_once(client):
    loop = event_loop.current_loop()
    loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
    loop.call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
    event_loop.run()
    assert client.timeouts == [event_loop.STOP_SECONDS, 0.0]
    client.gate.set()


def test_run_returns_if_the_program_stops_the_loop(client):
    loop = event_loop.current_loop()
    loop.call_soon(loop.stop)
    event_loop.run()
    assert client.timeouts == [0.0]
