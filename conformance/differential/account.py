"""The generator's model of an nsqd: the messages of topics and channels, and their consumers.

It predicts the number of replies and the messages to wait for. A topic with a state that is not certain is marked so,
and is not consumed any more.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Client:
    """A TCP connection."""

    number: int
    state: str = "init"
    topic: bytes = b""
    channel: bytes = b""
    held: list[bytes] = field(default_factory=list)
    """Bodies in flight to this client."""
    ready: int = 0


@dataclass(slots=True)
class Channel:
    """A channel with at most one consumer, and its waiting bodies."""

    waiting: list[bytes] = field(default_factory=list)
    is_paused: bool = False
    consumer: Client | None = None

    def deliver(self) -> int:
        """Move messages in flight to the consumer; returns their number."""
        client = self.consumer
        if client is None or self.is_paused:
            return 0
        count = min(max(0, client.ready - len(client.held)), len(self.waiting))
        client.held += self.waiting[:count]
        del self.waiting[:count]
        return count


@dataclass(slots=True)
class Topic:
    """`backlog` has messages published while there was no channel, or while the topic was paused."""

    backlog: list[bytes] = field(default_factory=list)
    channels: dict[bytes, Channel] = field(default_factory=dict)
    is_paused: bool = False
    is_certain: bool = True
    is_settled: bool = True
    """False if nsqd may not have copied messages to the channels yet."""

    @property
    def has_consumers(self) -> bool:
        return any(channel.consumer for channel in self.channels.values())

    def add(self, bodies: list[bytes]) -> None:
        self.backlog += bodies
        self._pass_on()

    def channel(self, name: bytes) -> Channel:
        channel = self.channels.setdefault(name, Channel())
        self._pass_on()
        return channel

    def pause(self, paused: bool) -> None:
        self.is_paused = paused
        self._pass_on()

    def _pass_on(self) -> None:
        self.is_settled = False
        if self.channels and not self.is_paused:
            for channel in self.channels.values():
                channel.waiting += self.backlog
            self.backlog.clear()


class Account:
    """The topics of a stream, by name."""

    def __init__(self) -> None:
        self.topics: dict[bytes, Topic] = {}

    def topic(self, name: bytes) -> Topic:
        """Return a topic, which is created if necessary."""
        return self.topics.setdefault(name, Topic())

    def has_consumers(self, name: bytes) -> bool:
        return name in self.topics and self.topics[name].has_consumers

    def consumed(self) -> list[bytes]:
        """Topics with a consumer."""
        return [name for name, topic in self.topics.items() if topic.has_consumers]

    def drop_channel(self, topic: bytes, name: bytes) -> None:
        """Delete a channel, and an ephemeral topic with its last channel."""
        self.topics[topic].channels.pop(name, None)
        if topic.endswith(b"#ephemeral") and not self.topics[topic].channels:
            del self.topics[topic]

    def left(self, client: Client) -> None:
        """Remove a client. Its messages in flight return after their timeout, long after the stream."""
        if client.state == "init":
            return
        self.topics[client.topic].channels[client.channel].consumer = None
        if client.channel.endswith(b"#ephemeral"):
            self.drop_channel(client.topic, client.channel)
