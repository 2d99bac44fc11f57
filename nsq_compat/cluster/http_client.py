"""Requests to daemons over HTTP: to one, and to many concurrently.

One deadline covers a request from connecting to the last byte (`bounded_http`), and the size of an answer is limited.
An address that begins with ``https://`` is asked with TLS. If a daemon at another address requires TLS, it answers 403
with its HTTPS port, and the request is repeated there. A token is sent over plain HTTP only after a request without it
has shown that the daemon does not require TLS. A daemon that fails or hangs does not delay the answers of the others.
"""

import http.client
import logging
import math
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import urllib3

from nsq_compat.bounded_http import FAILURES, Deadline, bearer, bounded_session, exchange, reason_of
from nsq_compat.bounded_http import Answer as HttpAnswer
from nsq_compat.cluster import reading
from nsq_compat.cluster.reading import InvalidAnswer, UpstreamError
from nsq_compat.protocol.errors import quote, without_user
from nsq_compat.protocol.names import is_port

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

HTTPS: Final = "https://"
"""Begins the address of a daemon's port with TLS."""
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""A thousand topics with their channels and clients take about one MiB."""
_MAX_QUOTED_BYTES: Final = 300
_PORT_SECONDS: Final = 60.0
"""How long it counts whether a daemon requires TLS. Only clients with a token remember it."""
_MAX_PORTS: Final = 10_000
_REQUEST: Final = re.compile(r'^(?:\w+ )?"?https?://[^" ]+"?: ')
_REFUSAL: Final = re.compile(r'^got response (\d+) .*"\{\\"message\\":\\"(\w+)(?:: (.*))?\\"\}"$')

_WORDS: Final[Mapping[str, str]] = {
    "NOT_FOUND": "it cannot do this: only the nsqd of nsq_compat keeps messages that can be read and delivered again",
    "TOPIC_NOT_FOUND": "it does not have the topic",
    "CHANNEL_NOT_FOUND": "it does not have the channel",
    "OFFSET_GONE": "the message with this offset was released",
    "MESSAGE_NOT_FOUND": "it does not have the message: its log was released, and no channel has it",
}


class TimedOut(UpstreamError):
    """A daemon did not answer in time."""


class Refusal(UpstreamError):
    """A daemon answered with an error; `message` is that of its JSON, such as ``CHANNEL_NOT_FOUND``, or empty."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(text)
        self.message = message


class HttpClient:
    """Timeouts are in seconds; that of a request covers all of it. Files are in PEM. Daemons receive the `token`."""

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
        token: str = "",
    ) -> None:
        self._timeout = request_timeout
        self._due = math.inf
        self._silent: set[str] = set()
        # nsqadmin: no proxies from the environment. No cookies, because one session serves all daemons.
        session = bounded_session()
        # A kept connection would fail the first request after a restart of the daemon.
        session.headers.update({"Accept": "application/vnd.nsq; version=1.0", "Connection": "close"})
        system = ssl.get_default_verify_paths()  # `requests` has authorities of its own
        session.verify = not tls_skip_verify and (tls_root_ca_file or system.cafile or system.capath or True)
        if tls_skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if tls_cert:
            session.cert = (tls_cert, tls_key) if tls_key else tls_cert
        self._session = session
        self._token = bearer(token)
        self._https_ports: dict[str, tuple[int, float]] = {}
        """By address: the port of a daemon that requires TLS, 0 if it does not, and until when that counts."""
        self._exchange = partial(exchange, session, connect_timeout=connect_timeout, max_body=max_answer_bytes)

    @property
    def timeout(self) -> float:
        """Seconds that a request may take if it begins now."""
        return max(0.0, min(self._timeout, self._due - time.monotonic()))

    def check(self) -> None:
        """Raises `TimedOut` when the time of `within` is over: nothing waits for the result any more."""
        if time.monotonic() >= self._due:
            raise TimedOut("timeout")

    def within(self, seconds: float) -> "HttpClient":
        """A client for requests that all end within `seconds`. It does not ask a daemon again that did not answer."""
        bounded = copy(self)
        bounded._due = time.monotonic() + seconds
        bounded._silent = set()
        return bounded

    def at_most(self, seconds: float) -> "HttpClient":
        """The same client with a shorter time for each request."""
        bounded = copy(self)
        bounded._timeout = min(self._timeout, seconds)
        return bounded

    def health(self, address: str) -> str:
        """What a daemon answers to /ping: ``OK``, or the reason why it is not; empty if it says neither."""
        answer = self._answer("GET", address, "ping", {}, None)
        return answer.body.decode("utf-8", "replace") if answer.status in (200, 500) else ""

    def text(self, address: str, path: str) -> str:
        return self._request("GET", address, path, {}, None).body.decode("utf-8", "replace")

    def read(self, address: str, path: str, cut_at: int, **parameters: str) -> HttpAnswer:
        """The answer with about the first `cut_at` bytes of its body; the rest is not read."""
        return self._request("GET", address, path, parameters, None, cut_at)

    def get(self, address: str, path: str, **parameters: str) -> Any:
        """The JSON value of a daemon's answer. Raises `UpstreamError`, as all methods do."""
        return self._load(address, path, parameters, self._request("GET", address, path, parameters, None).body)

    def post(self, address: str, path: str, parameters: dict[str, str], body: bytes = b"") -> None:
        self._request("POST", address, path, parameters, body)

    def post_for_answer(self, address: str, path: str, parameters: dict[str, str], body: bytes = b"") -> Any:
        """The JSON value of the answer to a POST."""
        return self._load(address, path, parameters, self._request("POST", address, path, parameters, body).body)

    def put(self, address: str, path: str, body: bytes) -> Any:
        """The JSON value of the answer to a PUT."""
        return self._load(address, path, {}, self._request("PUT", address, path, {}, body).body)

    def _load(self, address: str, path: str, parameters: dict[str, str], body: bytes) -> Any:
        try:
            return reading.load(body)
        except InvalidAnswer as error:
            raise UpstreamError(f"{without_user(_url_of(address, path, parameters))}: {error}") from None

    def _request(
        self,
        method: str,
        address: str,
        path: str,
        parameters: dict[str, str],
        body: bytes | None,
        cut_at: int | None = None,
    ) -> HttpAnswer:
        answer = self._answer(method, address, path, parameters, body, cut_at)
        if answer.status != 200:
            reason = http.client.responses.get(answer.status, "")
            message = ""
            with suppress(InvalidAnswer):
                message = reading.text(reading.mapping(reading.load(answer.body)).get("message"))
            text = f"got response {answer.status} {reason} {quote(answer.body[:_MAX_QUOTED_BYTES])}"
            raise Refusal(text, message)
        return answer

    def _answer(
        self,
        method: str,
        address: str,
        path: str,
        parameters: dict[str, str],
        body: bytes | None,
        cut_at: int | None = None,
    ) -> HttpAnswer:
        url = _url_of(address, path, parameters)
        if address in self._silent or not self.timeout:  # of 50,000 nodes, most are asked when the time is over
            raise TimedOut(f'{method.title()} "{without_user(url)}": timeout')
        log.debug("CI: querying %s", without_user(url))
        deadline = Deadline(self.timeout)
        send = partial(self.exchange, method, body=body, headers=self._token, deadline=deadline, cut_at=cut_at)
        try:
            if address.startswith(HTTPS):
                return send(url)
            port = self._https_port(address, deadline) if self._token else 0
            if not port:
                answer = send(url)
                port = _https_port_in(answer)
                if not port:
                    return answer
                if self._token:  # it was restarted, and requires TLS now
                    self._note_https_port(address, port)
            return send(_url_of(f"{HTTPS}{address.rpartition(':')[0]}:{port}", path, parameters))
        except UpstreamError as error:
            self._https_ports.pop(address, None)  # it may require TLS, or have another port, when it is back
            if isinstance(error, TimedOut) and self._due < math.inf:
                self._silent.add(address)
            raise

    def _https_port(self, address: str, deadline: Deadline) -> int:
        """The port of a daemon that requires TLS, 0 if it does not. The daemon is asked without the token."""
        port, until = self._https_ports.get(address, (0, 0.0))
        if until <= time.monotonic():
            port = _https_port_in(self.exchange("GET", _url_of(address, "ping", {}), deadline=deadline))
            self._note_https_port(address, port)
        return port

    def _note_https_port(self, address: str, port: int) -> None:
        if len(self._https_ports) >= _MAX_PORTS:
            self._https_ports.clear()
        self._https_ports[address] = port, time.monotonic() + _PORT_SECONDS

    def exchange(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        deadline: Deadline | None = None,
        cut_at: int | None = None,
    ) -> HttpAnswer:
        """A request to any URL, without the token, and with any status of the answer. Errors begin like Go's."""
        due = deadline or Deadline(self.timeout)
        try:
            return self._exchange(method, url, due, body=body, headers=headers, cut_at=cut_at)
        except FAILURES as error:
            reason = reason_of(error)
        kind = TimedOut if reason == "timeout" else UpstreamError
        raise kind(f'{method.title()} "{without_user(url)}": {reason}')  # outside, so that it does not keep the socket


def _https_port_in(answer: HttpAnswer) -> int:
    """The HTTPS port that the answer of a daemon names which requires TLS; otherwise 0."""
    if answer.status == 403:
        with suppress(InvalidAnswer):
            port = reading.mapping(reading.load(answer.body)).get("https_port")
            return port if isinstance(port, int) and is_port(port) else 0
    return 0


def _url_of(address: str, path: str, parameters: dict[str, str]) -> str:
    query = f"?{urlencode(parameters)}" if parameters else ""
    return f"{'' if address.startswith(HTTPS) else 'http://'}{address}/{path}{query}"


# --- Concurrent requests ----------------------------------------------------------------------------------------------

MAX_CONCURRENT: Final = 128
"""Maximum number of concurrent calls, unless all of them are stuck."""
_STUCK_SECONDS: Final = 1.0
"""If no call finishes for this time, the same number of further calls is started."""
_GRACE: Final = 1.2
"""Factor by which a call may exceed its own timeout, because name resolution cannot be interrupted."""


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
    daemon = without_user(error.daemon)
    text = _REQUEST.sub("", error).removeprefix(f"{daemon}: ")
    refusal = refusal_of(text)
    return f"{daemon}: {refusal or text}"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The answer of a daemon that did not do what was asked."""

    status: int
    code: str
    detail: str
    """What follows the code; mostly empty."""

    def __str__(self) -> str:
        return f"answered {self.status} {self.code}" + (f": {self.detail}" if self.detail else "")


def refusal_of(error: str) -> ErrorAnswer | None:
    found = _REFUSAL.match(error)
    return ErrorAnswer(int(found[1]), found[2], found[3] or "") if found is not None else None


def explained(error: str) -> str:
    """Why a daemon did not do what was asked of its log, without the name of the daemon."""
    refusal = refusal_of(error)
    if refusal is None:
        return _REQUEST.sub("", error)
    return "; ".join(filter(None, (_WORDS.get(refusal.code), refusal.detail))) or refusal.code


def is_not_found(error: str) -> bool:
    """Whether the daemon answered that it does not have the topic or channel, which is no failure of the daemon."""
    refusal = refusal_of(error)
    return refusal is not None and refusal.status == 404 and refusal.code.endswith("_NOT_FOUND")


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
    deadline = time.monotonic() + -(-len(items) // max_concurrent) * timeout * _GRACE
    slots = threading.Semaphore(max_concurrent)

    def run(item: T, outcome: Future[R]) -> None:
        try:
            outcome.set_result(call(item))
        except UpstreamError as error:
            outcome.set_exception(error.with_traceback(None))  # otherwise a cycle, which waits for the collector
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
            text = f"{without_user(str(item))}: timeout" if isinstance(error, TimeoutError) else str(error)
            errors.append(DaemonError(str(item), text))
            unreachable.append(str(item))
    return Answer(done, tuple(errors), tuple(unreachable))
