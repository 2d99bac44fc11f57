"""HTTP requests on the event loop, with bounds: one deadline for the whole exchange, and a maximum size of the answer.

For nsqlookupd, and nsqd's log. The answers are those of ``bounded_http``, and failures are among its `FAILURES`.
"""

import asyncio
import base64
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import BadStatusLine, RemoteDisconnected
from typing import Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import httptools
from requests.structures import CaseInsensitiveDict

from nsq_compat.bounded_http import MAX_REDIRECTS, Answer, AnswerTooLarge
from nsq_compat.client.aio.connection import connect
from nsq_compat.client.discovery import MAX_ANSWER_BYTES, Listing, listing_of, lookup_headers, lookup_url
from nsq_compat.client.link import TlsStream
from nsq_compat.client.settings import SubscriptionSettings

_READ_SIZE: Final = 1 << 18
_TLS_READ_SIZE: Final = 1 << 14
_MAX_HEADER_BYTES: Final = 1 << 16
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


async def ask(address: str, topic: str, settings: SubscriptionSettings, port: str = "TCP") -> Listing:
    """``discovery.ask`` on the event loop."""
    client = HttpClient(
        lambda: settings.tls_context(check_hostname=True),
        connect_timeout=settings.lookupd_connect_timeout,
        max_body=MAX_ANSWER_BYTES,
        follow_redirects=True,
    )
    try:
        url = lookup_url(address, topic)
        answer = await client.get(url, lookup_headers(settings), timeout=settings.lookupd_request_timeout)
    finally:
        client.close()
    return listing_of(answer, port)


class HttpClient:
    """Makes one request at a time, and keeps the connection to the last server. `tls` makes a context for HTTPS."""

    def __init__(
        self,
        tls: Callable[[], ssl.SSLContext],
        *,
        connect_timeout: float,
        max_body: int,
        follow_redirects: bool = False,
    ) -> None:
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._max_body = max_body
        self._follow_redirects = follow_redirects
        self._server = ("", "")
        self._stream: _Stream | None = None

    async def get(self, url: str, headers: Mapping[str, str], *, timeout: float) -> Answer:
        """Raises one of ``bounded_http.FAILURES``."""
        async with asyncio.timeout(timeout):
            for _ in range(MAX_REDIRECTS + 1):
                parts = urlsplit(url)
                answer = await self._get_once(parts, headers)
                if not (self._follow_redirects and is_redirect(answer.status, answer.headers)):
                    return answer
                url = urljoin(url, answer.headers["Location"])
                if urlsplit(url)[:2] != parts[:2]:  # the secret is for this server
                    headers = {name: value for name, value in headers.items() if name != "Authorization"}
        raise ValueError(f"more than {MAX_REDIRECTS} redirects")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.abort()
            self._stream = None

    async def _get_once(self, parts: SplitResult, headers: Mapping[str, str]) -> Answer:
        request = _request(parts, headers)
        if self._server != (parts.scheme, parts.netloc):
            self.close()
        is_reused = self._stream is not None
        try:
            stream = self._stream or await self._connect(parts)
            stream.write(request)
            response = _Response(self._max_body, self._follow_redirects)
            while not response.is_complete:
                response.receive_data(await stream.read())
        except BaseException as error:
            self.close()
            if isinstance(error, ConnectionError) and is_reused:  # the server had closed the idle connection
                return await self._get_once(parts, headers)
            raise
        if not response.keeps_connection:
            self.close()
        return response.answer()

    async def _connect(self, parts: SplitResult) -> "_Stream":
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not a URL of HTTP")
        tls = self._tls() if parts.scheme == "https" else None
        async with asyncio.timeout(self._connect_timeout):
            connected = await connect(parts.hostname, parts.port or (443 if tls else 80))
            reader, writer = await asyncio.open_connection(sock=connected)
            self._stream = stream = _Stream(reader, writer)
            if tls is not None:
                await stream.begin_tls(TlsStream(tls, parts.hostname))
        self._server = (parts.scheme, parts.netloc)
        return stream


class _Stream:
    """A connection. asyncio's own TLS decodes 256 KiB at once, which may be 10,000 key updates of 20 us each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tls: TlsStream | None = None

    async def begin_tls(self, tls: TlsStream) -> None:
        """Return when the handshake is complete. Raises ``OSError``."""
        self._tls = tls
        self.write(b"")
        while not tls.is_established:
            data = await self._reader.read(_TLS_READ_SIZE)
            if not data:
                raise RemoteDisconnected("closed during the TLS handshake")
            self._decode(tls, data)

    def write(self, data: bytes) -> None:
        if encoded := data if self._tls is None else self._tls.encode(data):
            self._writer.write(encoded)

    async def read(self) -> bytes:
        """Received bytes; none are EOF."""
        if self._tls is None:
            return await self._reader.read(_READ_SIZE)
        # A server may wait for the client to close the connection after it has ended TLS.
        while not self._tls.has_ended and (received := await self._reader.read(_TLS_READ_SIZE)):
            data = self._decode(self._tls, received)
            await asyncio.sleep(0)  # reading what has arrived does not wait
            if data:
                return data
        return b""

    def abort(self) -> None:
        self._writer.transport.abort()

    def _decode(self, tls: TlsStream, received: bytes) -> bytes:
        try:
            return tls.decode(received)
        finally:
            self.write(b"")  # an alert, or an answer of TLS


def is_redirect(status: int, headers: Mapping[str, str]) -> bool:
    return status in _REDIRECTS and "Location" in headers


def _request(parts: SplitResult, headers: Mapping[str, str]) -> bytes:
    user, at, host = parts.netloc.rpartition("@")
    fields = {"Host": host, "Accept-Encoding": "identity", **headers}
    if at:
        fields["Authorization"] = "Basic " + base64.b64encode(unquote(user).encode()).decode("ascii")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("ascii")


class _Response:
    """A response as it arrives. The methods that begin with ``on_`` are called by the parser.

    With `skips_redirects` a redirect is complete without its body, which may be of any size.
    """

    def __init__(self, max_body: int, skips_redirects: bool) -> None:
        self.is_complete = False
        self.keeps_connection = False
        self._max_body = max_body
        self._skips_redirects = skips_redirects
        self._parser = httptools.HttpResponseParser(self)
        self._headers: CaseInsensitiveDict[str] = CaseInsensitiveDict()
        self._other_bytes = 0
        self._body = bytearray()
        self._has_headers = False
        self._status = 0

    def receive_data(self, data: bytes) -> None:
        """Process received bytes; none are EOF. Raises ``HTTPException`` and ``ValueError``."""
        if not data:
            has_size = "Content-Length" in self._headers or "Transfer-Encoding" in self._headers
            if not self._has_headers or has_size:
                raise RemoteDisconnected("closed before the end of the answer")
            self.is_complete = True
            return
        is_http, before = False, len(self._body)
        with suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):  # no other protocol was asked for
            self._parser.feed_data(data)
            is_http = True
        if not is_http:
            raise BadStatusLine("")
        # Headers, sizes of chunks, and trailers, which the parser keeps.
        self._other_bytes += len(data) - (len(self._body) - before)
        if not self.is_complete and self._other_bytes > _MAX_HEADER_BYTES + len(self._body):
            raise AnswerTooLarge(f"the headers are larger than {_MAX_HEADER_BYTES} bytes")
        if len(self._body) > self._max_body:
            raise AnswerTooLarge(f"the answer is larger than {self._max_body} bytes")
        if self._skips_redirects and not self.is_complete and is_redirect(self._status, self._headers):
            self.is_complete = True

    def answer(self) -> Answer:
        return Answer(self._status, self._headers.get("Content-Type", ""), bytes(self._body), self._headers)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_headers = True
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._status < 200:  # 100 Continue: the answer follows
            self._has_headers = False
            self._headers.clear()
            return
        self.keeps_connection = self._parser.should_keep_alive()
        self.is_complete = True
