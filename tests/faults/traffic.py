"""Producers and consumers that use all features of NSQ and record in ledgers what nsqd must deliver.

A ledger records published, delivered and finished messages. A body has its producer and its number, and so identifies
its message. `began` and `due` are monotonic times; times of finishing are wall-clock times, because they are compared
with those of files.

A FIN has no answer. Therefore a consumer sometimes finishes an unknown message: the error confirms all earlier FINs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.faults.daemon import Daemon
from tests.v2_client import GONE, Client, Refused, pub

MSG_TIMEOUT_MS = 1000
_MARKER = b"0" * 16
_MAX_BACKLOG = 3000
_WAIT = 0.05
_CHECKPOINT_POLL_SECONDS = 0.005
_MAX_EARLINESS = 0.005
"""Tolerance for early deferred messages, in seconds: clocks differ by this between two lives of a process."""
_SHOWN = 20


# --- The record of what must be delivered -----------------------------------------------------------------------------


class Sent(NamedTuple):
    """A message that is being published."""

    began: float
    due: float


@dataclass
class ChannelLedger:
    """A channel with its deliveries and finished messages. `since`: monotonic time from which it surely existed."""

    name: str
    since: float
    seen: set[bytes] = field(default_factory=set)
    confirmed: dict[bytes, float] = field(default_factory=dict)
    """Messages of which nsqd has confirmed the FIN since its last start, with times."""
    settled: set[bytes] = field(default_factory=set)
    """Messages finished before the last checkpoint, which must not return."""
    attempts: dict[bytes, int] = field(default_factory=dict)
    """The attempts of a message seen in this life of nsqd, a bit for each number."""
    deliveries: int = 0
    finishes: int = 0
    missed: int = 0
    """Messages acknowledged before the channel existed."""


class Ledger:
    """The ledger of a topic; thread-safe."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent: dict[bytes, Sent] = {}
        self.acknowledged: set[bytes] = set()
        self.channels: dict[str, ChannelLedger] = {}
        self.problems: list[str] = []
        self._together: list[Sequence[bytes]] = []
        self._lock = threading.Lock()

    # --- Producers ----------------------------------------------------------------------------------------------------

    def begin(self, bodies: Sequence[bytes], now: float, defer: float = 0.0, together: bool = False) -> None:
        """Record messages before they are sent; with `together`, all or none must arrive."""
        with self._lock:
            self.sent.update((body, Sent(now, now + defer)) for body in bodies)
            if together:
                self._together.append(bodies)

    def acknowledge(self, bodies: Iterable[bytes]) -> None:
        """Record nsqd's OK."""
        with self._lock:
            self.acknowledged.update(bodies)

    @property
    def backlog(self) -> int:
        """The approximate backlog of the slowest channel."""
        behind = [len(self.acknowledged) - each.missed - each.finishes for each in self.channels.values()]
        return max(behind, default=0)

    # --- Consumers ----------------------------------------------------------------------------------------------------

    def see(self, channel: ChannelLedger, body: bytes, now: float, attempt: int) -> None:
        """Record the delivery of a message."""
        with self._lock:
            before = channel.attempts.get(body, 0)
            channel.attempts[body] = before | 1 << attempt
            # An old delivery may have waited in a socket until it timed out and another consumer finished the message.
            is_late = not before & 1 << attempt and before > 1 << attempt
            channel.deliveries += 1
            channel.seen.add(body)
            sent = self.sent.get(body)
            if sent is None:
                self._complain(channel, "was delivered, but never sent", body)
            elif now < sent.due - _MAX_EARLINESS:
                self._complain(channel, f"was delivered {sent.due - now:.3f} s early", body)
            if body in channel.settled:
                self._complain(channel, "was delivered again, though finished before the last checkpoint", body)
            if body in channel.confirmed and not is_late:
                self._complain(channel, "was delivered again, though finished and without a kill", body)

    def confirm(self, channel: ChannelLedger, bodies: Iterable[bytes], at: float) -> None:
        """Record that nsqd has executed the FINs of these messages."""
        with self._lock:
            for body in bodies:
                channel.confirmed[body] = at
                channel.finishes += 1

    # --- Ends ---------------------------------------------------------------------------------------------------------

    def settle(self, known_until: float) -> None:
        """Record the end of nsqd. Messages finished until `known_until` (wall clock) must not return."""
        with self._lock:
            for channel in self.channels.values():
                channel.settled |= {body for body, at in channel.confirmed.items() if at < known_until}
                channel.confirmed.clear()
                channel.attempts.clear()

    def check(self) -> list[str]:
        """Check the ledger after everything is drained; returns a sentence for each error."""
        problems = list(self.problems)
        for channel in self.channels.values():
            expected = {body for body in self.acknowledged if self.sent[body].began >= channel.since}
            lost = expected - channel.seen
            if lost:
                problems.append(f"{self.topic}/{channel.name}: {len(lost)} acknowledged but lost: {_some(lost)}")
            for bodies in self._together:
                came = channel.seen.intersection(bodies)
                if came and len(came) < len(bodies) and self.sent[bodies[0]].began >= channel.since:
                    problems.append(
                        f"{self.topic}/{channel.name}: a partial MPUB was delivered, without {_some({*bodies} - came)}"
                    )
        return problems

    def _complain(self, channel: ChannelLedger, what: str, body: bytes) -> None:
        if len(self.problems) < _SHOWN:
            self.problems.append(f"{self.topic}/{channel.name}: {_name(body)} {what}")


def _name(body: bytes) -> str:
    return body.partition(b" ")[0].decode()


def _some(bodies: Iterable[bytes]) -> str:
    return ", ".join(sorted(map(_name, bodies))[:_SHOWN])


# --- Clients ----------------------------------------------------------------------------------------------------------


class _Worker(threading.Thread):
    def __init__(self, traffic: "Traffic", daemon: Daemon, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self._traffic = traffic
        self._daemon = daemon
        self._ledger = ledger
        self._topic = ledger.topic.encode()
        self._random = Random(traffic.random.getrandbits(32))


class Producer(_Worker):
    """Publishes until it is stopped or nsqd is gone."""

    def __init__(self, traffic: "Traffic", daemon: Daemon, ledger: Ledger, name: str) -> None:
        super().__init__(traffic, daemon, ledger)
        self._producer = name
        self._count = 0
        self._ways = (self._publish, self._publish, self._publish_together, self._publish_deferred)

    def run(self) -> None:
        try:
            with self._daemon.client() as client:
                while not self._traffic.stopping.is_set():
                    if self._ledger.backlog < _MAX_BACKLOG:
                        self._random.choice(self._ways)(client)
                    time.sleep(self._random.uniform(0, 0.004))
        except GONE:
            pass
        except Refused as refusal:
            self._traffic.refusals.append(str(refusal))

    def _publish(self, client: Client) -> None:
        bodies = self._bodies(self._random.randint(1, 20))
        self._ledger.begin(bodies, time.monotonic())
        client.says(pub(*bodies, topic=self._topic))
        for body in bodies:
            client.hears(b"OK")
            self._ledger.acknowledge([body])

    def _publish_together(self, client: Client) -> None:
        bodies = self._bodies(self._random.randint(1, 50))
        self._ledger.begin(bodies, time.monotonic(), together=True)
        client.publishes_together(bodies, self._topic)
        self._ledger.acknowledge(bodies)

    def _publish_deferred(self, client: Client) -> None:
        bodies = self._bodies(1)
        delay_ms = self._random.randint(1, 1500)
        self._ledger.begin(bodies, time.monotonic(), defer=delay_ms / 1000)
        client.defers(bodies[0], delay_ms, self._topic)
        self._ledger.acknowledge(bodies)

    def _bodies(self, count: int) -> list[bytes]:
        self._count += count
        size = self._random.choice((0, 50, 500, 5000 if count < 5 else 20))
        return [b"%s-%d %s" % (self._producer.encode(), self._count - each, b"x" * size) for each in range(count)]


class Consumer(_Worker):
    """Consumes a channel. A calm consumer only finishes; others also requeue, touch and let messages time out."""

    def __init__(self, traffic: "Traffic", daemon: Daemon, ledger: Ledger, channel: ChannelLedger, calm: bool) -> None:
        super().__init__(traffic, daemon, ledger)
        self._channel = channel
        self._calm = calm
        self._unconfirmed: deque[dict[bytes, bytes]] = deque()

    def run(self) -> None:
        ready = 2000 if self._calm else self._random.choice((1, 20, 200))
        with suppress(*GONE), self._daemon.client(msg_timeout=MSG_TIMEOUT_MS, heartbeat_interval=5000) as client:
            client.subscribes(self._topic, self._channel.name.encode(), ready)
            while self._unconfirmed or not self._traffic.stopping.is_set():
                self._consume(client)

    def _consume(self, client: Client) -> None:
        finished: dict[bytes, bytes] = {}
        for message in client.messages(_WAIT):
            self._ledger.see(self._channel, message.body, time.monotonic(), message.attempts)
            dice = 1.0 if self._calm else self._random.random()
            if dice > 0.15:
                finished[message.id] = message.body
            elif dice > 0.07:
                client.requeues(message, self._random.choice((0, 0, 100, 500)))
            elif dice > 0.05:
                client.says(b"TOUCH %b\n" % message.id)
        if finished:
            client.says(*(b"FIN %b\n" % message_id for message_id in (*finished, _MARKER)))
            self._unconfirmed.append(finished)
        for error in client.errors():
            code, _, message_id, *_ = error.split(b" ")
            if message_id == _MARKER:
                self._ledger.confirm(self._channel, self._unconfirmed.popleft().values(), time.time())
            elif code == b"E_FIN_FAILED":  # the message has timed out
                for finished in self._unconfirmed:
                    finished.pop(message_id, None)


class Operator(_Worker):
    """Pauses the topic and its channels for short times."""

    def run(self) -> None:
        with suppress(OSError, HTTPException):  # nsqd is gone
            while not self._traffic.stopping.wait(self._random.uniform(0.0, 0.2)):
                act = self._random.choice(("pause", "unpause"))
                channel = self._random.choice([None, *self._ledger.channels])
                self._daemon.control(act, self._ledger.topic, channel)


class CheckpointWatch(threading.Thread):
    """Records the times at which a topic's checkpoint is written.

    Checkpoints are made one after the other, so the last one contains all messages finished before the one before it
    was written. It may have been made some time before its own file was written.
    """

    def __init__(self, daemon: Daemon, topic: str) -> None:
        super().__init__(daemon=True)
        self.times = [0.0, daemon.checkpoint_written_at(topic)]
        self._daemon = daemon
        self._topic = topic
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(_CHECKPOINT_POLL_SECONDS):
            self._look()

    def end(self, until: float) -> float:
        """Return the time up to which the last checkpoint is known to be complete; called after the end of nsqd.

        Those that were written after `until` do not count.
        """
        self._over.set()
        self.join()
        self._look()
        return [0.0, 0.0, *(each for each in self.times if each <= until)][-2]

    def _look(self) -> None:
        written_at = self._daemon.checkpoint_written_at(self._topic)
        if written_at != self.times[-1]:
            self.times.append(written_at)


class Traffic:
    """Traffic on two topics: `orders` has channels from the start and one more later, `bare` gets one at the end.

    `first_round` is the first number in bodies, to keep them distinct from those of another run.
    """

    def __init__(self, seed: int, data_path: Path, first_round: int = 0) -> None:
        self.random = Random(seed)
        self.data_path = data_path
        self.stopping = threading.Event()
        self.refusals: list[str] = []
        self.checkpoint_ages: list[float] = []
        """The age of the decisive checkpoint at each kill; messages finished after it may return."""
        self.checkpoints_until = float("inf")
        """Wall-clock time of the last checkpoint that counts, for an `end` in which later ones may not arrive."""
        self.orders = Ledger("orders")
        self.bare = Ledger("bare")
        self.settled = 0
        """The number of messages of `orders` that were finished in a checkpoint when nsqd was killed."""
        self._round = first_round

    @property
    def ledgers(self) -> tuple[Ledger, Ledger]:
        return self.orders, self.bare

    def add_channel(self, daemon: Daemon, ledger: Ledger, name: str) -> None:
        """Create a channel and expect all later messages; the first channel of a topic also gets earlier ones."""
        daemon.create_channel(ledger.topic, name)
        channel = ChannelLedger(name, time.monotonic() if ledger.channels else 0.0)
        channel.missed = len(ledger.acknowledged) if ledger.channels else 0
        ledger.channels[name] = channel

    def run(self, daemon: Daemon, seconds: float, end: Callable[[Daemon], object], clean: bool = False) -> None:
        """Run producers and consumers for `seconds`; then `end` ends nsqd under them, cleanly or not."""
        self._round += 1
        self.stopping.clear()
        watches = {ledger: CheckpointWatch(daemon, ledger.topic) for ledger in self.ledgers}
        operator = Operator(self, daemon, self.orders)
        threads = [*self._producers(daemon), *self._consumers(daemon, 2), *watches.values(), operator]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        end(daemon)
        ended = time.time()
        self.stopping.set()
        for thread in threads:
            if not isinstance(thread, CheckpointWatch):
                thread.join()
        for ledger, watch in watches.items():
            known_until = watch.end(self.checkpoints_until)
            if ledger is self.orders and known_until > ended - seconds:
                self.checkpoint_ages.append(ended - known_until)
            ledger.settle(float("inf") if clean else known_until)
        self.settled = sum(len(channel.settled) for channel in self.orders.channels.values())

    def drain(self, daemon: Daemon, within: float = 60.0) -> None:
        """Finish all messages and stop nsqd. Raises ``AssertionError`` if messages are left."""
        self.finish(daemon, within)
        assert daemon.stop() == 0
        for ledger in self.ledgers:
            ledger.settle(float("inf"))

    def finish(self, daemon: Daemon, within: float = 60.0) -> None:
        """Finish all messages. Raises ``AssertionError`` if messages are left."""
        self.stopping.clear()
        if "last" not in self.bare.channels:
            self.add_channel(daemon, self.bare, "last")
        for channel in (None, *self.orders.channels):
            daemon.control("unpause", self.orders.topic, channel)
        consumers = self._consumers(daemon, 1, calm=True)
        for consumer in consumers:
            consumer.start()
        deadline = time.monotonic() + within
        while (left := self._left(daemon)) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.stopping.set()
        for consumer in consumers:
            consumer.join()
        assert not left, f"not drained: {left}"

    def check(self) -> list[str]:
        """Check the ledgers after the last drain; returns a sentence for each error."""
        return [problem for ledger in self.ledgers for problem in ledger.check()]

    def _left(self, daemon: Daemon) -> dict[str, int]:
        return {
            f"{ledger.topic}/{name}": count
            for ledger in self.ledgers
            for name, count in daemon.unfinished(ledger.topic).items()
            if count
        }

    def _producers(self, daemon: Daemon) -> Iterable[Producer]:
        for number, ledger in enumerate((self.orders, self.orders, self.bare)):
            name = f"{ledger.topic}{number}.{self._round}"
            yield Producer(self, daemon, ledger, name)

    def _consumers(self, daemon: Daemon, each: int, calm: bool = False) -> list[Consumer]:
        return [
            Consumer(self, daemon, ledger, channel, calm)
            for ledger in self.ledgers
            for channel in ledger.channels.values()
            for _ in range(each)
        ]
