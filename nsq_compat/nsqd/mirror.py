"""The primary's side of mirroring: a connection to the standby, over which every change of the data path goes.

With `sync`, a publish waits for the standby's acknowledgement, as at level fsync it waits for the disk: one round trip
for all publishes of an event-loop iteration. While the standby is away for longer than `timeout`, nsqd continues alone
or refuses publishes.
"""

import json
import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Final

import gevent
import gevent.socket
from gevent.event import AsyncResult, Event
from gevent.lock import Semaphore

from nsq_compat.cli.kinds import OptionError
from nsq_compat.client.connection import TlsStream
from nsq_compat.client.settings import ConnectionSettings, split_address
from nsq_compat.log.data_path import reason, resolved
from nsq_compat.log.files import Files
from nsq_compat.log.identity import Identity
from nsq_compat.log.mirror_copy import catch_up
from nsq_compat.log.mirrored_files import Changes
from nsq_compat.net.sockets import Dialer
from nsq_compat.nsqd.options import REFUSE, NsqdOptions
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.mirror import command
from nsq_compat.session.client_session import Answered, ClientSession, Failed, ProtocolError
from nsq_compat.session.client_session import Event as SessionEvent

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 1 << 18
_WINDOW: Final = 16
"""Unanswered commands with changes."""
_MAX_BYTES: Final = 1 << 26
"""Changes that may wait. With more, the connection is closed, and the files are compared again."""
_RECEIVE_SIZE: Final = 1 << 16
_FIRST_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 5.0
_MAX_FRAME: Final = 1 << 28
_CHECKS: Final = 10
"""Within the timeout."""
_CONNECT_SECONDS: Final = 2.0


def make_mirror(
    options: NsqdOptions,
    files: Files,
    changes: Changes,
    own: Identity,
    *,
    describe: Callable[[], Mapping[str, object]],
    forget: Callable[[Mapping[str, int]], None],
) -> "Mirror":
    """The connection to the standby. Raises ``OptionError``."""
    tls: dict[str, object] = {}
    if options.tls_root_ca_file:
        tls["ca_certs"] = options.tls_root_ca_file
    if options.tls_cert:
        tls |= {"certfile": options.tls_cert, "keyfile": options.tls_key}
    timeout = options.mirror_timeout / SECOND
    try:
        settings = ConnectionSettings(
            client_id=options.broadcast_address,
            timeout=max(timeout, _CONNECT_SECONDS),
            heartbeat_interval=1,
            tls_v1=options.mirror_tls,
            tls_options={"check_hostname": True, **tls} if tls else None,
            snappy=options.mirror_compression == "snappy",
            deflate=options.mirror_compression == "deflate",
            auth_secret=options.mirror_auth_secret or None,
        )
        settings.tls_context()
        split_address(options.mirror_to)
    except (OSError, ValueError) as error:
        raise OptionError(f"--mirror-to: {error}") from None
    return Mirror(
        options.mirror_to,
        settings,
        files=files,
        data_path=resolved(options.data_path),
        changes=changes,
        identity=own,
        refuses=options.mirror_lost == REFUSE,
        timeout=timeout,
        describe=describe,
        forget=forget,
    )


class State(Enum):
    GONE = "not connected"
    CATCHING_UP = "catching up"
    IN_SYNC = "in sync"


class NotMirrored(OSError):
    """The standby does not have the message."""


class _Group:
    """Publishes that wait together for the changes up to `target`."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.target = 0
        self.is_confirmed: AsyncResult[bool] = AsyncResult()


class Mirror:
    """Keeps the standby at `address` equal to `data_path`, from `start` to `stop`.

    `describe` returns what the standby shows of this nsqd. `forget` is called with the topics that the standby has
    taken over, each with the offset up to which it has their messages.
    """

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        *,
        files: Files,
        data_path: str,
        changes: Changes,
        identity: Identity,
        refuses: bool,
        timeout: float,
        describe: Callable[[], Mapping[str, object]],
        forget: Callable[[Mapping[str, int]], None],
    ) -> None:
        self.address = address
        self.state = State.GONE
        self.since = time.time()
        """When `state` began, or when the standby was lost, Unix seconds."""
        self.was_asked = Event()
        """Set after the first attempt to reach the standby."""
        self.acknowledged = 0
        self._settings = settings
        self._files = files
        self._data_path = data_path
        self._changes = changes
        self._identity = identity
        self._refuses = refuses
        self._timeout = timeout
        self._describe = describe
        self._forget = forget
        self._lost_at = time.monotonic()
        self._group: _Group | None = None  # of the publishes of this event-loop iteration
        self._waiting: deque[_Group] = deque()
        self._link: _Link | None = None
        self._last_failure = ""
        self._pause = _FIRST_PAUSE  # before the next attempt
        self._run_of_standby: object = None
        self._equal: dict[str, int] = {}  # sealed files that the standby has, with their sizes
        self._running = gevent.Greenlet(self._run)
        self._watching = gevent.Greenlet(self._watch)
        self._main = threading.get_ident()
        self._loop = gevent.get_hub().loop
        changes.on_change = self._on_change
        changes.on_replaced = self._on_replaced

    def start(self) -> None:
        self._running.start()
        self._watching.start()

    def stop(self) -> None:
        """Send what is left, and end."""
        with suppress(OSError):
            self.confirm()
        self._running.kill()
        self._watching.kill()
        self._release_waiting()

    @property
    def behind(self) -> int:
        """Changes that the standby has not acknowledged."""
        return self._changes.position - self.acknowledged

    def state_of_standby(self) -> dict[str, object]:
        """For /mirror. `since` is when the state began, in Unix seconds."""
        return {
            "address": self.address,
            "state": self.state.value,
            "since": int(self.since),
            "seconds": round(time.time() - self.since, 1),
            "behind": self.behind,
            "failure": "" if self.state is State.IN_SYNC else self._last_failure,
            "when_lost": REFUSE if self._refuses else "continue",
        }

    def confirm(self) -> None:
        """Return when the standby has all changes so far, or nsqd may continue without. Raises ``NotMirrored``."""
        if gevent.getcurrent() is self._running:
            return  # what is forgotten is logged before the connection sends changes
        if self.state is State.IN_SYNC:
            if self.acknowledged >= self._changes.position:
                return
        elif time.monotonic() - self._lost_at >= self._timeout:
            self._go_on()
            return
        group = self._group
        if group is None:  # the first of this event-loop iteration
            group = self._group = _Group(time.monotonic())
            self._loop.run_callback(self._close_group)
        if not group.is_confirmed.get():
            self._go_on()

    def _close_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.target = self._changes.position
            self._waiting.append(group)
            self._resolve()

    def _watch(self) -> None:
        """Let go of publishes that have waited for too long."""
        while True:
            gevent.sleep(self._timeout / _CHECKS)
            late = time.monotonic() - self._timeout
            if self._waiting and self._waiting[0].began <= late:
                if self._link is not None and self.state is State.IN_SYNC:
                    self._link.fail(f"no acknowledgement within {self._timeout:g} s")
                    self._note(State.GONE)
                    self._lost_at = late
                while self._waiting and self._waiting[0].began <= late:
                    self._waiting.popleft().is_confirmed.set(False)

    def _go_on(self) -> None:
        if self._refuses:
            raise NotMirrored(f"the standby {self.address} is not in sync")

    # --- The connection -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            failure = "closed"
            try:
                self._converse()
            except (OSError, ProtocolError, NsqError, ValueError, _Ended) as error:
                failure = _why(error)
            except Exception:  # the top of a greenlet
                log.exception("MIRROR(%s): internal error", self.address)
            self._log_failure(failure)
            self.was_asked.set()
            gevent.sleep(self._pause)
            self._pause = min(2 * self._pause, _MAX_PAUSE)

    def _converse(self) -> None:
        client = Dialer(self.address).connect(self._settings.timeout)
        link = _Link(client, self.address, self._settings, self._on_acknowledged)
        try:
            link.open()
            self._link = link
            hello = {"identity": self._identity.identity, "epoch": self._identity.epoch, **self._describe()}
            answer = json.loads(link.ask(command("hello", json.dumps(hello).encode())))
            if answer.get("run") != self._run_of_standby:
                self._run_of_standby = answer.get("run")
                self._equal.clear()
            self._forget_adopted(link, answer)
            self.was_asked.set()
            self._note(State.CATCHING_UP)
            began = time.monotonic()
            copying = gevent.spawn(self._catch_up, link)
            caught_up: int | None = None  # the last change that completes the copy
            try:
                while not link.is_closed:
                    self._send_changes(link)
                    if caught_up is None and copying.ready():
                        copying.get()
                        caught_up = self._changes.position
                        if not link.unanswered_changes:  # what was lost with an earlier connection is in the copy
                            self.acknowledged = self._changes.position_taken
                    if self.state is State.CATCHING_UP and caught_up is not None and self.acknowledged >= caught_up:
                        link.ask(command("complete"))
                        log.info("MIRROR(%s): in sync after %.1f s", self.address, time.monotonic() - began)
                        self._note(State.IN_SYNC)
                        self._pause = _FIRST_PAUSE
                        self._resolve()
                    link.wanted.wait()
                    link.wanted.clear()
            finally:
                copying.kill()
            raise _Ended(link.failure or "closed")
        finally:
            self._leave(link)

    def _catch_up(self, link: "_Link") -> None:
        steps = catch_up(self._files, self._data_path, self._changes, self._equal)
        try:
            request = next(steps)
            while True:
                request = steps.send(link.ask(request))
        except StopIteration:
            pass
        except (OSError, NsqError, ValueError, _Ended) as error:
            link.fail(_why(error))
        finally:
            link.wanted.set()

    def _send_changes(self, link: "_Link") -> None:
        while link.unanswered_changes < _WINDOW and (body := self._changes.take(_BATCH_BYTES)):
            link.send_changes(body, self._changes.position_taken)
        if self._changes.waiting_bytes > _MAX_BYTES:
            link.fail("the standby is too slow")

    def _on_acknowledged(self, position: int) -> None:
        self.acknowledged = position
        self._resolve()

    def _resolve(self) -> None:
        waiting = self._waiting
        while waiting and self.state is State.IN_SYNC and waiting[0].target <= self.acknowledged:
            waiting.popleft().is_confirmed.set(True)

    def _release_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().is_confirmed.set(False)

    def _forget_adopted(self, link: "_Link", answer: Mapping[str, object]) -> None:
        standby, takeover = str(answer.get("identity", "")), str(answer.get("takeover", ""))
        adopted = answer.get("adopted")
        if not takeover or not isinstance(adopted, dict):
            return
        if self._identity.forgotten.get(standby) != takeover:
            log.warning(
                "MIRROR(%s): the standby has taken over %d topics, their messages are forgotten here",
                self.address,
                len(adopted),
            )  # fmt: skip
            self._forget(adopted)
            self._identity.forgotten[standby] = takeover
            self._identity.save(self._files, self._data_path)
        link.ask(command("forgotten"))

    # --- States -------------------------------------------------------------------------------------------------------

    def _note(self, state: State) -> None:
        self.state = state
        self.since = time.time()
        if state is State.IN_SYNC:
            self._last_failure = ""

    def _leave(self, link: "_Link") -> None:
        """Close the connection, and confirm nothing from here on, because changes are not noted any more."""
        if self.state is State.IN_SYNC:
            self._lost_at = time.monotonic()
        if self.state is not State.GONE:
            self._note(State.GONE)
        self._link = None
        self._changes.forget()
        link.close()  # waits, while other greenlets publish

    def _log_failure(self, failure: str) -> None:
        level = logging.DEBUG if failure == self._last_failure else logging.ERROR
        log.log(level, "MIRROR(%s): %s; messages are not mirrored", self.address, failure)
        self._last_failure = failure

    def _on_change(self) -> None:
        link = self._link
        if link is not None:
            if threading.get_ident() == self._main:
                link.wanted.set()
            else:
                self._loop.run_callback_threadsafe(link.wanted.set)

    def _on_replaced(self) -> None:
        if self._link is not None:
            self._link.fail("a topic was replaced, all files are compared again")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, socket.gaierror):  # its number is not one of the system's
        return f"cannot resolve the name: {error.strerror}"
    return reason(error) if isinstance(error, OSError) and error.errno else str(error)


class _Ended(Exception):
    """The connection has ended."""


class _Link:
    """One connection to the standby, with a greenlet that receives."""

    def __init__(
        self,
        client: socket.socket,
        address: str,
        settings: ConnectionSettings,
        on_acknowledged: Callable[[int], None],
    ) -> None:
        self.failure = ""
        self.is_closed = False
        self.wanted = Event()
        self.unanswered_changes = 0
        self._socket = gevent.socket.socket(fileno=client.detach())
        self._address = address
        self._settings = settings
        self._on_acknowledged = on_acknowledged
        self._session = ClientSession(settings.identify(), auth_secret=settings.secret(), max_frame_size=_MAX_FRAME)
        self._tls: TlsStream | None = None
        self._sending = Semaphore()
        self._receiver: gevent.Greenlet[[], None] | None = None

    def open(self) -> None:
        """Negotiate. Raises ``OSError``, ``ProtocolError``, ``NsqError``, ``_Ended``."""
        with gevent.Timeout(self._settings.timeout, TimeoutError("no answer; is this nsqd's TCP port?")):
            while not self._session.is_open:
                self._flush()
                self._receive()
        self._receiver = gevent.spawn(self._receive_loop)

    def ask(self, request: bytes) -> bytes:
        """Send a command and return its answer. Raises ``NsqError`` and ``_Ended``."""
        if self.is_closed:
            raise _Ended(self.failure)
        answer: AsyncResult[bytes] = AsyncResult()
        self._session.ask(request, answer)
        self._flush()
        return answer.get() or b""

    def send_changes(self, body: bytes, position: int) -> None:
        self.unanswered_changes += 1
        self._session.ask(command("changes", body), position)
        self._flush()

    def fail(self, failure: str) -> None:
        """End the connection."""
        if not self.is_closed:
            self.is_closed = True
            self.failure = failure
            for ticket in self._session.unanswered:
                if isinstance(ticket, AsyncResult):
                    ticket.set_exception(_Ended(failure))
            self.wanted.set()

    def close(self) -> None:
        self.fail("closed")
        if self._receiver is not None and self._receiver is not gevent.getcurrent():
            self._receiver.kill()
        self._socket.close()

    def _receive_loop(self) -> None:
        try:
            while not self.is_closed:
                self._receive()
        except (OSError, ProtocolError, NsqError, _Ended) as error:
            self.fail(_why(error))

    def _receive(self) -> None:
        session = self._session
        if session.tls_wanted and self._tls is None:
            self._tls = TlsStream(self._settings.tls_context(), split_address(self._address)[0])
            self._flush()
        self._socket.settimeout(2 * self._settings.heartbeat_interval + 1)
        data = self._socket.recv(_RECEIVE_SIZE)
        if not data:
            raise _Ended("closed by nsqd")
        if self._tls is not None:
            data = self._tls.decode(data)
            if session.tls_wanted and self._tls.is_established:
                session.tls_established()
        for event in session.receive_data(data) if data else ():
            self._on_event(event)
        self._flush()

    def _on_event(self, event: SessionEvent) -> None:
        if isinstance(event, Answered):
            if isinstance(event.ticket, AsyncResult):
                event.ticket.set(event.data)
            elif isinstance(event.ticket, int):
                self.unanswered_changes -= 1
                self._on_acknowledged(event.ticket)
                self.wanted.set()
        elif isinstance(event, Failed):
            if isinstance(event.ticket, AsyncResult):
                event.ticket.set_exception(event.error)
            raise event.error

    def _flush(self) -> None:
        with self._sending:
            data = self._session.data_to_send()
            if self._tls is not None:
                data = self._tls.encode(data)
            if data:
                self._socket.sendall(data)
