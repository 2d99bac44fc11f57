"""What `nsq_pubsub` answers: /sub, a topic and channel as a stream of lines that never ends, and /stats.

Each caller of /sub has a consumer of his own. Invariants:

- A message is finished when the caller's system has acknowledged its last byte. Whatever was not goes back at once when
  the stream ends, whoever ended it.
- Of one caller no more than max_in_flight messages are held, none of them longer than `client_timeout` seconds: who
  reads more slowly than that is disconnected.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from nsq_compat.client import Consumer, Message
from nsq_compat.client.message import Handler
from nsq_compat.protocol.durations import SECOND, format_duration
from nsq_compat.session.http_message import TEXT, Admission, Request, Response, http_date
from nsq_compat.tools.http_door import LONGEST_LOOK, SHORTEST_LOOK, Caller, Gone
from nsq_compat.web.query import parse_query, required_name
from nsq_compat.web.responses import ApiError, plain

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 30.0
_GATHERED_SIZE: Final = 1 << 16
_LARGEST_IGNORED: Final = 64 << 10
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nDate: %b\r\n\r\n"

MakeConsumer = Callable[[str, str, Handler], Consumer]


class _Sent(NamedTuple):
    """What the caller's system has not acknowledged yet: up to which byte of the stream, and since when we have it."""

    end: int
    since: float
    message: Message | None
    """None for a heartbeat."""


class PubSub:
    """A handler for `http_door.Door`. `make_consumer` is given topic, channel and handler; times are seconds."""

    def __init__(
        self, make_consumer: MakeConsumer, client_timeout: float, heartbeat_interval: float = HEARTBEAT_SECONDS
    ) -> None:
        self._make_consumer = make_consumer
        self._client_timeout = client_timeout
        self._heartbeat_interval = heartbeat_interval
        self._streams: list[Stream] = []
        self._past_messages = 0
        self._lock = threading.Lock()

    def admit(self, method: str, path: str) -> Admission:
        return Admission(_LARGEST_IGNORED, plain("too large\n", 413)._replace(close=True))

    def answer(self, request: Request, caller: Caller) -> bool:
        if request.path == "/sub":
            return self._subscribe(request, caller)
        if request.path == "/stats":
            return caller.reply(request, plain(self._stats(time.monotonic())))
        return caller.reply(request, Response(404))

    def _subscribe(self, request: Request, caller: Caller) -> bool:
        try:
            parameters = parse_query(request.query)
            topic, channel = required_name(parameters, "topic"), required_name(parameters, "channel")
        except ApiError as error:
            return caller.reply(request, Response(500, error.code.encode(), (TEXT,)))  # nsq_pubsub: not 400
        if request.method == "HEAD":
            return caller.reply(request, Response(200, headers=(TEXT,), close=True))
        stream = Stream(caller, topic, channel, self._make_consumer, self._client_timeout, self._heartbeat_interval)
        with self._lock:
            self._streams.append(stream)
        try:
            stream.run()
        finally:
            with self._lock:
                self._streams.remove(stream)
                self._past_messages += stream.received
        return False

    def _stats(self, now: float) -> str:
        with self._lock:
            streams, total = list(self._streams), self._past_messages
        total += sum(stream.received for stream in streams)
        return f"Total Messages: {total}\n\n" + "".join(f"{stream.describe(now)}\n" for stream in streams)


class Stream:
    """One caller of /sub."""

    def __init__(
        self,
        caller: Caller,
        topic: str,
        channel: str,
        make_consumer: MakeConsumer,
        client_timeout: float,
        heartbeat_interval: float,
    ) -> None:
        self.received = 0
        self._finished = 0
        self._returned = 0
        self._caller = caller
        self._name = f"[{caller.address}] [{topic} : {channel}]"
        self._client_timeout = client_timeout
        self._heartbeat_interval = heartbeat_interval
        self._began = time.monotonic()
        self._waiting: deque[tuple[float, Message]] = deque()
        self._sent: deque[_Sent] = deque()
        self._lock = threading.Lock()
        self._is_over = False
        self._consumer = make_consumer(topic, channel, self._deliver)

    def describe(self, now: float) -> str:
        """A line of /stats."""
        connected = format_duration(int(now - self._began) * SECOND)
        return f"{self._name} connected: {connected} msgs: {self.received} fin: {self._finished} re-q: {self._returned}"

    def run(self) -> None:
        """Until the caller has had enough, or the program ends. Raises ``Gone``."""
        log.info("%s connected", self._name)
        try:
            self._caller.send(_HEAD % http_date(int(time.time())), time.monotonic() + self._client_timeout)
            self._consumer.start()
            self._stream()
            self._caller.wait_until_taken(self._caller.due())
        finally:
            self._end()
            log.info("%s disconnected", self._name)

    def _stream(self) -> None:
        caller, reads = self._caller, self._caller.reads
        heartbeat_due = time.monotonic() + self._heartbeat_interval
        look = SHORTEST_LOOK
        # nsq_pubsub: whatever else he says ends it, as his leaving does.
        while not caller.is_gone and not caller.is_leaving and caller.reads == reads:
            caller.wake.clear()
            now = time.monotonic()
            if self._waiting:
                self._send_some()
                look = SHORTEST_LOOK
            elif now >= heartbeat_due:
                # That he acknowledges it is how one learns that he is still there.
                self._send(b'{"_heartbeat_":%d}\n' % time.time(), now, None)
                heartbeat_due = now + self._heartbeat_interval
            self._finish_taken()
            if self._sent and now >= self._sent[0].since + self._client_timeout:
                raise Gone("reads too slowly")
            if not self._waiting:
                caller.wake.wait(look if self._sent else max(0.0, heartbeat_due - now))
                look = min(2 * look, LONGEST_LOOK)

    def _send_some(self) -> None:
        """In one go, so that short messages cost no system call each."""
        pieces: list[bytes] = []
        size, oldest = 0, self._waiting[0][0]
        while self._waiting and size < _GATHERED_SIZE:
            since, message = self._waiting.popleft()
            if message.is_lost:
                continue  # it comes again
            pieces += (message.body, b"\n")
            size += len(message.body) + 1
            self._sent.append(_Sent(self._caller.sent + size, since, message))
        self._caller.send(b"".join(pieces), oldest + self._client_timeout)

    def _send(self, data: bytes, since: float, message: Message | None) -> None:
        self._sent.append(_Sent(self._caller.sent + len(data), since, message))
        self._caller.send(data, since + self._client_timeout)

    def _finish_taken(self) -> None:
        taken = self._caller.taken
        while self._sent and self._sent[0].end <= taken:
            message = self._sent.popleft().message
            if message is not None:
                message.finish()
                self._finished += 1

    def _deliver(self, message: Message) -> None:
        message.enable_async()
        with self._lock:
            self.received += 1
            if self._is_over:
                self._give_back(message)
            else:
                self._waiting.append((time.monotonic(), message))
        self._caller.wake.set()

    def _end(self) -> None:
        if not self._caller.broke:
            with contextlib.suppress(OSError):
                self._finish_taken()
        self._consumer.set_max_in_flight(0)  # what goes back would come again before the consumer has stopped
        with self._lock:
            self._is_over = True
            for message in (*(each.message for each in self._sent), *(message for _, message in self._waiting)):
                if message is not None:
                    self._give_back(message)
        self._consumer.stop(timeout=5.0)

    def _give_back(self, message: Message) -> None:
        message.requeue(delay=0, backoff=False)
        self._returned += 1
