"""The client for asyncio while its tasks are cancelled and its connections cut, at random.

A ledger has every message. No acknowledged message is lost, and no answer is given twice: nsqd rejects an answer to a
message that is not in flight for the connection.
"""

import asyncio
from collections import Counter
from random import Random
from typing import Any, Final

import pytest

from nsq_compat.client import aio
from nsq_compat.client.message import Handler
from tests.faults.conftest import StartDaemon
from tests.faults.proxy import Proxy

SHORT: Final = 300
LONG: Final = 10_000
IN_A_ROUND: Final = 50
"""Messages that are published while consumers and connections come and go."""


class Ledger:
    """Every message, by its body."""

    def __init__(self, address: str, seed: int) -> None:
        self.random = Random(seed)
        self.published: dict[bytes, str] = {}
        """The outcome of each publish."""
        self.finished: Counter[bytes] = Counter()
        """Messages that were finished on a connection that was open then."""
        self.cancelled_handlers = 0
        self.rejected = 0
        self._options: dict[str, Any] = {
            "reconnect_delay": 0.01,
            "max_reconnect_delay": 0.05,
            "backoff": False,
            "max_tries": 0,
        }
        self._address = address

    # --- Publishing ---------------------------------------------------------------------------------------------------

    async def publish_all(self, producer: aio.Producer, bodies: list[bytes]) -> None:
        calls = {body: asyncio.create_task(producer.publish("t", body)) for body in bodies}
        for call in calls.values():
            if self.random.random() < 0.2:
                asyncio.get_running_loop().call_later(self.random.random() * 0.005, call.cancel)
            if self.random.random() < 0.1:
                await asyncio.sleep(self.random.random() * 0.002)
        await asyncio.wait(calls.values())
        for body, call in calls.items():
            self.published[body] = _outcome(call)

    # --- Consuming ----------------------------------------------------------------------------------------------------

    async def handle(self, message: aio.Message) -> bool:
        chance = self.random.random()
        try:
            if chance < 0.5:
                await asyncio.sleep(10 if chance < 0.08 else chance * 0.005)
        except asyncio.CancelledError:
            self.cancelled_handlers += 1
            raise
        if chance < 0.1:
            message.requeue(delay=0)
        elif chance < 0.2:
            raise RuntimeError("on purpose")
        elif chance < 0.3:
            return False
        elif chance < 0.4:
            self._finish(message)
        elif not message.is_lost:
            self.finished[message.body] += 1
        return True

    def _finish(self, message: aio.Message) -> None:
        if not message.is_lost:
            self.finished[message.body] += 1
        message.finish()

    async def handle_for_a_while(self) -> None:
        """A consumer with a handler, which is stopped with messages in flight, or cancelled."""
        consumer = self._consumer(self.handle, concurrency=5)
        running = asyncio.create_task(consumer.run())
        await asyncio.sleep(self.random.random() * 0.1)
        if self.random.random() < 0.5:
            await consumer.stop(timeout=self.random.random() * 0.02)
        else:
            running.cancel()
            consumer.stop_soon(timeout=0.02)
        await asyncio.wait([running])
        await consumer.wait()

    async def iterate_for_a_while(self) -> None:
        """A consumer over which tasks iterate, which are cancelled in the middle."""
        async with self._consumer(None) as consumer:
            tasks = [asyncio.create_task(self._iterate(consumer)) for _ in range(3)]
            for task in tasks:
                await asyncio.sleep(self.random.random() * 0.03)
                task.cancel()
            await asyncio.wait(tasks)

    async def _iterate(self, consumer: aio.Consumer) -> None:
        async for message in consumer:
            if self.random.random() < 0.5:
                await asyncio.sleep(self.random.random() * 0.005)
            if self.random.random() < 0.2:
                message.requeue(delay=0)
            else:
                self._finish(message)

    async def drain(self) -> None:
        """Handle everything that is left."""

        async def finish(message: aio.Message) -> None:
            self._finish(message)

        wanted = {body for body, outcome in self.published.items() if outcome == "sent"}
        async with self._consumer(finish), asyncio.timeout(60):
            while not wanted <= self.finished.keys():
                await asyncio.sleep(0.01)

    def _consumer(self, handler: Handler | None, **options: int) -> aio.Consumer:
        return Recorded(
            self, "t", "c", handler, nsqd_tcp_addresses=self._address, max_in_flight=20, **self._options, **options
        )


class Recorded(aio.Consumer):
    """Adds the answers that nsqd rejected on its connections to the ledger."""

    def __init__(self, ledger: Ledger, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **{"requeue_delay": 0, **options})  # type: ignore[arg-type]
        self._ledger = ledger

    def closed(self, connection: aio.Connection, reason: Exception) -> None:
        self._ledger.rejected += connection.rejected_count
        super().closed(connection, reason)


def _outcome(call: "asyncio.Task[aio.Published]") -> str:
    if call.cancelled():
        return "cancelled"
    error = call.exception()
    return "sent" if error is None else type(error).__name__.lower()


async def check(address: str, seed: int, count: int) -> None:
    proxy = Proxy(address)
    ledger = Ledger(await proxy.start(), seed)
    bodies = [b"%d" % number for number in range(count)]
    async with aio.Producer(ledger._address, publish_timeout=30) as producer:
        for begin in range(0, count, IN_A_ROUND):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ledger.publish_all(producer, bodies[begin : begin + IN_A_ROUND]))
                tasks.create_task(ledger.handle_for_a_while())
                tasks.create_task(ledger.iterate_for_a_while())
                for _ in range(ledger.random.randrange(5)):
                    await asyncio.sleep(ledger.random.random() * 0.02)
                    proxy.cut(ledger.random)
    await ledger.drain()
    await proxy.close()
    outcomes = Counter(ledger.published.values())
    print(outcomes, f"cuts {proxy.cuts}", f"handlers cancelled {ledger.cancelled_handlers}")
    assert ledger.rejected == 0
    assert set(outcomes) <= {"sent", "cancelled", "unknown", "refused"}
    # Otherwise the test would prove nothing.
    assert all((outcomes["sent"], outcomes["cancelled"], proxy.cuts, ledger.cancelled_handlers))


def test_nothing_is_lost_or_answered_twice_whatever_is_cancelled_or_cut(start: StartDaemon, seed: int):
    daemon = start("--msg-timeout=5s")
    asyncio.run(check(daemon.tcp_address, seed, SHORT))


@pytest.mark.long
@pytest.mark.timeout(0)
def test_nothing_is_lost_or_answered_twice_in_a_long_run(start: StartDaemon, seed: int):
    daemon = start("--msg-timeout=5s")
    asyncio.run(check(daemon.tcp_address, seed, LONG))
