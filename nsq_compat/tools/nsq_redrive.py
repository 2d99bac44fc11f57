"""``nsq_redrive``: publish the messages of a dead-letter topic again to the topic that they came from.

Messages stay on their nsqd. A message is finished in the dead-letter topic only when nsqd has answered OK to the
publish, so after an interruption it may be published twice but is never lost. The program ends when it has moved as
many messages as were waiting when it began, or as many as `--count` says.

NSQ publishes to a topic, not to a channel. If the topic has other channels than the one in which the messages failed,
they get the messages again too, which requires `--all-channels`.
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
from nsq_compat.cluster.http_client import AllFailed, HttpClient
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.stats import TopicStats
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
_MAX_IN_FLIGHT: Final = 200
_BATCHES_PER_SECOND: Final = 10
"""With a rate."""
_QUIET_SECONDS: Final = 5.0
"""Without a message for so long, another consumer has the missing ones."""
_POLL_SECONDS: Final = 0.1


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
        "all-channels", BOOLEAN, False, "continue although other channels of the destination get the messages as well"
    )
    count: int = option("count", INTEGER, 0, "most messages to move; by default all that wait")
    rate: int = option("rate", INTEGER, 0, "most messages a second; by default no limit")
    dry_run: bool = option("dry-run", BOOLEAN, False, "report what would be moved, and move nothing")
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
    stopping = Stopping()  # before requests to the cluster, which start a thread
    cluster = Cluster(HttpClient(), options.nsqlookupd_http_addresses, options.nsqd_http_addresses)
    found = _find(cluster, source)
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


def _find(cluster: Cluster, topic: str) -> list[tuple[Node, TopicStats]]:
    """The nodes that have a topic, with their statistics of it. Nodes that do not answer are reported on stderr."""
    try:
        nodes = cluster.producers(topic)
        if not nodes.value:
            raise Refused("; ".join([f"no nsqd has the topic {topic}", *map(str, nodes.errors)]))
        statistics = cluster.stats(nodes.value, topic)
    except AllFailed as error:
        raise Refused(str(error)) from error
    for complaint in (*nodes.errors, *statistics.errors):
        say(f"WARNING: {complaint}")
    return [(node, each) for node, stats in statistics.value for each in stats.topics if each.topic_name == topic]


def _refuse_other_channels(cluster: Cluster, nodes: Sequence[Node], topic: str, channel: str) -> None:
    try:
        statistics = cluster.stats(nodes, topic)
    except AllFailed as error:
        raise Refused(str(error)) from error
    names = {each.channel_name for _, stats in statistics.value for at in stats.topics for each in at.channels}
    if others := sorted(names - {channel}):
        listed = " ".join(others)
        raise Refused(f"{topic} has other channels, which would get the messages too (--all-channels): {listed}")


def _waiting(topic: TopicStats, name: str) -> int:
    """Messages that can be moved: those of the channel, and those that the topic keeps for its first channel."""
    channels = [each for each in topic.channels if each.channel_name == name]
    return topic.depth + sum(each.depth + each.deferred_count + each.in_flight_count for each in channels)


@contextmanager
def _moving(
    node: Node, source: str, destination: str, options: Options, reading: Mapping[str, Any], writing: Mapping[str, Any]
) -> Iterator["Mover"]:
    with ExitStack() as running:
        try:
            producer = running.enter_context(Producer(node.tcp_address, user_agent=user_agent(PROGRAM), **writing))
            consumer = partial(
                Consumer,
                source,
                options.dead_letter_channel,
                nsqd_tcp_addresses=node.tcp_address,
                max_in_flight=_MAX_IN_FLIGHT,
                user_agent=user_agent(PROGRAM),
                **reading,
            )
            messages = OnDemand(consumer, _MAX_IN_FLIGHT)
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        messages.start()
        running.callback(messages.stop)
        yield Mover(messages, producer, destination)


class Mover:
    """Moves messages between two topics of one nsqd."""

    def __init__(self, messages: OnDemand, producer: Producer, topic: str) -> None:
        self._messages = messages
        self._producer = producer
        self._topic = topic
        self._moved = 0

    def move(self, count: int, rate: int, stopping: Stopping) -> int:
        """Move up to `count` messages; returns how many. Raises ``Refused`` when nsqd does not take them."""
        batch_size = min(_MAX_IN_FLIGHT, max(1, rate // _BATCHES_PER_SECOND)) if rate else _MAX_IN_FLIGHT
        began = time.monotonic()
        while self._moved < count and not stopping:
            batch = self._take(min(batch_size, count - self._moved), stopping)
            if not batch:
                break
            self._publish(batch)
            if rate:
                stopping.wait(max(0.0, began + self._moved / rate - time.monotonic()))
        return self._moved

    def _take(self, count: int, stopping: Stopping) -> list[Message]:
        deadline = time.monotonic() + _QUIET_SECONDS
        wake = threading.Event()
        with self._messages.request(count, wake) as demand:
            while not demand.messages and not stopping and time.monotonic() < deadline:
                self._messages.wait(demand, _POLL_SECONDS)
                wake.clear()
        return demand.messages

    def _publish(self, batch: list[Message]) -> None:
        # The producer makes batches that nsqd accepts, however large the messages are.
        outcomes = [(message, self._producer.publish_async(self._topic, message.body)) for message in batch]
        errors = {message: error for message, outcome in outcomes if (error := outcome.exception()) is not None}
        self._messages.finish([message for message in batch if message not in errors])
        self._moved += len(batch) - len(errors)
        if errors:
            self._messages.put_back(list(errors))
            raise Refused(f"after {self._moved} messages: {next(iter(errors.values()))}")


if __name__ == "__main__":
    main()
