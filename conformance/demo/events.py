"""Publish events to a topic in real time, or consume them, with pynsq, until SIGTERM or Ctrl-C.

``consume`` can simulate work: a time for each message, and a share of messages that are requeued.
"""

import argparse
import asyncio
import logging
import random
import signal
import sys
import time
from collections.abc import Callable

import nsq

from nsq_conformance.demo.event import EVENTS_A_SECOND, events

_TOPIC = "events"
_RECONNECT_SECONDS = 1.0
_POLL_SECONDS = 15


class Publication:
    """Publishes events, and counts refused ones for the final report."""

    def __init__(self, writer: nsq.Writer, topic: str) -> None:
        self._writer = writer
        self._topic = topic
        self.acknowledged = 0
        self.lost = 0

    async def run(self, seed: int, events_a_second: float) -> None:
        began, began_at = time.time(), time.monotonic()
        for event in events(seed, events_a_second):
            early = event.published - (time.monotonic() - began_at)
            # By the clock: after a suspension of the machine, due events are published at once.
            if early > 0:
                await asyncio.sleep(early)
            self._writer.pub(self._topic, event.body(began), self._answered)

    def _answered(self, _connection: object, answer: object) -> None:
        if answer == b"OK":
            self.acknowledged += 1
        else:
            self.lost += 1


class Consumption:
    """Finishes every message after `work` seconds, but requeues a share of the deliveries for `later` seconds."""

    def __init__(self, work: float, requeue_share: float, later: float) -> None:
        self._work = work
        self._requeue_share = requeue_share
        self._later_ms = int(later * 1000)
        self._dice = random.Random(0)
        self.finished = 0
        self.put_off = 0

    def handle(self, message: nsq.Message) -> None:
        message.enable_async()
        if self._work:
            asyncio.get_running_loop().call_later(self._work, self._answer, message)
        else:
            self._answer(message)

    def _answer(self, message: nsq.Message) -> None:
        if self._dice.random() < self._requeue_share:
            message.requeue(backoff=False, time_ms=self._later_ms)
            self.put_off += 1
        else:
            message.finish()
            self.finished += 1


async def publish(options: argparse.Namespace, stop: asyncio.Event) -> str:
    writer = nsq.Writer([options.nsqd_tcp_address], reconnect_interval=_RECONNECT_SECONDS, hostname=options.hostname)
    await _until(lambda: writer.conns, stop)
    publication = Publication(writer, options.topic)
    running = asyncio.create_task(publication.run(options.seed, options.rate))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    running.cancel()
    return f"{publication.acknowledged} events published, {publication.lost} lost"


async def consume(options: argparse.Namespace, stop: asyncio.Event) -> str:
    consumption = Consumption(options.work_ms / 1000, options.put_off, options.later_ms / 1000)
    reader = nsq.Reader(
        options.topic,
        options.channel,
        consumption.handle,
        nsqd_tcp_addresses=options.nsqd_tcp_address,
        lookupd_http_addresses=options.lookupd_http_address,
        lookupd_poll_interval=_POLL_SECONDS,
        max_in_flight=options.max_in_flight,
        max_tries=0,
        hostname=options.hostname,
    )
    await stop.wait()
    logging.disable()  # pynsq logs an error when it closes a connection itself
    reader.close()
    return f"{consumption.finished} events finished, {consumption.put_off} put off"


async def _until(condition: Callable[[], object], stop: asyncio.Event) -> None:
    """Poll for a condition, because pynsq has no futures for connections."""
    while not condition() and not stop.is_set():
        await asyncio.sleep(0.02)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="events", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    programs = parser.add_subparsers(required=True)

    publishing = programs.add_parser("publish", help="publish events in real time")
    publishing.set_defaults(program=publish)
    publishing.add_argument("--nsqd-tcp-address", default="127.0.0.1:4150")
    publishing.add_argument("--seed", type=int, default=1, help="selects the sequence of events (default: 1)")
    publishing.add_argument("--rate", type=float, default=EVENTS_A_SECOND, help="events a second, on average")

    consuming = programs.add_parser("consume", help="finish them")
    consuming.set_defaults(program=consume)
    source = consuming.add_mutually_exclusive_group(required=True)
    source.add_argument("--nsqd-tcp-address", action="append")
    source.add_argument("--lookupd-http-address", action="append")
    consuming.add_argument("--channel", required=True)
    consuming.add_argument("--max-in-flight", type=int, default=50)
    consuming.add_argument("--work-ms", type=int, default=0, help="time to hold each message")
    consuming.add_argument("--put-off", type=float, default=0.0, help="share of deliveries to requeue")
    consuming.add_argument("--later-ms", type=int, default=2000, help="delay of these requeues")

    for program in (publishing, consuming):
        program.add_argument("--topic", default=_TOPIC)
        program.add_argument("--hostname", help="hostname for IDENTIFY (default: that of the machine)")
    return parser.parse_args(arguments)


async def run(options: argparse.Namespace) -> str:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sentence: str = await options.program(options, stop)
    return sentence


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    logging.basicConfig(level=logging.ERROR, format="%(name)s %(levelname)s %(message)s")
    print(asyncio.run(run(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
