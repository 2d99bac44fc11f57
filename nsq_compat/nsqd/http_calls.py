"""HTTP calls to other servers, auth servers and nsqlookupds, from a daemon that must not wait for any of them.

`requests` blocks, so a call runs in a thread and only the greenlet that asked waits. Three rules keep a sick server
from being anybody else's trouble:

- *Threads of its own.* Each server has a pool of threads; one that hangs uses up only the threads meant for it.
- *An end to every call.* Past its deadline the caller gets ``CallFailed`` and the connection is shut under the thread,
  which therefore ends too, whatever a server that sends a byte now and then may intend.
- *A bound for every answer*, in bytes as they come: nothing is decompressed.

A call has a connection of its own (nsqd). Nothing is taken from the environment: no proxies, no netrc. URLs may hold a
secret in their query: no error text shows any part of them, and the libraries' own logging is off.
"""

import http.client
import logging
import os
import socket
import ssl
from contextlib import closing, suppress
from functools import partial
from threading import Lock
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import gevent
import requests
import urllib3
from gevent.event import Event
from gevent.threadpool import ThreadPool
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from nsq_compat import __version__
from nsq_compat.protocol.go_json import INT64, JsonError, loads_object

LARGEST_ANSWER: Final = 4 << 20
"""Bytes of a body, unless the caller says less."""
THREADS_PER_SERVER: Final = 256
"""A server that takes a second for each answer still has an answer for a thousand clients that come back at once."""
MOST_REDIRECTS: Final = 10
_IDLE_THREAD_SECONDS: Final = 10
_MOST_IDLE_SERVERS: Final = 64
_OK: Final = 200
_FORBIDDEN: Final = 403
_REDIRECTS: Final = {301: False, 302: False, 303: False, 307: True, 308: True}
"""Whether the method and the body stay."""
_HEADERS: Final = {
    "Accept": "application/vnd.nsq; version=1.0",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": f"nsq_compat/{__version__}",
}
_FAILURES: Final = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,
)

# They log URLs, and an auth server's holds a secret.
logging.getLogger("urllib3").setLevel(logging.CRITICAL)


class CallFailed(Exception):
    """No usable answer; the text says why and shows nothing of the URL."""


def client_tls(root_ca_file: str, min_version: int) -> ssl.SSLContext:
    """How servers' certificates are judged: by the authorities in a PEM file, or without one by the system's.

    `min_version` is TLS's number on the wire; nothing before 1.2 is spoken anyway. Raises ``OSError``.
    """
    context = ssl.create_default_context(cafile=root_ca_file or None)
    if min_version > context.minimum_version:
        context.minimum_version = ssl.TLSVersion(min_version)
    return context


class HttpCalls:
    """Makes calls, from any greenlet. Timeouts in seconds; `request_timeout` is for the whole of a call."""

    def __init__(self, *, connect_timeout: float, request_timeout: float, tls: ssl.SSLContext) -> None:
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._tls = tls
        self._pools: dict[str, ThreadPool] = {}
        self._stopping = Event()

    def stop(self) -> None:
        """Let everybody go who waits, and nobody wait any more."""
        self._stopping.set()

    def get(self, url: str, largest: int = LARGEST_ANSWER) -> bytes:
        """The body of the answer, of `largest` bytes at most. Raises ``CallFailed``, also for every status but 200."""
        return self._call("GET", url, None, largest)

    def post(self, url: str, body: bytes, largest: int = LARGEST_ANSWER) -> bytes:
        """As `get`, for a body of JSON."""
        return self._call("POST", url, body, largest)

    def _call(self, method: str, url: str, body: bytes | None, largest: int) -> bytes:
        call = _Call(method, url, body, (self._connect_timeout, self._request_timeout), self._tls, largest)
        late = CallFailed(f"no answer within {self._request_timeout:g}s")
        try:
            with gevent.Timeout(self._request_timeout, late):
                result = self._threads_for(url).spawn(call.outcome)
                gevent.wait([result, self._stopping], count=1)
        finally:
            call.abandon()
        outcome = result.get() if result.ready() else None
        if outcome is None:
            raise CallFailed("the daemon stops")
        if isinstance(outcome, CallFailed):
            # Another, without the traceback: its frames hold all of the call, and it would be in one of them.
            raise CallFailed(str(outcome))
        return outcome

    def _threads_for(self, url: str) -> ThreadPool:
        try:
            server = urlsplit(url).netloc
        except ValueError:
            raise CallFailed("not a URL") from None
        pool = self._pools.get(server)
        if pool is None:
            self._forget_idle_servers()
            pool = self._pools[server] = ThreadPool(THREADS_PER_SERVER, idle_task_timeout=_IDLE_THREAD_SECONDS)
        return pool

    def _forget_idle_servers(self) -> None:
        """Who names servers may name a new one every time."""
        if len(self._pools) >= _MOST_IDLE_SERVERS:
            for server in [server for server, pool in self._pools.items() if not pool.size]:
                self._pools.pop(server).kill()


class _Call:
    """One call. `outcome` runs in a thread; `abandon` is called by the greenlet that waited, in any case."""

    def __init__(
        self,
        method: str,
        url: str,
        body: bytes | None,
        timeouts: tuple[float, float],
        tls: ssl.SSLContext,
        largest: int,
    ) -> None:
        self.tls = tls
        self._largest = largest
        self._method = method
        self._url = url
        self._body = body
        self._timeouts = timeouts
        self._lock = Lock()
        self._line: socket.socket | None = None
        self._abandoned = False

    # --- In the thread ------------------------------------------------------------------------------------------------

    def outcome(self) -> bytes | CallFailed:
        # What a thread raises gevent prints with a traceback, though somebody is going to handle it.
        try:
            return self._ask_until_answered()
        except CallFailed as failure:
            return CallFailed(str(failure))
        except _FAILURES as error:
            return CallFailed(_reason(error))
        finally:
            self._hang_up()

    def _ask_until_answered(self) -> bytes:
        for _ in range(MOST_REDIRECTS + 1):
            status, location, body = self._ask()
            if status == _OK:
                return body
            if status in _REDIRECTS and location:
                self._url = urljoin(self._url, location)
                if not _REDIRECTS[status]:
                    self._method, self._body = "GET", None
            elif status == _FORBIDDEN and not self._url.lower().startswith("https"):
                # nsqd: a server that insists on TLS says where it speaks it.
                self._url = _over_tls(self._url, body)
            else:
                raise CallFailed(f"answered with status {status}")
        raise CallFailed(f"more than {MOST_REDIRECTS} redirects")

    def _ask(self) -> tuple[int, str | None, bytes]:
        if not self._url.lower().startswith(("http://", "https://")):
            raise CallFailed("not a URL of HTTP")
        headers = _HEADERS if self._body is None else {**_HEADERS, "Content-Type": "application/json"}
        request = requests.Request(self._method, self._url, headers=headers, data=self._body).prepare()
        # A session would ask the environment for more, and read the whole body of a redirect, however long.
        with closing(_Adapter(self)) as adapter, adapter.send(request, stream=True, timeout=self._timeouts) as response:
            body = response.raw.read(self._largest + 1, decode_content=False)
            if len(body) > self._largest:
                raise CallFailed(f"answered with more than {self._largest} bytes")
            return response.status_code, response.headers.get("Location"), body

    def connected(self, connection: socket.socket) -> None:
        """Keep a handle on the connection that nobody else can close, whatever the libraries do to theirs."""
        self._hang_up()
        with self._lock:
            if self._abandoned:
                connection.close()
                raise CallFailed("too late")
            self._line = socket.socket(fileno=os.dup(connection.fileno()))

    def _hang_up(self) -> None:
        with self._lock:
            if self._line is not None:
                self._line.close()
                self._line = None

    # --- In the greenlet that waited ----------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Nobody waits any more. If the thread still reads, its connection is shut."""
        with self._lock:
            self._abandoned = True
            if self._line is not None:
                with suppress(OSError):  # the server was quicker
                    self._line.shutdown(socket.SHUT_RDWR)


class _Adapter(HTTPAdapter):
    """Shows its call every connection, and judges certificates as the call says, not by a list of its own."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._call.tls)

    def cert_verify(self, conn: Any, *_: Any, **__: Any) -> None:
        """Prepares what connections to one server are made by."""
        conn.cert_reqs = "CERT_REQUIRED"
        conn.ConnectionCls = partial(_SHOWN[conn.scheme], self._call)


class _Shown:
    """A connection that its call is told of."""

    def __init__(self, call: _Call, *args: Any, **kwargs: Any) -> None:
        self._call = call
        super().__init__(*args, **kwargs)

    # Not connect(), which is over only after the TLS handshake.
    def _new_conn(self) -> socket.socket:
        connection: socket.socket = super()._new_conn()  # type: ignore[misc]
        self._call.connected(connection)
        return connection


class _ShownHttp(_Shown, HTTPConnection): ...


class _ShownHttps(_Shown, HTTPSConnection): ...


# Not classes made for each call: those are freed only by the garbage collector, a thousand in 80 ms.
_SHOWN: Final[dict[str, type[_Shown]]] = {"http": _ShownHttp, "https": _ShownHttps}


def _over_tls(url: str, refusal: bytes) -> str:
    """The same place over TLS, on the port a 403 names."""
    try:
        port = loads_object(refusal, {"https_port": INT64})["https_port"]
    except JsonError:
        raise CallFailed(f"answered with status {_FORBIDDEN}") from None
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return parts._replace(scheme="https", netloc=f"{host}:{port}").geturl()


# --- Errors -----------------------------------------------------------------------------------------------------------


def _reason(error: BaseException) -> str:
    """What is at the bottom of it, because what the libraries say shows the URL."""
    text = "not a URL" if isinstance(error, requests.exceptions.InvalidURL) else "no answer in HTTP"
    cause: BaseException | None = error
    while cause is not None:
        text = _reason_of_system(cause) or text
        cause = _cause(cause)
    return text


def _reason_of_system(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or 'failed').lower().replace('_', ' ')}"
    if isinstance(error, TimeoutError):
        return "connection timed out"
    return (error.strerror or "").lower() if isinstance(error, OSError) else ""


def _cause(error: BaseException) -> BaseException | None:
    """What `error` was raised because of, which each library has a way of its own to say."""
    causes = (error.__cause__, getattr(error, "reason", None), *error.args)
    return next((cause for cause in causes if isinstance(cause, BaseException)), None)
