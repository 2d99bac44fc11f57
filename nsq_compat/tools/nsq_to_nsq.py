"""``nsq_to_nsq``: publish the messages of topics again at one of several nsqd.

Better than Go's: a message is finished only when a destination has it, however often it must be delivered (unless
``--consumer-opt=max_attempts,N`` limits that). A message that one destination does not take is sent to the others at
once. Where JSON is required, a message that is not JSON is kept unless ``--non-json`` says otherwise.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING, STRINGS, choice
from nsq_compat.cli.options import option
from nsq_compat.client import Consumer, Message, Producer, Published
from nsq_compat.client.batching import Closed
from nsq_compat.protocol.go_json import JsonError
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.tools.client_options import ReadingOptions, producer_options
from nsq_compat.tools.destinations import MODES, Destinations
from nsq_compat.tools.json_filter import JsonFilter
from nsq_compat.tools.program import Refused, Stopping, log_plainly, one_kind_of_address, options_of, run, user_agent
from nsq_compat.tools.progress import Progress, RequestTimes, channel_backlog

log = logging.getLogger(__name__)

PROGRAM: Final = "nsq_to_nsq"
_MAX_LOGGED_BYTES: Final = 200
_REQUEUE: Final = "requeue"
_PASS: Final = "pass"
_DROP: Final = "drop"


@dataclass(slots=True, kw_only=True)
class Options(ReadingOptions):
    """Names and defaults are NSQ's; ``--non-json`` is ours."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    topic: tuple[str, ...] = option("topic", STRINGS, (), "topic to read (repeat for several)")
    channel: str = option("channel", STRING, PROGRAM, "channel to read from")
    max_in_flight: int = option("max-in-flight", INTEGER, 200, "most messages of a topic in flight")
    destination_topic: str = option(
        "destination-topic", STRING, "", "topic to publish to; by default the topic of the message"
    )
    mode: str = option("mode", choice(*MODES), "hostpool", f"how a destination is chosen: {', '.join(MODES)}")
    status_every: int = option("status-every", INTEGER, 250, "messages between two lines of timings; 0 for none")
    require_json_field: str = option("require-json-field", STRING, "", "pass only JSON objects with this field")
    require_json_value: str = option(
        "require-json-value", STRING, "", "pass only those that have this value in the required field"
    )
    whitelist_json_field: tuple[str, ...] = option(
        "whitelist-json-field", STRINGS, (), "pass only this field of JSON objects (repeat for several)"
    )
    non_json: str = option(
        "non-json",
        choice(_REQUEUE, _PASS, _DROP),
        _REQUEUE,
        f"what to do with messages that are not JSON objects where that is required: {_REQUEUE}, {_PASS} or {_DROP}",
    )
    destination_nsqd_tcp_addresses: tuple[str, ...] = option(
        "destination-nsqd-tcp-address", STRINGS, (), "host:port of an nsqd to publish to (repeat for several)"
    )
    producer_opt: tuple[str, ...] = option("producer-opt", STRINGS, (), "the same for publishing (repeat for several)")


def main() -> None:
    """The console script."""
    run(relay)


def relay(words: Sequence[str]) -> None:
    """Raises ``Refused``."""
    options = options_of(PROGRAM, Options, words)
    topics = list(dict.fromkeys(options.topic))
    _check(options)
    producer_settings = producer_options(options.producer_opt)
    log_plainly()
    stopping = Stopping()
    with ExitStack() as closing:
        try:
            publisher = _publisher(options, producer_settings, closing)
            consumers = [_consumer(options, topic, publisher) for topic in topics]
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        backlog = channel_backlog(topics, options.channel, options.lookupd_http_addresses)
        closing.enter_context(Progress(lambda: publisher.times.count, backlog))
        for consumer in consumers:
            closing.enter_context(consumer)
        stopping.wait()


def _check(options: Options) -> None:
    """Errors are reported in NSQ's order."""
    if not options.topic or not options.channel:
        raise Refused("--topic and --channel are required")
    if not all(map(is_valid_name, options.topic)):
        raise Refused("--topic is invalid")
    if options.destination_topic and not is_valid_name(options.destination_topic):
        raise Refused("--destination-topic is invalid")
    if not is_valid_name(options.channel):
        raise Refused("--channel is invalid")
    one_kind_of_address(options.nsqd_tcp_addresses, options.lookupd_http_addresses)
    if not options.destination_nsqd_tcp_addresses:
        raise Refused("--destination-nsqd-tcp-address required")


def _publisher(options: Options, settings: dict[str, Any], closing: ExitStack) -> "Publisher":
    addresses = options.destination_nsqd_tcp_addresses
    retries = closing.enter_context(ThreadPoolExecutor(1, "retries"))
    producers = {
        address: closing.enter_context(Producer(address, user_agent=user_agent(PROGRAM), **settings))
        for address in dict.fromkeys(addresses)
    }
    return Publisher(
        producers, MODES[options.mode](addresses), RequestTimes(list(producers), options.status_every), retries
    )


def _consumer(options: Options, topic: str, publisher: "Publisher") -> Consumer:
    wanted = JsonFilter(options.require_json_field, options.require_json_value, options.whitelist_json_field)
    handler = Relay(wanted, options.non_json, publisher, options.destination_topic or topic)
    return options.consumer(PROGRAM, topic, options.channel, handler, max_in_flight=options.max_in_flight)


class Relay:
    """The handler of one topic. Messages that do not pass the filter are finished."""

    def __init__(self, wanted: JsonFilter, non_json: str, publisher: "Publisher", topic: str) -> None:
        self._wanted = wanted
        self._non_json = non_json
        self._publisher = publisher
        self._topic = topic

    def __call__(self, message: Message) -> None:
        try:
            body = self._wanted.apply(message.body)
        except JsonError:
            log.error("Unable to decode json: %r (%s)", message.body[:_MAX_LOGGED_BYTES], self._non_json)
            if self._non_json == _REQUEUE:
                message.requeue(backoff=False)  # other messages are not affected
                return
            body = message.body if self._non_json == _PASS else None
        if body is not None:
            message.enable_async()
            self._publisher.publish(message, self._topic, body)


class Publisher:
    """Publishes in the background, and answers a message when its outcome is known."""

    def __init__(
        self, producers: dict[str, Producer], destinations: Destinations, times: RequestTimes, retries: Executor
    ) -> None:
        self.times = times
        self._producers = producers
        self._destinations = destinations
        self._retries = retries
        """Publishes at the next destination, because the threads of two producers must not wait for each other."""

    def publish(self, message: Message, topic: str, body: bytes, failed: tuple[str, ...] = ()) -> None:
        """Publish at a destination that has not failed this message yet; requeue it if all have."""
        address = self._destinations.choose(failed)
        if address is None:
            message.requeue()
            return
        try:
            future = self._producers[address].publish_async(topic, body)
        except Closed:
            message.requeue(delay=0, backoff=False)
            return
        began = time.monotonic()

        def done(outcome: Future[Published]) -> None:
            error = outcome.exception()
            if error is None:
                self._succeeded(message, address, time.monotonic() - began)
            else:
                self._failed(message, address, error)
                self._retries.submit(self.retry, message, topic, body, (*failed, address))

        future.add_done_callback(done)

    def retry(self, message: Message, topic: str, body: bytes, failed: tuple[str, ...]) -> None:
        """Publish at another destination, unless nsqd will deliver the message again anyway."""
        if not message.is_lost:
            message.touch()
            self.publish(message, topic, body, failed)

    def _succeeded(self, message: Message, address: str, seconds: float) -> None:
        message.finish()
        self._destinations.succeeded(address, seconds)
        self.times.add(address, seconds)

    def _failed(self, message: Message, address: str, error: BaseException) -> None:
        self._destinations.failed(address)
        log.warning("msg %s to %s: %s", message.id.decode("ascii", "replace"), address, error)


if __name__ == "__main__":
    main()
