"""The same programs with pynsq's Reader and ours, and features of ours."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import nsq_compat.client as nsq
from nsq_compat.client import event_loop
from nsq_compat.client.connection import Connection
from nsq_compat.client.message import Message
from tests.client.fake_nsqd import FakeNsqd

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


# --- In this process --------------------------------------------------------------------------------------------------


async def until(condition: Any, within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


def drive(conversation: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on its own event loop, then shut its readers down."""
    asyncio.run(conversation)
    for client in list(event_loop._clients):
        client.shut_down(0.1)


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
    held = []

    def handle(message: Message) -> None:
        message.enable_async()
        held.append(message)

    async def talk() -> None:
        reader = reader_of(fake, handle)
        await subscribed(fake)
        (sent,) = fake.send_messages([b"x"])
        await until(lambda: held)
        reader.close()
        await until(lambda: fake.peer.said("CLS"))
        held[0].finish()
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
    for client in list(event_loop._clients):
        client.shut_down(5)
    assert fake.peer.said("REQ") == [f"REQ {each.decode()} 0" for each in sent]
