"""pynsq, the official Python client, as a program: ``publish`` a file line by line, or ``consume`` into another file.

``conformance/go`` is the same program with the official Go client: the same options and the same report (one JSON
object on stdout), so that the same tests use both.

A body is ``<line number>TAB<the line>``, because NSQ refuses empty bodies, and so that lost and duplicate lines can be
named. A consumer writes the bodies that it has finished, one per line, in that order.
"""

import argparse
import asyncio
import json
import logging
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nsq

_ANSWER_SECONDS = 10.0


def numbered_lines(file: Path) -> list[bytes]:
    """The bodies for a file, one per line; a last line without a newline counts too."""
    lines = file.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [b"%d\t%s" % (number, line) for number, line in enumerate(lines, start=1)]


def negotiation(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of pynsq (and gnsq) for IDENTIFY."""
    asked: dict[str, Any] = {options.compression: True} if options.compression else {}
    if options.tls_root_ca_file:
        tls = {"ca_certs": str(options.tls_root_ca_file), "cert_reqs": ssl.CERT_REQUIRED}
        if options.tls_cert:
            tls |= {"certfile": str(options.tls_cert), "keyfile": str(options.tls_cert)}
        asked |= {"tls_v1": True, "tls_options": tls}
    if options.auth_secret:
        asked["auth_secret"] = options.auth_secret.encode()
    return asked


class Failed(Exception):
    """The exchange with nsqd failed; the text is for stderr."""


async def _until(condition: Callable[[], object], seconds: float, complaint: str) -> None:
    """Wait for the condition. Polls, because pynsq has no futures for these events."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(complaint)
        await asyncio.sleep(0.005)


class Publication:
    """Publishes bodies with at most ``window`` commands unanswered, and keeps the first refusal."""

    def __init__(self, writer: nsq.Writer, options: argparse.Namespace) -> None:
        self._writer = writer
        self._options = options
        self._room = asyncio.Semaphore(options.window)
        self._refusal: object = None

    async def publish(self, bodies: list[bytes]) -> None:
        """Publish, and wait until nsqd has answered every command. Raises Failed if it refuses one."""
        for send in self._commands(bodies):
            await self._room.acquire()
            if self._refusal is not None:
                break
            send()
        for _ in range(self._options.window):
            await self._room.acquire()
            if self._refusal is not None:
                raise Failed(f"nsqd refused to publish: {self._refusal}")

    def _commands(self, bodies: list[bytes]) -> Iterator[Callable[[], object]]:
        """One call to pynsq for each command to send."""
        writer, topic, options = self._writer, self._options.topic, self._options
        if options.command == "mpub":
            for start in range(0, len(bodies), options.batch):
                batch = bodies[start : start + options.batch]
                yield lambda batch=batch: writer.mpub(topic, batch, self._answered)  # type: ignore[misc]
        elif options.command == "dpub":
            for body in bodies:
                yield lambda body=body: writer.dpub(topic, options.defer_ms, body, self._answered)  # type: ignore[misc]
        else:
            for body in bodies:
                yield lambda body=body: writer.pub(topic, body, self._answered)  # type: ignore[misc]

    def _answered(self, _connection: object, answer: object) -> None:
        if answer != b"OK" and self._refusal is None:
            self._refusal = answer
        self._room.release()


async def publish(options: argparse.Namespace) -> dict[str, Any]:
    """Send a file; the report has the number of acknowledged messages and the time."""
    bodies = numbered_lines(options.file)
    writer = nsq.Writer([options.tcp], **negotiation(options))
    await _until(lambda: writer.conns, _ANSWER_SECONDS, f"no connection to nsqd at {options.tcp}")
    started = time.monotonic()
    await Publication(writer, options).publish(bodies)
    return {"published": len(bodies), "seconds": time.monotonic() - started}


class Consumption:
    """The messages that several readers receive, until ``count`` are finished."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._first_deliveries: dict[bytes, nsq.Message] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.bodies: list[bytes] = []
        self._different: set[bytes] = set()
        self.attempts: Counter[int] = Counter()
        self.by_reader: Counter[int] = Counter()
        self.requeued = 0
        self.youngest_ms = float("inf")
        self.first_at = self.last_at = time.monotonic()
        self.complete = asyncio.Event()

    def handler(self, reader_number: int) -> Callable[[nsq.Message], None]:
        """The message handler of one reader; it uses enable_async and answers by itself."""

        def handle(message: nsq.Message) -> None:
            message.enable_async()
            age_ms = (time.time_ns() - message.timestamp) / 1e6
            self.youngest_ms = min(self.youngest_ms, age_ms)
            if message.attempts == 1 and self._options.first_attempt != "finish":
                self._requeue(message)
            elif self._options.hold_ms:
                task = asyncio.ensure_future(self._hold(message, reader_number))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._finish(message, reader_number)

        return handle

    def _requeue(self, message: nsq.Message) -> None:
        if self._options.first_attempt == "late":
            self._first_deliveries[message.id] = message
            return
        self.requeued += 1
        message.requeue(backoff=self._options.first_attempt == "backoff", time_ms=self._options.requeue_ms)

    async def _hold(self, message: nsq.Message, reader_number: int) -> None:
        """Hold a message for ``hold_ms``, with a TOUCH every ``touch_ms``."""
        end = time.monotonic() + self._options.hold_ms / 1000
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, self._options.touch_ms / 1000))
            message.touch()
        self._finish(message, reader_number)

    def _finish(self, message: nsq.Message, reader_number: int) -> None:
        message.finish()
        # An answer to a delivery that has timed out, which nsqd must refuse without closing.
        if late := self._first_deliveries.pop(message.id, None):
            late.finish()
        if not self.bodies:
            self.first_at = time.monotonic()
        self.last_at = time.monotonic()
        self.bodies.append(message.body)
        self._different.add(message.body)
        self.attempts[message.attempts] += 1
        self.by_reader[reader_number] += 1
        if len(self._different if self._options.distinct else self.bodies) == self._options.count:
            self.complete.set()


async def consume(options: argparse.Namespace) -> dict[str, Any]:
    """Finish ``count`` messages; the report describes their deliveries."""
    consumption = Consumption(options)
    readers = [
        nsq.Reader(
            options.topic,
            options.channel,
            consumption.handler(number),
            nsqd_tcp_addresses=[options.tcp] if options.tcp else None,
            lookupd_http_addresses=options.lookupd_http.split(",") if options.lookupd_http else None,
            lookupd_poll_interval=options.poll_seconds,
            max_in_flight=options.max_in_flight,
            max_tries=0,
            max_backoff_duration=options.max_backoff_seconds,
            msg_timeout=options.msg_timeout_ms / 1000 if options.msg_timeout_ms else None,
            **negotiation(options),
        )
        for number in range(options.readers)
    ]
    try:
        await asyncio.wait_for(consumption.complete.wait(), options.timeout)
    except TimeoutError:
        missing = f"{len(consumption.bodies)} of {options.count} messages within {options.timeout:g} s"
        raise Failed(f"only {missing}") from None
    finally:
        options.out.write_bytes(b"".join(body + b"\n" for body in consumption.bodies))
    for connection in [connection for reader in readers for connection in reader.conns.values()]:
        await _close(connection)
    return {
        "finished": len(consumption.bodies),
        "requeued": consumption.requeued,
        "attempts": {str(number): count for number, count in sorted(consumption.attempts.items())},
        "by_reader": [consumption.by_reader[number] for number in range(options.readers)],
        "youngest_ms": consumption.youngest_ms,
        "seconds": consumption.last_at - consumption.first_at,
    }


async def _close(connection: nsq.AsyncConn) -> None:
    """Send CLS and wait for CLOSE_WAIT, after which nsqd has executed all FINs."""
    answers: list[bytes] = []
    connection.on("response", lambda data, **_: answers.append(data))
    connection.send(b"CLS\n")
    await _until(lambda: b"CLOSE_WAIT" in answers, _ANSWER_SECONDS, "nsqd did not answer CLS with CLOSE_WAIT")
    connection.close()


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pynsq_client", description=__doc__.splitlines()[0] if __doc__ else None)
    programs = parser.add_subparsers(required=True)

    publishing = programs.add_parser("publish", help="send a file, one message for each line")
    publishing.set_defaults(program=publish)
    publishing.add_argument("--tcp", required=True, help="host:port of nsqd")
    publishing.add_argument("--file", type=Path, required=True)
    publishing.add_argument("--command", choices=("pub", "mpub", "dpub"), default="pub")
    publishing.add_argument("--batch", type=int, default=100, help="messages in one MPUB")
    publishing.add_argument("--defer-ms", type=int, default=0, help="how long DPUB defers")
    publishing.add_argument("--window", type=int, default=200, help="commands sent and not yet answered")

    consuming = programs.add_parser("consume", help="finish a number of messages and write them to a file")
    consuming.set_defaults(program=consume)
    source = consuming.add_mutually_exclusive_group(required=True)
    source.add_argument("--tcp", default="", help="host:port of nsqd")
    source.add_argument(
        "--lookupd-http",
        default="",
        help="host:port of nsqlookupds, separated by commas, to find nsqd",
    )
    consuming.add_argument("--poll-seconds", type=int, default=1, help="interval of queries to nsqlookupd")
    consuming.add_argument("--channel", required=True)
    consuming.add_argument("--out", type=Path, required=True)
    consuming.add_argument("--count", type=int, required=True)
    consuming.add_argument("--distinct", type=int, default=0, help="1: count distinct bodies only")
    consuming.add_argument("--readers", type=int, default=1, help="connections")
    consuming.add_argument("--max-in-flight", type=int, default=200, help="RDY of each connection")
    consuming.add_argument("--msg-timeout-ms", type=int, default=0, help="message timeout; 0: nsqd's default")
    consuming.add_argument("--first-attempt", choices=("finish", "requeue", "backoff", "late"), default="finish")
    consuming.add_argument("--requeue-ms", type=int, default=0, help="delay of a requeue")
    consuming.add_argument("--max-backoff-seconds", type=int, default=128, help="longest back-off")
    consuming.add_argument("--hold-ms", type=int, default=0, help="time to hold each message")
    consuming.add_argument("--touch-ms", type=int, default=200, help="interval of TOUCH for a held message")
    consuming.add_argument("--timeout", type=float, default=40.0, help="seconds after which to give up")

    for program in (publishing, consuming):
        program.add_argument("--topic", required=True)
        program.add_argument("--tls-root-ca-file", type=Path, help="use TLS and trust these authorities")
        program.add_argument("--tls-cert", type=Path, help="the client's certificate and its key, in one PEM file")
        program.add_argument("--compression", choices=("deflate", "snappy"))
        program.add_argument("--auth-secret", help="secret to send with AUTH")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    logging.basicConfig(level=logging.ERROR, format="%(name)s %(levelname)s %(message)s")
    try:
        report = asyncio.run(options.program(options))
    except Failed as failure:
        print(f"pynsq_client: {failure}", file=sys.stderr)
        return 1
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
