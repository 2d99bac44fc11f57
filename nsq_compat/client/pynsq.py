"""pynsq's names, options and rules: ``Reader``, ``Writer`` and ``run``.

Handlers and callbacks run on the event loop, one at a time, in the thread of ``run``. It is asyncio's current loop,
which Tornado also uses, so coroutines, ``asyncio.run`` and Tornado's timers work.
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

from nsq_compat.client.connection import Connection, do_together, start_thread
from nsq_compat.client.consumer import Subscription
from nsq_compat.client.message import Message, finish_or_requeue, log_giving_up, requeue_after_error
from nsq_compat.client.nodes import Error, Published
from nsq_compat.client.producer import Producer
from nsq_compat.client.settings import SubscriptionOptions, address_list

log: Final = logging.getLogger(__name__)

STOP_SECONDS = 30.0
_MAX_BATCH_SECONDS = 0.01

Callback = Callable[[Connection | None, bytes | Exception], object]
"""Parameters: the connection, if it is still open, and ``b"OK"`` or an ``Error``."""


# --- The event loop ---------------------------------------------------------------------------------------------------

_clients: set["Reader | Writer"] = set()
"""Shut down when ``run`` ends."""


def current_loop() -> asyncio.AbstractEventLoop:
    """The running loop, or this thread's loop, which is made if necessary."""
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loop = asyncio.get_event_loop()
        if not loop.is_closed():
            return loop
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def run() -> None:
    """Run every Reader and Writer until SIGTERM or SIGINT, or until the loop is stopped.

    On a signal, clients receive no more messages and handle those that have arrived, for at most 30 seconds. A second
    signal stops the loop at once.
    """
    loop = current_loop()
    stopping = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if stopping.is_set():
            loop.call_soon_threadsafe(loop.stop)
            return
        stopping.set()
        start_thread("nsq stop", stop)

    def stop() -> None:
        _shut_down_all(STOP_SECONDS)
        with contextlib.suppress(RuntimeError):  # closed by a second signal
            loop.call_soon_threadsafe(loop.stop)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        loop.run_forever()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _shut_down_all(0.0)


def _shut_down_all(timeout: float) -> None:
    do_together(functools.partial(client.shut_down, timeout) for client in list(_clients))


# --- Consuming --------------------------------------------------------------------------------------------------------


class Reader:
    """A consumer, which connects when the event loop runs; it may be made before.

    If the handler returns True, the message is finished; if False, it is requeued. The handler may return a coroutine
    or a future with the result, or answer later, after ``enable_async``. Other options are those of
    ``SubscriptionSettings``.
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
        self.name: str = name or f"{topic}:{channel}"
        self.max_tries = max_tries
        self.message_handler = message_handler
        self._subscription = Subscription(
            topic,
            channel,
            lambda _: self._call_on_loop(self._handle_waiting),
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            cast(SubscriptionOptions, {**options, "max_in_flight": max_in_flight}),
            lambda connection: self._call_on_loop(self.heartbeat, connection),
        )
        self._tasks: set[asyncio.Future[Any]] = set()
        self._stop_lock = threading.Lock()
        self._stopped = False
        self._loop = current_loop()
        self._loop.call_soon_threadsafe(self._start)
        _clients.add(self)

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
        return self._subscription.is_starved()

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
        start_thread("nsq stop", self.shut_down, STOP_SECONDS)

    def shut_down(self, timeout: float) -> None:
        """`close`, and wait for it; after `timeout`, waiting messages are requeued. Not in the loop's thread."""
        with self._stop_lock:
            if self._stopped:
                return
            self._subscription.stop(timeout)
            self._stopped = True
        _clients.discard(self)

    # --- On the event loop --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        log.info("[%s] starting reader for %s/%s", self.name, self.topic, self.channel)
        self._subscription.start()

    def _call_on_loop(self, act: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:  # the loop is closed: no message will be handled
            self._subscription.requeue_waiting()

    def _handle_waiting(self) -> None:
        """Handle waiting messages; yield to the event loop after `_MAX_BATCH_SECONDS`."""
        end, waiting = time.monotonic() + _MAX_BATCH_SECONDS, self._subscription.waiting
        while waiting:
            self._handle(waiting.popleft())
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
        if isinstance(result, Future):
            result = asyncio.wrap_future(result, loop=self._loop)
        if inspect.isawaitable(result):
            message.enable_async()
            task = asyncio.ensure_future(result, loop=self._loop)
            self._tasks.add(task)
            task.add_done_callback(functools.partial(self._settle_later, message))
        else:
            if result is None and not message.is_deferred and not message.is_answered:
                log.error("[%s] the handler returned None, neither True nor False: requeueing", self.name)
            finish_or_requeue(message, bool(result))

    def _settle_later(self, message: Message, done: "asyncio.Future[Any]") -> None:
        self._tasks.discard(done)
        message.is_deferred = False
        try:
            finish_or_requeue(message, bool(done.result()))
        except asyncio.CancelledError:
            finish_or_requeue(message, False)
        except Exception as error:  # raised by the handler
            requeue_after_error(message, error)


# --- Publishing -------------------------------------------------------------------------------------------------------


class Writer:
    """A producer. Messages waiting for a topic are sent as one MPUB, in order.

    Without a connection, or if one is lost, it retries where pynsq fails. Other options are those of ``Producer``.
    `reconnect_interval` is accepted for compatibility and has no effect: connections are made when needed.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str],
        reconnect_interval: float = 15.0,
        name: str | None = None,
        **options: Any,
    ) -> None:
        addresses = address_list(nsqd_tcp_addresses)
        self._producer = Producer(addresses, **options)
        self.name: str = name or addresses[0]
        self.nsqd_tcp_addresses = addresses
        self.reconnect_interval = reconnect_interval
        self._loop = current_loop()
        self._producer.connect()
        _clients.add(self)

    @property
    def conns(self) -> dict[str, Connection]:
        """The open connections by address."""
        return {connection.address: connection for connection in self._producer.connections}

    def pub(self, topic: str, msg: bytes, callback: Callback | None = None) -> "asyncio.Future[bytes]":
        """Publish a message. The future and the callback get ``b"OK"`` when nsqd has answered."""
        return self._publish(self._producer.publish_async(topic, msg), topic, callback)

    def mpub(
        self, topic: str, msg: bytes | Sequence[bytes], callback: Callback | None = None
    ) -> "asyncio.Future[bytes]":
        """Publish all messages or none."""
        bodies = [msg] if isinstance(msg, bytes) else list(msg)
        return self._publish(self._producer.publish_many_async(topic, bodies), topic, callback)

    def dpub(self, topic: str, delay_ms: int, msg: bytes, callback: Callback | None = None) -> "asyncio.Future[bytes]":
        """Publish a message that is delivered after `delay_ms` milliseconds."""
        return self._publish(self._producer.publish_async(topic, msg, defer=delay_ms / 1000), topic, callback)

    def close(self) -> None:
        """Publish all waiting messages, then disconnect. Blocks until this is done."""
        self.shut_down(STOP_SECONDS)

    def shut_down(self, timeout: float) -> None:
        self._producer.close(timeout)
        _clients.discard(self)

    def _publish(self, published: Future[Published], topic: str, callback: Callback | None) -> "asyncio.Future[bytes]":
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def on_done(done: "asyncio.Future[Published]") -> None:
            error, connection = done.exception(), None
            if error is None:
                data: bytes | Exception = b"OK"
                connection = self.conns.get(done.result().nodes[0])
            else:
                data = error if isinstance(error, Error) else Error(str(error))
            if not answer.cancelled():
                if isinstance(data, bytes):
                    answer.set_result(data)
                else:
                    answer.set_exception(data)
                    answer.exception()  # so that asyncio does not log it
            if callback is not None:
                callback(connection, data)
            elif error is not None:
                log.error("[%s] failed to publish to %s: %s", self.name, topic, error)

        # On the loop; if that is closed, the answer is dropped.
        asyncio.wrap_future(published, loop=self._loop).add_done_callback(on_done)
        return answer
