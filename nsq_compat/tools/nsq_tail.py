"""``nsq_tail``: print new messages of topics.

Unlike Go's: with ``--n``, printed messages are finished and others are requeued at once, instead of staying in
flight until their timeout. No message is finished without being printed, however often it was delivered. With
``--from`` and without a channel, messages are read by offset, so none is in flight.
"""

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from nsq_compat.bounded_http import reason_of
from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING
from nsq_compat.cli.options import option, repeated
from nsq_compat.client import Consumer, LoggedMessage, LogReader, LogReadError, Message
from nsq_compat.client.connection import start_thread
from nsq_compat.client.message import Handler
from nsq_compat.protocol.go_json import dumps
from nsq_compat.tools.channel_places import BeginningOptions
from nsq_compat.tools.client_options import log_settings, refusing
from nsq_compat.tools.program import Rule, Stopping, console_script, log_plainly, refuse, unless_one_kind


@dataclass(kw_only=True)
class Options(BeginningOptions):
    program = "nsq_tail"
    topic: tuple[str, ...] = repeated("topic to print")
    channel: str = option(STRING, "", "channel to read from; by default a temporary one, or none with --from")
    n: int = option(INTEGER, 0, "number of messages of each topic to print; by default no limit")
    print_topic: bool = option(BOOLEAN, False, "begin each line with the topic")
    headers: bool = option(BOOLEAN, False, "print headers before each body, as a JSON object and a tab")

    @property
    def reads_log(self) -> bool:
        return bool(self.begin and not self.channel)

    def address_rules(self) -> Iterator[Rule]:
        if self.reads_log:
            return unless_one_kind(self.nsqd_http_addresses, self.lookupd_http_addresses, "--nsqd-http-address")
        return super().address_rules()


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
    channel = options.channel or f"tail{random.randrange(999999):06d}#ephemeral"
    with ExitStack() as running:
        sources: list[Consumer | _LogTail] = []
        for topic in options.topic:
            print(f"Adding consumer for topic: {topic}", file=sys.stderr)
            show = screen.printer(f"{topic} | " if options.print_topic else "", options.headers)
            if options.reads_log:
                tail = _LogTail(topic, options, show, stopping)
                screen.before_end.append(tail.reader.stop)
                sources.append(tail)
                continue
            options.make_channels([topic], channel, stopping)
            consumer = options.consumer(topic, channel, _handler(show), fail=stopping.fail, max_in_flight=max_in_flight)
            # Or requeued messages would return before the consumer has stopped.
            screen.before_end.append(partial(consumer.set_max_in_flight, 0))
            sources.append(consumer)
        for source in sources:
            running.enter_context(source)
        running.callback(screen.end)
        stopping.wait()


Show = Callable[[Message | LoggedMessage], bool]
"""Prints a message as a line; returns whether it was printed."""


def _handler(show: Show) -> Handler:
    def handle(message: Message) -> None:
        if show(message):
            message.finish()
        else:
            message.requeue(delay=0, backoff=False)

    return handle


class _LogTail:
    """A thread that prints the messages of a topic's log."""

    def __init__(self, topic: str, options: Options, show: Show, stopping: Stopping) -> None:
        """Raises ``Refused`` if a daemon that was named cannot be used."""
        make_reader = partial(
            LogReader,
            topic,
            nsqd_http_addresses=options.nsqd_http_addresses,
            lookupd_http_addresses=options.lookupd_http_addresses,
            start=options.begin,
            follow=True,
            **log_settings(options.consumer_opt, options.user_agent),
        )
        with refusing(TypeError, ValueError, OSError, LogReadError):
            if not options.retry:
                make_reader(retry_timeout=0).ranges()
            self.reader = make_reader(retry_timeout=None)
        self._show = show
        self._stopping = stopping

    def __enter__(self) -> None:
        start_thread(f"log of {self.reader.topic}", self._run)

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def _run(self) -> None:
        try:
            for message in self.reader:
                self._show(message)
        except LogReadError as error:
            self._stopping.fail(str(error))


class _Screen:
    """Standard output, shared by all topics; `limit` is the number of messages of each to print, 0 for all."""

    def __init__(self, stopping: Stopping, limit: int) -> None:
        self.before_end: list[Callable[[], object]] = []
        self._stopping = stopping
        self._limit = limit
        self._lock = threading.Lock()
        self._is_over = False

    def end(self) -> None:
        """Print no more messages. May be called more than once."""
        for act in self.before_end:
            act()
        self._is_over = True
        self._stopping.set()

    def printer(self, prefix: str, with_headers: bool) -> Show:
        """Prints the messages of one topic."""
        numbers = itertools.count(1)

        def show(message: Message | LoggedMessage) -> bool:
            headers = dumps(dict(message.headers)).encode("utf-8") + b"\t" if with_headers else b""
            with self._lock:
                printed = not self._is_over and self._print(prefix.encode("ascii") + headers + message.body)
                # The last message stops the consumers before its FIN makes room for another.
                if printed and next(numbers) == self._limit:
                    self.end()
            return printed

        return show

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
