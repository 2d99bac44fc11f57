"""The programs ``nsq_pubsub`` and ``nsq_pull``.

``nsq_pubsub`` serves topics as HTTP streams, a line for each message. ``nsq_pull`` serves a topic and channel for
programs that ask for messages instead of being sent them. It can replace simplequeue: /get, /mget and /put are the
same. Messages that are not handed out stay in nsqd.
"""

# ruff: noqa: E402
# Before any other import takes a name from the modules this replaces: a client then costs greenlets, not threads.
from gevent import monkey

monkey.patch_all()

import socket
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from nsq_compat.cli.kinds import DURATION, INTEGER, STRING, STRINGS
from nsq_compat.cli.options import option
from nsq_compat.net import resolver
from nsq_compat.net.process import raise_descriptor_limit, stop_signal
from nsq_compat.net.server import ConnectionLimits
from nsq_compat.net.sockets import ListenError, listen
from nsq_compat.protocol.durations import MILLISECOND, SECOND, seconds
from nsq_compat.session.http_message import HttpLimits
from nsq_compat.tools.client_options import ProducerOptions, ReadingOptions, reach, refusing
from nsq_compat.tools.http_consumers.ack_http import AckHandler, AckHttpServer
from nsq_compat.tools.http_consumers.on_demand import OnDemand
from nsq_compat.tools.http_consumers.pulling import Pulling
from nsq_compat.tools.http_consumers.streaming import PubSub
from nsq_compat.tools.program import Rule, console_script, log_plainly, refuse, unless_positive


@dataclass(kw_only=True)
class HttpOptions(ReadingOptions):
    http_address: str = option(STRING, "0.0.0.0:8080", "host:port to listen on")
    max_in_flight: int = option(INTEGER, 100, "most messages in flight to one client")
    client_timeout: int = option(DURATION, 30 * SECOND, "how long a client may take to read a message")
    max_connections_per_address: int = option(INTEGER, 0, "most connections of one address; by default no limit")
    max_new_connections_per_second: int = option(
        INTEGER, 0, "most connections that one address may begin in a second; by default no limit"
    )

    def check(self, *rules: Rule) -> None:
        refuse(
            *self.address_rules(),
            *rules,
            *unless_positive(self, "max_in_flight", "client_timeout", text="must be > 0"),
            (self.max_connections_per_address < 0, "--max-connections-per-address must not be negative"),
            (self.max_new_connections_per_second < 0, "--max-new-connections-per-second must not be negative"),
        )

    def listen(self) -> socket.socket:
        with refusing(ListenError):
            return listen(self.http_address)

    def reach_source(self) -> None:
        """Raises ``Refused`` for what each consumer would raise, and without ``--retry`` if a named nsqd refuses it."""
        settings = self.consumer("topic", "channel", print).settings
        if not self.retry:
            reach(self.nsqd_tcp_addresses, settings, "consumer-opt")


@dataclass(kw_only=True)
class PubSubOptions(HttpOptions):
    program = "nsq_pubsub"


@console_script(PubSubOptions)
def pubsub(options: PubSubOptions) -> None:
    options.check()
    stop = _Stop()
    listener = options.listen()
    options.reach_source()
    _serve(options, listener, stop, PubSub(options.consumer, seconds(options.client_timeout)))


@dataclass(kw_only=True)
class PullOptions(HttpOptions, ProducerOptions):
    program = "nsq_pull"
    topic: str = option(STRING, "", "topic to get from and to put to")
    channel: str = option(STRING, "", "channel to get from")
    max_in_flight: int = option(INTEGER, 100, "most messages that are handed out at once")
    wait: int = option(
        DURATION, 200 * MILLISECOND, "how long a request waits for a message if it does not say so itself"
    )
    destination_nsqd_tcp_addresses: tuple[str, ...] = option(
        STRINGS,
        (),
        "host:port of an nsqd to put to (repeat for several); by default those of --nsqd-tcp-address",
        flag="destination-nsqd-tcp-address",
    )


@console_script(PullOptions)
def pull(options: PullOptions) -> None:
    options.check(
        (not options.topic, "--topic required"),
        (not options.channel, "--channel required"),
        (options.wait < 0, "--wait must not be negative"),
    )
    stop = _Stop()
    queue = OnDemand(partial(options.consumer, options.topic, options.channel, fail=stop.fail), options.max_in_flight)
    addresses = options.destination_nsqd_tcp_addresses or options.nsqd_tcp_addresses
    producer = options.producer(addresses) if addresses else None
    listener = options.listen()
    options.reach_source()
    if producer and not options.retry:
        reach(addresses, producer.settings, "producer-opt", may_be_down=True)
    pulling = Pulling(queue, producer, options.topic, wait=seconds(options.wait))
    _serve(options, listener, stop, pulling, *([producer] if producer else []), queue)


class _Stop:
    """Set by a signal, or by a failure."""

    def __init__(self) -> None:
        log_plainly()
        raise_descriptor_limit()
        resolver.install()
        self.failure = ""
        self.event = stop_signal()

    def fail(self, text: str) -> None:
        self.failure = self.failure or text
        self.event.set()


def _serve(
    options: HttpOptions,
    listener: socket.socket,
    stop: _Stop,
    handler: AckHandler,
    *parts: AbstractContextManager[object],
) -> None:
    """Serve until the stop, and then stop the server before its parts."""
    with ExitStack() as running:
        for part in parts:
            running.enter_context(part)
        limits = HttpLimits(write_seconds=seconds(options.client_timeout))
        of_address = ConnectionLimits(options.max_connections_per_address, options.max_new_connections_per_second)
        server = AckHttpServer(listener, handler, limits, of_address)
        server.start()
        stop.event.wait()
        server.stop()
    refuse((stop.failure, stop.failure))
