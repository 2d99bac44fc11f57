"""``nsq_redrive``: messages of a dead-letter topic, published again where they came from.

Each nsqd's are published at that nsqd. A message is finished in the dead-letter topic only when nsqd has said OK to the
publish, so one that is interrupted may be published twice and is never lost. It ends when as many were moved as waited
when it began, or as `--count` says.

NSQ publishes to a topic, not to a channel: where the topic has more channels than the one the messages failed in, all
of them would get them again, so that has to be asked for.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING, STRINGS
from nsq_compat.cli.options import option
from nsq_compat.client import Consumer, Message, Producer
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.statistics import TopicStats
from nsq_compat.policy.dead_letters import REDRIVE_CHANNEL
from nsq_compat.policy.policies import DEFAULT_DEAD_LETTER_TOPIC, DeadLettering
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.tools.client_options import consumer_options, producer_options
from nsq_compat.tools.http_consumers.on_demand import OnDemand
from nsq_compat.tools.program import (
    Refused,
    Stopping,
    log_plainly,
    one_kind_of_address,
    options_of,
    run,
    say,
    user_agent,
)

PROGRAM: Final = "nsq_redrive"
_AT_ONCE: Final = 200
_STEPS_A_SECOND: Final = 10
"""How evenly a rate is kept."""
_QUIET_SECONDS: Final = 5.0
"""So long without a message means that somebody else has what is missing."""
_LOOK_SECONDS: Final = 0.1


@dataclass(slots=True, kw_only=True)
class Options:
    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    topic: str = option("topic", STRING, "", "topic the messages came from, and go to")
    channel: str = option("channel", STRING, "", "channel they failed in")
    dead_letter_topic: str = option(
        "dead-letter-topic",
        STRING,
        DEFAULT_DEAD_LETTER_TOPIC,
        "topic they are in; {topic} and {channel} stand for names",
    )
    dead_letter_channel: str = option("dead-letter-channel", STRING, REDRIVE_CHANNEL, "its channel to read from")
    destination_topic: str = option("destination-topic", STRING, "", "topic to publish to; by default --topic")
    all_channels: bool = option(
        "all-channels", BOOLEAN, False, "go on although other channels of the destination get the messages as well"
    )
    count: int = option("count", INTEGER, 0, "most messages to move; by default all that wait")
    rate: int = option("rate", INTEGER, 0, "most messages a second; by default no limit")
    dry_run: bool = option("dry-run", BOOLEAN, False, "say what would be moved, and move nothing")
    nsqd_http_addresses: tuple[str, ...] = option(
        "nsqd-http-address", STRINGS, (), "host:port of an nsqd (repeat for several)"
    )
    nsqlookupd_http_addresses: tuple[str, ...] = option(
        "lookupd-http-address", STRINGS, (), "host:port of an nsqlookupd (repeat for several)"
    )
    consumer_opt: tuple[str, ...] = option(
        "consumer-opt", STRINGS, (), "`name,value` of an option of the client library, reading (repeat for several)"
    )
    producer_opt: tuple[str, ...] = option(
        "producer-opt", STRINGS, (), "`name,value` of an option of the client library, publishing (repeat for several)"
    )


def main() -> None:
    """The console script."""
    run(redrive)


def redrive(words: Sequence[str]) -> None:
    """Raises ``Refused``."""
    options = options_of(PROGRAM, Options, words)
    source = _check(options)
    destination = options.destination_topic or options.topic
    reading = {**consumer_options(options.consumer_opt), "max_tries": 0}
    writing = producer_options(options.producer_opt)
    log_plainly()
    stopping = Stopping()  # before the cluster is asked, which starts a thread
    cluster = Cluster(HttpClient(HttpClientOptions()), options)
    found = _found(cluster, source)
    if not options.all_channels:
        _refuse_other_channels(cluster, [node for node, _ in found], destination, options.channel)
    left = options.count or sum(_waiting(topic, options.dead_letter_channel) for _, topic in found)
    for node, topic in found:
        count = min(left, _waiting(topic, options.dead_letter_channel))
        if not options.dry_run and count:
            with _moving(node, source, destination, options, reading, writing) as mover:
                count = mover.move(count, options.rate, stopping)
        would = "would go" if options.dry_run else "went"
        print(f"{node}: {count} messages of {source} {would} to {destination}", flush=True)
        left -= count


def _check(options: Options) -> str:
    """The name of the dead-letter topic."""
    if not options.topic or not options.channel:
        raise Refused("--topic and --channel are required")
    source = DeadLettering(1, options.dead_letter_topic).topic_for(options.topic, options.channel)
    for flag, name in (
        ("--topic", options.topic),
        ("--channel", options.channel),
        ("--dead-letter-topic", source),
        ("--dead-letter-channel", options.dead_letter_channel),
        ("--destination-topic", options.destination_topic or options.topic),
    ):
        if not is_valid_name(name):
            raise Refused(f"{flag} is invalid")
    if source == (options.destination_topic or options.topic):
        raise Refused("the dead-letter topic is the destination")
    for flag, number in (("--count", options.count), ("--rate", options.rate)):
        if number < 0:
            raise Refused(f"{flag} must not be negative")
    one_kind_of_address(options.nsqd_http_addresses, options.nsqlookupd_http_addresses, "--nsqd-http-address")
    return source


def _found(cluster: Cluster, topic: str) -> list[tuple[Node, TopicStats]]:
    """The nodes that have a topic, with what they say of it; all must answer."""
    try:
        nodes = cluster.producers(topic)
        if not nodes.value:
            raise Refused("; ".join([f"no nsqd has the topic {topic}", *map(str, nodes.errors)]))
        statistics = cluster.statistics(nodes.value, topic)
    except AllFailed as error:
        raise Refused(str(error)) from error
    for complaint in (*nodes.errors, *statistics.errors):
        say(f"WARNING: {complaint}")
    found = [(node, each) for node, stats in statistics.value for each in stats.topics if each.topic_name == topic]
    return found


def _refuse_other_channels(cluster: Cluster, nodes: Sequence[Node], topic: str, channel: str) -> None:
    try:
        statistics = cluster.statistics(nodes, topic)
    except AllFailed as error:
        raise Refused(str(error)) from error
    names = {each.channel_name for _, stats in statistics.value for at in stats.topics for each in at.channels}
    if others := sorted(names - {channel}):
        listed = " ".join(others)
        raise Refused(f"{topic} has other channels, which would get the messages too (--all-channels): {listed}")


def _waiting(topic: TopicStats, name: str) -> int:
    """What can be moved: what the channel has, and what the topic holds for its first channel."""
    channels = [each for each in topic.channels if each.channel_name == name]
    return topic.depth + sum(each.depth + each.deferred_count + each.in_flight_count for each in channels)


@contextmanager
def _moving(
    node: Node, source: str, destination: str, options: Options, reading: Mapping[str, Any], writing: Mapping[str, Any]
) -> Iterator["Mover"]:
    with ExitStack() as ending:
        try:
            producer = ending.enter_context(Producer(node.tcp_address, user_agent=user_agent(PROGRAM), **writing))
            consumer = partial(
                Consumer,
                source,
                options.dead_letter_channel,
                nsqd_tcp_addresses=node.tcp_address,
                max_in_flight=_AT_ONCE,
                user_agent=user_agent(PROGRAM),
                **reading,
            )
            messages = OnDemand(consumer, _AT_ONCE)
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        messages.start()
        ending.callback(messages.stop)
        yield Mover(messages, producer, destination)


class Mover:
    """Between two topics of one nsqd."""

    def __init__(self, messages: OnDemand, producer: Producer, topic: str) -> None:
        self._messages = messages
        self._producer = producer
        self._topic = topic
        self._moved = 0

    def move(self, count: int, rate: int, stopping: Stopping) -> int:
        """So many, or as many as there are; returns how many. Raises ``Refused`` when nsqd does not take them."""
        at_once = min(_AT_ONCE, max(1, rate // _STEPS_A_SECOND)) if rate else _AT_ONCE
        begun = time.monotonic()
        while self._moved < count and not stopping:
            some = self._take(min(at_once, count - self._moved), stopping)
            if not some:
                break
            self._publish(some)
            if rate:
                stopping.wait(max(0.0, begun + self._moved / rate - time.monotonic()))
        return self._moved

    def _take(self, count: int, stopping: Stopping) -> list[Message]:
        deadline = time.monotonic() + _QUIET_SECONDS
        wake = threading.Event()
        with self._messages.wish(count, wake) as wish:
            while not wish.messages and not stopping and time.monotonic() < deadline:
                self._messages.wait(wish, _LOOK_SECONDS)
                wake.clear()
        return wish.messages

    def _publish(self, some: list[Message]) -> None:
        """In batches that nsqd takes, however big the messages are."""
        outcomes = [(message, self._producer.publish_async(self._topic, message.body)) for message in some]
        errors: dict[Message, BaseException] = {}
        for message, outcome in outcomes:
            if (error := outcome.exception()) is not None:
                errors[message] = error
        self._messages.finish([message for message in some if message not in errors])
        self._moved += len(some) - len(errors)
        if errors:
            self._messages.give_back(list(errors))
            raise Refused(f"after {self._moved} messages: {next(iter(errors.values()))}")


if __name__ == "__main__":
    main()
