"""``nsq_pubsub``: topics as HTTP streams, a line for each message."""

# ruff: noqa: E402
# Before any other import takes a name from the modules this replaces: a consumer then costs greenlets, not threads.
from gevent import monkey

monkey.patch_all()

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from nsq_compat.cli.kinds import BOOLEAN, DURATION, INTEGER, STRING
from nsq_compat.cli.options import option
from nsq_compat.net.process import raise_descriptor_limit, stop_signal
from nsq_compat.net.sockets import ListenError, listen
from nsq_compat.protocol.durations import SECOND, seconds
from nsq_compat.session.http_message import HttpLimits
from nsq_compat.tools.client_options import ReadingOptions
from nsq_compat.tools.http_consumers.ack_http import AckHttpServer
from nsq_compat.tools.http_consumers.streaming import PubSub
from nsq_compat.tools.program import Refused, log_plainly, one_kind_of_address, options_of, run

PROGRAM: Final = "nsq_pubsub"


@dataclass(slots=True, kw_only=True)
class Options(ReadingOptions):
    """Names and defaults are NSQ's where it has them."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    http_address: str = option("http-address", STRING, "0.0.0.0:8080", "host:port to listen on")
    max_in_flight: int = option("max-in-flight", INTEGER, 100, "most messages in flight to one client")
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
    make_consumer = partial(options.consumer, PROGRAM, max_in_flight=options.max_in_flight)
    client_timeout = seconds(options.client_timeout)
    try:
        make_consumer("topic", "channel", print)  # raises what it would raise for each client
        listener = listen(options.http_address)
    except (TypeError, ValueError, ListenError) as error:
        raise Refused(str(error)) from error
    stop = stop_signal()
    server = AckHttpServer(listener, PubSub(make_consumer, client_timeout), HttpLimits(write_seconds=client_timeout))
    server.start()
    stop.wait()
    server.stop()


if __name__ == "__main__":
    main()
