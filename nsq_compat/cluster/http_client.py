"""One request to one NSQ daemon over HTTP.

Every request ends: one deadline is for all of it, from the connection to the last byte (`bounded_http`), and an answer
has a largest size. A daemon that
requires TLS says so with a 403 that names its HTTPS port; the request is then made there.
"""

import errno
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import requests
import urllib3

from nsq_compat.bounded_http import Deadline, bounded_session
from nsq_compat.cluster import reading
from nsq_compat.cluster.reading import BadAnswer
from nsq_compat.protocol.errors import quote

LARGEST_ANSWER: Final = 32 * 1024 * 1024
"""Bytes. A thousand topics with their channels and clients take about one MiB."""
_LONGEST_QUOTED: Final = 300
_CHUNK: Final = 64 * 1024
_NOT_CONNECTED: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})


class UpstreamError(Exception):
    """A daemon that could not be asked, or refused; the text says which and why, in NSQ's words where it has some."""


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
    def __init__(self, options: HttpClientOptions, largest_answer: int = LARGEST_ANSWER) -> None:
        self.timeout = options.request_timeout
        self._times = (min(options.connect_timeout, options.request_timeout), options.request_timeout)
        self._largest_answer = largest_answer
        # nsqadmin: no proxies from the environment. No cookies either: one daemon's are not another's.
        session = bounded_session()
        # A connection kept over a restart of the daemon would fail the next request.
        session.headers.update({"Accept": "application/vnd.nsq; version=1.0", "Connection": "close"})
        session.verify = not options.tls_skip_verify and (options.tls_root_ca_file or True)
        if options.tls_skip_verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if options.tls_cert:
            session.cert = (options.tls_cert, options.tls_key)
        self._session = session

    def get(self, address: str, path: str, **parameters: str) -> Any:
        """The JSON value a daemon answers. Raises `UpstreamError`."""
        body = self._request("GET", address, path, parameters, None)
        try:
            return reading.load(body)
        except BadAnswer as error:
            raise UpstreamError(f"{_url_of('http', address, path, parameters)}: {error}") from None

    def post(self, address: str, path: str, parameters: dict[str, str], body: bytes = b"") -> None:
        """Tell a daemon something. Raises `UpstreamError`."""
        self._request("POST", address, path, parameters, body)

    def fetch(self, url: str, headers: dict[str, str] | None = None) -> tuple[int, str, bytes]:
        """Status, content type and body of any URL."""
        return self._exchange("GET", url, None, headers, Deadline(self.timeout))

    def send(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        """POST to any URL; the status."""
        return self._exchange("POST", url, body, headers, Deadline(self.timeout))[0]

    def _request(self, method: str, address: str, path: str, parameters: dict[str, str], body: bytes | None) -> bytes:
        url = _url_of("http", address, path, parameters)
        deadline = Deadline(self.timeout)
        status, _, answer = self._exchange(method, url, body, None, deadline)
        if status == 403 and (port := _https_port(answer)):
            secure = _url_of("https", f"{address.rpartition(':')[0]}:{port}", path, parameters)
            status, _, answer = self._exchange(method, secure, body, None, deadline)
        if status != 200:
            reason = http.client.responses.get(status, "")
            raise UpstreamError(f"got response {status} {reason} {quote(answer[:_LONGEST_QUOTED])}")
        return answer

    def _exchange(
        self, method: str, url: str, body: bytes | None, headers: dict[str, str] | None, deadline: Deadline
    ) -> tuple[int, str, bytes]:
        with _in_words(method, url), deadline:
            response = self._session.request(
                method, url, data=body, headers=headers, timeout=self._times, stream=True, allow_redirects=False
            )
            with response:
                answer = self._read(response)
            deadline.check()
        return response.status_code, response.headers.get("Content-Type", ""), answer

    def _read(self, response: requests.Response) -> bytes:
        answer = bytearray()
        # One piece as it comes: to wait for a full buffer would be to wait for a sender that drips.
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            answer += chunk
            if len(answer) > self._largest_answer:
                raise UpstreamError(f"the answer is larger than {self._largest_answer} bytes")
        return bytes(answer)


def _url_of(scheme: str, address: str, path: str, parameters: dict[str, str]) -> str:
    request = requests.Request("GET", f"{scheme}://{address}/{path}", params=parameters)
    try:
        return str(request.prepare().url)
    except (requests.RequestException, ValueError) as error:
        raise UpstreamError(f"{address}: {error}") from None


def _https_port(answer: bytes) -> int:
    try:
        return reading.integer(reading.mapping(reading.load(answer)).get("https_port"))
    except BadAnswer:
        return 0


@contextmanager
def _in_words(method: str, url: str) -> Iterator[None]:
    """Whatever goes wrong with a request becomes an `UpstreamError` that begins as Go's do."""
    try:
        yield
    except UpstreamError as error:
        raise UpstreamError(f'{method.title()} "{url}": {error}') from None
    except (requests.Timeout, TimeoutError):
        raise UpstreamError(f'{method.title()} "{url}": timeout') from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise UpstreamError(f'{method.title()} "{url}": {_reason(url, error)}') from None


def _reason(url: str, error: BaseException) -> str:
    """What the system said, without what requests and urllib3 wrap around it."""
    causes = [error]
    while causes[-1].__context__ is not None:
        causes.append(causes[-1].__context__)
    said = next((cause for cause in reversed(causes) if isinstance(cause, OSError) and cause.strerror), None)
    if said is None:
        return f"{type(causes[-1]).__name__}: {causes[-1]}"
    words = (said.strerror or "").lower()
    return f"dial tcp {url.split('/')[2]}: connect: {words}" if said.errno in _NOT_CONNECTED else words
