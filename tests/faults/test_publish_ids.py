"""F25: an idempotent producer while nsqd is killed and its connections are cut. The log has each message once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from nsq_compat.client import Consumer, LogReader, Producer, Published, PublishError, aio
from nsq_conformance.daemon_process import own_host
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon
from tests.faults.proxy import Proxy

SHORT: Final = 600
LONG: Final = 10_000
IN_A_ROUND: Final = 50
"""Messages that are published at the same time."""
POLICY: Final = '[[policies]]\ntopic = "t"\ndedup_window = "1h"\nretain_bytes = 1\n'

Publish = Callable[..., Awaitable[Published]]
Open = Callable[[str], AbstractAsyncContextManager[tuple[Publish, Publish]]]
"""A producer for an address: its `publish`, and its `retry`."""
OPTIONS: Final[dict[str, Any]] = {"idempotent": True, "publish_timeout": 10, "timeout": 2}


@asynccontextmanager
async def threads(address: str):
    with Producer(address, **OPTIONS) as producer:

        async def publish(*arguments: Any, **options: Any) -> Published:
            return await asyncio.to_thread(producer.publish, *arguments, **options)

        async def retry(error: PublishError) -> Published:
            return await asyncio.to_thread(producer.retry, error)

        yield publish, retry


@asynccontextmanager
async def event_loop(address: str):
    async with aio.Producer(address, **OPTIONS) as producer:
        yield producer.publish, producer.retry


class Round:
    """Messages that are published while connections are cut, and perhaps nsqd is killed."""

    def __init__(self, random: Random, publish: Publish, retry: Publish) -> None:
        self._random = random
        self._publish = publish
        self._retry = retry
        self.outcomes: Counter[str] = Counter()

    async def run(self, bodies: list[bytes], proxy: Proxy, daemon: Daemon, *, kills: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            for body in bodies:
                tasks.create_task(self._publish_one(body))
                if self._random.random() < 0.2:
                    await asyncio.sleep(self._random.random() * 0.003)
                if self._random.random() < 0.1:
                    proxy.cut(self._random)
            if kills:
                await asyncio.sleep(self._random.random() * 0.01)
                await asyncio.to_thread(daemon.kill)
                await asyncio.to_thread(daemon.start)

    async def _publish_one(self, body: bytes) -> None:
        # A call with a timeout of its own is sent at once, the others in batches.
        options = {"timeout": 10} if self._random.random() < 0.3 else {}
        attempt = self._publish("t", body, **options)
        while True:
            try:
                published = await attempt
            except PublishError as error:  # nsqd is down, or was for long
                await asyncio.sleep(0.05)
                attempt = self._retry(error)
            else:
                break
        self.outcomes.update(each.outcome.value for each in published.attempts)


async def check(daemon: Daemon, open_producer: Open, seed: int, count: int, rounds_per_kill: int) -> None:
    random = Random(seed)
    proxy = Proxy(daemon.tcp_address)
    bodies = [b"%d" % number for number in range(count)]
    async with open_producer(await proxy.start()) as (publish, retry):
        traffic = Round(random, publish, retry)
        for number, begin in enumerate(range(0, count, IN_A_ROUND), 1):
            some = bodies[begin : begin + IN_A_ROUND]
            await traffic.run(some, proxy, daemon, kills=number % rounds_per_kill == 0)
    await proxy.close()
    print(dict(traffic.outcomes), f"cuts {proxy.cuts}, kills {count // IN_A_ROUND // rounds_per_kill}")
    assert traffic.outcomes["retried"], "otherwise the test would prove nothing"
    with LogReader("t", nsqd_http_addresses=daemon.http_address) as reader:
        found = Counter(message.body for message in reader)
    assert found == dict.fromkeys(bodies, 1)


def disturb(start: StartDaemon, folder: Path, *arguments: Any) -> None:
    config = folder / "nsqd.cfg"
    config.write_text(POLICY)
    host = own_host()  # so that its ports stay free for a restart
    daemon = start(
        f"--config={config}", f"--tcp-address={host}:0", f"--http-address={host}:0", "--max-bytes-per-file=20000"
    )
    daemon.create_channel("t", "c")
    # Without the window, what is finished would be released.
    quickly: dict[str, Any] = {"reconnect_delay": 0.1, "max_reconnect_delay": 0.2, "max_in_flight": 50}
    with Consumer("t", "c", lambda message: None, nsqd_tcp_addresses=daemon.tcp_address, **quickly):
        asyncio.run(check(daemon, *arguments))


KINDS = pytest.mark.parametrize("kind", [threads, event_loop], ids=["threads", "asyncio"])


@KINDS
def test_a_retry_after_an_unknown_outcome_is_no_duplicate(start: StartDaemon, tmp_path: Path, seed: int, kind: Open):
    disturb(start, tmp_path, kind, seed, SHORT, 4)


@pytest.mark.long
@pytest.mark.timeout(0)
@KINDS
def test_a_retry_is_no_duplicate_in_a_long_run(start: StartDaemon, tmp_path: Path, seed: int, kind: Open):
    disturb(start, tmp_path, kind, seed, LONG, 5)
