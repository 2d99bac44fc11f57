"""``nsq_tail``: print new messages of topics.

Unlike Go's: with ``--n``, printed messages are finished and others are requeued at once, instead of staying in
flight until their timeout. No message is finished without being printed, however often it was delivered.
"""

import itertools
import random
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from nsq_compat.bounded_http import reason_of
from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING
from nsq_compat.cli.options import option, repeated
from nsq_compat.client import Consumer, Message
from nsq_compat.client.message import Handler
from nsq_compat.tools.client_options import ReadingOptions
from nsq_compat.tools.program import Stopping, console_script, log_plainly, refuse


@dataclass(kw_only=True)
class Options(ReadingOptions):
    program = "nsq_tail"
    topic: tuple[str, ...] = repeated("topic to print")
    channel: str = option(
        STRING,
        lambda: f"tail{random.randrange(999999):06d}#ephemeral",
        "channel to read from; by default a temporary one",
    )
    n: int = option(INTEGER, 0, "number of messages of each topic to print; by default no limit")
    print_topic: bool = option(BOOLEAN, False, "begin each line with the topic")


@console_script(Options)
def main(options: Options) -> None:
    refuse(
        *options.address_rules(),
        (not options.topic, "--topic required"),
        (sys.stdout is None, "standard output is closed"),
    )
    log_plainly()
    stopping = Stopping()
    screen = _Screen(stopping, options.n)
    max_in_flight = min(options.n, options.max_in_flight) if options.n > 0 else options.max_in_flight
    for topic in options.topic:
        print(f"Adding consumer for topic: {topic}", file=sys.stderr)
        handler = screen.handler(f"{topic} | " if options.print_topic else "")
        consumer = options.consumer(topic, options.channel, handler, fail=stopping.fail, max_in_flight=max_in_flight)
        screen.consumers.append(consumer)
    with ExitStack() as running:
        for consumer in screen.consumers:
            running.enter_context(consumer)
        running.callback(screen.end)
        stopping.wait()


class _Screen:
    """Standard output, shared by all topics; `limit` is the number of messages of each to print, 0 for all."""

    def __init__(self, stopping: Stopping, limit: int) -> None:
        self.consumers: list[Consumer] = []
        self._stopping = stopping
        self._limit = limit
        self._lock = threading.Lock()
        self._is_over = False

    def end(self) -> None:
        """Requeue messages from now on. May be called more than once."""
        for consumer in self.consumers:
            consumer.set_max_in_flight(0)  # or requeued messages would return before the consumer has stopped
        self._is_over = True
        self._stopping.set()

    def handler(self, prefix: str) -> Handler:
        """The handler of one topic."""
        numbers = itertools.count(1)

        def handle(message: Message) -> None:
            with self._lock:
                printed = not self._is_over and self._print(prefix.encode("ascii") + message.body)
                # The last message stops the consumers before its FIN makes room for another.
                if printed and next(numbers) == self._limit:
                    self.end()
            if printed:
                message.finish()
            else:
                message.requeue(delay=0, backoff=False)

        return handle

    def _print(self, line: bytes) -> bool:
        """Returns whether it succeeded."""
        try:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
            return True
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self._stopping.fail(f"standard output: {reason_of(error)}")
            self.end()
            sys.stdout = None  # buffered output must not fail again at exit
            return False
