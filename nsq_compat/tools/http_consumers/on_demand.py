"""Takes messages of a topic and channel from nsqd when a client asks for them, and not before.

A consumer asks for messages ahead of time, with RDY. Here they would be in flight until a client happens to ask. So the
consumer's own RDY stays 0, and this module sends RDY to each nsqd: the messages in flight there plus the number that is
missing now, which is 0 most of the time. Every nsqd is asked, because it is not known which of them has messages.
Surplus messages are kept for a second for the next request, and then requeued.

Invariants:

- Without requests, RDY is 0 and no message stays in flight for longer than `KEEP_SECONDS`.
- Messages handed out and kept never exceed `max_in_flight`, but for one message of each further nsqd.
- Requests are served in FIFO order.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from nsq_compat.client import Connection, Consumer, Message
from nsq_compat.client.message import Handler
from nsq_compat.protocol import command_writer

KEEP_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.25
"""How late an nsqd that has just been connected is asked."""


class Event(Protocol):
    """An event of threads, or of greenlets."""

    def set(self) -> None: ...

    def wait(self, timeout: float, /) -> object: ...


@dataclass(eq=False)
class Demand:
    """A request for messages. `messages` grows to at most `count`, and `wake` is set each time."""

    count: int
    wake: Event
    messages: list[Message] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return self.count - len(self.messages)


class OnDemand:
    """A context manager. `make_consumer` is given the handler and decides everything else."""

    def __init__(self, make_consumer: Callable[[Handler], Consumer], max_in_flight: int) -> None:
        self._consumer = make_consumer(self._deliver)
        self._consumer.set_max_in_flight(0)
        self._max_in_flight = max_in_flight
        self._lock = threading.RLock()
        self._demands: deque[Demand] = deque()
        self._surplus: deque[tuple[float, Message]] = deque()
        self._ready_counts: dict[Connection, int] = {}
        self._surplus_changed = threading.Event()
        self._stopping = False
        self._requeuer = threading.Thread(target=self._requeue_surplus, name="nsq surplus", daemon=True)

    @property
    def in_flight(self) -> int:
        """Messages handed out or kept."""
        return self._consumer.in_flight

    def __enter__(self) -> Self:
        self._consumer.start()
        self._requeuer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """There must be no requests any more."""
        self._stopping = True
        self._surplus_changed.set()
        self._requeuer.join()
        self._consumer.stop(timeout=5.0)

    @contextmanager
    def request(self, count: int, wake: Event) -> Iterator[Demand]:
        """Gather up to `count` messages inside the ``with`` block, which are then the caller's to answer."""
        demand = Demand(min(count, self._max_in_flight), wake)
        with self._lock:
            while self._surplus and demand.missing:
                _, message = self._surplus.popleft()
                if not message.is_lost:
                    demand.messages.append(message)
            self._demands.append(demand)
            self._send_ready()
        try:
            yield demand
        finally:
            with self._lock:
                self._demands.remove(demand)
                self._send_ready()

    def wait(self, demand: Demand, seconds: float) -> None:
        """Return when a message has been received for `demand`, its `wake` is set, or the time is over."""
        if demand.missing:
            demand.wake.wait(min(seconds, _POLL_SECONDS))
        with self._lock:
            self._send_ready()

    def finish(self, messages: list[Message]) -> None:
        for message in messages:
            message.finish()
        with self._lock:
            self._send_ready()

    def put_back(self, messages: list[Message]) -> None:
        """Requeue messages; nsqd delivers them again at once, here or elsewhere."""
        for message in messages:
            message.requeue(delay=0, backoff=False)
        with self._lock:
            self._send_ready()

    def _deliver(self, message: Message) -> None:
        message.enable_async()
        with self._lock:
            demand = next((demand for demand in self._demands if demand.missing), None)
            if demand is None:
                self._surplus.append((time.monotonic(), message))
                self._surplus_changed.set()
            else:
                demand.messages.append(message)
                demand.wake.set()
            self._send_ready()

    def _send_ready(self) -> None:
        """Send every nsqd its RDY, if changed; under the lock. Before a FIN or REQ, so that it applies first."""
        missing, room = 0, max(0, self._max_in_flight - self.in_flight)
        for demand in self._demands:
            if missing >= room:  # thousands may wait, and each looks four times a second
                break
            missing += demand.missing
        missing = min(missing, room)
        counts = {connection: self._ready_counts.get(connection, 0) for connection in self._consumer.connections}
        for connection, before in counts.items():
            count = min(connection.in_flight + missing, connection.max_rdy_count) if missing else 0
            if count != before:
                connection.send(command_writer.ready(count))
                counts[connection] = count
        self._ready_counts = counts

    def _requeue_surplus(self) -> None:
        """Requeue each surplus message after its time, and all of them at the end."""
        while True:
            with self._lock:
                stopping = self._stopping
                overdue = math.inf if stopping else time.monotonic() - KEEP_SECONDS
                while self._surplus and self._surplus[0][0] <= overdue:
                    self._surplus.popleft()[1].requeue(delay=0, backoff=False)
                left = self._surplus[0][0] - overdue if self._surplus else None
            if stopping:
                return
            self._surplus_changed.wait(left)
            self._surplus_changed.clear()
