"""F25: idempotent producers while nsqd is killed, its connections are cut, or its machine is lost."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final

import pytest

from nsq_compat.client import Consumer, LogReader, Producer, Published, PublishError, aio
from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqd_process import installed_nsqd
from tests.faults.conftest import StartDaemon
from tests.faults.daemon import Daemon, wait_for_more, wait_until
from tests.faults.proxy import Proxy
from tests.faults.test_mirror import adopt, is_in_sync

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


# --- A lost machine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(start: StartDaemon, tmp_path: Path) -> tuple[Daemon, Daemon]:
    """A primary, and its standby, without the watchdog of the event loop, which a take-over holds."""
    config = tmp_path / "nsqd.cfg"
    config.write_text(POLICY)

    def start_one(number: int, *options: str) -> Daemon:
        folder = tmp_path / str(number)
        folder.mkdir()
        options = (f"--config={config}", f"--node-id={number}", *options)
        return start(*options, data_path=folder, command=installed_nsqd())

    standby = start_one(1, "--mirror-accept", "--mirror-takeover-after=manual")
    primary = start_one(2, f"--mirror-to={standby.tcp_address}", "--mirror-timeout=60s")
    wait_until(lambda: is_in_sync(primary))
    return primary, standby


@pytest.mark.parametrize("merges", [False, True], ids=["moved", "merged"])
def test_a_retry_at_the_standby_of_a_lost_machine_is_no_duplicate(pair, seed, merges):
    primary, standby = pair
    if merges:
        standby.create_channel("t", "c")
    primary.create_channel("t", "c")
    acknowledged: list[dict[str, str]] = []
    failures: list[PublishError] = []
    random = Random(seed)

    def publish_until_it_fails(number: int) -> None:
        with Producer(primary.tcp_address, idempotent=True, publish_timeout=2, timeout=1) as producer:
            while True:
                headers = {"nsq-id": f"{number}.{len(acknowledged)}"}
                try:
                    producer.publish("t", headers["nsq-id"].encode(), headers=headers)
                except PublishError as error:
                    failures.append(error)
                    return
                acknowledged.append(headers)

    threads = [Thread(target=publish_until_it_fails, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    wait_for_more(lambda: len(acknowledged), random.randrange(100, 400))
    primary.kill()
    shutil.rmtree(primary.data_path)
    for thread in threads:
        thread.join()
    assert adopt(standby) == ["t"]
    for life in range(2):
        with Producer(standby.tcp_address, idempotent=True) as producer:
            for error in failures:
                producer.retry(error)
            for headers in acknowledged[-50:]:
                producer.publish("t", headers["nsq-id"].encode(), headers=headers)
        if not life:
            standby.kill()
            standby.start()
    count = len(acknowledged) + len(failures)
    found = Counter(standby.consumes(count))
    wait_until(lambda: standby.unfinished("t") == {"c": 0})
    print(f"{len(acknowledged)} acknowledged, {len(failures)} failed")
    assert set(found.values()) == {1}
    assert {headers["nsq-id"].encode() for headers in acknowledged} < found.keys()
