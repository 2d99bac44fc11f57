"""``nsq_to_http``: an HTTP request to one of several URLs for each message of a topic.

Better than Go's: a message is finished only when a URL has accepted it, however often it must be delivered (unless
``--consumer-opt=max_attempts,N`` limits that). A message that one URL does not accept is sent to the others at once, so
a URL that fails does not affect others. The consumer backs off only when all of them fail.
"""

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nsq_compat import NSQ_VERSION
from nsq_compat.cli.kinds import BOOLEAN, DURATION, FLOAT, INTEGER, STRING, STRINGS, choice
from nsq_compat.cli.options import option
from nsq_compat.client import Message
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.errors import without_secrets
from nsq_compat.tools.client_options import ReadingOptions
from nsq_compat.tools.destinations import MODES, Destinations
from nsq_compat.tools.http_sending import PLACEHOLDER, HttpSender, NotSent, parse_headers
from nsq_compat.tools.program import Refused, Stopping, log_plainly, one_kind_of_address, options_of, run
from nsq_compat.tools.progress import Progress, RequestTimes, channel_backlog

log = logging.getLogger(__name__)

PROGRAM: Final = "nsq_to_http"
_CONTENT_TYPE: Final = "application/octet-stream"


@dataclass(slots=True, kw_only=True)
class Options(ReadingOptions):
    """Names and defaults are NSQ's."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    topic: str = option("topic", STRING, "", "topic to read")
    channel: str = option("channel", STRING, PROGRAM, "channel to read from")
    max_in_flight: int = option("max-in-flight", INTEGER, 200, "most messages that wait for their request")
    post: tuple[str, ...] = option("post", STRINGS, (), "URL to POST messages to (repeat for several)")
    get: tuple[str, ...] = option("get", STRINGS, (), "URL to GET, with the message for %s (repeat for several)")
    header: tuple[str, ...] = option("header", STRINGS, (), "`name: value` of every request (repeat for several)")
    content_type: str = option("content-type", STRING, _CONTENT_TYPE, "Content-Type of a POST")
    n: int = option("n", INTEGER, 100, "most requests at once")
    mode: str = option("mode", choice(*MODES), "hostpool", f"how a URL is chosen: {', '.join(MODES)}")
    sample: float = option("sample", FLOAT, 1.0, "share of the messages that are sent, 0 to 1")
    status_every: int = option("status-every", INTEGER, 250, "requests between two lines of timings; 0 for none")
    http_client_connect_timeout: int = option(
        "http-client-connect-timeout", DURATION, 2 * SECOND, "time for connecting to a URL's host"
    )
    http_client_request_timeout: int = option(
        "http-client-request-timeout", DURATION, 20 * SECOND, "time for a whole request"
    )


def main() -> None:
    """The console script."""
    run(relay)


def relay(words: Sequence[str]) -> None:
    """Raises ``Refused``."""
    options = options_of(PROGRAM, Options, words)
    sender = _checked_sender(options)
    log_plainly()
    stopping = Stopping()
    addresses = options.post or options.get
    handler = Relay(
        sender,
        MODES[options.mode](addresses),
        RequestTimes(addresses, options.status_every),
        options.sample,
    )
    consumer = options.consumer(
        PROGRAM,
        options.topic,
        options.channel,
        handler,
        max_in_flight=options.max_in_flight,
        concurrency=options.n,
    )
    backlog = channel_backlog([options.topic], options.channel, options.lookupd_http_addresses)
    with Progress(lambda: handler.times.count, backlog), consumer:
        stopping.wait()


def _checked_sender(options: Options) -> HttpSender:
    """Errors are reported in NSQ's order."""
    try:
        headers = parse_headers(options.header)
    except ValueError:
        raise Refused("--header value format should be 'key=value'") from None
    if not options.topic or not options.channel:
        raise Refused("--topic and --channel are required")
    if options.content_type != _CONTENT_TYPE and not options.post:
        raise Refused("--content-type only used with --post")
    if not options.content_type:
        raise Refused("--content-type requires a value when used")
    one_kind_of_address(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    _check_urls(options)
    if not 0 <= options.sample <= 1:
        raise Refused("ERROR: --sample must be between 0.0 and 1.0")
    if options.n < 1:
        raise Refused("no handlers")
    for flag, value in (
        ("--http-client-connect-timeout", options.http_client_connect_timeout),
        ("--http-client-request-timeout", options.http_client_request_timeout),
    ):
        if value <= 0:
            raise Refused(f"{flag} should be positive")
    return _sender(options, headers)


def _check_urls(options: Options) -> None:
    if not options.get and not options.post:
        raise Refused("--get or --post required")
    if options.get and options.post:
        raise Refused("use --get or --post not both")
    if any(address.count(PLACEHOLDER) != 1 for address in options.get):
        raise Refused("invalid GET address - must be a printf string")


def _sender(options: Options, headers: list[tuple[str, str]]) -> HttpSender:
    own = {"User-Agent": f"{PROGRAM} v{NSQ_VERSION}"}
    if options.post:
        own["Content-Type"] = options.content_type
    sender = HttpSender(
        "POST" if options.post else "GET",
        [*own.items(), *headers],
        connect_timeout=options.http_client_connect_timeout / SECOND,
        request_timeout=options.http_client_request_timeout / SECOND,
        connections=options.n,
    )
    try:
        for address in options.post or options.get:
            sender.check(address)
    except NotSent as error:
        raise Refused(str(error)) from None
    return sender


class Relay:
    """The handler: returns True when a URL has accepted the message, False when all have failed."""

    def __init__(self, sender: HttpSender, destinations: Destinations, times: RequestTimes, sample: float) -> None:
        self.times = times
        self._sender = sender
        self._destinations = destinations
        self._sample = sample

    def __call__(self, message: Message) -> bool:
        if self._sample < 1 and random.random() >= self._sample:
            return True
        failed: list[str] = []
        while (address := self._destinations.choose(failed)) is not None:
            if failed:
                message.touch()
            if self._send(address, message):
                return True
            failed.append(address)
        return False

    def _send(self, address: str, message: Message) -> bool:
        began = time.monotonic()
        try:
            self._sender.send(address, message.body)
        except NotSent as error:
            self._destinations.failed(address)
            log.warning("msg %s to %s: %s", message.id.decode("ascii", "replace"), without_secrets(address), error)
            return False
        seconds = time.monotonic() - began
        self._destinations.succeeded(address, seconds)
        self.times.add(address, seconds)
        return True


if __name__ == "__main__":
    main()
