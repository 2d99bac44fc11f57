"""Applies policies to all existing topics and channels, and to new ones.

A policy is attached to the topic or channel itself, as its admission check, dead-letter queue or throttle. Topics and
channels without policies have none of these. Policies can be changed at any time, and then also apply to messages that
already wait.
"""

import logging
from collections.abc import Callable

from nsq_compat.policy.dead_letters import DeadLetterQueues
from nsq_compat.policy.limits import Limited, LimitEnforcer
from nsq_compat.policy.policies import Applied, Policies
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.limits import REFUSES_ALL
from nsq_compat.queue.topic import Topic

log = logging.getLogger(__name__)


class PolicyEnforcer:
    """An observer of the broker. `now` is monotonic seconds, `now_ns` the wall clock."""

    def __init__(self, broker: Broker, now: Callable[[], float], now_ns: Callable[[], int]) -> None:
        self.policies = Policies()
        self.dead_letters = DeadLetterQueues(broker)
        self._broker = broker
        self._now = now
        self._now_ns = now_ns
        self._enforcers: dict[Topic, LimitEnforcer] = {}
        self._applied: dict[Channel, Applied] = {}
        broker.observers.append(self)

    def apply(self, policies: Policies) -> None:
        """Replace the policies."""
        before, self.policies = self.policies, policies
        if not before and not policies:
            return
        for topic in self._broker.topics.values():
            for channel in topic.channels.values():
                self._apply_to_channel(channel)
            self._limit(topic)

    # --- Observer of the broker ---------------------------------------------------------------------------------------

    def topic_created(self, topic: Topic) -> None:
        if self.policies:
            self._limit(topic)

    def topic_deleted(self, topic: Topic) -> None:
        self._remove_enforcer(topic)
        for channel in topic.channels.values():
            self.channel_deleted(topic, channel)

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        if self.policies:
            self._apply_to_channel(channel)
            self._limit(topic)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        self.dead_letters.forget(channel)
        self._applied.pop(channel, None)
        if topic in self._enforcers:
            self._limit(topic)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _apply_to_channel(self, channel: Channel) -> None:
        applied = self._applied[channel] = self.policies.for_channel(channel.topic_name, channel.name)
        channel.policy = applied.to_settings(channel.topic_name, channel.name)
        self.dead_letters.apply(channel, applied.dead_lettering)
        channel.throttle(applied.rate, self._now())

    def _limit(self, topic: Topic) -> None:
        """Replace a topic's enforcer by a new one, or by none if no limit applies."""
        if topic.admission is REFUSES_ALL:
            return
        self._remove_enforcer(topic)
        bounds = self.policies.for_topic(topic.name)
        held = [Limited(topic, bounds)] if bounds is not None else []
        channels = [
            Limited(channel, applied.bounds)
            for channel in topic.channels.values()
            if (applied := self._applied.get(channel)) is not None and applied.bounds is not None
        ]
        if held or channels:
            schedule = self._broker.schedule
            topic.admission = self._enforcers[topic] = LimitEnforcer(schedule, held, channels, topic, self._now_ns)
            schedule.at(self._now(), self._enforcers[topic])

    def _remove_enforcer(self, topic: Topic) -> None:
        enforcer = self._enforcers.pop(topic, None)
        if enforcer is not None:
            self._broker.schedule.cancel(enforcer)
            if topic.admission is enforcer:
                topic.admission = None
