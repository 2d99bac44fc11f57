"""Policies put in force: on every topic and channel there is, and on each that comes.

What a policy changes hangs on the topic or channel itself (its guard, its box for dead letters, its throttle), so
where none applies nothing is there to be asked. Other policies may be applied at any time; what they say is in force
from then on, for what waits already as well.
"""

import logging
from collections.abc import Callable

from nsq_compat.queue.bounds import Keeper, Kept
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.dead_letters import DeadLetters
from nsq_compat.queue.exiting import CLOSED
from nsq_compat.queue.policies import Applied, Policies
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)


class Policing:
    """An observer of the broker. `now` is monotonic seconds, `now_ns` the wall clock."""

    def __init__(self, broker: Broker, now: Callable[[], float], now_ns: Callable[[], int]) -> None:
        self.policies = Policies()
        self.dead_letters = DeadLetters(broker)
        self._broker = broker
        self._now = now
        self._now_ns = now_ns
        self._keepers: dict[Topic, Keeper] = {}
        self._applied: dict[Channel, Applied] = {}
        broker.observers.append(self)

    def apply(self, policies: Policies) -> None:
        """From now on these, and no others."""
        before, self.policies = self.policies, policies
        if not before and not policies:
            return
        for topic in self._broker.topics.values():
            for channel in topic.channels.values():
                self._apply_to_channel(channel)
            self._guard(topic)

    # --- What comes and goes ------------------------------------------------------------------------------------------

    def topic_created(self, topic: Topic) -> None:
        if self.policies:
            self._guard(topic)

    def topic_deleted(self, topic: Topic) -> None:
        self._dismiss(topic)
        for channel in topic.channels.values():
            self._forget(channel)

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        if self.policies:
            self._apply_to_channel(channel)
            self._guard(topic)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        self._forget(channel)
        if topic in self._keepers:
            self._guard(topic)

    def _forget(self, channel: Channel) -> None:
        self.dead_letters.forget(channel)
        self._applied.pop(channel, None)

    # --- Putting in force ---------------------------------------------------------------------------------------------

    def _apply_to_channel(self, channel: Channel) -> None:
        applied = self._applied[channel] = self.policies.for_channel(channel.topic_name, channel.name)
        channel.describe_policy = applied.described
        self.dead_letters.apply(channel, applied.dead_lettering)
        channel.throttle(applied.rate, self._now())

    def _guard(self, topic: Topic) -> None:
        """Give a topic the keeper it needs, if it needs one."""
        if topic.guard is CLOSED:
            return
        self._dismiss(topic)
        bounds = self.policies.for_topic(topic.name)
        held = Kept(topic, bounds) if bounds is not None else None
        channels = [
            Kept(channel, applied.bounds)
            for channel in topic.channels.values()
            if (applied := self._applied.get(channel)) is not None and applied.bounds is not None
        ]
        if held is not None or channels:
            keeper = Keeper(self._broker.schedule, held, channels, topic, self._now_ns)
            topic.guard = self._keepers[topic] = keeper
            keeper.begin(self._now())

    def _dismiss(self, topic: Topic) -> None:
        keeper = self._keepers.pop(topic, None)
        if keeper is not None:
            keeper.end()
            if topic.guard is keeper:
                topic.guard = None
