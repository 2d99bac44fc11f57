"""A TCP connection to nsqd: a protocol of asyncio with a session on it.

`open` connects and negotiates; from then on the event loop delivers what arrives. Commands are accumulated, and written
once for each iteration of the event loop, so that a run of FINs or of publishes is one write. While nsqd does not read,
they wait in the session.

Invariants:

- The observer's `closed` is called once for a connection that was opened, when every request has an answer or an error.
- A connection fails if nothing arrives, or nothing can be sent, for two heartbeat intervals, and if a request has no
  answer by its deadline.
- A request that is cancelled keeps its place in the order of answers.
"""

import asyncio
import logging
import math
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final, cast

from nsq_compat.client.link import ENDS, TURN_SECONDS, ConnectionLost, Link, NotExecuted, Observer, why
from nsq_compat.client.message import Message
from nsq_compat.client.settings import ConnectionSettings, split_address

log: Final = logging.getLogger(__name__)

Ticket = tuple["asyncio.Future[bytes]", float]
"""The answer to a request, and its deadline."""


class Connection(Link, asyncio.Protocol):
    """A connection to the nsqd at `address` (``host:port``). With a `subscription` opening it includes SUB."""

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        observer: "Observer[Connection] | None" = None,
        subscription: tuple[str, str] | None = None,
        *,
        publish_ids: bool = False,
    ) -> None:
        super().__init__(address, settings, subscription, publish_ids=publish_ids)
        self._observer: Observer[Connection] = observer or Observer()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._finished = asyncio.Event()
        self._closing = False
        self._flush_is_due = False
        self._blocked_at = math.inf
        """Since when nsqd does not read, or infinity."""
        self._sent_at = self._received_at = 0.0
        self._check_at = math.inf
        self._check: asyncio.TimerHandle | None = None

    # --- Opening ------------------------------------------------------------------------------------------------------

    async def open(self, deadline: float = math.inf) -> None:
        """Connect and negotiate, by the deadline and within the settings' timeout. Raises ``ConnectionLost``."""
        try:
            async with asyncio.timeout_at(min(deadline, self._loop.time() + self.settings.timeout)):
                connected = await connect(*split_address(self.address))
                await self._loop.create_connection(lambda: self, sock=connected)
                await self._opened
        except BaseException as error:
            self._opened.cancel()
            self.abort()
            if isinstance(error, (*ENDS, ValueError)):
                raise self._not_opened(error, self._transport is not None) from error
            raise
        self._note_opened()

    @property
    def _is_running(self) -> bool:
        """Whether the connection was opened; it may have ended since."""
        return self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.is_closed:
            self._transport.abort()
            return
        self._received_at = self._loop.time()
        self._flush()

    def _go_on_opening(self) -> None:
        """After data has arrived: the next step of opening the connection."""
        self._note_round_trip(self._loop.time() - self._sent_at)
        self._flush()
        if self._is_open and not self._opened.done():
            self._opened.set_result(None)
            self._check_by(self._received_at + self._silence)

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._receive(self._pieces(data))

    def _receive(self, pieces: Iterator[bytes]) -> None:
        """Process received bytes. What takes longer than a turn goes on in the next iteration of the event loop."""
        self._received_at = self._loop.time()
        try:
            for piece in pieces:
                for event in self._decode(piece):
                    self._on_event(event)
                if self._loop.time() >= self._received_at + TURN_SECONDS:
                    self._go_on_later(pieces)
                    break
            if not self._opened.done():
                self._go_on_opening()
            elif self._tls is not None and self._tls.has_pending:
                self._flush_soon()
        except Exception as error:  # the end of the connection, however it is caused
            if self._opened.done() and not isinstance(error, ENDS):
                log.exception("[%s] internal error", self.address)
            self.abort(error)

    def _go_on_later(self, pieces: Iterator[bytes]) -> None:
        transport = self._transport
        assert transport is not None, "it has delivered the bytes"
        transport.pause_reading()

        def go_on() -> None:
            if not self.is_closed:
                transport.resume_reading()
                self._receive(pieces)

        self._loop.call_soon(go_on)

    def eof_received(self) -> None:
        self.abort(ConnectionLost("closed by nsqd"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(exc)
        if self._check is not None:
            self._check.cancel()
        self._fail_unanswered()
        self._finished.set()
        if self._is_running:
            self._observer.closed(self, self._reason or ConnectionLost("closed"))

    def _received(self, messages: list[Message]) -> None:
        self.in_flight += len(messages)
        self._observer.received(self, messages)

    def _beat(self) -> None:
        self._observer.heartbeat(self)

    def _resolve(self, ticket: object, outcome: bytes | Exception) -> None:
        if ticket is None:  # SUB
            return
        answer, _ = cast(Ticket, ticket)
        if answer.done():  # its caller was cancelled
            return
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    # --- Commands -----------------------------------------------------------------------------------------------------

    def ask(self, command: bytes, deadline: float = math.inf) -> "asyncio.Future[bytes]":
        """Send a command that nsqd answers. The future raises ``NsqError``, ``NotExecuted`` or ``ConnectionLost``.

        Without an answer by the deadline the connection fails, so that later requests do not wait for this nsqd.
        """
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if self.is_closed:
            answer.set_exception(NotExecuted(why(self._reason), self.address))
            return answer
        self._session.ask(command, (answer, deadline))
        if deadline < self._check_at:
            self._check_by(deadline)
        if not self._flush_is_due:
            self._flush_soon()
        return answer

    def send(self, command: bytes) -> None:
        self._session.send(command)
        self._flush_soon()

    def finish(self, message: Message) -> None:
        # Hot: runs for every message.
        self._session.send(b"FIN %s\n" % message.id)
        self.in_flight -= 1
        if not self._flush_is_due:
            self._flush_soon()
        self._observer.answered(self, True)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self.send(self._requeue_command(message, delay))
        self.in_flight -= 1
        self._observer.answered(self, False if backoff else None)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._transport is None or self.is_closed or self._closing or self._blocked_at < math.inf:
            return
        try:
            data = self._data_to_send()
        except OSError as error:  # of TLS
            self.abort(error)
            return
        if data:
            self._sent_at = self._loop.time()
            self._transport.write(data)

    def pause_writing(self) -> None:
        self._blocked_at = self._loop.time()
        self._check_by(self._blocked_at + self._silence)

    def resume_writing(self) -> None:
        self._blocked_at = math.inf
        self._flush_soon()

    # --- Limits of time -----------------------------------------------------------------------------------------------

    def _check_by(self, when: float) -> None:
        if when < self._check_at and not self.is_closed:
            if self._check is not None:
                self._check.cancel()
            self._check_at = when
            self._check = self._loop.call_at(when, self._check_times)

    def _check_times(self) -> None:
        now, self._check_at = self._loop.time(), math.inf
        silent_at = min(self._received_at, self._blocked_at) + self._silence
        tickets = cast(Iterable[Ticket | None], self._session.unanswered)
        due_at = min((ticket[1] for ticket in tickets if ticket is not None), default=math.inf)
        if now >= due_at:
            self.abort(ConnectionLost("no answer in time"))
        elif now >= silent_at:
            self.abort(ConnectionLost(f"silent for {self._silence:g} s"))
        else:
            self._check_by(min(silent_at, due_at))

    # --- Closing ------------------------------------------------------------------------------------------------------

    async def close(self, timeout: float = 2.0) -> None:
        """Send pending commands, wait until nsqd has read them and closes, at most `timeout` seconds, then close."""
        try:
            if self._transport is not None and self._session.is_open and not self.is_closed:
                self._blocked_at = math.inf
                self._flush()
                self._closing = True
                self._transport.write_eof()
                async with asyncio.timeout(timeout):
                    await self._finished.wait()
        except TimeoutError:
            pass
        finally:
            self.abort()

    def abort(self, reason: Exception | None = None) -> None:
        """End the connection immediately. The observer is told in a later iteration of the event loop."""
        if self.is_closed:
            return
        ended = self._mark_closed(reason)
        if not self._opened.done():
            self._opened.set_exception(ended)
        elif self._is_running:
            log.info("[%s] connection closed%s", self.address, "" if self._closing else f": {why(self._reason)}")
        if self._transport is not None:
            self._transport.abort()


async def connect(host: str, port: int) -> socket.socket:
    """A connected socket. Each address of the name is tried in turn. Raises ``OSError`` in the system's words."""
    loop = asyncio.get_running_loop()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await _resolved(host, port)
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:
        connecting = socket.socket(family, kind, protocol)
        connecting.setblocking(False)
        try:
            await loop.sock_connect(connecting, address)
        except BaseException as error:
            connecting.close()
            if not isinstance(error, OSError):
                raise
            # asyncio's text has the address, which callers add themselves.
            failure = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        else:
            return connecting
    raise failure


async def _resolved(host: str, port: int) -> list[Any]:
    """The addresses of a name, found in a thread of its own.

    Names that DNS does not answer would take up the few threads that asyncio has for all of the program.
    """
    found: Future[list[Any]] = Future()
    found.set_running_or_notify_cancel()  # it is not cancelled with the task that awaits it

    def resolve() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:  # the top of a thread
            found.set_exception(error)

    try:
        threading.Thread(target=resolve, name=f"resolving {host}", daemon=True).start()
    except RuntimeError as error:  # the system permits no more
        raise OSError(f"{host}: {error}") from None
    return await asyncio.wrap_future(found)
