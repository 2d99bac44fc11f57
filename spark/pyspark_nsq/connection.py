"""A connection to one nsqd on a blocking socket, used by one task.

The protocol is in ``nsq_compat.session.client_session``; this module has the socket and TLS. nsqd does not answer a
successful FIN. But it executes commands in order, so after the answer to CLS every earlier FIN has been executed or is
in `rejected`.
"""

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from nsq_compat import __version__
from nsq_compat.bounded_http import verifying_tls
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.identify import IdentifyRequest
from nsq_compat.session.client_session import (
    Answered,
    ClientSession,
    Failed,
    ProtocolError,
    ReceivedFrames,
    Rejected,
)
from pyspark_nsq.decode import InvalidMessage, decode
from pyspark_nsq.options import ConnectionOptions

_RECV_SIZE = 1 << 18
_RECV_TLS = 1 << 14
_RECV_COMPRESSED = 1 << 14
"""They may become a thousand times as many."""
_MAX_WAITING = 1 << 30
"""Bytes of messages that the task has not taken. With RDY at 0, few arrive."""
_HEARTBEAT_INTERVAL = 30.0
_DEFAULT_MSG_TIMEOUT = 60.0
_ID_IN_ERROR = re.compile(r"FIN (\S{16}) ")
_T = TypeVar("_T")
_WITH_HEADERS = (b"HPUB ", b"HMPUB ")


class NsqdUnreachable(Exception):
    """The connection to this nsqd cannot be established, or negotiation fails."""


class NsqdLost(Exception):
    """The connection was lost; the last FINs may or may not have been executed."""


class NsqConnection:
    """A task's connection. Raises ``NsqdUnreachable`` while it opens and ``NsqdLost`` later."""

    def __init__(self, address: str, options: ConnectionOptions) -> None:
        self.rejected: set[str] = set()
        self._finished = 0
        self._address = address
        self._timeout = options.connect_timeout
        self._session = ClientSession(_request(options), auth_secret=options.auth_secret.encode(), keeps_frames=True)
        self._messages: list[ReceivedFrames] = []
        self._waiting_bytes = 0
        self._answers: dict[str, bytes] = {}
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        deadline = time.monotonic() + self._timeout
        try:
            self._socket: socket.socket | _Tls = socket.create_connection((host, int(port)), self._timeout)
        except OSError as error:
            raise NsqdUnreachable(f"nsqd {address} cannot be reached: {error}") from None
        try:
            self._open(host, options, deadline)
        except (NsqdLost, OSError) as error:
            self._socket.close()
            raise NsqdUnreachable(str(error) if isinstance(error, NsqdLost) else f"nsqd {address}: {error}") from None

    def __enter__(self) -> "NsqConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def max_rdy_count(self) -> int:
        return self._session.max_rdy_count

    @property
    def msg_timeout(self) -> float:
        """Seconds after which nsqd delivers an unfinished message again."""
        response = self._session.response
        return (response.msg_timeout if response else 0) / 1000 or _DEFAULT_MSG_TIMEOUT

    def subscribe(self, topic: str, channel: str) -> None:
        try:
            self._ask(command_writer.subscribe(topic, channel), "SUB")
        except NsqdLost as error:
            raise NsqdUnreachable(str(error)) from None

    def send(self, command: bytes) -> None:
        """Send commands that nsqd does not answer: RDY, FIN, REQ."""
        self._finished += command.count(b"FIN ")
        self._session.send(command)
        self._flush()

    def publish(self, command: bytes, window: int) -> None:
        """Send a command that publishes; returns when fewer than `window` of them are unanswered."""
        if command.startswith(_WITH_HEADERS) and not self._session.has_headers:
            raise NsqdLost(
                f"nsqd {self._address} takes no messages with headers: leave them out with ignoreColumns=headers"
            )
        self._session.ask(command, "PUB")
        self._flush()
        self._wait_for_answers(window - 1)

    def confirm(self) -> None:
        """Wait until nsqd has confirmed every publish. Raises ``NsqdLost`` if an answer is missing."""
        self._wait_for_answers(0)

    def receive(self, timeout: float) -> list[ReceivedFrames]:
        """Return received messages, for `decode`; an empty list if none arrive within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._messages:
            left = deadline - time.monotonic()
            if left <= 0 or not self._pump(left):
                break
        messages, self._messages, self._waiting_bytes = self._messages, [], 0
        return messages

    def end_session(self) -> None:
        """Wait until nsqd has executed all commands, requeue messages that are no longer needed, and end the session.

        No command may be sent afterwards.
        """
        self._ask(command_writer.CLS, "CLS")
        try:
            late = [id.encode() for each in self._messages for id in decode([each]).column("id").to_pylist()]
        except InvalidMessage as error:
            raise NsqdLost(f"nsqd {self._address}: {error}") from None
        self.send(b"".join(command_writer.requeue(each, 0) for each in late))
        self._messages = []
        # Closing a socket with unread data resets the connection, and nsqd would lose commands it has not read yet.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + self._timeout
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(_RECV_SIZE):
                    break

    def _open(self, host: str, options: ConnectionOptions, deadline: float) -> None:
        while not self._session.is_open:
            self._flush()
            left = deadline - time.monotonic()
            if left <= 0 or not self._pump(left):
                raise NsqdLost(f"nsqd {self._address} did not answer IDENTIFY in {options.connect_timeout:g} s")
            if self._session.tls_wanted:
                context = tls_context(options)
                assert context is not None, "it is wanted"
                assert isinstance(self._socket, socket.socket), "TLS is wanted once"
                self._socket = _Tls(self._socket, context, host, self._timeout)
                self._session.tls_established()

    def _ask(self, command: bytes, ticket: str) -> bytes:
        self._session.ask(command, ticket)
        self._flush()
        deadline = time.monotonic() + self._timeout
        while ticket not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0 or not self._pump(left):
                raise NsqdLost(f"nsqd {self._address} did not answer {ticket} in {self._timeout:g} s")
        return self._answers.pop(ticket)

    def _wait_for_answers(self, allowed: int) -> None:
        deadline = time.monotonic() + self._timeout
        while (count := len(self._session.unanswered)) > allowed:
            left = deadline - time.monotonic()
            if left <= 0 or not self._pump(left):
                raise NsqdLost(f"nsqd {self._address} did not confirm a publish in {self._timeout:g} s")
            if len(self._session.unanswered) < count:
                deadline = time.monotonic() + self._timeout

    def _flush(self) -> None:
        if data := self._session.data_to_send():
            try:
                self._socket.settimeout(self._timeout)
                self._socket.sendall(data)
            except OSError as error:
                raise NsqdLost(f"nsqd {self._address}: {error}") from None

    def _pump(self, timeout: float) -> bool:
        """Receive once and handle the events; False if nothing arrives in time."""
        try:
            self._socket.settimeout(timeout)
            data = self._socket.recv(_RECV_COMPRESSED if self._session.is_compressed else _RECV_SIZE)
            events = self._session.receive_data(data)
            received = [each for each in events if isinstance(each, ReceivedFrames)]
        except TimeoutError:
            return False
        except (OSError, ProtocolError) as error:
            raise NsqdLost(f"nsqd {self._address}: {error}") from None
        self._messages += received
        self._waiting_bytes += sum(each.starts[-1] - each.starts[0] for each in received)
        if self._waiting_bytes > _MAX_WAITING:
            self._messages = []
            raise NsqdLost(f"nsqd {self._address} sends messages without end")
        if not data:
            raise NsqdLost(f"nsqd {self._address} closed the connection")
        for event in events:
            if isinstance(event, Answered):
                self._answers[str(event.ticket)] = event.data
            elif isinstance(event, Rejected):
                self.rejected.update(_ID_IN_ERROR.findall(str(event.error)))
                if len(self.rejected) > self._finished:
                    raise NsqdLost(f"nsqd {self._address} refuses to finish messages that were not finished")
            elif isinstance(event, Failed):
                raise NsqdLost(f"nsqd {self._address} refused: {event.error}")
        self._flush()
        return True


class _Tls:
    """TLS on a socket, with its methods. A wait of ``ssl.SSLSocket`` does not end while records without data arrive.

    The constructor returns after the handshake, `timeout` seconds later at most.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, host: str, timeout: float) -> None:
        self._socket = connection
        self._timeout = timeout
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._wait_for(self._tls.do_handshake)
        self.close, self.shutdown = connection.close, connection.shutdown

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def recv(self, size: int) -> bytes:
        try:
            return self._wait_for(lambda: self._tls.read(size))
        except ssl.SSLEOFError:  # like nsqd, which sends no close_notify
            return b""

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        self._send_pending()

    def _wait_for(self, step: Callable[[], _T]) -> _T:
        """The result of a step, which is tried again when more has been received."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                pass
            finally:
                self._send_pending()
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
            if received := self._socket.recv(_RECV_TLS):
                self._incoming.write(received)
            else:
                self._incoming.write_eof()

    def _send_pending(self) -> None:
        if pending := self._outgoing.read():
            self._socket.settimeout(self._timeout)
            self._socket.sendall(pending)


def _request(options: ConnectionOptions) -> IdentifyRequest:
    hostname = socket.gethostname()
    return IdentifyRequest(
        client_id=hostname.split(".")[0],
        hostname=hostname,
        heartbeat_interval=int(_HEARTBEAT_INTERVAL * 1000),
        feature_negotiation=True,
        tls_v1=options.tls,
        deflate=options.deflate,
        deflate_level=options.deflate_level if options.deflate else 0,
        snappy=options.snappy,
        user_agent=f"pyspark_nsq/{__version__}",
        msg_timeout=int(options.msg_timeout * 1000),
        message_headers=True,
    )


def tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    """TLS to nsqd; None without TLS. Raises ``OSError`` if a file cannot be read."""
    return _tls_context(options) if options.tls else None


class HttpAccess(NamedTuple):
    """What HTTP requests to daemons need: TLS, None without it, and a token, "" without one."""

    tls: ssl.SSLContext | None = None
    token: str = ""


NO_ACCESS: Final = HttpAccess()


def http_access(options: ConnectionOptions) -> HttpAccess:
    """For nsqds. Raises ``OSError`` if a file of TLS cannot be read."""
    return HttpAccess(tls_context(options), options.auth_secret)


def lookupd_access(options: ConnectionOptions, lookupds: Iterable[str]) -> HttpAccess:
    """For these nsqlookupds. Raises ``OSError`` if a file of TLS cannot be read."""
    uses_tls = any(each.startswith("https://") for each in lookupds)
    return HttpAccess(_tls_context(options) if uses_tls else None, options.auth_secret)


def _tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    context = verifying_tls(options.tls_ca_file or None)
    if options.tls_cert_file:
        # Without a password, OpenSSL asks for that of an encrypted key at the terminal.
        context.load_cert_chain(options.tls_cert_file, options.tls_key_file or None, password="")
    if options.tls_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
