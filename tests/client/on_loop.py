"""The client for asyncio with the interface of the one in threads, so that the same tests hold for both.

Each object has an event loop in a thread of its own. Handlers are called in other threads, because those of the tests
may block.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

from nsq_compat.client import aio
from nsq_compat.client.coordinator import Coordinator
from nsq_compat.client.link import Observer
from nsq_compat.client.log_reading import LoggedMessage
from nsq_compat.client.message import Message
from nsq_compat.client.nodes import Published, PublishError
from nsq_compat.client.settings import ConnectionSettings

T = TypeVar("T")


class OnLoop:
    """An event loop in a thread, until `end_loops` or earlier."""

    made: ClassVar[list["OnLoop"]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self._loop = asyncio.new_event_loop()
        self._errors: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _, context: self._errors.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._executor = ThreadPoolExecutor(max_workers=64)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._submit(coroutine).result(60)

    def _call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        async def call() -> T:
            return function(*arguments, **options)

        return self._run(call())

    def _in_thread(self, function: Callable[..., Any]) -> Callable[[Message], Any]:
        """A handler that calls a function for tests in another thread."""

        async def handle(message: Message) -> Any:
            return await self._loop.run_in_executor(self._executor, function, _MessageInThread(message, self))

        return handle

    def _end_loop(self) -> None:
        """Nothing is left behind: no task, and no error in a callback."""
        if self._loop.is_closed():
            return

        async def left() -> int:
            for _ in range(3):  # callbacks of transports that were aborted
                await asyncio.sleep(0)
            return len(asyncio.all_tasks()) - 1

        tasks = self._run(left())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
        self._executor.shutdown(wait=False)
        assert (tasks, self._errors) == (0, [])


def end_loops() -> None:
    """Called at the end of each test."""
    while OnLoop.made:
        OnLoop.made.pop()._end_loop()


class _MessageInThread:
    """A message whose answers are given on the event loop."""

    def __init__(self, message: Message, loop: OnLoop) -> None:
        self._message = message
        self._on_loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._message, name)
        return partial(self._on_loop._call, found) if name in ("finish", "requeue", "touch") else found


class LoopConsumer(OnLoop):
    """``aio.Consumer`` with the interface of ``Consumer``."""

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Any], object],
        giving_up: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if giving_up is not None:
            options["giving_up"] = self._in_thread(giving_up)
        self._consumer = self._call(aio.Consumer, topic, channel, self._in_thread(handler), **options)

    def __getattr__(self, name: str) -> Any:
        found = self._call(getattr, self._consumer, name)
        return partial(self._call, found) if callable(found) else found

    @property
    def _coordinator(self) -> Coordinator[aio.Connection]:
        return self._consumer._coordinator

    @property
    def connections(self) -> list[aio.Connection]:
        return self._call(lambda: self._consumer.connections)

    def start(self) -> Self:
        self._call(self._consumer.start)
        return self

    def stop(self, timeout: float = 30.0) -> None:
        if not self._loop.is_closed():
            self._run(self._consumer.stop(timeout))
            self._end_loop()

    def wait_until_subscribed(self, timeout: float = 30.0) -> None:
        self._run(self._consumer.wait_until_subscribed(timeout))

    def wait(self, timeout: float) -> bool:
        if self._loop.is_closed():
            return True
        self._submit(self._consumer.wait()).result(timeout)
        return True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class LoopProducer(OnLoop):
    """``aio.Producer`` with the interface of ``Producer``."""

    def __init__(self, nsqd_tcp_addresses: str | Iterable[str], **options: Any) -> None:
        super().__init__()
        self._producer = self._call(aio.Producer, nsqd_tcp_addresses, **options)

    @property
    def connections(self) -> list[aio.Connection]:
        return self._call(lambda: self._producer.connections)

    def connect(self) -> None:
        self._call(self._producer.connect)

    def publish(self, topic: str, body: bytes, **options: Any) -> Published:
        return self._run(self._producer.publish(topic, body, **options))

    def publish_many(self, topic: str, bodies: Sequence[bytes], **options: Any) -> Published:
        return self._run(self._producer.publish_many(topic, bodies, **options))

    def retry(self, error: PublishError, **options: Any) -> Published:
        return self._run(self._producer.retry(error, **options))

    def close(self, timeout: float = 30.0) -> bool:
        done = self._run(self._producer.close(timeout))
        self._end_loop()
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoopLogReader(OnLoop):
    """``aio.LogReader`` with the interface of ``LogReader``."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__()
        self._reader = self._call(aio.LogReader, topic, **options)

    @property
    def position(self) -> dict[str, int]:
        return self._reader.position

    @property
    def lost_count(self) -> int:
        return self._reader.lost_count

    def ranges(self) -> dict[str, range]:
        return self._run(self._reader.ranges())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._reader.stop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LoggedMessage:
        async def take() -> LoggedMessage | None:
            try:
                return await self._reader.__anext__()
            except StopAsyncIteration:
                return None

        message = self._run(take())
        if message is None:
            raise StopIteration
        return message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_loop()

    def _end_loop(self) -> None:
        if not self._loop.is_closed() and hasattr(self, "_reader"):
            self._run(self._reader.__aexit__())
        super()._end_loop()


class LoopConnection(OnLoop):
    """``aio.Connection`` with the interface of ``Connection``."""

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        observer: Observer[Any] | None = None,
        subscription: tuple[str, str] | None = None,
    ) -> None:
        super().__init__()
        relay = _Relay(observer, self) if observer is not None else None
        self._connection = self._call(aio.Connection, address, settings, relay, subscription)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def open(self) -> None:
        self._run(self._connection.open())

    def run(self) -> None:
        """Wait for the end of the connection."""
        self._run(self._connection._finished.wait())

    def ask(self, command: bytes) -> "Future[bytes]":
        async def ask() -> bytes:
            return await self._connection.ask(command)

        return self._submit(ask())

    def send(self, command: bytes) -> None:
        self._call(self._connection.send, command)

    def abort(self) -> None:
        self._call(self._connection.abort)

    def close(self, timeout: float = 2.0) -> None:
        self._run(self._connection.close(timeout))


class _Relay(Observer[aio.Connection]):
    """Passes the events of a connection to an observer that answers messages in another thread."""

    def __init__(self, observer: Observer[Any], loop: OnLoop) -> None:
        self._observer = observer
        self._loop = loop

    def received(self, connection: aio.Connection, messages: list[Message]) -> None:
        wrapped: list[Any] = [_MessageInThread(message, self._loop) for message in messages]
        self._observer.received(connection, wrapped)

    def answered(self, connection: aio.Connection, succeeded: bool | None) -> None:
        self._observer.answered(connection, succeeded)

    def heartbeat(self, connection: aio.Connection) -> None:
        self._observer.heartbeat(connection)

    def closed(self, connection: aio.Connection, reason: Exception) -> None:
        self._observer.closed(connection, reason)
