"""HTTP calls to other servers (auth servers, nsqlookupds), which must not block the daemon.

`requests` blocks, so a call runs in a thread and only the greenlet that made it waits. Three rules limit the effect of
a failing server:

- *Separate threads.* Each server has a pool of threads; one that hangs uses up only its own threads.
- *An end to every call.* At its deadline the caller gets ``CallFailed``, and the connection is shut down under the
  thread, which therefore ends too (`bounded_http`).
- *A bound for every answer*, in bytes as received: nothing is decompressed.

Many nsqd never make a call, so `requests` and `ssl` are imported at the start only if servers are configured: they take
a third of the time of a start, and 6 MB of memory or more.

A call has a connection of its own (nsqd). URLs may have a secret in their query: no error text shows any part of them,
and the libraries' own logging is off.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

import gevent
from gevent.event import Event
from gevent.threadpool import ThreadPool

from nsq_compat import __version__
from nsq_compat.log.data_path import reason
from nsq_compat.nsqd.durability import in_thread
from nsq_compat.protocol.errors import without_secrets
from nsq_compat.protocol.go_json import INT64, JsonError, dumps, loads_object
from nsq_compat.protocol.names import network_of
from nsq_compat.session.authorization import MAX_ANSWER_BYTES as MAX_GRANTS_BYTES
from nsq_compat.session.authorization import AuthFailed, Credentials, Grants, read_answer

if TYPE_CHECKING:
    import ssl

    from nsq_compat.bounded_http import Deadline

MAX_ANSWER_BYTES: Final = 4 << 20
"""Of a body, unless the caller allows less."""
THREADS_PER_SERVER: Final = 256
"""A server that takes a second for each answer can still serve a thousand clients that reconnect at once."""
_IDLE_THREAD_SECONDS: Final = 10
_MAX_IDLE_SERVERS: Final = 64
_HEADERS: Final = {
    "Accept": "application/vnd.nsq; version=1.0",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": f"nsq_compat/{__version__}",
}


class CallFailed(Exception):
    """There is no usable answer. The text has the reason, and no part of the URL."""


def client_tls(root_ca_file: str, min_version: int, certificate: str = "", key: str = "") -> "ssl.SSLContext":
    """The verification of servers' certificates, with the authorities in a PEM file, by default with the system's.

    `min_version` is TLS's number on the wire, at least that of 1.2. `certificate` and `key` are PEM files for servers
    that ask for a client certificate. Raises ``OSError``.
    """
    import ssl

    context = ssl.create_default_context(cafile=root_ca_file or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # see `bounded_http.as_before_3_13`
    if certificate:
        # Without this argument, OpenSSL asks for the password of an encrypted key at the terminal.
        context.load_cert_chain(certificate, key or None, password="")
    # The default of Debian's Python is OpenSSL's, which may be lower.
    context.minimum_version = ssl.TLSVersion(max(min_version, ssl.TLSVersion.TLSv1_2))
    return context


def tls_reason(error: OSError) -> str:
    """Why `client_tls` failed. An error of OpenSSL has a number that is none of the system's."""
    import ssl

    return (error.reason or str(error)).lower() if isinstance(error, ssl.SSLError) else reason(error)


class HttpCalls:
    """Makes calls, from any greenlet. Timeouts in seconds; `request_timeout` is for the whole of a call.

    `make_tls` is called once, by the first call in its thread.
    """

    def __init__(
        self, *, connect_timeout: float, request_timeout: float, make_tls: Callable[[], "ssl.SSLContext"]
    ) -> None:
        self._connect_timeout = connect_timeout
        self.request_timeout = request_timeout
        self.make_tls = cache(make_tls)
        self._pools: dict[str, ThreadPool] = {}
        self._stopping = Event()

    def prepare(self) -> None:
        """Import what a call needs. Otherwise the first call does, while all clients wait."""
        import nsq_compat.bounded_http  # noqa: F401

    def stop(self) -> None:
        """End all calls under way, and let none begin."""
        self._stopping.set()

    def call(
        self,
        url: str,
        body: bytes | None = None,
        *,
        max_answer: int = MAX_ANSWER_BYTES,
        tls: "ssl.SSLContext | None" = None,
        token: str = "",
        query: str = "",
    ) -> bytes:
        """The body of the answer to a GET, or to a POST of a `body` of JSON; at most `max_answer` bytes.

        A `query` may be long, such as one with a secret. It follows the URL's own.
        `tls` replaces `make_tls`. A `token` goes to the server of the URL only, so redirects are not followed.

        Raises ``CallFailed``, also for every status except 200.
        """
        from nsq_compat.bounded_http import Deadline

        deadline = Deadline(self.request_timeout)
        late = CallFailed(self._too_late)
        try:
            with gevent.Timeout(self.request_timeout, late):
                result = self._threads_for(url).spawn(self._outcome, url, body, max_answer, deadline, tls, token, query)
                gevent.wait([result, self._stopping], count=1)
        finally:
            deadline.expire()
        outcome = result.get() if result.ready() else None
        if outcome is None:
            raise CallFailed("the daemon stops")
        if isinstance(outcome, CallFailed):
            raise CallFailed(str(outcome))  # `outcome` would be in a cycle with its own traceback
        return outcome

    @property
    def _too_late(self) -> str:
        return f"no answer within {self.request_timeout:g}s"

    def _outcome(
        self,
        url: str,
        body: bytes | None,
        max_answer: int,
        deadline: "Deadline",
        tls: "ssl.SSLContext | None",
        token: str,
        query: str,
    ) -> bytes | CallFailed:
        """Make the call, in a thread. An exception that leaves a thread is printed by gevent, so it is returned."""
        from nsq_compat.bounded_http import FAILURES, AnswerTooLarge, reason_of

        try:
            return self._ask(url, body, max_answer, deadline, tls or self.make_tls(), token, query)
        # A new one in each case: the traceback of the old one keeps all of the call for the garbage collector.
        except CallFailed as failure:
            return CallFailed(str(failure))
        except AnswerTooLarge:
            return CallFailed(f"answered with more than {max_answer} bytes")
        except FAILURES as error:
            return CallFailed(self._too_late if deadline.left <= 0 else reason_of(error))

    def _ask(
        self,
        url: str,
        body: bytes | None,
        max_answer: int,
        deadline: "Deadline",
        tls: "ssl.SSLContext",
        token: str,
        query: str,
    ) -> bytes:
        from nsq_compat.bounded_http import bearer, bounded_session, exchange

        headers = bearer(token) | ({} if body is None else {"Content-Type": "application/json"})
        with bounded_session(tls=tls) as session:
            session.headers.clear()
            session.headers.update(_HEADERS)
            while True:
                answer = exchange(
                    session,
                    "GET" if body is None else "POST",
                    url,
                    deadline,
                    connect_timeout=self._connect_timeout,
                    max_body=max_answer,
                    body=body,
                    headers=headers,
                    query=query,
                    follow_redirects=not token,
                    decompress=False,
                )
                if answer.status == 200:
                    return answer.body
                if answer.status != 403 or url.lower().startswith("https"):
                    raise CallFailed(f"answered with status {answer.status}")
                url = _over_tls(url, answer.body)  # nsqd: a server that requires TLS names its port

    def _threads_for(self, url: str) -> ThreadPool:
        try:
            server = urlsplit(url).netloc
        except ValueError:
            raise CallFailed("not a URL") from None
        pool = self._pools.get(server)
        if pool is None:
            # Bounded, because a registration can name a new server every time.
            if len(self._pools) >= _MAX_IDLE_SERVERS:
                for idle in [server for server, pool in self._pools.items() if not pool.size]:
                    self._pools.pop(idle).kill()
            pool = self._pools[server] = ThreadPool(THREADS_PER_SERVER, idle_task_timeout=_IDLE_THREAD_SECONDS)
        return pool


def _over_tls(url: str, refusal: bytes) -> str:
    """The same URL over TLS, on the port that a 403 names."""
    try:
        port = loads_object(refusal, {"https_port": INT64})["https_port"]
    except JsonError:
        raise CallFailed("answered with status 403") from None
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return parts._replace(scheme="https", netloc=f"{host}:{port}").geturl()


# --- Auth servers -----------------------------------------------------------------------------------------------------


FIRST_QUESTIONS: Final = THREADS_PER_SERVER * 3 // 4
"""Clients whose first AUTH is asked for at once. The other threads are for clients that have permissions already."""


class Turns:
    """So many at once; while others wait, each address has a turn after the other.

    So a stranger whose secrets are checked slowly holds up clients of its own address, and others for a moment only.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[Event]] = {}
        """By address, in the order in which they have their next turn."""

    @contextmanager
    def turn(self, address: str, timeout: float) -> Iterator[None]:
        """Raises ``AuthFailed`` if there is none within the timeout, in seconds."""
        if self._free:
            self._free -= 1
        else:
            self._wait(address, timeout)
        try:
            yield
        finally:
            self._pass_on()

    def _wait(self, address: str, timeout: float) -> None:
        turn = Event()
        self._waiting.setdefault(address, deque()).append(turn)
        try:
            if not turn.wait(timeout):
                raise AuthFailed(f"too many clients authenticate: no turn within {timeout:g}s")
        except BaseException:
            self._give_up(address, turn)
            raise

    def _give_up(self, address: str, turn: Event) -> None:
        if turn.is_set():
            self._pass_on()
            return
        waiting = self._waiting[address]
        waiting.remove(turn)
        if not waiting:
            del self._waiting[address]

    def _pass_on(self) -> None:
        if not self._waiting:
            self._free += 1
            return
        address = next(iter(self._waiting))
        waiting = self._waiting.pop(address)
        waiting.popleft().set()
        if waiting:
            self._waiting[address] = waiting


class AuthServers:
    """Asks the servers of --auth-http-address for a client's permissions. `method` is ``get`` or ``post``."""

    def __init__(self, addresses: Sequence[str], method: str, calls: HttpCalls) -> None:
        self._addresses = addresses
        self._method = method
        self._calls = calls
        self._first = Turns(FIRST_QUESTIONS)

    def authorize(self, credentials: Credentials) -> Grants:
        """The first usable answer. Waits, and lets others run. Raises ``AuthFailed``."""
        if credentials.renews:
            return self._authorize(credentials)
        with self._first.turn(network_of(credentials.remote_ip), self._calls.request_timeout):
            return self._authorize(credentials)

    def _authorize(self, credentials: Credentials) -> Grants:
        # nsqd: the servers share the load, and replace each other.
        first = random.randrange(len(self._addresses))
        failures = []
        for address in (*self._addresses[first:], *self._addresses[:first]):
            try:
                # In a thread, because it may compile thousands of patterns.
                return in_thread(read_answer, self._ask(address, credentials), time.monotonic())
            except (AuthFailed, CallFailed) as error:
                failures.append(f"failed to auth against {without_secrets(address)} - {error}")
        raise AuthFailed("; ".join(failures))

    def _ask(self, address: str, credentials: Credentials) -> bytes:
        url = address if "://" in address else f"http://{address}/auth"
        # nsqd: these names, in this order.
        parameters = {
            "common_name": credentials.common_name,
            "remote_ip": credentials.remote_ip,
            "secret": credentials.secret.decode("utf-8", "surrogateescape"),
            "tls": "true" if credentials.tls else "false",
        }
        if self._method == "post":
            # nsqd: like a form, every name with a list of values.
            document = dumps({name: [value] for name, value in parameters.items()})
            return self._calls.call(url, document.encode("utf-8"), max_answer=MAX_GRANTS_BYTES)
        query = urlencode(parameters, errors="surrogateescape")
        return self._calls.call(url, max_answer=MAX_GRANTS_BYTES, query=query)
