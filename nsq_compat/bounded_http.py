"""HTTP requests with `requests` and bounds: one deadline for the whole exchange, and a maximum size of the body.

The timeouts of `requests` are for one wait each: a server that sends a byte now and then never exceeds them, in the TLS
handshake, in headers, in chunk sizes, with 100 Continue, or from redirect to redirect. So a watchdog shuts the
connection down when the deadline passes, which ends every wait for it. In a program that replaced threads by greenlets,
the watchdog is a greenlet. It does not run while others do not wait, so a server that never makes us wait is ended by
the reads themselves (`Deadline.pace`). Only name resolution is not interrupted: the resolver has timeouts of its own.

`exchange` makes a whole request. A caller that treats the answer differently uses the two parts:

    with Deadline(5.0) as deadline:
        response = session.get(url, stream=True)
        body = read(response.raw)
        deadline.check()  # headers, or a body without a length, look complete when their connection is shut down
"""

import contextlib
import heapq
import io
import itertools
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.client import BadStatusLine, HTTPException, HTTPResponse, RemoteDisconnected
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final, NamedTuple, Self, cast

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs
from urllib3.util.ssltransport import SSL_BLOCKSIZE, SSLTransport

MAX_REDIRECTS: Final = 10
FAILURES: Final = (requests.RequestException, urllib3.exceptions.HTTPError, HTTPException, OSError, ValueError)
"""Everything that a request can raise."""
_CHUNK: Final = 64 * 1024
_TURN_SECONDS: Final = 0.005
_PAUSE_SECONDS: Final = 0.0001
"""Not 0, for which gevent runs up to 50 such turns before it serves sockets."""

# It logs URLs, and an auth server's contains a secret. What fails is logged by the caller.
logging.getLogger("urllib3").setLevel(logging.CRITICAL)


class AnswerTooLarge(ValueError):
    """The body exceeds the bound."""


class Answer(NamedTuple):
    """`headers` ignores case in names."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str]


class Deadline:
    """The end of everything that this thread does over `bounded_session` inside the ``with`` block.

    It may be entered again for a further request, also inside its own block. An error inside it becomes
    ``TimeoutError`` once the time is over.
    """

    def __init__(self, seconds: float) -> None:
        self.due = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._handle: socket.socket | None = None
        self._outer: list[Deadline | None] = []
        self._turn_ends = time.monotonic() + _TURN_SECONDS
        self.query = ""
        """What the next request sends after its URL, which is not checked or normalized: that takes 2 us for a byte."""

    def __enter__(self) -> Self:
        self._outer.append(getattr(_local, "deadline", None))
        _local.deadline = self
        _watchdog.add(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _local.deadline = self._outer.pop()
        with self._lock:
            self._forget()
        if isinstance(error, Exception) and self.left <= 0:
            raise TimeoutError("timed out") from error

    @property
    def left(self) -> float:
        """Seconds."""
        return self.due - time.monotonic()

    def check(self) -> None:
        """Raises ``TimeoutError`` when the time is over."""
        if self.left <= 0:
            raise TimeoutError("timed out")

    def pace(self) -> None:
        """`check`, and let other greenlets run now and then.

        Reading bytes that have arrived never switches greenlets. A server that sends 100 Continue, tiny chunks,
        trailers or session tickets without end would otherwise hold up the whole program, its watchdog as well.
        """
        now = time.monotonic()
        if now >= self._turn_ends:
            time.sleep(_PAUSE_SECONDS)
            self._turn_ends = time.monotonic() + _TURN_SECONDS
        self.check()

    def watch(self, connection: socket.socket) -> None:
        """Shut this connection down when the time is over, instead of the one watched before."""
        with self._lock:
            self.check()
            self._forget()
            # A descriptor of its own: TLS takes the socket object over, and a closed number may be used again.
            self._handle = socket.socket(fileno=os.dup(connection.fileno()))

    def expire(self) -> None:
        """End the exchange under way now; may be called by any thread."""
        with self._lock:
            self.due = min(self.due, time.monotonic())
            if self._handle is not None:
                with contextlib.suppress(OSError):  # closed by the server meanwhile
                    self._handle.shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None


class _Watchdog:
    """One thread for all deadlines of the program; it starts with the first."""

    def __init__(self) -> None:
        self._deadlines: list[tuple[float, int, Deadline]] = []
        self._numbers = itertools.count()
        self._earlier = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline) -> None:
        with self._earlier:
            heapq.heappush(self._deadlines, (deadline.due, next(self._numbers), deadline))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="http deadlines", daemon=True)
                self._thread.start()
            elif self._deadlines[0][2] is deadline:
                self._earlier.notify()

    def _run(self) -> None:
        while True:
            with self._earlier:
                while not self._deadlines or self._deadlines[0][2].left > 0:
                    self._earlier.wait(self._deadlines[0][2].left if self._deadlines else None)
                _, _, deadline = heapq.heappop(self._deadlines)
            deadline.expire()


_local = threading.local()
_watchdog = _Watchdog()


def _deadline() -> Deadline:
    deadline: Deadline | None = getattr(_local, "deadline", None)
    if deadline is None:
        raise urllib3.exceptions.HTTPError("a request outside a Deadline")
    return deadline


def verifying_tls(ca_file: str | None = None) -> ssl.SSLContext:
    """Verification of servers' certificates, with the authorities in a PEM file, by default with the system's."""
    return as_before_3_13(ssl.create_default_context(cafile=ca_file))


def as_before_3_13(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context, which verifies as earlier Pythons and Go do.

    From 3.13 on, it would refuse a certificate that does not name the key of its authority, as those of many private
    authorities do not.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def bounded_session(connections: int = 10, tls: ssl.SSLContext | None = None) -> requests.Session:
    """A session for requests inside a `Deadline`. At most `connections` are kept open to each host.

    The environment is ignored, cookies are dropped, and the body of a redirect is not read. If `tls` is given, it alone
    decides about certificates, and the session's `verify` and `cert` are ignored.
    """
    session = requests.Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    session.max_redirects = MAX_REDIRECTS
    session.hooks["response"].append(_drop_body_of_redirect)
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(connections, tls))
    return session


def exchange(
    session: requests.Session,
    method: str,
    url: str,
    deadline: Deadline,
    *,
    connect_timeout: float,
    max_body: int,
    cut_at: int | None = None,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    query: str = "",
    follow_redirects: bool = False,
    decompress: bool = True,
) -> Answer:
    """Make a request and read all of its answer, with any status. Raises one of `FAILURES`.

    Of a body that is longer than `cut_at`, the rest is not read. `query` is the result of `urlencode`, and may be long.
    """
    deadline.query = query
    with deadline:
        timeouts = (min(connect_timeout, max(0.001, deadline.left)), max(0.001, deadline.left))
        with session.request(
            method, url, data=body, headers=headers, timeout=timeouts, stream=True, allow_redirects=follow_redirects
        ) as response:
            deadline.check()  # headers that were cut off look complete
            if decompress and "," in response.headers.get("Content-Encoding", ""):
                # Decompressing a kilobyte could take hours, without any output and so without a pause.
                raise ValueError("the answer is compressed more than once")
            answer = bytearray()
            # Read what has arrived: a slow server would take long to fill the buffer.
            while chunk := response.raw.read1(_CHUNK, decode_content=decompress):
                answer += chunk
                if cut_at is not None and len(answer) >= cut_at:
                    break
                if len(answer) > max_body:
                    raise AnswerTooLarge(f"the answer is larger than {max_body} bytes")
        deadline.check()
    received = response.headers
    return Answer(response.status_code, received.get("Content-Type", ""), bytes(answer), received)


def bearer(token: str) -> dict[str, str]:
    """The header with a token; empty without one, and for a secret that no header can have."""
    return {"Authorization": f"Bearer {token}"} if token and token.isascii() and token.isprintable() else {}


def root_error(error: BaseException) -> BaseException:
    """The system's error below those that `requests` and urllib3 wrap around it, or else the innermost one."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__ or _wrapped(causes[-1])) is not None:
        causes.append(cause)
    system = (cause for cause in reversed(causes) if isinstance(cause, OSError) and cause.strerror)
    return next(system, causes[-1])


def _wrapped(error: BaseException) -> BaseException | None:
    """The alert that urllib3 passes on as an argument."""
    first = error.args[0] if isinstance(error, urllib3.exceptions.SSLError) and error.args else None
    return first if isinstance(first, BaseException) else None


def reason_of(error: BaseException) -> str:
    """Why a connection or a request failed, for people: the system's words, because the libraries' contain the URL."""
    if isinstance(error, InvalidURL | InvalidSchema | MissingSchema):
        return "not a URL of HTTP"
    if isinstance(error, requests.TooManyRedirects):
        return f"more than {MAX_REDIRECTS} redirects"
    root = root_error(error)
    if isinstance(error, requests.Timeout | TimeoutError) or isinstance(root, TimeoutError):
        return "timeout"
    if isinstance(root, ssl.SSLCertVerificationError):
        return f"TLS: {root.verify_message}"
    if isinstance(root, ssl.SSLError):
        return f"TLS: {(root.reason or 'failed').lower().replace('_', ' ')}"
    if isinstance(root, OSError) and root.strerror:
        return root.strerror.lower()
    if isinstance(error, json.JSONDecodeError):
        return "the answer is not JSON"
    if type(error) in (ValueError, AnswerTooLarge):
        return str(error)
    is_other_protocol = isinstance(root, BadStatusLine) and not isinstance(root, RemoteDisconnected)
    return "no answer in HTTP" + ("; is this an HTTP port?" if is_other_protocol else "")


def _drop_body_of_redirect(response: requests.Response, *_: Any, **__: Any) -> None:
    # requests would read all of it, at any size.
    if response.is_redirect:
        response._content = b""
        response.raw.close()


class _Adapter(HTTPAdapter):
    def __init__(self, connections: int, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        if tls is not None and tls.verify_mode == ssl.CERT_NONE:  # chosen, so it needs no warning
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        super().__init__(pool_maxsize=connections)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        if self._tls is not None:
            kwargs["ssl_context"] = self._tls
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        if self._tls is not None:
            # requests would add authorities of its own.
            conn.cert_reqs = self._tls.verify_mode
        else:
            super().cert_verify(conn, url, verify, cert)  # type: ignore[no-untyped-call]


class _Input(io.RawIOBase):
    """The bytes of an answer, read at the pace of the deadline."""

    def __init__(self, connection: io.RawIOBase) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        _deadline().pace()
        return self._connection.readinto(buffer)

    def close(self) -> None:
        self._connection.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, connection: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(connection, *args, **kwargs)
        self.fp = io.BufferedReader(_Input(self.fp.detach()))


class _Watched(HTTPConnection):
    """A connection that is watched by the deadline of the thread that uses it."""

    response_class = _Response
    is_last_request = False
    """Whether the request asked the server to close the connection. Some do so without saying it."""

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        deadline = _deadline()
        if self.sock is not None:
            deadline.watch(self.sock)
        if deadline.query:
            url, deadline.query = f"{url}?{deadline.query}", ""  # not for a redirect
        super().request(method, url, *args, **kwargs)

    def putheader(self, header: str | bytes, *values: Any) -> None:
        if header in ("Connection", b"Connection"):
            self.is_last_request = values[0] in ("close", b"close")
        super().putheader(header, *values)  # type: ignore[arg-type]

    def close(self) -> None:
        self.is_last_request = False
        super().close()

    # Not connect(), which returns only after the TLS handshake.
    def _new_conn(self) -> socket.socket:
        connection = self._connect_to_any()
        try:
            _deadline().watch(connection)
        except TimeoutError:
            connection.close()
            raise
        return connection

    def _connect_to_any(self) -> socket.socket:
        """Connect to the addresses of the name in turn, each within the remaining time."""
        name, timeout, deadline = self._dns_host, self.timeout, _deadline()
        try:
            found = socket.getaddrinfo(name, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        failure: Exception = NewConnectionError(self, "the name has no address")
        try:
            for address in dict.fromkeys(str(each[4][0]) for each in found):
                deadline.check()
                self._dns_host = address
                self.timeout = min(timeout, deadline.left) if isinstance(timeout, int | float) else deadline.left
                try:
                    return super()._new_conn()
                except (NewConnectionError, ConnectTimeoutError) as error:
                    failure = error
            raise failure
        finally:
            self._dns_host, self.timeout = name, timeout
            del failure  # otherwise its traceback and this frame keep each other alive


class _Tls(SSLTransport):
    """TLS that decodes at most 16 KiB at once, unlike `ssl.SSLSocket`, which decodes all that arrives meanwhile."""

    def _ssl_io_loop(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """As that of urllib3, but sends alerts, too, and reads what a server sent before it closed the connection."""
        while True:
            _deadline().pace()
            try:
                result = step(*arguments)
            except ssl.SSLWantReadError:
                self._send_pending()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._send_pending()
                raise
            else:
                self._send_pending()
                return result
            if received := self.socket.recv(SSL_BLOCKSIZE):
                self.incoming.write(received)
            else:
                self.incoming.write_eof()

    def _send_pending(self) -> None:
        # Sending nothing fails as well, once the server has closed the connection.
        if pending := self.outgoing.read():
            self.socket.sendall(pending)


class _WatchedTls(_Watched, HTTPSConnection):
    def connect(self) -> None:
        """As that of urllib3 does without a proxy, but with `_Tls`."""
        self.sock = connection = self._new_conn()
        context = self.ssl_context
        if context is None:
            # It checks the name if it requires a certificate.
            context = as_before_3_13(create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs)))
            # As Go's. A server could ask for signatures without end, of some milliseconds each with RSA.
            context.post_handshake_auth = False
            if self.ca_certs or self.ca_cert_dir:
                context.load_verify_locations(self.ca_certs, self.ca_cert_dir)
            else:
                context.load_default_certs()
            if self.cert_file:
                # Without a password, OpenSSL asks for that of an encrypted key at the terminal.
                context.load_cert_chain(self.cert_file, self.key_file, password=self.key_password or "")
        context.set_alpn_protocols(["http/1.1"])
        name = self.host.strip("[]").partition("%")[0].rstrip(".")
        self.sock = cast("socket.socket", _Tls(connection, context, name))
        self.is_verified = context.verify_mode == ssl.CERT_REQUIRED


class _Pool(HTTPConnectionPool):
    def _put_conn(self, conn: Any) -> None:
        if conn is not None and conn.is_last_request:
            conn.close()  # RFC 9112, 9.6: no further request on this connection
        super()._put_conn(conn)


class _HttpPool(_Pool):
    ConnectionCls = _Watched


class _HttpsPool(_Pool, HTTPSConnectionPool):
    ConnectionCls = _WatchedTls
