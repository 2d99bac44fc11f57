"""``nsq_tail``: print new messages of topics.

Better than Go's: with ``--n``, printed messages are finished and others are requeued at once, instead of staying in
flight until their timeout. No message is finished without being printed, however often it was delivered.
"""

import random
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING, STRINGS
from nsq_compat.cli.options import option
from nsq_compat.client import Consumer, Message
from nsq_compat.tools.client_options import ReadingOptions
from nsq_compat.tools.program import Refused, Stopping, log_plainly, one_kind_of_address, options_of, run

PROGRAM: Final = "nsq_tail"


@dataclass(slots=True, kw_only=True)
class Options(ReadingOptions):
    """Names and defaults are NSQ's."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    topic: tuple[str, ...] = option("topic", STRINGS, (), "topic to print (repeat for several)")
    channel: str = option(
        "channel",
        STRING,
        lambda: f"tail{random.randrange(999999):06d}#ephemeral",
        "channel to read from; by default a temporary one",
    )
    max_in_flight: int = option("max-in-flight", INTEGER, 200, "most messages that wait to be printed")
    n: int = option("n", INTEGER, 0, "number of messages of each topic to print; by default no limit")
    print_topic: bool = option("print-topic", BOOLEAN, False, "begin each line with the topic")


def main() -> None:
    """The console script."""
    run(tail)


def tail(words: Sequence[str]) -> None:
    """Raises ``Refused``."""
    options = options_of(PROGRAM, Options, words)
    one_kind_of_address(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    if not options.topic:
        raise Refused("--topic required")
    log_plainly()
    stopping = Stopping()
    screen = _Screen(stopping)
    max_in_flight = min(options.n, options.max_in_flight) if options.n > 0 else options.max_in_flight
    for topic in options.topic:
        print(f"Adding consumer for topic: {topic}", file=sys.stderr)
        handler = _Printer(screen, f"{topic} | " if options.print_topic else "", options.n)
        consumer = options.consumer(PROGRAM, topic, options.channel, handler, max_in_flight=max_in_flight)
        screen.consumers.append(consumer)
    with ExitStack() as running:
        for consumer in screen.consumers:
            running.enter_context(consumer)
        stopping.wait()
        screen.end()


class _Screen:
    """Standard output, shared by all topics. After `end`, messages are requeued."""

    def __init__(self, stopping: Stopping) -> None:
        self.lock = threading.Lock()
        self.consumers: list[Consumer] = []
        self.is_over = False
        self._stopping = stopping

    def end(self) -> None:
        """May be called more than once."""
        for consumer in self.consumers:
            consumer.set_max_in_flight(0)  # or requeued messages would return before the consumer has stopped
        self.is_over = True
        self._stopping.ask()


class _Printer:
    """The handler of one topic; `limit` is the number of messages to print, 0 for all."""

    def __init__(self, screen: _Screen, prefix: str, limit: int) -> None:
        self._screen = screen
        self._prefix = prefix.encode("ascii")
        self._limit = limit
        self._count = 0

    def __call__(self, message: Message) -> None:
        with self._screen.lock:
            printed = not self._screen.is_over and self._print(message.body)
        if printed:
            message.finish()
        else:
            message.requeue(delay=0, backoff=False)

    def _print(self, body: bytes) -> bool:
        """Returns whether it succeeded. The last message stops the consumers before its FIN makes room for another."""
        try:
            sys.stdout.buffer.write(b"%b%b\n" % (self._prefix, body))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self._screen.end()
            return False
        self._count += 1
        if self._count == self._limit:
            self._screen.end()
        return True


if __name__ == "__main__":
    main()
