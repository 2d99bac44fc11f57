"""Consumer: a handler is called for each message of a topic and channel, in threads of its own.

`concurrency` threads take messages in the order they came; the handler never runs more often at once than that, nor
than max_in_flight. Closing handles what has come, gives back to nsqd what it did not get to, and drops nothing.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from nsq_compat.client.connection import Connection
from nsq_compat.client.message import Handler, Message, finish_or_requeue, log_giving_up, requeue_after_error
from nsq_compat.client.settings import address_list, split_options
from nsq_compat.client.subscription import Subscription

log = logging.getLogger(__name__)


class Consumer:
    """Calls `handler` with each ``Message``.

    What the handler does is the answer: it returns (finished), returns False or raises (requeued with a growing
    delay), calls ``message.finish()`` or ``message.requeue()`` itself, or ``message.enable_async()`` to do so later.

    `giving_up` is called instead of the handler, and the message finished, when it came more than `max_tries` times
    (0: never). All other options are those of ``SubscriptionSettings`` and ``ConnectionSettings``.
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
        settings, connection_settings = split_options(options)
        self.subscription = Subscription(
            topic,
            channel,
            self._deliver,
            nsqd_tcp_addresses=address_list(nsqd_tcp_addresses),
            lookupd_http_addresses=address_list(lookupd_http_addresses),
            settings=settings,
            connection_settings=connection_settings,
        )
        self._handler = handler
        self._max_tries = max_tries
        self._giving_up = giving_up or log_giving_up
        self._concurrency = min(concurrency, settings.max_in_flight)
        self._waiting: deque[Message] = deque()
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """One for each worker that should look at what waits; False ends a worker."""
        self._workers: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()
        self._stopping = False

    # --- Its life -----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to consume, in the background."""
        for number in range(self._concurrency):
            worker = threading.Thread(target=self._work, name=f"nsq handler {number}", daemon=True)
            self._workers.append(worker)
            worker.start()
        self.subscription.start()
        return self

    def run(self) -> None:
        """Consume until somebody calls `stop`."""
        self.start()
        self.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Until the consumer has stopped, or so long; whether it has."""
        return self._stopped.wait(timeout)

    def stop(self, timeout: float = 30.0) -> None:
        """Ask for no more, handle what has come for at most `timeout` seconds, give the rest back to nsqd, close.

        Not to be called by the handler itself, which would wait for its own end: ``stop_soon`` is for it.
        """
        with self._stop_lock:
            if self._stopping:
                return
            self._stopping = True
        deadline = time.monotonic() + timeout
        self.subscription.stop_receiving(timeout)
        if not self.subscription.wait_until_answered(max(0.0, deadline - time.monotonic())):
            self._give_back()
        for _ in self._workers:
            self._turns.put(False)
        self.subscription.close()
        self._stopped.set()

    def stop_soon(self, timeout: float = 30.0) -> None:
        """The same from anywhere: a handler, a signal handler. It returns at once."""
        threading.Thread(target=self.stop, args=(timeout,), name="nsq stop", daemon=True).start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # --- What can be asked and changed --------------------------------------------------------------------------------

    @property
    def connections(self) -> list[Connection]:
        """To each nsqd it is subscribed at."""
        return self.subscription.connections

    @property
    def in_flight(self) -> int:
        """Messages received and not answered yet."""
        return self.subscription.in_flight

    def is_starved(self) -> bool:
        """Whether gathered messages should be answered now: nothing waits for the handler, and a connection has 85 % or
        more of what it may have in flight.
        """
        return not self._waiting and self.subscription.is_starved()

    def set_max_in_flight(self, count: int) -> None:
        """0 pauses the consumer."""
        self.subscription.set_max_in_flight(count)

    # --- Handling -----------------------------------------------------------------------------------------------------

    def _deliver(self, messages: list[Message]) -> None:
        self._waiting.extend(messages)
        for _ in range(min(len(messages), self._concurrency)):
            self._turns.put(True)

    def _work(self) -> None:
        waiting = self._waiting
        while self._turns.get():
            with contextlib.suppress(IndexError):  # nothing waits any more
                while True:
                    self._handle(waiting.popleft())

    def _handle(self, message: Message) -> None:
        # Hot: runs for every message.
        if message.is_lost:
            return  # it comes again whatever is done with it now
        try:
            if 0 < self._max_tries < message.attempts:
                self._giving_up(message)
                finish_or_requeue(message, True)
                return
            succeeded = self._handler(message) is not False
        except (Exception, SystemExit) as error:  # whatever a handler raises: no thread of ours ends by it
            requeue_after_error(message, error)
        else:
            finish_or_requeue(message, succeeded)

    def _give_back(self) -> None:
        """What no handler has begun goes back at once; what one is at comes back when nsqd's timeout is over."""
        with contextlib.suppress(IndexError):
            while True:
                self._waiting.popleft().requeue(delay=0, backoff=False)
        if self.in_flight:
            log.warning("%d messages are still being handled; nsqd will deliver them again", self.in_flight)
