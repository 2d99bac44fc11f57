import asyncio
import os
import signal
import threading

import pytest

from nsq_compat.client import event_loop


class Client:
    """Takes `gate`'s time to shut down."""

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


def test_it_is_the_running_loop_if_one_runs():
    async def ask() -> bool:
        return event_loop.current_loop() is asyncio.get_running_loop()

    assert asyncio.run(ask())


def test_it_is_the_threads_loop_otherwise(client):
    assert event_loop.current_loop() is event_loop.current_loop()


def test_a_closed_loop_is_replaced(client):
    closed = event_loop.current_loop()
    closed.close()
    assert event_loop.current_loop() is not closed


def test_a_signal_ends_it_once_the_clients_are_done(client):
    loop = event_loop.current_loop()
    before = signal.getsignal(signal.SIGTERM)
    loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
    loop.call_later(0.05, client.gate.set)
    event_loop.run()
    assert client.timeouts == [event_loop.STOP_SECONDS]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_it_at_once(client):
    loop = event_loop.current_loop()
    loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
    loop.call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
    event_loop.run()
    assert client.timeouts == [event_loop.STOP_SECONDS, 0.0]
    client.gate.set()


def test_a_program_that_stops_the_loop_itself_ends_too(client):
    loop = event_loop.current_loop()
    loop.call_soon(loop.stop)
    event_loop.run()
    assert client.timeouts == [0.0]
