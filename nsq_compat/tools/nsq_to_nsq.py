"""``nsq_to_nsq``: publish the messages of topics again at one of several nsqd.

Unlike Go's: a message is finished only when a destination has it, however often it must be delivered (unless
``--consumer-opt=max_attempts,N`` limits that). A message that one destination does not take is sent to the others at
once. Where JSON is required, a message that is not JSON is kept unless ``--non-json`` says otherwise.
"""

import json
import logging
import math
import re
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from nsq_compat.cli.kinds import INTEGER, STRING, choice, parse_float
from nsq_compat.cli.options import option, repeated
from nsq_compat.client import Message, Producer, Published, PublishError
from nsq_compat.client.batching import Closed
from nsq_compat.client.nodes import HeadersNotTaken
from nsq_compat.protocol.go_json import JsonError, dumps
from nsq_compat.protocol.headers import NO_HEADERS
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.tools.channel_places import BeginningOptions
from nsq_compat.tools.client_options import ProducerOptions, reach
from nsq_compat.tools.destinations import MODES, Destinations
from nsq_compat.tools.program import Stopping, console_script, log_plainly, refuse
from nsq_compat.tools.progress import Progress, RequestTimes, channel_backlog

log = logging.getLogger(__name__)

_MAX_LOGGED_BYTES: Final = 200
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_INT64_END: Final = 2.0**63


@dataclass(kw_only=True)
class Options(BeginningOptions, ProducerOptions):
    program = "nsq_to_nsq"
    topic: tuple[str, ...] = repeated("topic to read")
    channel: str = option(STRING, program, "channel to read from")
    destination_topic: str = option(STRING, "", "topic to publish to; by default the topic of the message")
    mode: str = option(choice(*MODES), "hostpool", f"how a destination is chosen: {', '.join(MODES)}")
    status_every: int = option(INTEGER, 250, "messages between two lines of timings; 0 for none")
    require_json_field: str = option(STRING, "", "pass only JSON objects with this field")
    require_json_value: str = option(STRING, "", "pass only those that have this value in the required field")
    whitelist_json_field: tuple[str, ...] = repeated("pass only this field of JSON objects")
    non_json: str = option(
        choice("requeue", "pass", "drop"),
        "requeue",
        "what to do with messages that are not JSON objects where that is required: requeue, pass or drop",
    )
    destination_nsqd_tcp_addresses: tuple[str, ...] = repeated(
        "host:port of an nsqd to publish to", flag="destination-nsqd-tcp-address"
    )


@console_script(Options)
def main(options: Options) -> None:
    destination = options.destination_topic
    # In NSQ's order.
    refuse(
        (not options.topic or not options.channel, "--topic and --channel are required"),
        (not all(map(is_valid_name, options.topic)), "--topic is invalid"),
        (destination and not is_valid_name(destination), "--destination-topic is invalid"),
        (not is_valid_name(options.channel), "--channel is invalid"),
        *options.address_rules(),
        (not options.destination_nsqd_tcp_addresses, "--destination-nsqd-tcp-address required"),
    )
    addresses = options.destination_nsqd_tcp_addresses
    topics = list(dict.fromkeys(options.topic))
    log_plainly()
    stopping = Stopping()
    with ExitStack() as closing:
        retries = closing.enter_context(ThreadPoolExecutor(1, "retries"))
        producers = {each: closing.enter_context(options.producer(each)) for each in dict.fromkeys(addresses)}
        times = RequestTimes(list(producers), options.status_every)
        publisher = Publisher(producers, MODES[options.mode](addresses), times, retries)
        consumers = [
            options.consumer(each, options.channel, Relay(options, each, publisher), fail=stopping.fail)
            for each in topics
        ]
        # A destination that is down is replaced by the others. One that refuses this client would always do so.
        reach(addresses, next(iter(producers.values())).settings, "producer-opt", may_be_down=True)
        options.make_channels(topics, options.channel, stopping)
        backlog = channel_backlog(topics, options.channel, options)
        closing.enter_context(Progress(lambda: times.count, backlog))
        for consumer in consumers:
            closing.enter_context(consumer)
        stopping.wait()


class Relay:
    """The handler of one topic. Messages that do not pass the filter are finished."""

    def __init__(self, options: Options, topic: str, publisher: "Publisher") -> None:
        self._wanted = JsonFilter(options.require_json_field, options.require_json_value, options.whitelist_json_field)
        self._non_json = options.non_json
        self._topic = options.destination_topic or topic
        self._publisher = publisher

    def __call__(self, message: Message) -> None:
        try:
            body = self._wanted.apply(message.body)
        except JsonError:
            log.error("Unable to decode json: %r (%s)", message.body[:_MAX_LOGGED_BYTES], self._non_json)
            if self._non_json == "requeue":
                message.requeue(backoff=False)  # other messages are not affected
                return
            body = message.body if self._non_json == "pass" else None
        if body is not None:
            message.enable_async()
            self._publisher.publish(message, self._topic, body)


@dataclass
class Publisher:
    """Publishes in the background, and answers a message when its outcome is known."""

    producers: dict[str, Producer]
    destinations: Destinations
    times: RequestTimes
    retries: Executor
    """Publishes at the next destination, because the threads of two producers must not wait for each other."""
    _without_headers: set[str] = field(default_factory=set)

    def publish(self, message: Message, topic: str, body: bytes, failed: tuple[str, ...] = ()) -> None:
        """Publish at a destination that has not failed this message yet; requeue it if all have."""
        address = self.destinations.choose(failed)
        if address is None:
            message.requeue()
            return
        try:
            headers = NO_HEADERS if address in self._without_headers else message.headers
            future = self.producers[address].publish_async(topic, body, headers=headers)
        except Closed:
            message.requeue(delay=0, backoff=False)
            return
        began = time.monotonic()

        def done(outcome: Future[Published]) -> None:
            if (error := outcome.exception()) is not None:
                if _takes_no_headers(error):
                    log.warning("%s does not take headers: messages are sent without them", address)
                    self._without_headers.add(address)
                    self.retries.submit(self._retry, message, topic, body, failed)
                    return
                self.destinations.failed(address)
                log.warning("msg %s to %s: %s", message.id.decode("ascii", "replace"), address, error)
                self.retries.submit(self._retry, message, topic, body, (*failed, address))
                return
            message.finish()
            seconds = time.monotonic() - began
            self.destinations.succeeded(address, seconds)
            self.times.add(address, seconds)

        future.add_done_callback(done)

    def _retry(self, message: Message, topic: str, body: bytes, failed: tuple[str, ...]) -> None:
        """Publish at another destination, unless nsqd will deliver the message again anyway."""
        if not message.is_lost:
            message.touch()
            self.publish(message, topic, body, failed)


def _takes_no_headers(error: BaseException) -> bool:
    return isinstance(error, PublishError) and any(isinstance(each.error, HeadersNotTaken) for each in error.attempts)


class JsonFilter:
    """Filters JSON messages: by a field, by its value, and to some of the fields.

    Messages are read and written as Go does: numbers have 64 bits, invalid UTF-8 becomes U+FFFD, members are sorted. A
    message must have `field` with `value`, unless they are empty; without `fields` it passes whole.
    """

    def __init__(self, field: str = "", value: str = "", fields: Sequence[str] = ()) -> None:
        self._field = field
        self._value = value
        self._number: float | None = None
        with suppress(ValueError):
            self._number = parse_float(value)
        self._fields = sorted(set(fields))

    def __bool__(self) -> bool:
        """Whether messages are parsed at all."""
        return bool(self._field or self._fields)

    def apply(self, body: bytes) -> bytes | None:
        """The filtered message; None if it does not pass. Raises ``JsonError`` if it is not a JSON object."""
        if not self:
            return body
        try:
            members = _read(body)
            if self._field and not self._is_wanted(members):
                return None
            left = {name: _as_integer(members[name]) for name in self._fields if name in members}
            return dumps(left).encode("utf-8") if self._fields else body
        except RecursionError as error:
            raise JsonError(str(error)) from None

    def _is_wanted(self, members: dict[str, Any]) -> bool:
        if self._field not in members or not self._value:
            return self._field in members
        value = _normalized(members[self._field])
        if isinstance(value, bool):
            return self._value == ("true" if value else "false")
        if isinstance(value, float):
            return value == self._number
        return bool(value == self._value)


# --- JSON as in Go ----------------------------------------------------------------------------------------------------


def _read(body: bytes) -> dict[str, Any]:
    try:
        value = _decoder.decode(body.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise JsonError(str(error)) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise JsonError("not an object")
    return value


def _number(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise JsonError(f"{literal[:20]} is out of range")
    return number


def _as_integer(value: Any) -> Any:
    """nsq_to_nsq: a number without fraction becomes an integer if it fits 64 bits, except inside other values."""
    if isinstance(value, float) and value.is_integer() and -_INT64_END <= value < _INT64_END:
        return int(value)
    return _normalized(value)


def _normalized(value: Any) -> Any:
    """Sort members, and replace single surrogates."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_normalized(each) for each in value]
    if isinstance(value, dict):
        return {name: _normalized(value[name]) for name in sorted(value)}
    return value


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_SURROGATES.sub("\ufffd", name): value for name, value in members}


def _refuse_constant(literal: str) -> None:
    raise JsonError(f"{literal} is not JSON")


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant
)
