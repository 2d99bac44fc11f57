"""Sends messages to URLs, as the body of a POST or in the URL of a GET. Threads may share a sender.

A message is accepted when the status of the answer is 2xx. The body is read, so that the connection can be reused, and
ignored.
"""

import ssl
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Final, Literal
from urllib.parse import quote_plus

import requests

from nsq_compat.bounded_http import FAILURES, Deadline, bounded_session, root_error
from nsq_compat.protocol.errors import without_secrets

PLACEHOLDER: Final = "%s"
"""Replaced by the message in the URL of a GET."""
_CHUNK: Final = 64 * 1024
_MAX_IGNORED_BYTES: Final = 1 << 20
"""Of a body, read to reuse the connection; beyond that, a new connection is cheaper."""
_RETRY_WITHIN: Final = 1.0


class NotSent(Exception):
    """The URL has not accepted the message, as far as is known; the text shows nothing of the message."""


class HttpSender:
    """Keeps at most so many `connections` to each host. Of headers with the same name the last one is sent."""

    def __init__(
        self,
        method: Literal["GET", "POST"],
        headers: Iterable[tuple[str, str]],
        *,
        connect_timeout: float,
        request_timeout: float,
        connections: int,
    ) -> None:
        self._method = method
        self._request_timeout = request_timeout
        self._timeouts = (min(connect_timeout, request_timeout), request_timeout)
        tls = ssl.create_default_context()
        tls.load_verify_locations(
            requests.utils.DEFAULT_CA_BUNDLE_PATH
        )  # for a system that has no authorities of its own
        session = bounded_session(connections, tls)
        session.headers.clear()
        session.headers["Accept-Encoding"] = "gzip"
        for name, value in headers:
            session.headers[name] = value
        self._session = session

    def check(self, address: str) -> None:
        """Raises ``NotSent`` if no message could be sent to this URL."""
        try:
            self._session.prepare_request(self._request(address, b"x"))
            self._session.get_adapter(address)
        except FAILURES as error:
            # The full text would show secrets in the URL or in headers.
            raise NotSent(f"{without_secrets(address)}: {type(error).__name__}") from None

    def send(self, address: str, body: bytes) -> None:
        """Raises ``NotSent``."""
        began = time.monotonic()
        try:
            try:
                self._exchange(address, body)
            except requests.ConnectionError as error:
                if isinstance(error, requests.Timeout) or time.monotonic() - began > _RETRY_WITHIN:
                    raise
                # The server may have closed a kept connection just now.
                self._exchange(address, body)
        except (requests.Timeout, TimeoutError):
            raise NotSent("timeout") from None
        except FAILURES as error:
            raise NotSent(_reason(error)) from None

    def _exchange(self, address: str, body: bytes) -> None:
        request = self._session.prepare_request(self._request(address, body))
        with (
            Deadline(self._request_timeout) as deadline,
            closing(self._session.send(request, stream=True, timeout=self._timeouts)) as response,
        ):
            deadline.check()  # headers that were cut off look complete
            with suppress(*FAILURES):  # the status alone decides
                self._read_on(response)
        if not 200 <= response.status_code < 300:
            raise NotSent(f"got status code {response.status_code}")

    def _request(self, address: str, body: bytes) -> requests.Request:
        if self._method == "POST":
            return requests.Request("POST", address, data=body)
        # nsq_to_http: the address is a printf format, so %% is a percent sign; a single one is accepted too.
        before, _, behind = (part.replace("%%", "%") for part in address.partition(PLACEHOLDER))
        return requests.Request("GET", f"{before}{quote_plus(body)}{behind}")

    def _read_on(self, response: requests.Response) -> None:
        left = _MAX_IGNORED_BYTES
        while left > 0:
            chunk = response.raw.read1(_CHUNK, decode_content=False)
            if not chunk:
                return
            left -= len(chunk)


def _reason(error: BaseException) -> str:
    """The system's words without those of the libraries, which show the URL and so the message."""
    root = root_error(error)
    return root.strerror.lower() if isinstance(root, OSError) and root.strerror else type(root).__name__


def parse_headers(words: Sequence[str]) -> list[tuple[str, str]]:
    """Each word is ``Name: value``. Raises ``ValueError``."""
    headers = []
    for word in words:
        name, _, value = (part.strip() for part in word.partition(":"))
        if not name or not value:
            raise ValueError(f"invalid header: {word!r}")
        headers.append((name, value))
    return headers
