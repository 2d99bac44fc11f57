"""Reading a topic's log by offset, without a channel, from one nsqd or from all that have the topic; with threads.

`log_reading` has what is requested, and what the answers mean. A thread for each nsqd requests the next part of its log
while the caller handles the part before, so memory holds two parts of each nsqd. The threads only carry out steps and
queue the results; everything else is done by the thread that iterates.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Self, TypeVar, Unpack

from nsq_compat.bounded_http import FAILURES, Deadline, bounded_session, exchange, reason_of
from nsq_compat.client.connection import do_together, start_thread
from nsq_compat.client.discovery import ask, note_failure
from nsq_compat.client.log_reading import (
    MAX_ANSWER_BYTES,
    Gap,
    LoggedMessage,
    LogReadError,
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
from nsq_compat.client.settings import SubscriptionOptions, SubscriptionSettings

T = TypeVar("T")


class LogReader:
    """Iterates over the messages of a topic. Those of each nsqd come in the order of their offsets.

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
        self._nodes: list[_Node] = []
        self._ends = False
        self._stopped = threading.Event()
        """For the threads; set soon after `_ends`."""
        self._events: queue.SimpleQueue[Callable[[], Iterable[LoggedMessage]]] = queue.SimpleQueue()
        """What the threads have for the iterating one. The results are the next messages."""
        self._messages = self._read_all()

    @property
    def position(self) -> dict[str, int]:
        """For each nsqd the offset after the last message that the iterator has returned, for another reader."""
        return dict(self._reading.position)

    @property
    def lost_count(self) -> int:
        """The number of messages in gaps so far."""
        return self._reading.lost_count

    def ranges(self) -> dict[str, range]:
        """The offsets that would be read from each nsqd now, without reading them; empty once it was stopped.

        Raises ``LogReadError``.
        """
        found: dict[str, range | None] = {}
        failures: list[LogReadError] = []

        def find(address: str) -> None:
            try:
                found[address] = self._carry_out(self._reading.range_of(address), self._make_node())
            except LogReadError as error:
                failures.append(error)
            except _Stopped:
                found[address] = None

        try:
            addresses = self._carry_out(self._reading.addresses())
        except _Stopped:
            return {}
        do_together(partial(find, address) for address in addresses)
        for failure in failures:
            raise failure
        ranges = ((address, found[address]) for address in addresses)
        return {address: each for address, each in ranges if each is not None}

    def stop(self) -> None:
        """End the iteration; may be called by any thread, and by signal handlers."""
        self._ends = True
        start_thread("nsq stop", self._end_threads)  # a signal handler must not wait for locks

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LoggedMessage:
        """Raises ``LogReadError``, also ``OffsetGone``."""
        return next(self._messages)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_threads()

    # --- In the thread that iterates ----------------------------------------------------------------------------------

    def _read_all(self) -> Iterator[LoggedMessage]:
        reading = self._reading
        try:
            self._add(self._carry_out(reading.addresses()), reading.start)
            if reading.follow and reading.lookupds:
                start_thread(f"lookup {self.topic}", self._look_up_again)
            while reading.goes_on:
                for message in self._events.get()():
                    yield message
                    if self._ends:
                        return
            reading.check_end()
        except _Stopped:
            return
        finally:
            self._end_threads()

    def _end_threads(self) -> None:
        self._ends = True
        self._stopped.set()
        for node in tuple(self._nodes):
            node.abort()
        self._events.put(partial(_raise, _Stopped()))

    def _add(self, addresses: Iterable[str], start: str) -> Iterable[LoggedMessage]:
        for address in self._reading.new_nodes(addresses):
            start_thread(f"log of nsqd {address}", self._read, address, start, self._make_node())
        return ()

    def _deliver(self, node: "_Node", part: Part) -> Iterator[LoggedMessage]:
        yield from self._reading.messages(part)
        node.room.release()

    def _finish(self, address: str) -> Iterable[LoggedMessage]:
        self._reading.finished(address)
        return ()

    # --- In other threads ---------------------------------------------------------------------------------------------

    def _read(self, address: str, start: str, node: "_Node") -> None:
        try:
            self._carry_out(self._reading.read(address, start), node)
            self._events.put(partial(self._finish, address))
        except _Stopped:
            pass
        except Exception as error:  # the top of a thread
            self._events.put(partial(_raise, error))

    def _look_up_again(self) -> None:
        """Find further nsqd. What they have was published after this reader began, unless they are named late."""
        start = moment_of(self._reading.start)
        try:
            while True:
                nodes = self._carry_out(self._reading.further_nodes())
                self._events.put(partial(self._add, sorted(nodes), start))
        except _Stopped:
            pass

    # --- Steps, in any thread -----------------------------------------------------------------------------------------

    def _make_node(self) -> "_Node":
        node = _Node(self._reading.settings)
        self._nodes.append(node)
        return node

    def _carry_out(self, routine: Routine[T], node: "_Node | None" = None) -> T:
        """Carry out the steps of a routine. Raises ``_Stopped``, and what the routine raises."""
        try:
            step = next(routine)
            while True:
                try:
                    result = self._do(step, node)
                except FAILURES as error:
                    self._check_stopped()
                    step = routine.throw(error)
                else:
                    step = routine.send(result)
        except StopIteration as end:
            result_of_routine: T = end.value
            return result_of_routine

    def _do(self, step: Step, node: "_Node | None") -> object:
        self._check_stopped()
        if isinstance(step, LookUp):
            return self._look_up()
        if isinstance(step, Pause):
            self._stopped.wait(step.seconds)
            self._check_stopped()
            return None
        assert node is not None, "it is a step of a routine for one nsqd"
        if isinstance(step, Request):
            return node.exchange(step)
        node.room.acquire()
        self._check_stopped()
        self._events.put(partial(self._deliver, node, step))
        return None

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise _Stopped

    def _look_up(self) -> set[str]:
        found: list[set[str]] = []
        failures: list[str] = []

        def query(lookupd: str) -> None:
            try:
                found.append(ask(lookupd, self.topic, self._reading.settings, "HTTP").nodes)
            except FAILURES as error:
                note_failure(self.topic, lookupd, error)
                failures.append(reason_of(error))

        do_together(partial(query, each) for each in self._reading.lookupds)
        return self._reading.union(found, failures)


class _Stopped(Exception):
    """The reader was stopped."""


class _Node:
    """The requests to one nsqd, all from one thread."""

    def __init__(self, settings: SubscriptionSettings) -> None:
        self.room = threading.Semaphore(1)
        """For parts that wait for the iterating thread."""
        self._connect_timeout = settings.timeout
        self._session = bounded_session(1, settings.tls_context(check_hostname=True))
        self._deadline = Deadline(0.0)

    def exchange(self, request: Request) -> object:
        self._deadline = Deadline(request.timeout)
        return exchange(
            self._session,
            "GET",
            request.url,
            self._deadline,
            connect_timeout=self._connect_timeout,
            max_body=MAX_ANSWER_BYTES,
            headers=request.headers,
        )

    def abort(self) -> None:
        """End the request under way, and waiting for room; may be called by any thread."""
        self._deadline.expire()
        self.room.release()


def _raise(error: Exception) -> Iterable[LoggedMessage]:
    raise error
