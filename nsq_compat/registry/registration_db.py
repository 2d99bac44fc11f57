"""The registration database: which nsqd has which topics and channels.

A producer that has been silent for a while is inactive: lookups omit it until it sends a command again. A tombstone
hides one topic of a producer from consumers. Topics and channels remain without producers. They are removed when they
are deleted or, if they are ephemeral, unregistered (nsqlookupd).

Invariants:

- A producer refers to a registration if and only if the registration refers to the producer.
- The active producers of a topic are cached until a change, or until the time at which the result may change. So the
  cost of a lookup does not depend on the number of topics.
- Names in the database are valid, so they need no escaping in output.

`now` is in monotonic seconds, `now_ns` in nanoseconds since 1970.
"""

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.lookup_commands import PeerInfo
from nsq_compat.protocol.names import is_ephemeral

log = logging.getLogger(__name__)

_FOREVER = float("inf")
_MAX_LOGGED = 1000
"""Lines about one command or connection, at about 5 us each: a producer may have hundreds of thousands of channels."""


class Tombstone(NamedTuple):
    """Hides a topic's producer from consumers for a while, from `at` on; `at_ns` is for display."""

    at: float
    at_ns: int


@dataclass(eq=False, slots=True)
class Producer:
    """One nsqd: a connection that has sent IDENTIFY. Two connections of one nsqd are two producers (nsqlookupd).

    `last_update` is the time of the last command; `last_update_ns` is for display.
    """

    id: str
    """The remote address, ``ip:port``."""
    info: PeerInfo
    last_update: float
    last_update_ns: int
    topics: "dict[str, Registration]" = field(default_factory=dict)
    channels: "dict[str, dict[Registration, None]]" = field(default_factory=dict)
    """By topic."""
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    """By topic. An expired one stays, without effect, as long as the topic is registered."""
    described: bytes = field(init=False)
    """A JSON object without its closing brace, for the HTTP API: encoded once, because changes are rare."""
    listed: bytes = field(default=b"", init=False)
    """What the list of nodes says of it, if that is still so; empty after a change of its topics or tombstones."""

    def __post_init__(self) -> None:
        info = self.info
        members = {
            "remote_address": self.id,
            "hostname": info.hostname,
            "broadcast_address": info.broadcast_address,
            "tcp_port": info.tcp_port,
            "http_port": info.http_port,
            "version": info.version,
            "topology_zone": info.topology_zone,
            "topology_region": info.topology_region,
        }
        self.described = dumps(members).encode("utf-8").removesuffix(b"}")

    @property
    def node(self) -> str:
        """Its name for operators."""
        return f"{self.info.broadcast_address}:{self.info.http_port}"


@dataclass(eq=False, slots=True)
class Registration:
    """A topic or channel. It remains after its last producer is gone, until it is deleted (nsqlookupd)."""

    topic: str
    channel: str = ""
    """Empty for the registration of a topic."""
    producers: dict[Producer, None] = field(default_factory=dict)
    active: tuple[Producer, ...] = ()
    """Of a topic: the producers for consumers, valid before `active_until`."""
    active_until: float = -_FOREVER

    @property
    def category(self) -> str:
        return "channel" if self.channel else "topic"

    def changed(self) -> None:
        """Invalidate `active`."""
        self.active, self.active_until = (), -_FOREVER


class RegistrationDb:
    """`inactive_after` and `tombstone_lifetime` are in seconds."""

    def __init__(self, inactive_after: float, tombstone_lifetime: float) -> None:
        self._inactive_after = inactive_after
        self._tombstone_lifetime = tombstone_lifetime
        self._producers: dict[Producer, None] = {}
        self._topics: dict[str, Registration] = {}
        # Not part of the topics: a channel may outlive its ephemeral topic (nsqlookupd).
        self._channels: dict[str, dict[str, Registration]] = {}

    # --- Commands of nsqd daemons -------------------------------------------------------------------------------------

    def identify(self, peer: str, info: PeerInfo, now: float, now_ns: int) -> Producer:
        """Add a producer."""
        producer = Producer(peer, info, now, now_ns)
        self._producers[producer] = None
        _log_change(producer, "REGISTER", "client")
        return producer

    def heard_of(self, producer: Producer, now: float, now_ns: int) -> None:
        """Record that a command of a producer has arrived."""
        was_inactive = self._is_inactive(producer, now)
        producer.last_update, producer.last_update_ns = now, now_ns
        if was_inactive:
            for topic in producer.topics.values():
                topic.changed()

    def register(self, producer: Producer, topic: str, channel: str = "") -> None:
        """Register a topic of a producer, or a channel and its topic."""
        if channel:
            _join(producer, self._channel(topic, channel))
        _join(producer, self._topic(topic))

    def unregister(self, producer: Producer, topic: str, channel: str = "") -> None:
        """Remove a channel from a producer, or a topic with all its channels."""
        registration = self._channels.get(topic, {}).get(channel) if channel else self._topics.get(topic)
        # Not all channels of the topic: a command takes no longer than registering what it ends.
        own = () if channel else list(producer.channels.get(topic, ()))
        for each in own:
            _separate(producer, each)
        for each in own[:_MAX_LOGGED]:
            # nsqlookupd: nsqd should have unregistered each channel first.
            log.warning(
                "client(%s) unexpected UNREGISTER category:channel key:%s subkey:%s", producer.id, topic, each.channel
            )
        _log_more(producer, len(own))
        if registration is not None:
            _withdraw(producer, registration)
            if not registration.producers and is_ephemeral(channel or topic):
                self._drop(registration)

    def forget(self, producer: Producer) -> None:
        """Remove a producer. Its topics and channels stay, even ephemeral ones (nsqlookupd)."""
        own = [*chain.from_iterable(producer.channels.values()), *producer.topics.values()]
        for registration in own:
            _separate(producer, registration)
        for registration in own[:_MAX_LOGGED]:
            _log_change(producer, "UNREGISTER", registration.category, registration.topic, registration.channel)
        _log_more(producer, len(own))
        if producer in self._producers:
            del self._producers[producer]
            _log_change(producer, "UNREGISTER", "client")

    # --- Commands of operators ----------------------------------------------------------------------------------------

    def create_topic(self, topic: str) -> None:
        log.info("DB: adding topic(%s)", topic)
        self._topic(topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel and its topic."""
        log.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._channel(topic, channel)
        self.create_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its channels, if it exists. A producer may register them again."""
        channels = list(self._channels.get(topic, {}).values())
        for registration in channels:
            self._drop(registration)
        for registration in channels[:_MAX_LOGGED]:
            log.info("DB: removing channel(%s) from topic(%s)", registration.channel, topic)
        if len(channels) > _MAX_LOGGED:
            log.info("DB: removing %d more channels from topic(%s)", len(channels) - _MAX_LOGGED, topic)
        if topic in self._topics:
            log.info("DB: removing topic(%s)", topic)
            self._drop(self._topics[topic])

    def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel. Raises ``KeyError``."""
        registration = self._channels[topic][channel]
        log.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        self._drop(registration)

    def tombstone(self, topic: str, node: str, now: float, now_ns: int) -> None:
        """Hide the producers of a topic that match `node`, ``<broadcast address>:<HTTP port>``, from consumers.

        An IPv6 address may have brackets (docs/differences.md: tombstone-ipv6). Does nothing if no producer matches.
        """
        log.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        registration = self._topics.get(topic)
        if registration is None:
            return
        for producer in registration.producers:
            if producer.node in (node, _without_brackets(node)):
                producer.tombstones[topic] = Tombstone(now, now_ns)
                producer.listed = b""
                registration.changed()

    # --- Queries ------------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Collection[str]:
        return self._topics.keys()

    def channels(self, topic: str) -> Collection[str]:
        """The channels of a topic, which need not exist."""
        return self._channels.get(topic, {}).keys()

    def lookup(self, topic: str, now: float) -> tuple[Collection[str], tuple[Producer, ...]]:
        """The channels of a topic, and the active producers for its consumers. Raises ``KeyError``."""
        registration = self._topics[topic]
        if now >= registration.active_until:
            self._find_active(registration, now)
        return self.channels(topic), registration.active

    def nodes(self, now: float) -> Iterator[Producer]:
        """All active producers, including those with tombstones."""
        return (producer for producer in self._producers if not self._is_inactive(producer, now))

    def is_tombstoned(self, producer: Producer, topic: str, now: float) -> bool:
        tombstone = producer.tombstones.get(topic)
        return tombstone is not None and now < tombstone.at + self._tombstone_lifetime

    @property
    def producers(self) -> Collection[Producer]:
        """All producers, including inactive ones."""
        return self._producers.keys()

    def registrations(self) -> Iterator[Registration]:
        """All topics, then all channels."""
        yield from self._topics.values()
        for channels in self._channels.values():
            yield from channels.values()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _is_inactive(self, producer: Producer, now: float) -> bool:
        return now > producer.last_update + self._inactive_after

    def _find_active(self, topic: Registration, now: float) -> None:
        active = []
        until = _FOREVER
        for producer in topic.producers:
            if self._is_inactive(producer, now):
                continue  # `heard_of` invalidates the result
            if self.is_tombstoned(producer, topic.topic, now):
                until = min(until, producer.tombstones[topic.topic].at + self._tombstone_lifetime)
            else:
                active.append(producer)
                until = min(until, producer.last_update + self._inactive_after)
        topic.active, topic.active_until = tuple(active), until

    def _topic(self, topic: str) -> Registration:
        return self._topics.setdefault(topic, Registration(topic))

    def _channel(self, topic: str, channel: str) -> Registration:
        return self._channels.setdefault(topic, {}).setdefault(channel, Registration(topic, channel))

    def _drop(self, registration: Registration) -> None:
        for producer in list(registration.producers):
            _separate(producer, registration)
        if not registration.channel:
            del self._topics[registration.topic]
            return
        channels = self._channels[registration.topic]
        del channels[registration.channel]
        if not channels:
            del self._channels[registration.topic]


def _join(producer: Producer, registration: Registration) -> None:
    if producer not in registration.producers:
        registration.producers[producer] = None
        if registration.channel:
            producer.channels.setdefault(registration.topic, {})[registration] = None
        else:
            producer.topics[registration.topic] = registration
            producer.listed = b""
            registration.changed()
        _log_change(producer, "REGISTER", registration.category, registration.topic, registration.channel)


def _withdraw(producer: Producer, registration: Registration) -> None:
    if producer in registration.producers:
        _separate(producer, registration)
        _log_change(producer, "UNREGISTER", registration.category, registration.topic, registration.channel)


def _separate(producer: Producer, registration: Registration) -> None:
    del registration.producers[producer]
    if registration.channel:
        channels = producer.channels[registration.topic]
        del channels[registration]
        if not channels:
            del producer.channels[registration.topic]
    else:
        del producer.topics[registration.topic]
        producer.listed = b""
        producer.tombstones.pop(registration.topic, None)
        registration.changed()


def _log_change(producer: Producer, verb: str, category: str, topic: str = "", channel: str = "") -> None:
    log.info("DB: client(%s) %s category:%s key:%s subkey:%s", producer.id, verb, category, topic, channel)


def _log_more(producer: Producer, count: int) -> None:
    if count > _MAX_LOGGED:
        log.info("DB: client(%s) UNREGISTER of %d more topics and channels", producer.id, count - _MAX_LOGGED)


def _without_brackets(node: str) -> str:
    """``[::1]:4151`` as ``::1:4151``, as nsqlookupd joins address and port."""
    host, _, port = node.rpartition(":")
    return f"{host[1:-1]}:{port}" if host.startswith("[") and host.endswith("]") else node
