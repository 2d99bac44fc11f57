"""``nsq_redrive``: publish the messages of a dead-letter topic again to the topic that they came from.

Messages stay on their nsqd. A message is finished in the dead-letter topic only when nsqd has answered OK to the
publish, so after an interruption it may be published twice but is never lost. The program ends when it has moved as
many messages as were waiting when it began, or as many as `--count` says.

NSQ publishes to a topic, not to a channel. If the topic has other channels than the one in which the messages failed,
they get the messages again too, which requires `--all-channels`.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING
from nsq_compat.cli.options import option, repeated
from nsq_compat.client import Consumer, Message, Producer, Published
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import AllFailed, named
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.stats import TopicStats
from nsq_compat.policy.dead_letters import REDRIVE_CHANNEL
from nsq_compat.policy.policies import DEFAULT_DEAD_LETTER_TOPIC, DeadLettering
from nsq_compat.protocol.headers import with_origin_id
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.tools.client_options import (
    ClusterOptions,
    ProducerOptions,
    client_settings,
    producers_of,
    refusing,
    shown_option,
    unreachable,
    with_remedy,
)
from nsq_compat.tools.http_consumers.on_demand import OnDemand
from nsq_compat.tools.program import Refused, Stopping, console_script, log_plainly, refuse, say

_MAX_IN_FLIGHT: Final = 200
_BATCHES_PER_SECOND: Final = 10
"""With a rate."""
_QUIET_SECONDS: Final = 5.0
"""Without a message for so long, another consumer has the missing ones."""
_POLL_SECONDS: Final = 0.1


@dataclass(kw_only=True)
class Options(ClusterOptions, ProducerOptions):
    program = "nsq_redrive"
    topic: str = option(STRING, "", "topic the messages came from, and go to")
    channel: str = option(STRING, "", "channel they failed in")
    dead_letter_topic: str = option(
        STRING, DEFAULT_DEAD_LETTER_TOPIC, "topic they are in; {topic} and {channel} stand for names"
    )
    dead_letter_channel: str = option(STRING, REDRIVE_CHANNEL, "its channel to read from")
    destination_topic: str = option(STRING, "", "topic to publish to; by default --topic")
    all_channels: bool = option(
        BOOLEAN, False, "continue although other channels of the destination get the messages as well"
    )
    count: int = option(INTEGER, 0, "most messages to move; by default all that wait")
    rate: int = option(INTEGER, 0, "most messages a second; by default no limit")
    dry_run: bool = option(BOOLEAN, False, "report what would be moved, and move nothing")
    consumer_opt: tuple[str, ...] = repeated(
        "`name,value` of an option of the client library, reading", secret=shown_option
    )


@console_script(Options)
def main(options: Options) -> None:
    source = _check(options)
    destination = options.destination_topic or options.topic
    # Before requests to the cluster: wrong options are reported first, and requests start threads.
    reading = {**client_settings("consumer-opt", options.consumer_opt), "max_tries": 0}
    client_settings("producer-opt", options.producer_opt)
    log_plainly()
    stopping = Stopping()
    cluster = options.cluster()
    if (found := options.reached(lambda: _find(cluster, source), stopping)) is None:
        return
    if not options.all_channels:
        _refuse_other_channels(cluster, [node for node, _ in found], destination, options.channel)
    left = options.count or sum(_waiting(topic, options.dead_letter_channel) for _, topic in found)
    for node, topic in found:
        count = min(left, _waiting(topic, options.dead_letter_channel))
        if not options.dry_run and count:
            count = _move(node, source, destination, options, reading, count, stopping)
        would = "would go" if options.dry_run else "went"
        print(f"{node}: {count} messages of {source} {would} to {destination}", flush=True)
        left -= count


def _check(options: Options) -> str:
    """The name of the dead-letter topic."""
    refuse((not options.topic or not options.channel, "--topic and --channel are required"))
    source = DeadLettering(1, options.dead_letter_topic).topic_for(options.topic, options.channel)
    destination = options.destination_topic or options.topic
    names = {
        "--topic": options.topic,
        "--channel": options.channel,
        "--dead-letter-topic": source,
        "--dead-letter-channel": options.dead_letter_channel,
        "--destination-topic": destination,
    }
    refuse(
        *((not is_valid_name(name), f"{flag} is invalid") for flag, name in names.items()),
        (source == destination, "the dead-letter topic is the destination"),
        (options.count < 0, "--count must not be negative"),
        (options.rate < 0, "--rate must not be negative"),
        *options.address_rules(),
    )
    return source


def _find(cluster: Cluster, topic: str) -> list[tuple[Node, TopicStats]]:
    """The nodes that have a topic, with their statistics of it. Nodes that do not answer are reported on stderr."""
    nodes = producers_of(cluster, topic, all_named=True)
    if not nodes.value:
        raise Refused("; ".join([f"no nsqd has the topic {topic}", *nodes.errors]))
    with refusing(AllFailed):
        statistics = cluster.stats(nodes.value, topic)
    for complaint in (*nodes.errors, *(f"nsqd {named(each)}" for each in statistics.errors)):
        say(f"WARNING: {complaint}")
    return [(node, each) for node, stats in statistics.value for each in stats.topics if each.topic_name == topic]


def _refuse_other_channels(cluster: Cluster, nodes: Sequence[Node], topic: str, channel: str) -> None:
    with refusing(AllFailed):
        statistics = cluster.stats(nodes, topic)
    names = {each.channel_name for _, stats in statistics.value for at in stats.topics for each in at.channels}
    if others := sorted(names - {channel}):
        listed = " ".join(others)
        raise Refused(f"{topic} has other channels, which would get the messages too (--all-channels): {listed}")


def _waiting(topic: TopicStats, name: str) -> int:
    """Messages that can be moved: those of the channel, and those that the topic keeps for its first channel."""
    channels = [each for each in topic.channels if each.channel_name == name]
    return topic.depth + sum(each.depth + each.deferred_count + each.in_flight_count for each in channels)


def _move(
    node: Node, source: str, destination: str, options: Options, reading: Mapping[str, Any], count: int, stop: Stopping
) -> int:
    """Move up to `count` messages on this node; returns how many. Raises ``Refused`` when nsqd does not take them."""
    make_consumer = partial(
        Consumer,
        source,
        options.dead_letter_channel,
        nsqd_tcp_addresses=node.tcp_address,
        max_in_flight=_MAX_IN_FLIGHT,
        user_agent=options.user_agent,
        **reading,
    )
    rate = options.rate
    batch_size = min(_MAX_IN_FLIGHT, max(1, rate // _BATCHES_PER_SECOND)) if rate else _MAX_IN_FLIGHT
    if not options.retry:
        make_consumer = partial(make_consumer, unreachable=lambda *failure: stop.fail(unreachable(*failure)))
    with options.producer(node.tcp_address) as producer:
        with refusing():
            messages = OnDemand(make_consumer, _MAX_IN_FLIGHT)
        with messages:
            moved, began = 0, time.monotonic()
            while (
                moved < count and not stop.is_set() and (batch := _take(messages, min(batch_size, count - moved), stop))
            ):
                # The producer makes batches that nsqd accepts, however large the messages are.
                outcomes = [(message, _publish(producer, destination, message)) for message in batch]
                errors = {message: error for message, outcome in outcomes if (error := outcome.exception()) is not None}
                messages.finish([message for message in batch if message not in errors])
                moved += len(batch) - len(errors)
                if errors:
                    messages.put_back(list(errors))
                    text = with_remedy(str(next(iter(errors.values()))), "producer-opt")
                    raise Refused(f"after {moved} messages: {text}")
                if rate:
                    stop.wait(max(0.0, began + moved / rate - time.monotonic()))
            stop.wait(0)  # raises if nsqd cannot be reached
            return moved


def _publish(producer: Producer, topic: str, message: Message) -> Future[Published]:
    return producer.publish_async(topic, message.body, headers=with_origin_id(message.headers))


def _take(messages: OnDemand, count: int, stop: Stopping) -> list[Message]:
    deadline = time.monotonic() + _QUIET_SECONDS
    wake = threading.Event()
    with messages.request(count, wake) as demand:
        while not demand.messages and not stop.is_set() and time.monotonic() < deadline:
            messages.wait(demand, _POLL_SECONDS)
            wake.clear()
    return demand.messages
