"""Reading a topic's log by offset, without a channel, from one nsqd or from all that have the topic; on the event loop.

`log_reading` has what is requested, and what the answers mean. A task for each nsqd requests the next part of its log
while the caller handles the part before, so memory holds two parts of each nsqd. The position moves in the same step in
which a message is returned, so a cancelled iteration has lost none.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from nsq_compat.bounded_http import FAILURES, Answer, reason_of
from nsq_compat.client.aio.http import HttpClient, ask
from nsq_compat.client.discovery import note_failure
from nsq_compat.client.log_reading import (
    MAX_ANSWER_BYTES,
    Gap,
    LoggedMessage,
    LogReading,
    LookUp,
    Part,
    Pause,
    Request,
    Routine,
    Step,
    When,
    moment_of,
)
from nsq_compat.client.settings import SubscriptionOptions

T = TypeVar("T")


class LogReader:
    """Iterates over the messages of a topic, with ``async for``. Those of each nsqd come in the order of their offsets.

    It begins at `start`, or for an nsqd that is in `position`, there. It ends at `end`, by default the end of the log
    when it begins; with `follow` it goes on with what is published, and with further nsqd that nsqlookupd names.

    `on_gap` is called with each ``Gap``, in order with the messages. If an nsqd cannot be read for `retry_timeout`
    seconds (None: no limit), the iterator raises ``LogReadError``. `max_bytes` is the approximate size of a part that
    is read at once. Other options are those of ``SubscriptionSettings``.
    """

    def __init__(
        self,
        topic: str,
        *,
        nsqd_http_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        start: When = "oldest",
        end: When | None = None,
        position: Mapping[str, int] | None = None,
        follow: bool = False,
        on_gap: Callable[[Gap], object] | None = None,
        retry_timeout: float | None = 60.0,
        request_timeout: float = 30.0,
        max_bytes: int = 1 << 20,
        **options: Unpack[SubscriptionOptions],
    ) -> None:
        self.topic = topic
        self._reading = LogReading(
            topic,
            nsqd_http_addresses,
            lookupd_http_addresses,
            start,
            end,
            position,
            follow,
            on_gap,
            retry_timeout,
            request_timeout,
            max_bytes,
            options,
        )
        self._has_begun = False
        self._knows_nodes = False
        self._ends = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._events: asyncio.Queue[Callable[[], Iterator[LoggedMessage]]] = asyncio.Queue()
        """What the tasks have for the iterating one. The results are the next messages."""
        self._messages: Iterator[LoggedMessage] = iter(())

    @property
    def position(self) -> dict[str, int]:
        """For each nsqd the offset after the last message that the iterator has returned, for another reader."""
        return dict(self._reading.position)

    @property
    def lost_count(self) -> int:
        """The number of messages in gaps so far."""
        return self._reading.lost_count

    async def ranges(self) -> dict[str, range]:
        """The offsets that would be read from each nsqd now, without reading them; empty once it was stopped.

        Raises ``LogReadError``.
        """
        if self._ends:
            return {}
        task = self._start(self._find_ranges())
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        return {} if task.cancelled() else task.result()

    def stop(self) -> None:
        """End the iteration."""
        self._ends = True
        for task in self._tasks:
            task.cancel()
        self._events.put_nowait(_nothing)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LoggedMessage:
        """Raises ``LogReadError``, also ``OffsetGone``."""
        if not self._has_begun:
            self._has_begun = True
            self._start(self._find_nodes())
        try:
            while not self._ends:
                for message in self._messages:
                    return message
                if self._knows_nodes and not self._reading.goes_on:
                    self._reading.check_end()
                    break
                self._messages = (await self._events.get())()
        except Exception:
            self.stop()
            raise
        self.stop()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # --- In the task that iterates ------------------------------------------------------------------------------------

    def _add(self, addresses: Iterable[str], start: str) -> Iterator[LoggedMessage]:
        self._knows_nodes = True
        for address in self._reading.new_nodes(addresses):
            self._start(self._read(address, start))
        return iter(())

    def _deliver(self, node: "_Node", part: Part) -> Iterator[LoggedMessage]:
        yield from self._reading.messages(part)
        node.room.release()

    def _finish(self, address: str) -> Iterator[LoggedMessage]:
        self._reading.finished(address)
        return iter(())

    # --- In other tasks -----------------------------------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _find_nodes(self) -> None:
        """Find the nodes, and if there may be further ones, those. What further nodes have was published after this
        reader began, unless they are named late."""
        reading = self._reading
        later = moment_of(reading.start)
        try:
            self._events.put_nowait(partial(self._add, await self._carry_out(reading.addresses()), reading.start))
            while reading.follow and reading.lookupds:
                nodes = await self._carry_out(reading.further_nodes())
                self._events.put_nowait(partial(self._add, sorted(nodes), later))
        except Exception as error:  # the top of a task
            self._events.put_nowait(partial(_raise, error))

    async def _read(self, address: str, start: str) -> None:
        node = _Node(self._reading)
        try:
            await self._carry_out(self._reading.read(address, start), node)
            self._events.put_nowait(partial(self._finish, address))
        except Exception as error:  # the top of a task
            self._events.put_nowait(partial(_raise, error))
        finally:
            node.client.close()

    async def _find_ranges(self) -> dict[str, range]:
        async def find(address: str) -> range | None:
            node = _Node(self._reading)
            try:
                return await self._carry_out(self._reading.range_of(address), node)
            finally:
                node.client.close()

        addresses = await self._carry_out(self._reading.addresses())
        found = await asyncio.gather(*map(find, addresses))
        return {address: each for address, each in zip(addresses, found, strict=True) if each is not None}

    # --- Steps --------------------------------------------------------------------------------------------------------

    async def _carry_out(self, routine: Routine[T], node: "_Node | None" = None) -> T:
        """Carry out the steps of a routine. Raises what the routine raises."""
        try:
            step = next(routine)
            while True:
                try:
                    result = await self._do(step, node)
                except FAILURES as error:
                    step = routine.throw(error)
                else:
                    step = routine.send(result)
        except StopIteration as end:
            result_of_routine: T = end.value
            return result_of_routine

    async def _do(self, step: Step, node: "_Node | None") -> object:
        if isinstance(step, LookUp):
            return await self._look_up()
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        assert node is not None, "it is a step of a routine for one nsqd"
        if isinstance(step, Request):
            return await node.exchange(step)
        await node.room.acquire()
        self._events.put_nowait(partial(self._deliver, node, step))
        return None

    async def _look_up(self) -> set[str]:
        reading = self._reading
        found: list[set[str]] = []
        failures: list[str] = []

        async def query(lookupd: str) -> None:
            try:
                found.append((await ask(lookupd, self.topic, reading.settings, "HTTP")).nodes)
            except FAILURES as error:
                note_failure(self.topic, lookupd, error)
                failures.append(reason_of(error))

        await asyncio.gather(*map(query, reading.lookupds))
        return reading.union(found, failures)


class _Node:
    """The requests to one nsqd, all from one task."""

    def __init__(self, reading: LogReading) -> None:
        self.room = asyncio.Semaphore(1)
        """For parts that wait for the iterating task."""
        self.client = HttpClient(
            partial(reading.settings.tls_context, check_hostname=True),
            connect_timeout=reading.settings.timeout,
            max_body=MAX_ANSWER_BYTES,
        )

    async def exchange(self, request: Request) -> Answer:
        return await self.client.get(request.url, request.headers, timeout=request.timeout)


def _nothing() -> Iterator[LoggedMessage]:
    return iter(())


def _raise(error: Exception) -> Iterator[LoggedMessage]:
    raise error
