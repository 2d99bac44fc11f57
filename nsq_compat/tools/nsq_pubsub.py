"""``nsq_pubsub``: topics as HTTP streams, a line for each message."""

# ruff: noqa: E402
# First of all, before anything takes a name from the modules this replaces: a caller costs greenlets, not threads.
from gevent import monkey

monkey.patch_all()

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nsq_compat.cli.kinds import BOOLEAN, DURATION, INTEGER, STRING
from nsq_compat.cli.options import option
from nsq_compat.client import Consumer
from nsq_compat.client.handling import Handler
from nsq_compat.net.listeners import ListenError, listen
from nsq_compat.net.process import raise_descriptor_limit, stop_signal
from nsq_compat.protocol.durations import SECOND, seconds
from nsq_compat.session.http_message import HttpLimits
from nsq_compat.tools.client_options import ReadingOptions, consumer_options
from nsq_compat.tools.http_door import Door
from nsq_compat.tools.program import Refused, log_plainly, one_kind_of_address, options_of, run, user_agent
from nsq_compat.tools.subscribing import MakeConsumer, PubSub

PROGRAM: Final = "nsq_pubsub"


@dataclass(slots=True, kw_only=True)
class Options(ReadingOptions):
    """Names and defaults are NSQ's, as far as it had them."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    http_address: str = option("http-address", STRING, "0.0.0.0:8080", "host:port to listen on")
    max_in_flight: int = option("max-in-flight", INTEGER, 100, "messages on their way to one client, at most")
    client_timeout: int = option(
        "client-timeout", DURATION, 30 * SECOND, "how long a client may take to read a message"
    )


def main() -> None:
    """The console script."""
    run(serve)


def serve(words: Sequence[str]) -> None:
    """Raises ``Refused``."""
    options = options_of(PROGRAM, Options, words)
    for flag, number in (("--max-in-flight", options.max_in_flight), ("--client-timeout", options.client_timeout)):
        if number <= 0:
            raise Refused(f"{flag} must be > 0")
    one_kind_of_address(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    log_plainly()
    raise_descriptor_limit()
    make_consumer = _consumers(options)
    client_timeout = seconds(options.client_timeout)
    try:
        make_consumer("topic", "channel", print)  # what it refuses, it refuses now
        listener = listen(options.http_address)
    except (TypeError, ValueError, ListenError) as error:
        raise Refused(str(error)) from error
    stop = stop_signal()
    door = Door(listener, PubSub(make_consumer, client_timeout), HttpLimits(write_seconds=client_timeout))
    door.start()
    stop.wait()
    door.stop()


def _consumers(options: Options) -> MakeConsumer:
    # Nobody here could know that a message is hopeless: none is given up.
    settings = {"max_tries": 0, **consumer_options(options.consumer_opt)}

    def make_consumer(topic: str, channel: str, handler: Handler) -> Consumer:
        return Consumer(
            topic,
            channel,
            handler,
            nsqd_tcp_addresses=options.nsqd_tcp_addresses,
            lookupd_http_addresses=options.lookupd_http_addresses,
            max_in_flight=options.max_in_flight,
            user_agent=user_agent(PROGRAM),
            **settings,
        )

    return make_consumer


if __name__ == "__main__":
    main()
