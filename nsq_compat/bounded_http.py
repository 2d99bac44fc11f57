"""HTTP requests that end in time, whatever the server does: one deadline for the whole exchange.

The timeouts of `requests` are for one wait each: a server that sends a byte now and then never exceeds them, in the TLS
handshake, in headers, in chunk sizes, with 100 Continue, or from redirect to redirect. So a watchdog shuts down the
connection when the deadline passes, which ends whatever waits for it. In a program that replaced threads by greenlets
the watchdog is a greenlet.

    with Deadline(5.0) as deadline:
        response = session.get(url, stream=True)
        body = read(response.raw)
        deadline.check()  # headers, or a body without a length, look complete when their connection is shut down

Only name resolution is not interrupted: the resolver has timeouts of its own.
"""

import contextlib
import heapq
import itertools
import os
import socket
import threading
import time
from http.cookiejar import DefaultCookiePolicy
from types import TracebackType
from typing import Any, Final, Self

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

MOST_REDIRECTS: Final = 10


class Deadline:
    """The end of everything that this thread does over `bounded_session` inside the ``with`` block.

    It may be entered again for a further request. An error inside it becomes ``TimeoutError`` once the time is over.
    """

    def __init__(self, seconds: float) -> None:
        self.due = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._handle: socket.socket | None = None
        self._is_done = False
        self._outer: Deadline | None = None

    def __enter__(self) -> Self:
        self._outer = _current_deadline()
        _local.deadline = self
        self._is_done = False
        _watchdog.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _local.deadline = self._outer
        with self._lock:
            self._is_done = True
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

    def watch(self, connection: socket.socket) -> None:
        """Shut this connection down when the time is over, instead of the one watched before."""
        self.check()
        with self._lock:
            self._forget()
            # A descriptor of our own: TLS takes the socket object over, and a closed number may be used again.
            self._handle = socket.socket(fileno=os.dup(connection.fileno()))

    def expire(self) -> None:
        """Called by the watchdog."""
        with self._lock:
            if self._handle is not None and not self._is_done:
                with contextlib.suppress(OSError):  # the server was quicker
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
            self._next().expire()

    def _next(self) -> Deadline:
        with self._earlier:
            while not self._deadlines or self._deadlines[0][2].left > 0:
                self._earlier.wait(self._deadlines[0][2].left if self._deadlines else None)
            return heapq.heappop(self._deadlines)[2]


_local = threading.local()
_watchdog = _Watchdog()


def _current_deadline() -> Deadline | None:
    return getattr(_local, "deadline", None)


def bounded_session(pool_size: int = 10, **tls: Any) -> requests.Session:
    """A session whose requests need a `Deadline`. `tls` is for urllib3's pools (``ssl_context=``).

    Nothing is taken from the environment, no cookie is kept, and of a redirect no body is read.
    """
    session = requests.Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    session.max_redirects = MOST_REDIRECTS
    session.hooks["response"].append(_without_body_of_redirect)
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(pool_size, tls))
    return session


def _without_body_of_redirect(response: requests.Response, *_: Any, **__: Any) -> None:
    # requests would read it whole, however large it is.
    if response.is_redirect:
        response._content = b""
        response.raw.close()


class _Adapter(HTTPAdapter):
    def __init__(self, pool_size: int, tls: dict[str, Any]) -> None:
        self._tls = tls
        super().__init__(pool_maxsize=pool_size)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **{**kwargs, **self._tls})
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class _Watched(HTTPConnection):
    """A connection that is watched by the deadline of the thread that uses it."""

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            _deadline().watch(self.sock)
        super().request(*args, **kwargs)

    # Not connect(), which is over only after the TLS handshake.
    def _new_conn(self) -> socket.socket:
        connection = self._first_that_answers()
        try:
            _deadline().watch(connection)
        except TimeoutError:
            connection.close()
            raise
        return connection

    def _first_that_answers(self) -> socket.socket:
        """Connects to the addresses of the name in turn, each within what is left of the time."""
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
        finally:
            self._dns_host, self.timeout = name, timeout
        raise failure


class _WatchedTls(_Watched, HTTPSConnection):
    pass


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Watched


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _WatchedTls


def _deadline() -> Deadline:
    deadline = _current_deadline()
    if deadline is None:
        raise urllib3.exceptions.HTTPError("a request outside a Deadline")
    return deadline
