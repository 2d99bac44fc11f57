"""``nsq_to_http``: an HTTP request to one of several URLs for each message of a topic.

Unlike Go's: a message is finished only when a URL has accepted it, however often it must be delivered (unless
``--consumer-opt=max_attempts,N`` limits that). A message that one URL does not accept is sent to the others at once, so
a URL that fails does not affect others. The consumer backs off only when all of them fail.

A message is accepted when the status of the answer is 2xx. The body is read, so that the connection can be reused, and
ignored.
"""

import logging
import random
import re
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_plus

import requests
from requests.exceptions import InvalidHeader

from nsq_compat import NSQ_VERSION
from nsq_compat.bounded_http import FAILURES, MAX_REDIRECTS, Deadline, bounded_session, reason_of, verifying_tls
from nsq_compat.cli.kinds import DURATION, FLOAT, INTEGER, STRING, choice
from nsq_compat.cli.options import option, repeated
from nsq_compat.client import Message
from nsq_compat.protocol.durations import SECOND, seconds
from nsq_compat.protocol.errors import hidden, url_without_secrets, without_secrets
from nsq_compat.tools.client_options import ReadingOptions, refusing
from nsq_compat.tools.destinations import MODES, Destinations
from nsq_compat.tools.program import Stopping, console_script, log_plainly, refuse, unless_positive
from nsq_compat.tools.progress import Progress, RequestTimes, channel_backlog

log = logging.getLogger(__name__)

_CONTENT_TYPE: Final = "application/octet-stream"
_PLACEHOLDER: Final = "%s"
"""Replaced by the message in the URL of a GET."""
_PATH_PART_END: Final = re.compile("[/?#]")
_CHUNK: Final = 64 * 1024
_MAX_IGNORED_BYTES: Final = 1 << 20
"""Of a body, read to reuse the connection; beyond that, a new connection is cheaper."""
_RETRY_WITHIN: Final = 1.0


_SECRET_HEADER: Final = re.compile(
    r"(?i)auth|bearer|cookie|cred|hmac|jwt|key|pass|pwd|secret|sess|sig|token|\b(code|mac|otp|pin|pw|sid)\b"
)


def _shown_header(header: str) -> str:
    name, colon, value = header.partition(":")
    return f"{name}{colon} {hidden(value)}" if value and _SECRET_HEADER.search(name) else header


@dataclass(kw_only=True)
class Options(ReadingOptions):
    program = "nsq_to_http"
    topic: str = option(STRING, "", "topic to read")
    channel: str = option(STRING, program, "channel to read from")
    post: tuple[str, ...] = repeated("URL to POST messages to", secret=url_without_secrets)
    get: tuple[str, ...] = repeated("URL to GET, with the message for %s", secret=url_without_secrets)
    header: tuple[str, ...] = repeated("`name: value` of every request", secret=_shown_header)
    content_type: str = option(STRING, _CONTENT_TYPE, "Content-Type of a POST")
    n: int = option(INTEGER, 100, "most requests at once")
    mode: str = option(choice(*MODES), "hostpool", f"how a URL is chosen: {', '.join(MODES)}")
    sample: float = option(FLOAT, 1.0, "share of the messages that are sent, 0 to 1")
    status_every: int = option(INTEGER, 250, "requests between two lines of timings; 0 for none")
    http_client_connect_timeout: int = option(DURATION, 2 * SECOND, "time for connecting to a URL's host")
    http_client_request_timeout: int = option(DURATION, 20 * SECOND, "time for a whole request")


@console_script(Options)
def main(options: Options) -> None:
    # In NSQ's order.
    with_value = all(part.strip() for header in options.header for part in header.partition(":"))
    refuse(
        (not with_value, "--header value format should be 'key=value'"),
        (not options.topic or not options.channel, "--topic and --channel are required"),
        (options.content_type != _CONTENT_TYPE and not options.post, "--content-type only used with --post"),
        (not options.content_type, "--content-type requires a value when used"),
        *options.address_rules(),
        (not options.get and not options.post, "--get or --post required"),
        (options.get and options.post, "use --get or --post not both"),
        (
            any(address.count(_PLACEHOLDER) != 1 for address in options.get),
            "invalid GET address - must be a printf string",
        ),
        (not 0 <= options.sample <= 1, "ERROR: --sample must be between 0.0 and 1.0"),
        (options.n < 1, "no handlers"),
        *unless_positive(options, "http_client_connect_timeout", "http_client_request_timeout"),
    )
    sender = HttpSender(options)
    addresses = options.post or options.get
    with refusing(NotSent):
        for address in addresses:
            sender.check(address)
    log_plainly()
    stopping = Stopping()
    times = RequestTimes(addresses, options.status_every)
    relay = Relay(sender, MODES[options.mode](addresses), times, options.sample)
    consumer = options.consumer(options.topic, options.channel, relay, fail=stopping.fail, concurrency=options.n)
    backlog = channel_backlog([options.topic], options.channel, options)
    with Progress(lambda: times.count, backlog), consumer:
        stopping.wait()


@dataclass
class Relay:
    """The handler: returns True when a URL has accepted the message, False when all have failed."""

    sender: "HttpSender"
    destinations: Destinations
    times: RequestTimes
    sample: float

    def __call__(self, message: Message) -> bool:
        if self.sample < 1 and random.random() >= self.sample:
            return True
        failed: list[str] = []
        while (address := self.destinations.choose(failed)) is not None:
            if failed:
                message.touch()
            if self._send(address, message):
                return True
            failed.append(address)
        return False

    def _send(self, address: str, message: Message) -> bool:
        began = time.monotonic()
        try:
            self.sender.send(address, message.body)
        except NotSent as error:
            self.destinations.failed(address)
            log.warning("msg %s to %s: %s", message.id.decode("ascii", "replace"), without_secrets(address), error)
            return False
        taken = time.monotonic() - began
        self.destinations.succeeded(address, taken)
        self.times.add(address, taken)
        return True


class NotSent(Exception):
    """The URL has not accepted the message, as far as is known; the text shows nothing of the message."""


class HttpSender:
    """Sends messages to URLs, as the body of a POST or in the URL of a GET. Threads may share it.

    Keeps a connection to each host for each of them. Of headers with the same name the last one is sent.
    """

    def __init__(self, options: Options) -> None:
        self._method = "POST" if options.post else "GET"
        self._request_timeout = seconds(options.http_client_request_timeout)
        connect_timeout = min(seconds(options.http_client_connect_timeout), self._request_timeout)
        self._timeouts = (connect_timeout, self._request_timeout)
        tls = verifying_tls()
        # For a system that has no authorities of its own.
        tls.load_verify_locations(requests.utils.DEFAULT_CA_BUNDLE_PATH)
        self._session = bounded_session(options.n, tls)
        headers = self._session.headers
        headers.clear()
        headers.update({"Accept-Encoding": "gzip", "User-Agent": f"{options.program} v{NSQ_VERSION}"})
        if options.post:
            headers["Content-Type"] = options.content_type
        for header in options.header:
            name, _, value = header.partition(":")
            headers[name.strip()] = value.strip()

    def check(self, address: str) -> None:
        """Raises ``NotSent`` if no message could be sent to this URL."""
        try:
            self._request(address, b"x")
            self._session.get_adapter(address)
        except FAILURES as error:
            # The full text would show secrets in the URL or in headers.
            what = "a header is not valid" if isinstance(error, InvalidHeader) else "not a URL of HTTP"
            raise NotSent(f"{without_secrets(address)}: {what}") from None

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
        except FAILURES as error:
            raise NotSent(reason_of(error)) from None

    def _exchange(self, address: str, body: bytes) -> None:
        following: requests.PreparedRequest | None = self._request(address, body)
        with Deadline(self._request_timeout) as deadline:
            for _ in range(MAX_REDIRECTS + 1):
                if following is None:
                    return
                following = self._exchange_once(following, deadline)
        raise requests.TooManyRedirects

    def _exchange_once(self, request: requests.PreparedRequest, deadline: Deadline) -> requests.PreparedRequest | None:
        """Returns the request that a redirect asks for; None if the message was accepted."""
        sent = self._session.send(request, stream=True, timeout=self._timeouts, allow_redirects=False)
        with closing(sent) as response:
            deadline.check()  # headers that were cut off look complete
            left = 0 if response.is_redirect else _MAX_IGNORED_BYTES
            with suppress(*FAILURES):  # the status alone decides
                while left > 0 and (chunk := response.raw.read1(_CHUNK, decode_content=False)):
                    left -= len(chunk)
        following = response.next
        if following is None and 200 <= response.status_code < 300:
            return None
        if following is None or following.method != request.method:  # a GET would not have the message
            raise NotSent(f"got status code {response.status_code}")
        is_elsewhere = self._session.should_strip_auth(request.url, following.url)  # type: ignore[no-untyped-call]
        if is_elsewhere:
            for name in [name for name in following.headers if _SECRET_HEADER.search(name)]:
                del following.headers[name]
        return following

    def _request(self, address: str, body: bytes) -> requests.PreparedRequest:
        if self._method == "POST":
            return self._session.prepare_request(requests.Request("POST", address, data=body))
        # nsq_to_http: the address is a printf format, so %% is a percent sign; a single one is accepted too.
        before, _, behind = (part.replace("%%", "%") for part in address.partition(_PLACEHOLDER))
        value = quote_plus(body)
        if "?" not in before and f"{before.rpartition('/')[2]}{value}{_PATH_PART_END.split(behind)[0]}" in (".", ".."):
            raise NotSent("the message would lead to another path")
        return self._session.prepare_request(requests.Request("GET", f"{before}{value}{behind}"))
