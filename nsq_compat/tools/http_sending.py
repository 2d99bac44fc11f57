"""One message to one URL: POSTed as a body, or put into the URL of a GET. Any number of threads share the connections.

A message has arrived when the answer's status says so (2xx); what follows it is read, so that the connection can be
used again, and thrown away. Nothing is taken from the environment, and no cookies are kept.
"""

import ssl
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Final, Literal
from urllib.parse import quote_plus

import requests
import urllib3

from nsq_compat.bounded_http import Deadline, bounded_session
from nsq_compat.protocol.errors import without_secrets

PLACE: Final = "%s"
"""Where the message goes in the URL of a GET."""
_CHUNK: Final = 64 * 1024
_LONGEST_ANSWER: Final = 1 << 20
"""Bytes that are read for the sake of the connection; behind them it is cheaper to make another one."""
_AT_ONCE: Final = 1.0
_FAILURES: Final = (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError)


class NotSent(Exception):
    """It has not arrived, as far as can be told; the text says why and shows nothing of the message."""


class HttpSender:
    """At most so many `connections` are kept to each host. Of headers with one name the last one wins."""

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
        session = bounded_session(connections, ssl_context=ssl.create_default_context())
        session.headers.clear()
        session.headers["Accept-Encoding"] = "gzip"
        for name, value in headers:
            session.headers[name] = value
        self._session = session

    def check(self, address: str) -> None:
        """Raises ``NotSent`` if no message could ever be sent to it."""
        try:
            self._session.prepare_request(self._request(address, b"x"))
            self._session.get_adapter(address)
        except _FAILURES as error:
            # What the error says in full shows secrets that are in the URL or in headers.
            raise NotSent(f"{without_secrets(address)}: {type(error).__name__}") from None

    def send(self, address: str, body: bytes) -> None:
        """Raises ``NotSent``."""
        began = time.monotonic()
        try:
            try:
                self._exchange(address, body)
            except requests.ConnectionError as error:
                if isinstance(error, requests.Timeout) or time.monotonic() - began > _AT_ONCE:
                    raise
                # A connection that was kept is closed by the server some time, perhaps just now.
                self._exchange(address, body)
        except (requests.Timeout, TimeoutError):
            raise NotSent("timeout") from None
        except _FAILURES as error:
            raise NotSent(_reason(error)) from None

    def _exchange(self, address: str, body: bytes) -> None:
        request = self._session.prepare_request(self._request(address, body))
        with (
            Deadline(self._request_timeout) as deadline,
            closing(self._session.send(request, stream=True, timeout=self._timeouts)) as response,
        ):
            deadline.check()  # headers that were cut off look complete
            with suppress(*_FAILURES):  # what comes behind the status decides nothing
                self._read_on(response)
        if not 200 <= response.status_code < 300:
            raise NotSent(f"got status code {response.status_code}")

    def _request(self, address: str, body: bytes) -> requests.Request:
        if self._method == "POST":
            return requests.Request("POST", address, data=body)
        # nsq_to_http: the address is a format. Where it takes %% for a percent sign, one alone is good enough too.
        before, _, behind = (part.replace("%%", "%") for part in address.partition(PLACE))
        return requests.Request("GET", f"{before}{quote_plus(body)}{behind}")

    def _read_on(self, response: requests.Response) -> None:
        left = _LONGEST_ANSWER
        while left > 0:
            chunk = response.raw.read1(_CHUNK, decode_content=False)
            if not chunk:
                return
            left -= len(chunk)


def _reason(error: BaseException) -> str:
    """What the system said, without what the libraries wrap around it, which shows the URL and so the message."""
    causes: list[BaseException] = [error]
    while causes[-1].__context__ is not None:
        causes.append(causes[-1].__context__)
    said = next((cause.strerror for cause in reversed(causes) if isinstance(cause, OSError) and cause.strerror), None)
    return said.lower() if said else type(causes[-1]).__name__


def headers_of(words: Sequence[str]) -> list[tuple[str, str]]:
    """Each word is ``Name: value``. Raises ``ValueError``."""
    headers = []
    for word in words:
        name, _, value = (part.strip() for part in word.partition(":"))
        if not name or not value:
            raise ValueError(f"invalid header: {word!r}")
        headers.append((name, value))
    return headers
