"""Writer: a producer with pynsq's names and options.

Without a connection, or if one is lost, it retries where pynsq fails. Messages waiting for a topic are sent as one
MPUB, in order. Callbacks run on the event loop (``event_loop``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from nsq_compat.client import event_loop
from nsq_compat.client.connection import Connection
from nsq_compat.client.outcomes import Error, Published
from nsq_compat.client.producer import Producer
from nsq_compat.client.settings import address_list

log = logging.getLogger(__name__)

Callback = Callable[[Connection | None, bytes | Exception], object]
"""Parameters: the connection, if it is still open, and ``b"OK"`` or an ``Error``."""


class Writer:
    """Other options are those of ``Producer``. `reconnect_interval` exists for pynsq's sake and has no effect:
    connections are made when needed.
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
        self.name = name or addresses[0]
        self.nsqd_tcp_addresses = addresses
        self.reconnect_interval = reconnect_interval
        self._loop = event_loop.current_loop()
        self._producer.connect()
        event_loop.register(self)

    @property
    def conns(self) -> dict[str, Connection]:
        """The open connections by address."""
        return {connection.address: connection for connection in self._producer.connections}

    def pub(self, topic: str, msg: bytes, callback: Callback | None = None) -> "asyncio.Future[bytes]":
        """Publish a message. The future and the callback get ``b"OK"`` when nsqd has answered."""
        return self._publish(lambda: self._producer.publish_async(topic, msg), topic, callback)

    def mpub(
        self, topic: str, msg: bytes | Sequence[bytes], callback: Callback | None = None
    ) -> "asyncio.Future[bytes]":
        """Publish all messages or none."""
        bodies = [msg] if isinstance(msg, bytes) else list(msg)
        return self._publish(lambda: self._producer.publish_many_async(topic, bodies), topic, callback)

    def dpub(self, topic: str, delay_ms: int, msg: bytes, callback: Callback | None = None) -> "asyncio.Future[bytes]":
        """Publish a message that is delivered after `delay_ms` milliseconds."""
        return self._publish(lambda: self._producer.publish_async(topic, msg, defer=delay_ms / 1000), topic, callback)

    def close(self) -> None:
        """Publish what is waiting, then disconnect. Blocks until done."""
        self.shut_down(event_loop.STOP_SECONDS)

    def shut_down(self, timeout: float) -> None:
        self._producer.close(timeout)
        event_loop.unregister(self)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _publish(
        self, publish: Callable[[], Future[Published]], topic: str, callback: Callback | None
    ) -> "asyncio.Future[bytes]":
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def on_done(done: Future[Published]) -> None:
            # Runs in a thread of the producer. If the loop is closed, the answer is dropped.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answer, done, topic, callback, answer)

        publish().add_done_callback(on_done)
        return answer

    def _answer(
        self, done: Future[Published], topic: str, callback: Callback | None, answer: "asyncio.Future[bytes]"
    ) -> None:
        error = done.exception()
        if error is None:
            data: bytes | Exception = b"OK"
            connection = self.conns.get(done.result().nodes[0])
            if not answer.cancelled():
                answer.set_result(b"OK")
        else:
            data, connection = error if isinstance(error, Error) else Error(str(error)), None
            if not answer.cancelled():
                answer.set_exception(data)
                answer.exception()  # so that asyncio does not log it
        if callback is not None:
            callback(connection, data)
        elif error is not None:
            log.error("[%s] failed to publish to %s: %s", self.name, topic, error)
