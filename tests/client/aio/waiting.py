"""Waiting on the event loop."""

import asyncio
from collections.abc import Callable, Sequence

from tests.client.fake_nsqd import FakeNsqd


async def until(condition: Callable[[], object], within: float = 20.0) -> None:
    """Poll a condition."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.002)


async def send_messages(fake: FakeNsqd, bodies: Sequence[bytes], attempts: int = 1) -> list[bytes]:
    """``FakeNsqd.send_messages``, which waits for RDY, in a thread."""
    return await asyncio.to_thread(fake.send_messages, bodies, attempts)
