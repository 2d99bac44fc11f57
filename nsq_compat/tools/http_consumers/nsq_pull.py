"""``nsq_pull``: a topic and channel behind HTTP, for programs that ask for messages instead of being sent them.

It can replace simplequeue: /get, /mget and /put are the same. Messages that are not handed out stay in nsqd.
"""

# ruff: noqa: E402
# Before any other import takes a name from the modules this replaces: a client then costs greenlets, not threads.
from gevent import monkey

monkey.patch_all()

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from nsq_compat.cli.kinds import BOOLEAN, DURATION, INTEGER, STRING, STRINGS
from nsq_compat.cli.options import option
from nsq_compat.client import Producer
from nsq_compat.net.process import raise_descriptor_limit, stop_signal
from nsq_compat.net.sockets import ListenError, listen
from nsq_compat.protocol.durations import MILLISECOND, SECOND, seconds
from nsq_compat.session.http_message import HttpLimits
from nsq_compat.tools.client_options import ReadingOptions, producer_options
from nsq_compat.tools.http_consumers.ack_http import AckHttpServer
from nsq_compat.tools.http_consumers.on_demand import OnDemand
from nsq_compat.tools.http_consumers.pulling import Pulling
from nsq_compat.tools.program import Refused, log_plainly, one_kind_of_address, options_of, run, user_agent

PROGRAM: Final = "nsq_pull"


@dataclass(slots=True, kw_only=True)
class Options(ReadingOptions):
    """Names are those of NSQ's utilities where the meaning is the same."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    http_address: str = option("http-address", STRING, "0.0.0.0:8080", "host:port to listen on")
    topic: str = option("topic", STRING, "", "topic to get from and to put to")
    channel: str = option("channel", STRING, "", "channel to get from")
    max_in_flight: int = option("max-in-flight", INTEGER, 100, "most messages that are handed out at once")
    wait: int = option(
        "wait", DURATION, 200 * MILLISECOND, "how long a request waits for a message if it does not say so itself"
    )
    client_timeout: int = option(
        "client-timeout", DURATION, 30 * SECOND, "how long a client may take to read an answer"
    )
    destination_nsqd_tcp_addresses: tuple[str, ...] = option(
        "destination-nsqd-tcp-address",
        STRINGS,
        (),
        "host:port of an nsqd to put to (repeat for several); by default those of --nsqd-tcp-address",
    )
    producer_opt: tuple[str, ...] = option("producer-opt", STRINGS, (), "the same for putting (repeat for several)")


def main() -> None:
    """The console script."""
    run(serve)


def serve(words: Sequence[str]) -> None:
    """Raises ``Refused``."""
    options = options_of(PROGRAM, Options, words)
    _check(options)
    log_plainly()
    raise_descriptor_limit()
    with ExitStack() as running:
        try:
            make_consumer = partial(
                options.consumer, PROGRAM, options.topic, options.channel, max_in_flight=options.max_in_flight
            )
            queue = OnDemand(make_consumer, options.max_in_flight)
            producer = _producer(options)
            listener = listen(options.http_address)
        except (TypeError, ValueError, ListenError) as error:
            raise Refused(str(error)) from error
        if producer is not None:
            running.callback(producer.close)
        pulling = Pulling(
            queue, producer, options.topic, wait=seconds(options.wait), max_messages=options.max_in_flight
        )
        stop = stop_signal()
        queue.start()
        running.callback(queue.stop)
        server = AckHttpServer(listener, pulling, HttpLimits(write_seconds=seconds(options.client_timeout)))
        server.start()
        running.callback(server.stop)
        stop.wait()


def _check(options: Options) -> None:
    one_kind_of_address(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    for flag, value in (("--topic", options.topic), ("--channel", options.channel)):
        if not value:
            raise Refused(f"{flag} required")
    for flag, number in (("--max-in-flight", options.max_in_flight), ("--client-timeout", options.client_timeout)):
        if number <= 0:
            raise Refused(f"{flag} must be > 0")
    if options.wait < 0:
        raise Refused("--wait must not be negative")


def _producer(options: Options) -> Producer | None:
    addresses = options.destination_nsqd_tcp_addresses or options.nsqd_tcp_addresses
    settings = producer_options(options.producer_opt)
    return Producer(addresses, user_agent=user_agent(PROGRAM), **settings) if addresses else None


if __name__ == "__main__":
    main()
