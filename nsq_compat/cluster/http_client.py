"""Requests to daemons over HTTP: to one, and to many concurrently.

One deadline covers a request from connecting to the last byte (`bounded_http`), and the size of an answer is limited.
If a daemon requires TLS, it answers 403 with its HTTPS port, and the request is repeated there. A daemon that fails or
hangs does not delay the answers of the others.
"""

import errno
import http.client
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import requests
import urllib3

from nsq_compat.bounded_http import FAILURES, Deadline, bounded_session, exchange, root_error
from nsq_compat.bounded_http import Answer as HttpAnswer
from nsq_compat.cluster import reading
from nsq_compat.cluster.reading import InvalidAnswer, UpstreamError
from nsq_compat.protocol.errors import quote

T = TypeVar("T")
R = TypeVar("R")

MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""A thousand topics with their channels and clients take about one MiB."""
_MAX_QUOTED_BYTES: Final = 300
_REQUEST: Final = re.compile(r'^(?:\w+ )?"?https?://[^" ]+"?: ')
_REFUSAL: Final = re.compile(r'^got response (\d+) .*"\{\\"message\\":\\"(\w+)\\"\}"$')
_NOT_CONNECTED: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})


class HttpClient:
    """Timeouts are in seconds; that of a request covers all of it. Files are in PEM."""

    def __init__(
        self,
        *,
        connect_timeout: float = 2.0,
        request_timeout: float = 5.0,
        tls_cert: str = "",
        tls_key: str = "",
        tls_root_ca_file: str = "",
        tls_skip_verify: bool = False,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self.timeout = request_timeout
        # nsqadmin: no proxies from the environment. No cookies, because one session serves all daemons.
        session = bounded_session()
        # A kept connection would fail the first request after a restart of the daemon.
        session.headers.update({"Accept": "application/vnd.nsq; version=1.0", "Connection": "close"})
        session.verify = not tls_skip_verify and (tls_root_ca_file or True)
        if tls_skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if tls_cert:
            session.cert = (tls_cert, tls_key)
        self._session = session
        self._exchange = partial(exchange, session, connect_timeout=connect_timeout, max_body=max_answer_bytes)

    def get(self, address: str, path: str, **parameters: str) -> Any:
        """The JSON value of a daemon's answer. Raises `UpstreamError`, as all methods do."""
        body = self._request("GET", address, path, parameters, None)
        try:
            return reading.load(body)
        except InvalidAnswer as error:
            raise UpstreamError(f"{_url_of('http', address, path, parameters)}: {error}") from None

    def post(self, address: str, path: str, parameters: dict[str, str], body: bytes = b"") -> None:
        self._request("POST", address, path, parameters, body)

    def _request(self, method: str, address: str, path: str, parameters: dict[str, str], body: bytes | None) -> bytes:
        url = _url_of("http", address, path, parameters)
        deadline = Deadline(self.timeout)
        status, _, answer = self.exchange(method, url, body, deadline=deadline)
        if status == 403:
            with suppress(InvalidAnswer):
                if port := reading.integer(reading.mapping(reading.load(answer)).get("https_port")):
                    url = _url_of("https", f"{address.rpartition(':')[0]}:{port}", path, parameters)
                    status, _, answer = self.exchange(method, url, body, deadline=deadline)
        if status != 200:
            reason = http.client.responses.get(status, "")
            raise UpstreamError(f"got response {status} {reason} {quote(answer[:_MAX_QUOTED_BYTES])}")
        return answer

    def exchange(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        deadline: Deadline | None = None,
    ) -> HttpAnswer:
        """A request to any URL, with any status of the answer. Errors begin like Go's."""
        try:
            return self._exchange(method, url, deadline or Deadline(self.timeout), body=body, headers=headers)
        except (requests.Timeout, TimeoutError):
            reason = "timeout"
        except FAILURES as error:
            root = root_error(error)
            reason = f"{type(root).__name__}: {root}"
            if isinstance(root, OSError) and root.strerror:
                reason = root.strerror.lower()
                if root.errno in _NOT_CONNECTED:
                    reason = f"dial tcp {url.split('/')[2]}: connect: {reason}"
        raise UpstreamError(f'{method.title()} "{url}": {reason}')


def _url_of(scheme: str, address: str, path: str, parameters: dict[str, str]) -> str:
    query = f"?{urlencode(parameters)}" if parameters else ""
    return f"{scheme}://{address}/{path}{query}"


# --- Concurrent requests ----------------------------------------------------------------------------------------------

MAX_CONCURRENT: Final = 128
"""Maximum number of concurrent calls, unless all of them are stuck."""
_STUCK_SECONDS: Final = 1.0
"""If no call finishes for this time, the same number of further calls is started."""
_GRACE_SECONDS: Final = 1.0
"""Time by which a call may exceed its own timeout."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The combined answer, with the errors of daemons that did not answer."""

    value: T
    errors: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    """The daemons that caused `errors`, named as in the query."""
    skipped: tuple[str, ...] = ()
    """Invalid parts of answers, which are left out of `value`, with reasons."""


class DaemonError(str):
    """An error in the words of NSQ's nsqadmin, which do not always name the daemon."""

    def __new__(cls, daemon: str, text: str) -> "DaemonError":
        error = super().__new__(cls, text)
        error.daemon = daemon
        return error

    daemon: str


def named(error: str) -> str:
    """An error as pages show it: after the address of the daemon, without the URL of the request."""
    if not isinstance(error, DaemonError):
        return error
    text = _REQUEST.sub("", error).removeprefix(f"{error.daemon}: ")
    return f"{error.daemon}: " + _REFUSAL.sub(r"answered \1 \2", text)


class AllFailed(Exception):
    """No daemon answered. The text is that of NSQ's nsqadmin."""

    def __init__(self, text: str, errors: tuple[str, ...] = ()) -> None:
        super().__init__(text + "\n".join(errors))
        self.errors = errors
        """Those of the daemons; empty if there was none to ask."""
        self.named = text + "\n".join(map(named, errors))


def query_all(kind: str, items: Sequence[T], query: Callable[[T], R], timeout: float) -> Answer[list[tuple[T, R]]]:
    """The results of `query` in the order of `items`. Raises `AllFailed` if there is none.

    nsqadmin: an empty `items` counts as failed.
    """
    answer = call_all(items, query, timeout)
    if not answer.value:
        raise AllFailed(f"failed to query any {kind}: ", answer.errors)
    return answer


def call_all(
    items: Sequence[T], call: Callable[[T], R], timeout: float, max_concurrent: int = MAX_CONCURRENT
) -> Answer[list[tuple[T, R]]]:
    """As `query_all`, but does not raise if no call succeeds."""
    deadline = time.monotonic() + -(-len(items) // max_concurrent) * (timeout + _GRACE_SECONDS)
    slots = threading.Semaphore(max_concurrent)

    def run(item: T, outcome: Future[R]) -> None:
        try:
            outcome.set_result(call(item))
        except BaseException as error:
            outcome.set_exception(error)
        slots.release()

    outcomes: list[Future[R]] = []
    for item in items:
        if not slots.acquire(timeout=_STUCK_SECONDS):
            slots.release(max_concurrent)
            slots.acquire()
        outcomes.append(Future())
        # A daemon thread, because a thread that hangs must not keep the program running.
        threading.Thread(target=run, args=(item, outcomes[-1]), daemon=True).start()
    done, errors, unreachable = [], [], []
    for item, outcome in zip(items, outcomes, strict=True):
        try:
            done.append((item, outcome.result(max(0.0, deadline - time.monotonic()))))
        except (UpstreamError, TimeoutError) as error:
            text = f"{item}: timeout" if isinstance(error, TimeoutError) else str(error)
            errors.append(DaemonError(str(item), text))
            unreachable.append(str(item))
    return Answer(done, tuple(errors), tuple(unreachable))
