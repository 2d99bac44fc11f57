"""gnsq, the Python client on gevent, as a program: the same options and the same report as ``pynsq_client``.

It publishes and consumes; of what a consumer can do with a message it only finishes it.
"""

import argparse
import json
import logging
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
    """As pynsq's, but that a secret is bytes."""
    asked = negotiation(options)
    return asked | {"auth_secret": options.auth_secret.encode()} if options.auth_secret else asked


def publish(options: argparse.Namespace) -> dict[str, Any]:
    """Send a file; the report says how many messages were acknowledged and how long that took.

    With gnsq's connection class: its Producer fails over the OK that nsqd sends when an upgrade is in place.
    """
    bodies = numbered_lines(options.file)
    host, _, port = options.tcp.rpartition(":")
    connection = gnsq.NsqdTCPClient(host, int(port), timeout=_ANSWER_SECONDS, **_negotiation(options))
    started = time.monotonic()
    try:
        connection.connect()
        connection.identify()
        _send(connection, bodies, options)
    except (gnsq.errors.NSQException, TypeError) as error:
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


def consume(options: argparse.Namespace) -> dict[str, Any]:
    """Finish ``count`` messages; the report says how they came."""
    bodies: list[bytes] = []
    attempts: Counter[int] = Counter()
    complete = Event()

    def handle(_consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        bodies.append(message.body)
        attempts[message.attempts] += 1
        message.finish()
        if len(bodies) == options.count:
            complete.set()

    started = time.monotonic()
    consumer = gnsq.Consumer(
        options.topic,
        options.channel,
        [options.tcp],
        message_handler=handle,
        max_in_flight=options.max_in_flight,
        max_tries=0,
        **_negotiation(options),
    )
    consumer.start(block=False)
    try:
        if not complete.wait(options.timeout):
            raise Failed(f"only {len(bodies)} of {options.count} messages within {options.timeout:g} s")
    finally:
        options.out.write_bytes(b"".join(body + b"\n" for body in bodies))
    gevent.sleep(0.1)  # gnsq does not say when the last FIN has left
    consumer.close()
    return {
        "finished": len(bodies),
        "requeued": 0,
        "attempts": {str(number): count for number, count in sorted(attempts.items())},
        "seconds": time.monotonic() - started,
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
