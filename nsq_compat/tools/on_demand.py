"""Messages of a topic and channel, taken from nsqd when somebody wants them and not before.

Theory of operation. A consumer asks for messages ahead of time, with RDY; whoever may not come again for an hour must
not. So the consumer is paused for good, and RDY is told to each nsqd from here: what it has in flight plus what is
wanted at this moment, which is 0 most of the time. Every nsqd is asked, because nobody knows which of them has
something; what comes too much is kept for the next who wants it, for a second, and then goes back.

Invariants:

- With nobody waiting, RDY is 0 and nothing stays in flight for longer than `KEPT_SECONDS`.
- Handed out and kept together never exceed `most`, but for one message of each further nsqd.
- Who came first is served first.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from nsq_compat.client import Connection, Consumer, Message
from nsq_compat.client.message import Handler
from nsq_compat.protocol import command_writer

KEPT_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.25
"""How late a node that has just been connected is asked."""


class Wish:
    """What somebody waits for. `messages` grows to at most `count`; then and meanwhile `wake` is set."""

    def __init__(self, count: int, wake: threading.Event) -> None:
        self.count = count
        self.wake = wake
        self.messages: list[Message] = []

    @property
    def missing(self) -> int:
        return self.count - len(self.messages)


class OnDemand:
    """`make_consumer` is given the handler; what else a consumer is told is decided there."""

    def __init__(self, make_consumer: Callable[[Handler], Consumer], most: int) -> None:
        self._consumer = make_consumer(self._deliver)
        self._consumer.set_max_in_flight(0)
        self._most = most
        self._lock = threading.RLock()
        self._wishes: deque[Wish] = deque()
        self._kept: deque[tuple[float, Message]] = deque()
        self._told: dict[Connection, int] = {}
        self._something_kept = threading.Event()
        self._stopping = False
        self._keeper = threading.Thread(target=self._keep, name="nsq kept messages", daemon=True)

    @property
    def in_flight(self) -> int:
        """Handed out or kept."""
        return self._consumer.in_flight

    def start(self) -> None:
        self._consumer.start()
        self._keeper.start()

    def stop(self) -> None:
        """Nobody must be waiting any more."""
        self._stopping = True
        self._something_kept.set()
        self._keeper.join()
        self._consumer.stop(timeout=5.0)

    @contextmanager
    def wish(self, count: int, wake: threading.Event) -> Iterator[Wish]:
        """While this lasts, up to `count` messages are gathered; they are the caller's to answer afterwards."""
        wish = Wish(min(count, self._most), wake)
        with self._lock:
            while self._kept and wish.missing:
                _, message = self._kept.popleft()
                if not message.is_lost:
                    wish.messages.append(message)
            self._wishes.append(wish)
            self._ask()
        try:
            yield wish
        finally:
            with self._lock:
                self._wishes.remove(wish)
                self._ask()

    def wait(self, wish: Wish, seconds: float) -> None:
        """Until something has come for `wish`, or its `wake` is set, or so long."""
        if wish.missing:
            wish.wake.wait(min(seconds, _LOOK_SECONDS))
        with self._lock:
            self._ask()

    def finish(self, messages: list[Message]) -> None:
        for message in messages:
            message.finish()
        self._answered()

    def give_back(self, messages: list[Message]) -> None:
        """They are delivered again at once, here or elsewhere."""
        for message in messages:
            message.requeue(delay=0, backoff=False)
        self._answered()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _answered(self) -> None:
        with self._lock:
            self._ask()

    def _deliver(self, message: Message) -> None:
        message.enable_async()
        with self._lock:
            wish = next((wish for wish in self._wishes if wish.missing), None)
            if wish is None:
                self._kept.append((time.monotonic(), message))
                self._something_kept.set()
            else:
                wish.messages.append(message)
                wish.wake.set()
            self._ask()

    def _ask(self) -> None:
        """Tell every nsqd how much is wanted now; under the lock. Before a FIN or REQ, so that it is obeyed first."""
        connections = self._consumer.connections
        missing = sum(wish.missing for wish in self._wishes)
        missing = max(0, min(missing, self._most - self.in_flight))
        told = {connection: self._told.get(connection, 0) for connection in connections}
        for connection, before in told.items():
            count = min(connection.in_flight + missing, connection.max_rdy_count) if missing else 0
            if count != before:
                connection.send(command_writer.ready(count))
                told[connection] = count
        self._told = told

    def _keep(self) -> None:
        """What nobody has come for goes back."""
        while not self._stopping:
            self._something_kept.wait()
            self._something_kept.clear()
            while self._kept and not self._stopping:
                due = self._kept[0][0] + KEPT_SECONDS
                if (left := due - time.monotonic()) > 0:
                    self._something_kept.wait(left)
                    self._something_kept.clear()
                else:
                    self._return_oldest()
        while self._kept:
            self._return_oldest()

    def _return_oldest(self) -> None:
        with self._lock:
            if self._kept:
                _, message = self._kept.popleft()
                message.requeue(delay=0, backoff=False)
