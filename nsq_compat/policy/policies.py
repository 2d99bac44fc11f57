"""Policies: optional settings for topics and channels that NSQ does not have.

A policy selects topics and channels by regular expressions (RE2, matching the whole name) and sets one or more of:
the dead-letter topic after max_attempts, limits on the backlog and on deliveries, how long the topic retains what is
finished and knows publish ids. For each of these, the first matching policy that sets it applies.

This module only parses policies and computes what applies to a channel. ``enforcer`` applies it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from nsq_compat.log.offsets import Retention
from nsq_compat.protocol.durations import SECOND, format_duration, parse_duration
from nsq_compat.protocol.names import EPHEMERAL_SUFFIX, is_valid_name
from nsq_compat.queue.wait_queue import DeliveryLimits, Rate

DEFAULT_DEAD_LETTER_TOPIC: Final = "{topic}.{channel}.dead"
DROP: Final = "drop"
DEAD_LETTER: Final = "dead-letter"
REJECT: Final = "reject"
DROP_OLDEST: Final = "drop-oldest"
_MAX_ATTEMPTS: Final = 0xFFFF
_MAX_INTEGER: Final = (1 << 63) - 1
_MAX_REMEMBERED: Final = 1000
"""Topics of which the policies are remembered. A pattern takes 2 us, and a topic may have thousands of channels."""
_BURSTS_PER_SECOND: Final = 10
"""By default an idle channel may deliver the messages of a tenth of a second at once."""


class PolicyError(ValueError):
    """An invalid policy. `number` counts from 1, 0 stands for the whole list; `key` may be empty."""

    def __init__(self, number: int, key: str, text: str) -> None:
        super().__init__(": ".join(part for part in (f"policy {number}" if number else "", key, text) if part))
        self.number = number
        self.key = key


@dataclass(frozen=True, slots=True)
class DeadLettering:
    """After `max_attempts` attempts, messages go to the dead-letter topic."""

    max_attempts: int
    topic: str
    """A template: ``{topic}`` and ``{channel}`` stand for the names of the message's topic and channel."""
    takes_expired: bool = False
    """Whether expired messages go there, too; otherwise they are dropped."""

    def topic_for(self, topic: str, channel: str) -> str:
        """The name of the dead-letter topic, which may be too long to be valid."""
        name = self.topic.replace("{topic}", topic.removesuffix(EPHEMERAL_SUFFIX))
        return name.replace("{channel}", channel.removesuffix(EPHEMERAL_SUFFIX))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on a backlog; None is unlimited. `max_age` is in seconds since the publish."""

    max_depth: int | None
    max_bytes: int | None
    max_age: float | None
    drops: bool
    """Beyond the limits, the oldest messages are dropped; otherwise publishes are rejected."""


@dataclass(frozen=True, slots=True)
class Creations:
    """Limits on what clients may create; None is unlimited."""

    max_topics: int | None
    """Topics that the policy selects."""
    max_channels: int | None
    """Of one topic."""
    per_second: float | None
    """Topics and channels together."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The settings of a policy, or those that apply to one channel."""

    dead_lettering: DeadLettering | None = None
    bounds: Bounds | None = None
    rate: Rate | None = None
    retention: Retention | None = None
    """Of the topic."""
    creations: Creations | None = None
    """Of the topic and its channels."""
    max_in_flight: int | None = None
    exclusive: bool | None = None
    dedup_window: float | None = None
    """Seconds for which the topic knows publish ids."""

    @property
    def kept(self) -> Retention | None:
        """What the topic retains: also the messages from which the next start reads the ids."""
        retention, window = self.retention, self.dedup_window
        if window is None:
            return retention
        if retention is None:
            return Retention(0.0, None, window)
        return retention._replace(least_seconds=window)

    @property
    def delivery_limits(self) -> DeliveryLimits:
        return DeliveryLimits(self.rate, self.max_in_flight, bool(self.exclusive))

    def merged_with(self, later: "Applied") -> "Applied":
        """These settings, and those of `later` that are not set here."""
        names = (each.name for each in fields(Applied))
        pairs = {name: (getattr(self, name), getattr(later, name)) for name in names}
        return Applied(**{name: second if first is None else first for name, (first, second) in pairs.items()})

    def to_settings(self, topic: str, channel: str) -> Mapping[str, Any]:
        """The settings of a policy for this channel alone; empty if nothing applies."""
        settings: dict[str, Any] = {}
        if self.dead_lettering is not None:
            settings["max_attempts"] = self.dead_lettering.max_attempts
            settings["dead_letter_topic"] = self.dead_lettering.topic_for(topic, channel)
            if self.dead_lettering.takes_expired:
                settings["when_expired"] = DEAD_LETTER
        if (bounds := self.bounds) is not None:
            age = None if bounds.max_age is None else format_duration(int(bounds.max_age * SECOND))
            limits = {"max_depth": bounds.max_depth, "max_bytes": bounds.max_bytes, "max_age": age}
            settings |= {key: value for key, value in limits.items() if value is not None}
            settings["when_full"] = DROP_OLDEST if bounds.drops else REJECT
        if self.retention is not None and not channel:
            if self.retention.seconds is not None:
                settings["retain_for"] = format_duration(int(self.retention.seconds * SECOND))
            if self.retention.size is not None:
                settings["retain_bytes"] = self.retention.size
        if self.dedup_window is not None and not channel:
            settings["dedup_window"] = format_duration(int(self.dedup_window * SECOND))
        if self.rate is not None:
            settings |= {"max_rate": self.rate.per_second, "burst": self.rate.burst}
        if self.max_in_flight is not None and channel:
            settings["max_in_flight"] = self.max_in_flight
        if self.exclusive is not None and channel:
            settings["exclusive"] = self.exclusive
        return settings


class Policy:
    """One policy. `written` has its settings in their original form. Raises ``PolicyError``."""

    def __init__(self, number: int, written: Mapping[str, Any]) -> None:
        values: dict[str, Any] = {}
        for key, value in written.items():
            if key not in _KEYS:
                raise PolicyError(number, key, "unknown setting")
            try:
                values[key] = _KEYS[key](value)
            except ValueError as error:
                raise PolicyError(number, key, str(error)) from None
        self._topic = values.get("topic")
        self._channel = values.get("channel")
        dead_lettering = bounds = rate = retention = creations = None
        if "max_attempts" in values:
            template = values.get("dead_letter_topic", DEFAULT_DEAD_LETTER_TOPIC)
            takes_expired = values.get("when_expired") == DEAD_LETTER
            dead_lettering = DeadLettering(values["max_attempts"], template, takes_expired)
        if not values.keys().isdisjoint(_NEEDS["when_full"]):
            depth, size, age = map(values.get, _NEEDS["when_full"])
            bounds = Bounds(depth, size, age, drops=values.get("when_full") == DROP_OLDEST)
        if (per_second := values.get("max_rate")) is not None:
            rate = Rate(per_second, values.get("burst", max(1, int(per_second / _BURSTS_PER_SECOND))))
        if not values.keys().isdisjoint(_RETENTION):
            if "channel" in values:
                raise PolicyError(number, "channel", "retain_for and retain_bytes are for topics")
            seconds, retained_size = map(values.get, _RETENTION)
            retention = Retention(seconds, retained_size)
        if not values.keys().isdisjoint(_CREATIONS):
            if "channel" in values:
                raise PolicyError(number, "channel", f"{', '.join(_CREATIONS)} are for topics")
            creations = Creations(*map(values.get, _CREATIONS))
        if "dedup_window" in values and "channel" in values:
            raise PolicyError(number, "channel", "dedup_window is for topics")
        limits = values.get("max_in_flight"), values.get("exclusive"), values.get("dedup_window")
        self.settings = Applied(dead_lettering, bounds, rate, retention, creations, *limits)
        for key, needed in _NEEDS.items():
            if key in written and written.keys().isdisjoint(needed):
                raise PolicyError(number, key, f"has no effect without {' or '.join(needed)}")
        if self.settings == Applied():
            raise PolicyError(
                number,
                "",
                "needs max_attempts, max_depth, max_bytes, max_age, max_rate, max_in_flight, exclusive, retain_for, "
                "retain_bytes, dedup_window, max_topics, max_channels or max_creations_per_second",
            )

    def fits(self, topic: str, channel: str) -> bool:
        """Whether it selects a channel or, if `channel` is empty, the topic itself (never by a channel pattern)."""
        return self.fits_topic(topic) and self.fits_channel(channel)

    def fits_topic(self, topic: str) -> bool:
        return self._topic is None or self._topic.fullmatch(topic) is not None

    def fits_channel(self, channel: str) -> bool:
        """The part of ``fits`` that depends on the channel."""
        return self._channel is None or (channel != "" and self._channel.fullmatch(channel) is not None)


class Policies:
    """All policies, in order; `written` has their original form. Raises ``PolicyError``."""

    def __init__(self, written: object = ()) -> None:
        if not isinstance(written, list | tuple) or not all(isinstance(each, Mapping) for each in written):
            raise PolicyError(0, "", "policies must be a list of tables")
        self.written: list[Mapping[str, Any]] = list(written)
        self._policies = [Policy(number, each) for number, each in enumerate(written, 1)]
        self._numbered = list(enumerate(self._policies, 1))
        self._of_topics: dict[str, list[tuple[int, Policy]]] = {}

    def __len__(self) -> int:
        return len(self._policies)

    def for_channel(self, topic: str, channel: str) -> Applied:
        """The settings that apply to a channel or, if `channel` is empty, to messages that the topic holds."""
        applied = Applied()
        for _, policy in self._of_topic(topic):
            if policy.fits_channel(channel):
                applied = applied.merged_with(policy.settings)
        return applied

    def numbers_for(self, topic: str, channel: str) -> list[int]:
        """The numbers, from 1, of the policies of which a setting applies, see ``for_channel``."""
        found: list[int] = []
        done = Applied()
        for number, policy in self._of_topic(topic):
            if policy.fits_channel(channel):
                more = policy.settings
                before = done
                done = done.merged_with(_of_channel(more) if channel else more)
                if done != before:
                    found.append(number)
        return found

    @property
    def limits_creations(self) -> bool:
        return any(each.settings.creations is not None for each in self._policies)

    def creating(self, topic: str) -> tuple[int, Creations | None]:
        """The number and the limits of the policy that limits creations of a topic and its channels; 0 if none does."""
        for number, each in self._of_topic(topic):
            if each.settings.creations is not None and each.fits_channel(""):
                return number, each.settings.creations
        return 0, None

    def keeping(self, topic: str) -> list[int]:
        """The numbers of the policies that say what a topic retains, and for how long it knows publish ids."""
        found: list[int] = []
        done = Applied()
        for number, each in self._of_topic(topic):
            if each.fits_channel(""):
                before = done
                more = Applied(retention=each.settings.retention, dedup_window=each.settings.dedup_window)
                done = done.merged_with(more)
                if done != before:
                    found.append(number)
        return found

    def _of_topic(self, topic: str) -> list[tuple[int, Policy]]:
        """The policies for a topic, whatever their channels, each with its number."""
        found = self._of_topics.get(topic)
        if found is None:
            if len(self._of_topics) >= _MAX_REMEMBERED:
                self._of_topics.clear()
            found = self._of_topics[topic] = [each for each in self._numbered if each[1].fits_topic(topic)]
        return found


def _of_channel(settings: Applied) -> Applied:
    """Without what is for topics."""
    return replace(settings, retention=None, creations=None, dedup_window=None)


# --- Validation of settings -------------------------------------------------------------------------------------------


def _integer(largest: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
            raise ValueError(f"must be an integer from 1 to {largest}")
        return value

    return check


def _pattern(value: object) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be a regular expression")
    import re2  # 1.6 MB, which an nsqd without such a policy does not need

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(value, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error.args[0]
        raise ValueError(f"not a regular expression: {reason}") from None


def _topic_name(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be the name of a topic")
    # The shortest possible name, with names of one letter.
    shortest = value.replace("{topic}", "t").replace("{channel}", "c")
    if not is_valid_name(shortest) or shortest.endswith(EPHEMERAL_SUFFIX):
        raise ValueError("must be the name of a topic that is not ephemeral; {topic} and {channel} stand for names")
    return value


def _duration(value: object) -> float:
    if not isinstance(value, str) or (nanoseconds := parse_duration(value)) <= 0:
        raise ValueError('must be a duration above 0, such as "24h"')
    return nanoseconds / SECOND


def _one_of(first: str, second: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in (first, second):
            raise ValueError(f'must be "{first}" or "{second}"')
        return str(value)

    return check


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _rate(what: str) -> Callable[[object], float]:
    def check(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1e9:
            raise ValueError(f"must be a number above 0 ({what} per second)")
        return float(value)

    return check


_KEYS: Final[Mapping[str, Callable[[object], Any]]] = {
    "topic": _pattern,
    "channel": _pattern,
    "max_attempts": _integer(_MAX_ATTEMPTS),
    "dead_letter_topic": _topic_name,
    "when_expired": _one_of(DROP, DEAD_LETTER),
    "max_depth": _integer(_MAX_INTEGER),
    "max_bytes": _integer(_MAX_INTEGER),
    "max_age": _duration,
    "when_full": _one_of(REJECT, DROP_OLDEST),
    "max_rate": _rate("messages"),
    "burst": _integer(_MAX_INTEGER),
    "max_in_flight": _integer(_MAX_INTEGER),
    "exclusive": _boolean,
    "retain_for": _duration,
    "retain_bytes": _integer(_MAX_INTEGER),
    "dedup_window": _duration,
    "max_topics": _integer(_MAX_INTEGER),
    "max_channels": _integer(_MAX_INTEGER),
    "max_creations_per_second": _rate("creations"),
}
_RETENTION: Final = ("retain_for", "retain_bytes")
_CREATIONS: Final = ("max_topics", "max_channels", "max_creations_per_second")
_NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "dead_letter_topic": ("max_attempts",),
    "when_expired": ("max_attempts",),
    "when_full": ("max_depth", "max_bytes", "max_age"),
    "burst": ("max_rate",),
}
