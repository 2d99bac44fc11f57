"""Applies policies to all existing topics and channels, and to new ones.

A policy is attached to the topic or channel itself, as its admission check, dead-letter queue or throttle. Topics and
channels without policies have none of these. Policies can be changed at any time, and then also apply to messages that
already wait.

A ``LimitEnforcer`` is the admission check of a topic with limits on its backlog or those of its channels: max_depth,
max_bytes, max_age. If a limit is exceeded, publishes are refused or the oldest messages dropped. It checks the number
of messages at each publish. It checks their bytes and age when its alarm fires: soon after a publish, and every second
while messages wait. Then it also drops the excess, in parts.

Invariants: a publish is refused as a whole, before any of it is stored; messages that are dropped or refused are
counted, and logged from time to time.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from nsq_compat.policy.dead_letters import DeadLetterQueues
from nsq_compat.policy.log_throttle import LogThrottle
from nsq_compat.policy.policies import Applied, Bounds, Policies
from nsq_compat.protocol.message import timestamp_ns
from nsq_compat.queue.backlog import ANY_SIZE
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.publish_ids import PublishIds
from nsq_compat.queue.schedule import NEVER, Schedule
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import Refused, refuse_all

log = logging.getLogger(__name__)

CHECK_DELAY_SECONDS: Final = 0.1
"""Between a publish and the check of bytes and age."""
CHECK_INTERVAL_SECONDS: Final = 1.0
"""Between two checks while messages wait."""
_CHECKED_AT_ONCE: Final = 8
"""Channels that are checked before other work is done, at up to 2 ms each if many of their messages are in memory."""
_MAX_DROPPED: Final = 1024
"""Messages that are dropped by size or age before other work is done."""
_DROP_PAUSE_SECONDS: Final = 0.001
"""Between two such drops."""
_NS_PER_SECOND: Final = 1_000_000_000


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
        self.refused_creations = {"max_topics": 0, "max_channels": 0, "max_creations_per_second": 0}
        self._creations: dict[int, CreationRate] = {}  # by the number of the policy
        self._topic_counts: Counter[int] = Counter()  # likewise
        self._refused = LogThrottle()
        broker.observers.append(self)

    def apply(self, policies: Policies) -> None:
        """Replace the policies."""
        before, self.policies = self.policies, policies
        if not before and not policies:
            return
        self._creations = {}
        self._topic_counts = Counter(policies.creating(name)[0] for name in self._broker.topics)
        self._broker.creation_check = self._check_creation if policies.limits_creations else None
        for topic in self._broker.topics.values():
            for channel in topic.channels.values():
                self._apply_to_channel(channel)
            self._apply_to_topic(topic)
            self._limit(topic)

    # --- Observer of the broker ---------------------------------------------------------------------------------------

    def topic_created(self, topic: Topic) -> None:
        if self.policies:
            self._topic_counts[self.policies.creating(topic.name)[0]] += 1
            self._apply_to_topic(topic)
            self._limit(topic)

    def new_ids(self, topic: str) -> PublishIds | None:
        """An empty record of publish ids for a topic; None if no policy sets a window."""
        window = self.policies.for_channel(topic, "").dedup_window
        return None if window is None else PublishIds(topic, window, self._now_ns)

    def topic_deleted(self, topic: Topic) -> None:
        self._topic_counts[self.policies.creating(topic.name)[0]] -= 1
        self._remove_enforcer(topic)
        for channel in topic.channels.values():
            self.channel_deleted(topic, channel)

    def channel_created(self, topic: Topic, channel: Channel) -> None:
        if self.policies:
            self._apply_to_channel(channel)
            bounds = self._applied[channel].bounds
            # Not all channels again, of which a topic may have thousands.
            if bounds is not None and (enforcer := self._enforcers.get(topic)) is not None:
                enforcer.add(channel, bounds, self._now())
            elif bounds is not None:
                self._limit(topic)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        self.dead_letters.forget(channel)
        self._applied.pop(channel, None)
        if (enforcer := self._enforcers.get(topic)) is not None:
            enforcer.remove(channel)
            if enforcer.is_empty:
                self._remove_enforcer(topic)

    # --- Creations ----------------------------------------------------------------------------------------------------

    def _check_creation(self, topic: str, channel: str) -> None:
        number, limits = self.policies.creating(topic)
        if limits is None:
            return
        existing = self._broker.topics.get(topic)
        if not channel and limits.max_topics is not None and self._topic_counts[number] >= limits.max_topics:
            self._refuse_creation("max_topics", f"topic {topic}")
        channels = existing.channels if channel and existing is not None else ()
        if channel and limits.max_channels is not None and len(channels) >= limits.max_channels:
            self._refuse_creation("max_channels", f"channel {topic}:{channel}")
        if limits.per_second is not None:
            rate = self._creations.setdefault(number, CreationRate(limits.per_second, self._now()))
            if not rate.take(self._now()):
                what = f"channel {topic}:{channel}" if channel else f"topic {topic}"
                self._refuse_creation("max_creations_per_second", what)

    def _refuse_creation(self, limit: str, what: str) -> NoReturn:
        self.refused_creations[limit] += 1
        if to_log := self._refused.add(1, self._now()):
            log.warning("%d creations refused, the last of %s (%s)", to_log, what, limit)
        raise CreationRefused(limit, f"{what} is not created ({limit})")

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _apply_to_channel(self, channel: Channel) -> None:
        applied = self._applied[channel] = self.policies.for_channel(channel.topic_name, channel.name)
        channel.policy = applied.to_settings(channel.topic_name, channel.name)
        self.dead_letters.apply(channel, applied.dead_lettering)
        channel.throttle(applied.delivery_limits, self._now())

    def _apply_to_topic(self, topic: Topic) -> None:
        applied = self.policies.for_channel(topic.name, "")
        topic.retain(applied.kept)
        if applied.dedup_window is None:
            topic.forget_ids()
        elif topic.publish_ids is None:
            topic.publish_ids = self.new_ids(topic.name)
        else:
            topic.publish_ids.set_window(applied.dedup_window)

    def _limit(self, topic: Topic) -> None:
        """Replace a topic's enforcer by a new one, or by none if no limit applies."""
        if topic.admission is refuse_all:
            return
        self._remove_enforcer(topic)
        bounds = self.policies.for_channel(topic.name, "").bounds
        held = [Limited(topic, bounds)] if bounds is not None else []
        channels = {
            channel: Limited(channel, applied.bounds)
            for channel in topic.channels.values()
            if (applied := self._applied.get(channel)) is not None and applied.bounds is not None
        }
        if held or channels:
            schedule = self._broker.schedule
            enforcer = self._enforcers[topic] = LimitEnforcer(schedule, held, channels, topic, self._now_ns)
            topic.admission = enforcer.admit
            enforcer.check_at(self._now())

    def _remove_enforcer(self, topic: Topic) -> None:
        if enforcer := self._enforcers.pop(topic, None):
            self._broker.schedule.cancel(enforcer)
            if topic.admission is not refuse_all:
                topic.admission = None


class CreationRefused(Refused):
    """A limit on creations is reached, `limit`. The text is for the client."""

    def __init__(self, limit: str, text: str) -> None:
        super().__init__(text)
        self.limit = limit


class CreationRate:
    """So many creations a second, and those of one second at once."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = self._most = max(1.0, per_second)
        self._filled = now

    def take(self, now: float) -> bool:
        self._left = min(self._most, self._left + (now - self._filled) * self._per_second)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Full(Refused):
    """The backlog has reached a limit. The text is for the client."""


class Limited:
    """A channel or topic with limits, and the result of the last check."""

    def __init__(self, target: Channel | Topic, bounds: Bounds) -> None:
        self.target = target
        self.bounds = bounds
        self.full = ""
        """The limit, of those that are not checked at every publish, for which publishes are rejected."""
        self.is_unreadable = False
        self._dropped = LogThrottle()
        self._rejected = LogThrottle()

    def reject(self, count: int, now: float, bound: str) -> None:
        """Count rejected messages and raise ``Full``."""
        self.target.rejected_count += count
        if to_log := self._rejected.add(count, now):
            log.warning("%s is full (%s): %d messages refused", self.target.full_name, bound, to_log)
        raise Full(f"{self.target.full_name} is full ({bound})")

    def enforce(self, now: float, now_ns: int) -> bool:
        """Check the limits, and drop messages or set `full`. Returns whether to check soon again. May raise OSError."""
        if not self.bounds.drops:
            self.full = self._exceeded(now_ns)
            return False
        limit, max_bytes = self._excess(now_ns)
        count = self.target.drop_oldest(limit, max_bytes) if limit else 0
        if count and (to_log := self._dropped.add(count, now)):
            log.warning("%s exceeds its limits: %d oldest messages dropped", self.target.full_name, to_log)
        return count > 0

    def _exceeded(self, now_ns: int) -> str:
        bounds, target = self.bounds, self.target
        if bounds.max_bytes is not None and target.backlog.byte_count() >= bounds.max_bytes:
            return "max_bytes"
        if bounds.max_age is not None and self._too_old(now_ns, target.backlog.peek_waiting(1)):
            return "max_age"
        return ""

    def _excess(self, now_ns: int) -> tuple[int, int]:
        """Return how many messages to drop, and at most how many bytes."""
        bounds, backlog = self.bounds, self.target.backlog
        if bounds.max_depth is not None and (excess := len(backlog) - bounds.max_depth) > 0:
            return excess, ANY_SIZE
        if bounds.max_bytes is not None and (excess := backlog.byte_count() - bounds.max_bytes) > 0:
            surplus = backlog.count_beyond(bounds.max_bytes)
            return (surplus, ANY_SIZE) if surplus else (_MAX_DROPPED, excess)
        if bounds.max_age is not None:
            return self._too_old(now_ns, backlog.peek_waiting(_MAX_DROPPED)), ANY_SIZE
        return 0, 0

    def _too_old(self, now_ns: int, frames: Sequence[bytes]) -> int:
        """The number of frames, from the first on, that are older than max_age."""
        assert self.bounds.max_age is not None, "asked only then"
        oldest = now_ns - int(self.bounds.max_age * _NS_PER_SECOND)
        return next((number for number, frame in enumerate(frames) if timestamp_ns(frame) >= oldest), len(frames))


class LimitEnforcer:
    """Enforces the limits of a topic's own messages, `held`, and of its channels, while its alarm is set.

    All are checked in rounds, a few at a time: a topic may have thousands of channels.
    """

    def __init__(
        self,
        schedule: Schedule,
        held: Sequence[Limited],
        channels: Mapping[Channel, Limited],
        topic: Topic,
        now_ns: Callable[[], int],
    ) -> None:
        self.alarm = NEVER
        self._schedule = schedule
        self._held = held
        self._channels = dict(channels)
        self._topic = topic
        self._now_ns = now_ns
        self._unchecked: deque[Limited] = deque()
        """Those that are still to be checked in this round."""
        self._due = NEVER  # the next round

    @property
    def is_empty(self) -> bool:
        return not self._held and not self._channels

    def add(self, channel: Channel, bounds: Bounds, now: float) -> None:
        """Limit a new channel, which may have got the topic's messages."""
        limited = self._channels[channel] = Limited(channel, bounds)
        self._unchecked.append(limited)
        self._schedule.at(now, self)

    def remove(self, channel: Channel) -> None:
        """Forget a channel that was deleted."""
        if (limited := self._channels.pop(channel, None)) is not None:
            with suppress(ValueError):
                self._unchecked.remove(limited)

    def check_at(self, when: float) -> None:
        """Check all limits then."""
        self._due = min(self._due, when)
        self._schedule.at(when, self)

    def admit(self, count: int, now: float) -> None:
        """Admit a publish of `count` messages, or raise ``Full``."""
        for limited in self._held if self._topic.is_holding else self._channels.values():
            bounds = limited.bounds
            too_deep = bounds.max_depth is not None and len(limited.target.backlog) + count > bounds.max_depth
            rejects = not bounds.drops and (too_deep or limited.full != "")
            if bounds.drops or rejects or bounds.max_bytes is not None or bounds.max_age is not None:
                self.check_at(now if too_deep and bounds.drops else now + CHECK_DELAY_SECONDS)
            if rejects:
                limited.reject(count, now, "max_depth" if too_deep else limited.full)

    def on_alarm(self, now: float) -> float:
        if not self._unchecked and now >= self._due:
            self._due = NEVER
            self._unchecked.extend([*self._channels.values(), *self._held])
        for _ in range(min(_CHECKED_AT_ONCE, len(self._unchecked))):
            self._due = min(self._due, self._check(self._unchecked.popleft(), now))
        return now if self._unchecked else self._due

    def _check(self, limited: Limited, now: float) -> float:
        """Enforce the limits of one; returns when to check again."""
        try:
            more = limited.enforce(now, self._now_ns())
            limited.is_unreadable = False
        except BlockingIOError:  # a long read, which the next check continues
            more = True
        except OSError as error:
            more = False
            if not limited.is_unreadable:
                log.warning("%s: cannot check its limits, trying again - %s", limited.target.full_name, error)
            limited.is_unreadable = True
        if more:
            return now + _DROP_PAUSE_SECONDS
        return now + CHECK_INTERVAL_SECONDS if len(limited.target.backlog) else NEVER
