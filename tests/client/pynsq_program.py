"""A typical pynsq program. Its arguments are the module to import, an nsqd, a topic and a number.

It publishes so many messages with each command, handles them in each of the ways a handler can, and says what it saw.
"""

import asyncio
import functools
import importlib
import json
import os
import signal
import sys
from typing import Any

nsq: Any = importlib.import_module(sys.argv[1])
ADDRESS, TOPIC, COUNT = sys.argv[2], sys.argv[3], int(sys.argv[4])

answers: list[str] = []
seen: dict[str, list[str]] = {"plain": [], "async": [], "coroutine": []}
given_up: list[str] = []
buffered: list[Any] = []


def end_when_done() -> None:
    if all(len(set(bodies)) == 3 * COUNT for bodies in seen.values()):
        os.kill(os.getpid(), signal.SIGTERM)


def plain(message: Any) -> bool:
    if message.attempts == 1 and message.body == b"pub 0":
        return False
    seen["plain"].append(message.body.decode())
    end_when_done()
    return True


def later(message: Any, reader: Any) -> None:
    message.enable_async()
    buffered.append(message)
    if reader.is_starved() or len(seen["async"]) + len(buffered) == 3 * COUNT:
        for each in buffered:
            each.touch()
            seen["async"].append(each.body.decode())
            each.finish()
        buffered.clear()
    end_when_done()


async def coroutine(message: Any) -> bool:
    await asyncio.sleep(0.001)
    if message.attempts == 1 and message.body == b"dpub 0":
        raise RuntimeError("on purpose")
    seen["coroutine"].append(message.body.decode())
    end_when_done()
    return True


class GivingUp(nsq.Reader):  # type: ignore[misc]
    def giving_up(self, message: Any) -> None:
        given_up.append(message.body.decode())


def answered(connection: Any, data: Any) -> None:
    answers.append("error" if isinstance(data, nsq.Error) else data.decode())


def publish() -> None:
    if not writer.conns:
        asyncio.get_running_loop().call_later(0.01, publish)
        return
    for number in range(COUNT):
        writer.pub(TOPIC, b"pub %d" % number, answered)
        writer.dpub(TOPIC, 50, b"dpub %d" % number, callback=answered)
    writer.mpub(TOPIC, [b"mpub %d" % number for number in range(COUNT)], answered)


common = {
    "topic": TOPIC,
    "nsqd_tcp_addresses": [ADDRESS],
    "max_in_flight": 2,
    "lookupd_poll_interval": 15,
    "requeue_delay": 0,
    "max_backoff_duration": 1,
    "heartbeat_interval": 10,
    "output_buffer_timeout": 25,
}
writer = nsq.Writer([ADDRESS])
readers = {
    "plain": nsq.Reader(message_handler=plain, channel="plain", **common),
    "coroutine": nsq.Reader(message_handler=coroutine, channel="coroutine", **common),
    "async": nsq.Reader(channel="async", **common),
    "never": GivingUp(message_handler=lambda message: False, channel="never", max_tries=1, **common),
}
readers["async"].set_message_handler(functools.partial(later, reader=readers["async"]))
asyncio.get_event_loop_policy().get_event_loop().call_later(0.05, publish)
nsq.run()

print(json.dumps({"answers": answers, "seen": {name: sorted(bodies) for name, bodies in seen.items()}}))
