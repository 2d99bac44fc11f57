"""gnsq, the Python client on gevent, as a program with the options and the report of ``pynsq_client``.

It has no --msg-timeout-ms, because gnsq cannot set a message timeout.
"""

import argparse
import json
import logging
import random
import sys
import time
from collections import Counter
from typing import Any

import gevent
import gnsq
from gevent.event import Event

from nsq_conformance.pynsq_client import Failed, negotiation, numbered_lines, parse_arguments

_ANSWER_SECONDS = 10.0


def _negotiation(options: argparse.Namespace) -> dict[str, Any]:
    """As for pynsq, but with a secret of type bytes."""
    asked = negotiation(options)
    return asked | {"auth_secret": options.auth_secret.encode()} if options.auth_secret else asked


def publish(options: argparse.Namespace) -> dict[str, Any]:
    """Send a file; the report has the number of acknowledged messages and the time.

    Uses gnsq's connection class, because its Producer fails on the OK that nsqd sends after an upgrade.
    """
    bodies = numbered_lines(options.file)
    host, _, port = options.tcp.rpartition(":")
    connection = gnsq.NsqdTCPClient(host, int(port), timeout=_ANSWER_SECONDS, **_negotiation(options))
    started = time.monotonic()
    try:
        connection.connect()
        connection.identify()
        _send(connection, bodies, options)
    except (gnsq.errors.NSQException, TypeError, ValueError) as error:
        raise Failed(f"nsqd refused to publish: {error!r}") from error
    connection.close_stream()
    return {"published": len(bodies), "seconds": time.monotonic() - started}


def _send(connection: gnsq.NsqdTCPClient, bodies: list[bytes], options: argparse.Namespace) -> None:
    step = options.batch if options.command == "mpub" else 1
    unanswered = 0
    for start in range(0, len(bodies), step):
        if unanswered == options.window:
            connection.check_ok()
            unanswered -= 1
        if options.command == "mpub":
            connection.multipublish(options.topic, bodies[start : start + step])
        else:
            connection.publish(options.topic, bodies[start], options.defer_ms if options.command == "dpub" else None)
        unanswered += 1
    for _ in range(unanswered):
        connection.check_ok()


class Consumption:
    """The messages that several consumers receive, until ``count`` are finished."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._first_deliveries: dict[bytes, gnsq.Message] = {}
        self._different: set[bytes] = set()
        self.bodies: list[bytes] = []
        self.attempts: Counter[int] = Counter()
        self.by_reader: Counter[int] = Counter()
        self.requeued = 0
        self.youngest_ms = float("inf")
        self.first_at = self.last_at = time.monotonic()
        self.complete = Event()

    def consumer(self, number: int) -> gnsq.Consumer:
        options = self._options

        def handle(_consumer: gnsq.Consumer, message: gnsq.Message) -> None:
            message.enable_async()
            self.youngest_ms = min(self.youngest_ms, (time.time_ns() - message.timestamp) / 1e6)
            if message.attempts == 1 and options.first_attempt != "finish":
                self._requeue(message)
            elif options.hold_ms:
                gevent.spawn(self._hold, message, number)
            else:
                self._finish(message, number)

        # gnsq backs off for a random part of its interval, which may be too short to be seen from outside.
        random.seed(1)
        consumer = gnsq.Consumer(
            options.topic,
            options.channel,
            [options.tcp] if options.tcp else [],
            options.lookupd_http.split(",") if options.lookupd_http else [],
            message_handler=handle,
            max_in_flight=options.max_in_flight,
            max_tries=0,
            max_backoff_duration=options.max_backoff_seconds,
            lookupd_poll_interval=options.poll_seconds,
            **_negotiation(options),
        )
        consumer.start(block=False)
        return consumer

    def _requeue(self, message: gnsq.Message) -> None:
        if self._options.first_attempt == "late":
            self._first_deliveries[message.id] = message
            return
        self.requeued += 1
        message.requeue(self._options.requeue_ms, backoff=self._options.first_attempt == "backoff")

    def _hold(self, message: gnsq.Message, number: int) -> None:
        end = time.monotonic() + self._options.hold_ms / 1000
        while (left := end - time.monotonic()) > 0:
            gevent.sleep(min(left, self._options.touch_ms / 1000))
            message.touch()
        self._finish(message, number)

    def _finish(self, message: gnsq.Message, number: int) -> None:
        message.finish()
        # An answer to a delivery that has timed out, which nsqd must refuse without closing.
        if late := self._first_deliveries.pop(message.id, None):
            late.finish()
        self.last_at = time.monotonic()
        if not self.bodies:
            self.first_at = self.last_at
        self.bodies.append(message.body)
        self._different.add(message.body)
        self.attempts[message.attempts] += 1
        self.by_reader[number] += 1
        if len(self._different if self._options.distinct else self.bodies) == self._options.count:
            self.complete.set()


def consume(options: argparse.Namespace) -> dict[str, Any]:
    """Finish ``count`` messages; the report describes their deliveries."""
    consumption = Consumption(options)
    consumers = [consumption.consumer(number) for number in range(options.readers)]
    try:
        if not consumption.complete.wait(options.timeout):
            found = len(consumption.bodies)
            raise Failed(f"only {found} of {options.count} messages within {options.timeout:g} s")
    finally:
        options.out.write_bytes(b"".join(body + b"\n" for body in consumption.bodies))
    gevent.sleep(0.1)  # gnsq does not report when the last FIN is sent
    for consumer in consumers:
        consumer.close()
    return {
        "finished": len(consumption.bodies),
        "requeued": consumption.requeued,
        "attempts": {str(number): count for number, count in sorted(consumption.attempts.items())},
        "by_reader": [consumption.by_reader[number] for number in range(options.readers)],
        "youngest_ms": consumption.youngest_ms,
        "seconds": consumption.last_at - consumption.first_at,
    }


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    logging.basicConfig(level=logging.ERROR, format="%(name)s %(levelname)s %(message)s")
    program = publish if options.program.__name__ == "publish" else consume
    try:
        report = program(options)
    except Failed as failure:
        print(f"gnsq_client: {failure}", file=sys.stderr)
        return 1
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
