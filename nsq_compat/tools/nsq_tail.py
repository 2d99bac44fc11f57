"""``nsq_tail``: show the messages of topics as they come.

Better than Go's: with ``--n`` what was shown is finished and what was not goes back at once, instead of staying in
flight until its time is over. And no message is finished unseen, however often it came.
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
from nsq_compat.tools.client_options import ReadingOptions, consumer_options
from nsq_compat.tools.program import Refused, Stopping, log_plainly, one_kind_of_address, options_of, run, user_agent

PROGRAM: Final = "nsq_tail"


@dataclass(slots=True, kw_only=True)
class Options(ReadingOptions):
    """Names and defaults are NSQ's."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    topic: tuple[str, ...] = option("topic", STRINGS, (), "topic to show (repeat for several)")
    channel: str = option(
        "channel",
        STRING,
        lambda: f"tail{random.randrange(999999):06d}#ephemeral",
        "channel to read from; by default a temporary one",
    )
    max_in_flight: int = option("max-in-flight", INTEGER, 200, "messages that wait to be shown, at most")
    n: int = option("n", INTEGER, 0, "number of messages of each topic to show; by default no limit")
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
    # Nobody here could know that a message is hopeless: each is shown.
    settings = {"max_tries": 0, **consumer_options(options.consumer_opt)}
    log_plainly()
    stopping = Stopping()
    screen = _Screen(stopping)
    max_in_flight = min(options.n, options.max_in_flight) if options.n > 0 else options.max_in_flight
    for topic in options.topic:
        print(f"Adding consumer for topic: {topic}", file=sys.stderr)
        try:
            consumer = Consumer(
                topic,
                options.channel,
                _Shown(screen, f"{topic} | " if options.print_topic else "", options.n),
                nsqd_tcp_addresses=options.nsqd_tcp_addresses,
                lookupd_http_addresses=options.lookupd_http_addresses,
                user_agent=user_agent(PROGRAM),
                max_in_flight=max_in_flight,
                **settings,
            )
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        screen.consumers.append(consumer)
    with ExitStack() as running:
        for consumer in screen.consumers:
            running.enter_context(consumer)
        stopping.wait()
        screen.end()


class _Screen:
    """Where all topics are shown, one message at a time, until it is over; what comes then goes back."""

    def __init__(self, stopping: Stopping) -> None:
        self.lock = threading.Lock()
        self.consumers: list[Consumer] = []
        self.is_over = False
        self._stopping = stopping

    def end(self) -> None:
        """From anywhere, as often as one likes."""
        for consumer in self.consumers:
            consumer.set_max_in_flight(0)  # what goes back would come again before the consumer has stopped
        self.is_over = True
        self._stopping.ask()


class _Shown:
    """The handler of one topic."""

    def __init__(self, screen: _Screen, prefix: str, enough: int) -> None:
        self._screen = screen
        self._prefix = prefix.encode("ascii")
        self._enough = enough
        self._count = 0

    def __call__(self, message: Message) -> None:
        with self._screen.lock:
            shown = not self._screen.is_over and self._show(message.body)
        if shown:
            message.finish()
        else:
            message.requeue(delay=0, backoff=False)

    def _show(self, body: bytes) -> bool:
        """Whether it was; the last one ends it all before it is finished, so that no other comes for it."""
        try:
            sys.stdout.buffer.write(b"%b%b\n" % (self._prefix, body))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self._screen.end()
            return False
        self._count += 1
        if self._count == self._enough:
            self._screen.end()
        return True


if __name__ == "__main__":
    main()
