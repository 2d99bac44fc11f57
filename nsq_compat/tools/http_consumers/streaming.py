"""The handler of `nsq_pubsub`: /sub, a topic and channel as an endless stream of lines, and /stats.

Each client of /sub has a consumer of its own. Invariants:

- A message is finished when the client's system has acknowledged its last byte. All others are requeued at once when
  the stream ends, whichever side ended it.
- No more than max_in_flight messages of one client are in flight, none of them longer than `client_timeout` seconds: a
  client that reads more slowly is disconnected.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nsq_compat.client import Consumer, Message
from nsq_compat.client.message import Handler
from nsq_compat.protocol.durations import SECOND, format_duration
from nsq_compat.session.http_message import TEXT, Request, Response, http_date
from nsq_compat.tools.http_consumers.ack_http import (
    MAX_IGNORED_BODY,
    MAX_POLL_SECONDS,
    MIN_POLL_SECONDS,
    AckConnection,
    ClientGone,
)
from nsq_compat.web.application import ApiError, plain, required_name

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 30.0
_BATCH_BYTES: Final = 1 << 16
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nDate: %b\r\n\r\n"


class _Sent(NamedTuple):
    """A message, or a heartbeat, that the client's system has not acknowledged yet."""

    end: int
    """Its end, as an offset in the stream."""
    since: float
    """When it was received from nsqd."""
    message: Message | None
    """None for a heartbeat."""


@dataclass
class PubSub:
    """A handler for `AckHttpServer`, called by greenlets. `make_consumer` is given topic, channel and handler."""

    make_consumer: Callable[[str, str, Handler], Consumer]
    client_timeout: float
    """Seconds."""
    heartbeat_interval: float = HEARTBEAT_SECONDS
    _streams: "list[Stream]" = field(default_factory=list, init=False)
    _past_messages: int = field(default=0, init=False)

    def max_body(self, path: str) -> int:
        return MAX_IGNORED_BODY

    def answer(self, request: Request, client: AckConnection) -> bool:
        if request.path == "/sub":
            return self._subscribe(request, client)
        if request.path == "/stats":
            return client.reply(request, plain(self._stats(time.monotonic())))
        return client.reply(request, Response(404))

    def _subscribe(self, request: Request, client: AckConnection) -> bool:
        try:
            topic, channel = required_name(request, "topic"), required_name(request, "channel")
        except ApiError as error:
            return client.reply(request, Response(500, error.code.encode(), (TEXT,)))  # nsq_pubsub: not 400
        if request.method == "HEAD":
            return client.reply(request, Response(200, headers=(TEXT,), close=True))
        stream = Stream(self, client, topic, channel)
        self._streams.append(stream)
        try:
            stream.run()
        finally:
            self._streams.remove(stream)
            self._past_messages += stream.received
        return False

    def _stats(self, now: float) -> str:
        total = self._past_messages + sum(stream.received for stream in self._streams)
        return f"Total Messages: {total}\n\n" + "".join(f"{stream.describe(now)}\n" for stream in self._streams)


class Stream:
    """One client of /sub."""

    def __init__(self, pubsub: PubSub, client: AckConnection, topic: str, channel: str) -> None:
        self.received = 0
        self._finished = 0
        self._requeued = 0
        self._client = client
        self._name = f"[{client.address}] [{topic} : {channel}]"
        self._client_timeout = pubsub.client_timeout
        self._heartbeat_interval = pubsub.heartbeat_interval
        self._began = time.monotonic()
        self._waiting: deque[tuple[float, Message]] = deque()
        self._sent: deque[_Sent] = deque()
        self._lock = threading.Lock()
        self._is_over = False
        self._consumer = pubsub.make_consumer(topic, channel, self._deliver)

    def describe(self, now: float) -> str:
        """A line of /stats."""
        connected = format_duration(int(now - self._began) * SECOND)
        return f"{self._name} connected: {connected} msgs: {self.received} fin: {self._finished} re-q: {self._requeued}"

    def run(self) -> None:
        """Return when the client sends something, or the program stops. Raises ``ClientGone``."""
        log.info("%s connected", self._name)
        try:
            self._client.send(_HEAD % http_date(int(time.time())), time.monotonic() + self._client_timeout)
            self._consumer.start()
            self._stream()
            self._client.wait_until_acknowledged(self._client.write_deadline())
        finally:
            self._end()
            log.info("%s disconnected", self._name)

    def _stream(self) -> None:
        client, session = self._client, self._client.session
        read_count = session.read_count
        heartbeat_due = time.monotonic() + self._heartbeat_interval
        pause = MIN_POLL_SECONDS
        # nsq_pubsub: anything that the client sends ends the stream, as its leaving does.
        while not session.is_gone and not client.is_stopping and session.read_count == read_count:
            client.wake.clear()
            now = time.monotonic()
            if self._waiting:
                self._send_batch()
                pause = MIN_POLL_SECONDS
            elif now >= heartbeat_due:
                # Its acknowledgement shows that the client is still there.
                data = b'{"_heartbeat_":%d}\n' % time.time()
                self._sent.append(_Sent(session.sent + len(data), now, None))
                client.send(data, now + self._client_timeout)
                heartbeat_due = now + self._heartbeat_interval
            self._finish_acknowledged()
            if self._sent and now >= self._sent[0].since + self._client_timeout:
                raise ClientGone("reads too slowly")
            if not self._waiting:
                client.wake.wait(pause if self._sent else max(0.0, heartbeat_due - now))
                pause = min(2 * pause, MAX_POLL_SECONDS)

    def _send_batch(self) -> None:
        """Send waiting messages in one call, so that short ones cost no system call each."""
        pieces: list[bytes] = []
        size, oldest = 0, self._waiting[0][0]
        while self._waiting and size < _BATCH_BYTES:
            since, message = self._waiting.popleft()
            if message.is_lost:
                continue  # nsqd delivers it again
            pieces += (message.body, b"\n")
            size += len(message.body) + 1
            self._sent.append(_Sent(self._client.session.sent + size, since, message))
        self._client.send(b"".join(pieces), oldest + self._client_timeout)

    def _finish_acknowledged(self) -> None:
        acknowledged = self._client.acknowledged
        while self._sent and self._sent[0].end <= acknowledged:
            message = self._sent.popleft().message
            if message is not None:
                message.finish()
                self._finished += 1

    def _deliver(self, message: Message) -> None:
        message.enable_async()
        with self._lock:
            self.received += 1
            if self._is_over:
                self._requeue(message)
            else:
                self._waiting.append((time.monotonic(), message))
        self._client.wake.set()

    def _end(self) -> None:
        if not self._client.session.is_broken:
            with contextlib.suppress(OSError):
                self._finish_acknowledged()
        self._consumer.set_max_in_flight(0)  # or requeued messages would return before the consumer has stopped
        with self._lock:
            self._is_over = True
            for message in filter(None, [each.message for each in self._sent] + [each for _, each in self._waiting]):
                self._requeue(message)
            # The consumer refers to this stream, so only the garbage collector would free them.
            self._sent.clear()
            self._waiting.clear()
        self._consumer.stop(timeout=5.0)

    def _requeue(self, message: Message) -> None:
        message.requeue(delay=0, backoff=False)
        self._requeued += 1
