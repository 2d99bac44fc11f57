"""Reader: a consumer with pynsq's names, options and rules.

Handlers are called one at a time on the event loop (``event_loop``). Returning True finishes a message and False
requeues it, also as the result of a coroutine or future. After ``enable_async`` the program answers later.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from nsq_compat.client import event_loop
from nsq_compat.client.connection import Connection
from nsq_compat.client.message import Message, finish_or_requeue, log_giving_up, requeue_after_error
from nsq_compat.client.subscription import Subscription

log = logging.getLogger(__name__)

_MAX_BATCH_SECONDS = 0.01


class Reader:
    """Connects when the event loop runs; may be made before. Other options are those of ``SubscriptionSettings`` and
    ``ConnectionSettings``.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        message_handler: Callable[[Message], Any] | None = None,
        name: str | None = None,
        nsqd_tcp_addresses: str | Iterable[str] | None = None,
        lookupd_http_addresses: str | Iterable[str] | None = None,
        max_tries: int = 5,
        max_in_flight: int = 1,
        **options: Any,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.name = name or f"{topic}:{channel}"
        self.max_tries = max_tries
        self.message_handler = message_handler
        self._subscription = Subscription(
            topic,
            channel,
            self._deliver,
            nsqd_tcp_addresses=nsqd_tcp_addresses,
            lookupd_http_addresses=lookupd_http_addresses,
            options={**options, "max_in_flight": max_in_flight},
            heartbeat=self._on_heartbeat,
        )
        self._waiting: deque[Message] = deque()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._stop_lock = threading.Lock()
        self._stopped = False
        self._loop = event_loop.current_loop()
        self._loop.call_soon_threadsafe(self._start)
        event_loop.register(self)

    # --- Methods to override ------------------------------------------------------------------------------------------

    def process_message(self, message: Message) -> Any:
        """Calls the handler."""
        assert self.message_handler is not None, "you must specify the Reader's message_handler"
        return self.message_handler(message)

    def giving_up(self, message: Message) -> None:
        """Called instead of the handler after more than `max_tries` deliveries; the message is then finished."""
        log_giving_up(message)

    def preprocess_message(self, message: Message) -> Message:
        return message

    def validate_message(self, message: Message) -> bool:
        """If False, the message is finished without calling the handler."""
        return True

    def heartbeat(self, connection: Connection) -> None:
        """Called for each heartbeat from nsqd."""

    # --- State --------------------------------------------------------------------------------------------------------

    @property
    def conns(self) -> dict[str, Connection]:
        """The subscribed connections by address."""
        return {connection.address: connection for connection in self._subscription.connections}

    @property
    def max_in_flight(self) -> int:
        return self._subscription.max_in_flight

    def is_starved(self) -> bool:
        """Whether a handler that collects messages should answer them now, as ``Consumer.is_starved``."""
        return not self._waiting and self._subscription.is_starved()

    def set_message_handler(self, message_handler: Callable[[Message], Any]) -> None:
        self.message_handler = message_handler

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Change the limit; 0 pauses the reader."""
        self._subscription.set_max_in_flight(max_in_flight)

    def connect_to_nsqd(self, host: str, port: int) -> None:
        self._subscription.connect(f"{host}:{port}")

    def query_lookupd(self) -> None:
        """Query every nsqlookupd now."""
        self._subscription.poll_lookupd()

    def close(self) -> None:
        """Stop receiving, and disconnect when all messages are answered. Returns immediately."""
        stop = threading.Thread(target=self.shut_down, args=(event_loop.STOP_SECONDS,), name="nsq stop", daemon=True)
        stop.start()

    def shut_down(self, timeout: float) -> None:
        """`close`, and wait for it; after `timeout`, waiting messages are requeued. Not to be called on the event
        loop."""
        with self._stop_lock:
            if self._stopped:
                return
            self._subscription.stop(timeout, self._requeue_waiting)
            self._stopped = True
        event_loop.unregister(self)

    # --- On the event loop --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        log.info("[%s] starting reader for %s/%s", self.name, self.topic, self.channel)
        self._subscription.start()

    def _deliver(self, messages: list[Message]) -> None:
        # Runs in a connection's thread.
        self._waiting.extend(messages)
        self._call_on_loop(self._handle_waiting)

    def _on_heartbeat(self, connection: Connection) -> None:
        self._call_on_loop(self.heartbeat, connection)

    def _call_on_loop(self, act: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:  # the loop is closed: no message will be handled
            self._requeue_waiting()

    def _handle_waiting(self) -> None:
        """Handle waiting messages; yield to the event loop after `_MAX_BATCH_SECONDS`."""
        end = time.monotonic() + _MAX_BATCH_SECONDS
        while self._waiting:
            self._handle(self._waiting.popleft())
            if time.monotonic() > end:
                self._loop.call_soon(self._handle_waiting)
                return

    def _handle(self, message: Message) -> None:
        if message.is_lost:
            return  # it will be delivered again
        try:
            if 0 < self.max_tries < message.attempts:
                self.giving_up(message)
                finish_or_requeue(message, True)
                return
            message = self.preprocess_message(message)
            result = self.process_message(message) if self.validate_message(message) else True
        except Exception as error:  # raised by the handler
            requeue_after_error(message, error)
        else:
            self._settle(message, result)

    def _settle(self, message: Message, result: Any) -> None:
        if inspect.isawaitable(result):
            message.enable_async()
            task = asyncio.ensure_future(result, loop=self._loop)
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._settle_later(message, done))
        elif isinstance(result, Future):
            message.enable_async()
            result.add_done_callback(lambda done: self._call_on_loop(self._settle_later, message, done))
        else:
            if result is None and not message.is_deferred and not message.is_answered:
                log.error("[%s] the handler returned None, neither True nor False: requeueing", self.name)
            finish_or_requeue(message, bool(result))

    def _settle_later(self, message: Message, done: "asyncio.Future[Any] | Future[Any]") -> None:
        self._tasks.discard(done)
        message.is_deferred = False
        try:
            finish_or_requeue(message, bool(done.result()))
        except asyncio.CancelledError:
            finish_or_requeue(message, False)
        except Exception as error:  # raised by the handler
            requeue_after_error(message, error)

    def _requeue_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().requeue(delay=0, backoff=False)
