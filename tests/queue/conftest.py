"""The real queue, a clock that a test moves, and consumers that take, answer and are woken.

A message is named by its body here: `publishes(b"a", b"b")` is followed by `takes(2) == [b"a", b"b"]`.
"""

from collections.abc import Callable, Sequence

import pytest

from nsq_compat.protocol import message
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.queue.stats import ClientStats
from nsq_compat.queue.topic import Topic

NOW_NS = 1_700_000_000_000_000_000


class Consumer:
    """What a channel knows of a client, and no more. `wakes` counts, `awake` is true until it asks."""

    def __init__(self, daemon: "Daemon", channel: Channel, timeout: float) -> None:
        self.in_flight = InFlight()
        self.awake = False
        self.wakes = 0
        self.closed = False
        self.frames: dict[bytes, bytes] = {}  # by body, as it was delivered last
        self._daemon = daemon
        self._channel = channel
        self._timeout = timeout

    def wake(self) -> None:
        self.awake = True
        self.wakes += 1

    def close(self) -> None:
        self.closed = True

    def stats(self) -> ClientStats:
        return ClientStats(
            client_id="c", hostname="h", version="V2", remote_address="1.2.3.4:5", state=3, ready_count=1,
            in_flight_count=len(self.in_flight), message_count=0, finish_count=0, requeue_count=0, connect_ts=0,
        )  # fmt: skip

    def takes(self, room: int = 100) -> list[bytes]:
        """One batch, by its bodies."""
        self.awake = False
        frames = self._channel.take(self, room, self._daemon.now, self._timeout)
        bodies = [message.body(frame) for frame in frames]
        self.frames.update(zip(bodies, frames, strict=True))
        return bodies

    def stands_back(self) -> None:
        self.awake = False
        self._channel.stand_back(self)

    def finishes(self, *bodies: bytes) -> list[bytes]:
        """Returns the bodies that were refused."""
        by_id = {self.id_of(body): body for body in bodies}
        return [by_id[message_id] for message_id in self._channel.finish(self, list(by_id))]

    def requeues(self, body: bytes, delay: float = 0.0) -> None:
        self._channel.requeue(self, self.id_of(body), self._daemon.now, delay)

    def touches(self, body: bytes) -> None:
        self._channel.touch(self, self.id_of(body), self._daemon.now, self._timeout)

    def leaves(self) -> None:
        self._channel.remove_consumer(self)

    def id_of(self, body: bytes) -> bytes:
        return message.message_id(self.frames[body])

    def attempts(self, body: bytes) -> int:
        return message.attempts(self.frames[body])


class Daemon:
    """A broker and its clock."""

    def __init__(self, limits: QueueLimits) -> None:
        self.now = 1000.0
        self.broker = Broker(limits)

    def topic(self, name: str = "orders") -> Topic:
        return self.broker.topic(name)

    def channel(self, name: str = "archive", topic: str = "orders") -> Channel:
        return self.topic(topic).channel(name)

    def publishes(self, *bodies: bytes, topic: str = "orders", defer: float = 0.0) -> None:
        self.topic(topic).publish(bodies, self.now, NOW_NS + int(self.now * 1e9), defer)

    def consumer(self, channel: str = "archive", topic: str = "orders", timeout: float = 60.0) -> Consumer:
        """A consumer of that channel that has not asked for anything yet."""
        target = self.channel(channel, topic)
        consumer = Consumer(self, target, timeout)
        target.add_consumer(consumer)
        return consumer

    def waiting_consumers(self, count: int) -> list[Consumer]:
        """Consumers that have asked in this order and found nothing."""
        consumers = [self.consumer() for _ in range(count)]
        for consumer in consumers:
            assert consumer.takes() == []
        return consumers

    def waits(self, seconds: float) -> None:
        """Time passes, and what is due is served."""
        self.now += seconds
        self.broker.schedule.run(self.now)


@pytest.fixture
def start() -> Callable[..., Daemon]:
    """A daemon with other limits than usual."""

    def start_with(**limits: float) -> Daemon:
        return Daemon(QueueLimits(**limits))  # type: ignore[arg-type]

    return start_with


@pytest.fixture
def daemon(start: Callable[..., Daemon]) -> Daemon:
    return start()


@pytest.fixture
def channel(daemon: Daemon) -> Channel:
    """The channel everybody consumes from unless told otherwise."""
    return daemon.channel()


@pytest.fixture
def make_frames() -> Callable[..., Sequence[bytes]]:
    """Frames of the given bodies whose ids are numbered from `first`."""

    def make(*bodies: bytes, first: int = 0) -> Sequence[bytes]:
        return message.make_frames([b"%016x" % (first + number) for number in range(len(bodies))], NOW_NS, bodies)

    return make
