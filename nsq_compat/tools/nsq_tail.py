"""``nsq_tail``: show the messages of topics as they come.

Better than Go's: with ``--n`` what was shown is finished and what was not goes back at once, instead of staying in
flight until its time is over.
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
        "channel to read from; one of its own, which ends with it, unless given",
    )
    max_in_flight: int = option("max-in-flight", INTEGER, 200, "messages that wait to be shown, at most")
    n: int = option("n", INTEGER, 0, "end after so many messages of a topic; never unless given")
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
    settings = consumer_options(options.consumer_opt)
    log_plainly()
    stopping = Stopping()
    max_in_flight = min(options.n, options.max_in_flight) if options.n > 0 else options.max_in_flight
    with ExitStack() as consumers:
        for topic in options.topic:
            print(f"Adding consumer for topic: {topic}", file=sys.stderr)
            try:
                consumer = Consumer(
                    topic,
                    options.channel,
                    _Shown(f"{topic} | " if options.print_topic else "", options.n, stopping),
                    nsqd_tcp_addresses=options.nsqd_tcp_addresses,
                    lookupd_http_addresses=options.lookupd_http_addresses,
                    user_agent=user_agent(PROGRAM),
                    max_in_flight=max_in_flight,
                    **settings,
                )
            except (TypeError, ValueError) as error:
                raise Refused(str(error)) from error
            consumers.enter_context(consumer)
        stopping.wait()


class _Shown:
    """The handler of one topic. What comes when enough was shown goes back at once."""

    _output = threading.Lock()

    def __init__(self, prefix: str, enough: int, stopping: Stopping) -> None:
        self._prefix = prefix.encode("ascii")
        self._enough = enough
        self._stopping = stopping
        self._count = 0

    def __call__(self, message: Message) -> None:
        with self._output:
            if self._stopping:
                message.requeue(delay=0, backoff=False)
                return
            try:
                sys.stdout.buffer.write(b"%b%b\n" % (self._prefix, message.body))
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                message.requeue(delay=0, backoff=False)
                self._stopping.ask()
                return
            self._count += 1
        message.finish()
        if self._count == self._enough:
            self._stopping.ask()


if __name__ == "__main__":
    main()
