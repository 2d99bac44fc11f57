"""A request to one daemon over HTTP.

One deadline covers the request from connecting to the last byte (`bounded_http`), and the size of an answer is limited.
If the daemon requires TLS, it answers 403 with its HTTPS port, and the request is repeated there.
"""

import errno
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import requests
import urllib3

from nsq_compat.bounded_http import FAILURES, Answer, Deadline, bounded_session, exchange, root_error
from nsq_compat.cluster import reading
from nsq_compat.cluster.reading import InvalidAnswer
from nsq_compat.protocol.errors import quote

MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""A thousand topics with their channels and clients take about one MiB."""
_MAX_QUOTED_BYTES: Final = 300
_NOT_CONNECTED: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})


class UpstreamError(Exception):
    """A failed request. The text names the daemon and the reason, in NSQ's words where NSQ has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClientOptions:
    """Times in seconds; files in PEM."""

    connect_timeout: float = 2.0
    request_timeout: float = 5.0
    tls_cert: str = ""
    tls_key: str = ""
    tls_root_ca_file: str = ""
    tls_skip_verify: bool = False


class HttpClient:
    def __init__(self, options: HttpClientOptions, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self.timeout = options.request_timeout
        self._connect_timeout = options.connect_timeout
        self._max_answer = max_answer_bytes
        # nsqadmin: no proxies from the environment. No cookies, because one session serves all daemons.
        session = bounded_session()
        # A kept connection would fail the first request after a restart of the daemon.
        session.headers.update({"Accept": "application/vnd.nsq; version=1.0", "Connection": "close"})
        session.verify = not options.tls_skip_verify and (options.tls_root_ca_file or True)
        if options.tls_skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if options.tls_cert:
            session.cert = (options.tls_cert, options.tls_key)
        self._session = session

    def get(self, address: str, path: str, **parameters: str) -> Any:
        """The JSON value of a daemon's answer. Raises `UpstreamError`."""
        body = self._request("GET", address, path, parameters, None)
        try:
            return reading.load(body)
        except InvalidAnswer as error:
            raise UpstreamError(f"{_url_of('http', address, path, parameters)}: {error}") from None

    def post(self, address: str, path: str, parameters: dict[str, str], body: bytes = b"") -> None:
        """Send a command to a daemon. Raises `UpstreamError`."""
        self._request("POST", address, path, parameters, body)

    def fetch(self, url: str, headers: dict[str, str] | None = None) -> Answer:
        """GET any URL."""
        return self._exchange("GET", url, None, headers, Deadline(self.timeout))

    def send(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        """POST to any URL; the status."""
        return self._exchange("POST", url, body, headers, Deadline(self.timeout)).status

    def _request(self, method: str, address: str, path: str, parameters: dict[str, str], body: bytes | None) -> bytes:
        url = _url_of("http", address, path, parameters)
        deadline = Deadline(self.timeout)
        status, _, answer = self._exchange(method, url, body, None, deadline)
        if status == 403 and (port := _https_port(answer)):
            secure = _url_of("https", f"{address.rpartition(':')[0]}:{port}", path, parameters)
            status, _, answer = self._exchange(method, secure, body, None, deadline)
        if status != 200:
            reason = http.client.responses.get(status, "")
            raise UpstreamError(f"got response {status} {reason} {quote(answer[:_MAX_QUOTED_BYTES])}")
        return answer

    def _exchange(
        self, method: str, url: str, body: bytes | None, headers: dict[str, str] | None, deadline: Deadline
    ) -> Answer:
        with _errors_as_upstream_errors(method, url):
            return exchange(
                self._session,
                method,
                url,
                deadline,
                connect_timeout=self._connect_timeout,
                max_body=self._max_answer,
                body=body,
                headers=headers,
            )


def _url_of(scheme: str, address: str, path: str, parameters: dict[str, str]) -> str:
    request = requests.Request("GET", f"{scheme}://{address}/{path}", params=parameters)
    try:
        return str(request.prepare().url)
    except (requests.RequestException, ValueError) as error:
        raise UpstreamError(f"{address}: {error}") from None


def _https_port(answer: bytes) -> int:
    try:
        return reading.integer(reading.mapping(reading.load(answer)).get("https_port"))
    except InvalidAnswer:
        return 0


@contextmanager
def _errors_as_upstream_errors(method: str, url: str) -> Iterator[None]:
    """Turn errors into `UpstreamError`, with texts that begin like Go's."""
    try:
        yield
    except UpstreamError as error:
        raise UpstreamError(f'{method.title()} "{url}": {error}') from None
    except (requests.Timeout, TimeoutError):
        raise UpstreamError(f'{method.title()} "{url}": timeout') from None
    except FAILURES as error:
        raise UpstreamError(f'{method.title()} "{url}": {_reason(url, error)}') from None


def _reason(url: str, error: BaseException) -> str:
    root = root_error(error)
    if not isinstance(root, OSError) or not root.strerror:
        return f"{type(root).__name__}: {root}"
    text = root.strerror.lower()
    return f"dial tcp {url.split('/')[2]}: connect: {text}" if root.errno in _NOT_CONNECTED else text
