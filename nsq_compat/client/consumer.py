"""Consumer: calls a handler for each message of a topic and channel, in its own threads.

`concurrency` threads, and at most max_in_flight, handle messages in the order of arrival. Stopping handles the messages
that have arrived, and requeues those that it cannot handle in time.
"""

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from nsq_compat.client.connection import Connection
from nsq_compat.client.message import Handler, Message, finish_or_requeue, log_giving_up, requeue_after_error
from nsq_compat.client.subscription import Subscription

log = logging.getLogger(__name__)


class Consumer:
    """Calls `handler` with each ``Message``.

    If the handler returns, the message is finished; if it returns False or raises, the message is requeued, with a
    growing delay. The handler may also call ``message.finish()`` or ``message.requeue()`` itself, or
    ``message.enable_async()`` to do so later.

    `giving_up` is called instead of the handler, and the message finished, after more than `max_tries` deliveries (0:
    no limit). Other options are those of ``SubscriptionSettings`` and ``ConnectionSettings``.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler,
        *,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        concurrency: int = 1,
        max_tries: int = 5,
        giving_up: Callable[[Message], object] | None = None,
        **options: Any,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, not {concurrency!r}")
        self.subscription = Subscription(
            topic,
            channel,
            self._deliver,
            nsqd_tcp_addresses=nsqd_tcp_addresses,
            lookupd_http_addresses=lookupd_http_addresses,
            options=options,
        )
        self._handler = handler
        self._max_tries = max_tries
        self._giving_up = giving_up or log_giving_up
        self._concurrency = min(concurrency, self.subscription.max_in_flight)
        self._waiting: deque[Message] = deque()
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True wakes a worker, False ends it."""
        self._workers: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()
        self._stopping = False

    # --- Running ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Consume in the background."""
        for number in range(self._concurrency):
            worker = threading.Thread(target=self._work, name=f"nsq handler {number}", daemon=True)
            self._workers.append(worker)
            worker.start()
        self.subscription.start()
        return self

    def run(self) -> None:
        """Consume until `stop` is called."""
        self.start()
        self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer has stopped. False after the timeout."""
        return self._stopped.wait(timeout)

    def stop(self, timeout: float = 30.0) -> None:
        """Stop receiving, handle messages that have arrived for at most `timeout` seconds, requeue the rest,
        disconnect.

        A handler cannot call it, because it would wait for itself; it calls ``stop_soon``.
        """
        with self._stop_lock:
            if self._stopping:
                return
            self._stopping = True
        self.subscription.stop(timeout, self._requeue_waiting)
        for _ in self._workers:
            self._wakeups.put(False)
        self._stopped.set()

    def stop_soon(self, timeout: float = 30.0) -> None:
        """`stop` in the background; may be called by handlers and signal handlers."""
        threading.Thread(target=self.stop, args=(timeout,), name="nsq stop", daemon=True).start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- State --------------------------------------------------------------------------------------------------------

    @property
    def connections(self) -> list[Connection]:
        """The subscribed connections."""
        return self.subscription.connections

    @property
    def in_flight(self) -> int:
        """Messages received and not yet answered."""
        return self.subscription.in_flight

    def is_starved(self) -> bool:
        """Whether a handler that collects messages should answer them now.

        True if no message waits for the handler, and a connection has at least 85 % of its RDY in flight.
        """
        return not self._waiting and self.subscription.is_starved()

    def set_max_in_flight(self, count: int) -> None:
        """Change the limit; 0 pauses the consumer."""
        self.subscription.set_max_in_flight(count)

    # --- Handling -----------------------------------------------------------------------------------------------------

    def _deliver(self, messages: list[Message]) -> None:
        self._waiting.extend(messages)
        for _ in range(min(len(messages), self._concurrency)):
            self._wakeups.put(True)

    def _work(self) -> None:
        waiting = self._waiting
        while self._wakeups.get():
            with contextlib.suppress(IndexError):  # none is waiting
                while True:
                    self._handle(waiting.popleft())

    def _handle(self, message: Message) -> None:
        # Hot: runs for every message.
        if message.is_lost:
            return  # it will be delivered again
        try:
            if 0 < self._max_tries < message.attempts:
                self._giving_up(message)
                finish_or_requeue(message, True)
                return
            succeeded = self._handler(message) is not False
        except (Exception, SystemExit) as error:  # raised by the handler
            requeue_after_error(message, error)
        else:
            finish_or_requeue(message, succeeded)

    def _requeue_waiting(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._waiting.popleft().requeue(delay=0, backoff=False)
        if self.in_flight:
            log.warning("%d messages are still being handled; nsqd will deliver them again", self.in_flight)
