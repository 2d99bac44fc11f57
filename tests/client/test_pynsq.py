"""The same program with pynsq and with our Reader and Writer, and features of ours."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import nsq_compat.client as nsq
from nsq_compat.client import pynsq
from nsq_compat.client.connection import Connection
from nsq_compat.client.message import Message
from nsq_compat.protocol.frames import error_frame
from tests.client.fake_nsqd import FakeNsqd
from tests.client.waiting import Keeping

PROGRAM = Path(__file__).with_name("pynsq_program.py")
COUNT = 6


@pytest.mark.parametrize("module", ["nsq", "nsq_compat.client"])
def test_a_pynsq_program_needs_only_another_import(nsqd, topic, module):
    for channel in ("plain", "coroutine", "async", "never"):
        nsqd.create_channel(topic, channel)
    command = [sys.executable, "-W", "ignore", str(PROGRAM), module, nsqd.tcp_address, topic, str(COUNT)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    expected = sorted(f"{name} {number}" for name in ("pub", "dpub", "mpub") for number in range(COUNT))
    assert report["answers"] == ["OK"] * (2 * COUNT + 1)
    assert report["seen"] == {"plain": expected, "async": expected, "coroutine": expected}


# --- Reader -----------------------------------------------------------------------------------------------------------


async def until(condition: Any, within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


def drive(conversation: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on its own event loop, then shut its readers and writers down."""
    asyncio.run(conversation)
    shut_all_down(1)


def shut_all_down(timeout: float) -> None:
    for client in list(pynsq._clients):
        client.shut_down(timeout)


def reader_of(fake: FakeNsqd, handler: Any, **options: Any) -> nsq.Reader:
    return nsq.Reader("t", "c", handler, nsqd_tcp_addresses=[fake.address], **{"max_in_flight": 9, **options})


async def subscribed(fake: FakeNsqd) -> None:
    await until(lambda: fake.said("RDY"))


def test_handlers_run_on_the_loop_one_at_a_time(fake):
    threads = set()

    def handle(message: Message) -> bool:
        threads.add(threading.get_ident())
        return True

    async def talk() -> None:
        reader_of(fake, handle)
        await subscribed(fake)
        fake.send_messages([b"x"] * 50)
        await until(lambda: len(fake.peer.finished) == 50)

    drive(talk())
    assert threads == {threading.get_ident()}


def test_a_message_is_requeued_if_the_handler_returns_none(fake, caplog):
    async def talk() -> None:
        reader_of(fake, lambda message: None)
        await subscribed(fake)
        (sent,) = fake.send_messages([b"x"])
        await until(lambda: fake.peer.said("REQ"))
        assert fake.peer.said("REQ") == [f"REQ {sent.decode()} 90000"]

    drive(talk())
    assert "neither True nor False" in caplog.text


def test_the_result_of_a_future_answers_the_message(fake):
    with ThreadPoolExecutor() as pool:

        async def talk() -> None:
            reader_of(fake, lambda message: pool.submit(lambda: message.body == b"good"))
            await subscribed(fake)
            good, bad = fake.send_messages([b"good", b"bad"])
            await until(lambda: fake.peer.finished == [good] and fake.peer.said("REQ"))
            assert fake.peer.said("REQ") == [f"REQ {bad.decode()} 90000"]

        drive(talk())


def test_a_cancelled_coroutine_is_a_failure(fake):
    async def handle(message: Message) -> bool:
        raise asyncio.CancelledError

    async def talk() -> None:
        reader_of(fake, handle)
        await subscribed(fake)
        fake.send_messages([b"x"])
        await until(lambda: fake.peer.said("REQ"))

    drive(talk())


class Hooked(nsq.Reader):
    """Overrides every hook of pynsq."""

    seen: list[str]

    def preprocess_message(self, message: Message) -> Message:
        message.body = message.body.upper()
        return message

    def validate_message(self, message: Message) -> bool:
        return message.body != b"INVALID"

    def process_message(self, message: Message) -> bool:
        self.seen.append(message.body.decode())
        return True

    def giving_up(self, message: Message) -> None:
        self.seen.append("gave up")

    def heartbeat(self, connection: Connection) -> None:
        self.seen.append(f"heartbeat {connection.id == next(iter(self.conns))}")


def test_the_hooks_of_a_subclass_are_called(fake):
    Hooked.seen = []

    async def talk() -> None:
        Hooked("t", "c", nsqd_tcp_addresses=fake.address, max_in_flight=5)
        await subscribed(fake)
        fake.send_messages([b"valid", b"invalid"])
        fake.send_messages([b"x"], attempts=6)
        fake.beat()
        await until(lambda: len(fake.peer.finished) == 3 and len(Hooked.seen) == 3)

    drive(talk())
    assert Hooked.seen == ["VALID", "gave up", "heartbeat True"]


def test_closing_answers_messages_in_flight_before_it_disconnects(fake):
    kept = Keeping()

    async def talk() -> None:
        reader = reader_of(fake, kept)
        await subscribed(fake)
        (sent,) = fake.send_messages([b"x"])
        await until(lambda: kept)
        reader.close()
        await until(lambda: fake.peer.said("CLS"))
        kept[0].finish()
        await until(lambda: fake.peer.finished == [sent] and not reader.conns)

    drive(talk())


def test_nodes_and_max_in_flight_can_be_changed_while_it_runs(make_nsqd):
    first, second = make_nsqd(), make_nsqd()

    async def talk() -> None:
        reader = reader_of(first, lambda message: True, max_in_flight=1)
        await subscribed(first)
        host, _, port = second.address.rpartition(":")
        reader.set_max_in_flight(10)
        reader.connect_to_nsqd(host, int(port))
        reader.connect_to_nsqd(host, int(port))
        await subscribed(second)
        second.send_messages([b"x"])
        await until(lambda: second.peer.said("RDY")[-1] == "RDY 5")
        assert set(reader.conns) == {first.address, second.address}
        assert reader.max_in_flight == 10
        assert not reader.is_starved()

    drive(talk())


def test_messages_are_requeued_if_the_loop_is_closed(fake):
    async def talk() -> None:
        reader_of(fake, lambda message: True)
        await subscribed(fake)

    asyncio.run(talk())
    sent = fake.send_messages([b"x", b"y"])
    shut_all_down(5)
    assert fake.peer.said("REQ") == [f"REQ {each.decode()} 0" for each in sent]


# --- Writer -----------------------------------------------------------------------------------------------------------


def test_the_callback_and_the_future_get_ok_from_the_connection_that_took_it(fake):
    answers: list[tuple[Any, Any]] = []

    async def talk() -> None:
        writer = nsq.Writer([fake.address])

        def answered(connection: Any, data: Any) -> None:
            answers.append((connection.id, data))

        assert writer.name == fake.address
        assert await writer.pub("t", b"one", answered) == b"OK"
        assert await writer.mpub("t", [b"two", b"three"]) == b"OK"
        assert await writer.mpub("t", b"four") == b"OK"
        assert await writer.dpub("t", 1500, b"five") == b"OK"
        assert list(writer.conns) == [fake.address]

    drive(talk())
    assert answers == [(fake.address, b"OK")]
    assert fake.peer.bodies[1:] == [b"one", b"two", b"three", b"four", b"five"]
    assert fake.peer.said("DPUB") == ["DPUB t 1500"]


def test_an_error_goes_to_the_callback_and_to_the_future(make_nsqd):
    fake = make_nsqd({"PUB": error_frame(b"E_BAD_MESSAGE PUB message too big")})
    answers: list[tuple[Any, Any]] = []

    async def talk() -> None:
        writer = nsq.Writer(fake.address)
        with pytest.raises(nsq.Error, match="too big"):
            await writer.pub("t", b"x", lambda connection, data: answers.append((connection, data)))

    drive(talk())
    ((connection, error),) = answers
    assert connection is None
    assert isinstance(error, nsq.Refused)


def test_without_a_callback_an_error_is_logged(caplog):
    async def talk() -> None:
        writer = nsq.Writer("127.0.0.1:1", publish_timeout=0.5)
        with pytest.raises(nsq.Error):
            await writer.pub("t", b"x")

    drive(talk())
    assert "failed to publish to t" in caplog.text


def test_messages_published_before_the_loop_ended_are_sent(fake):
    async def talk() -> None:
        nsq.Writer(fake.address).pub("t", b"last words")

    drive(talk())
    assert b"last words" in fake.peer.bodies


# --- The event loop ---------------------------------------------------------------------------------------------------


class Client:
    """Shuts down when `gate` opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.timeouts: list[float] = []

    def shut_down(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        self.gate.wait(min(timeout, 20))
        pynsq._clients.discard(self)


@pytest.fixture
def client():
    asyncio.set_event_loop(None)
    client: Any = Client()
    pynsq._clients.add(client)
    yield client
    client.gate.set()
    pynsq._clients.discard(client)
    pynsq.current_loop().close()
    asyncio.set_event_loop(None)


def test_the_current_loop_is_the_running_one():
    async def ask() -> bool:
        return pynsq.current_loop() is asyncio.get_running_loop()

    assert asyncio.run(ask())


def test_the_current_loop_is_the_threads_if_none_runs(client):
    assert pynsq.current_loop() is pynsq.current_loop()


def test_a_closed_loop_is_replaced(client):
    closed = pynsq.current_loop()
    closed.close()
    assert pynsq.current_loop() is not closed


def test_a_signal_stops_the_loop_after_the_clients(client):
    loop = pynsq.current_loop()
    before = signal.getsignal(signal.SIGTERM)
    loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
    loop.call_later(0.05, client.gate.set)
    pynsq.run()
    assert client.timeouts == [pynsq.STOP_SECONDS]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_stops_the_loop_at_once(client):
    loop = pynsq.current_loop()
    loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
    loop.call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
    pynsq.run()
    assert client.timeouts == [pynsq.STOP_SECONDS, 0.0]
    client.gate.set()


def test_run_returns_if_the_program_stops_the_loop(client):
    loop = pynsq.current_loop()
    loop.call_soon(loop.stop)
    pynsq.run()
    assert client.timeouts == [0.0]
