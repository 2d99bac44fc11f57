"""An HTTP client for one nsqd with a pool of connections."""

import json
import re
import socket
import time
from collections.abc import Generator
from typing import Any, Final

from nsq_conformance.differential.loop import Loop, Running

ANSWER_SECONDS: Final = 60.0

_READ_SIZE: Final = 1 << 18
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSES: Final = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]+)\r\n")

Answer = tuple[int, bytes]
"""Status and body of an answer."""
Asking = Generator[float, None, Answer]


class Unanswered(Exception):
    """nsqd closed the connection, or did not answer in time."""


class _Connection:
    """A connection with one request at a time."""

    def __init__(self, loop: Loop, host_and_port: tuple[str, int]) -> None:
        self.socket = socket.create_connection(host_and_port, timeout=ANSWER_SECONDS)
        self.is_over = False
        self.received = bytearray()
        self._loop = loop

    def receive(self) -> None:
        try:
            data = self.socket.recv(_READ_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.received += data
        if not data:
            self.is_over = True
            self._loop.forget(self.socket)

    def answer(self) -> tuple[Answer, bool] | None:
        """The complete answer, and whether the connection may be reused; None if it is incomplete."""
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return None
        head, begin = bytes(self.received[: end + 2]), end + 4
        if _CHUNKED.search(head):
            body = _unchunked(bytes(self.received[begin:]))
        else:
            length = _LENGTH.search(head)
            assert length is not None, head
            body = bytes(self.received[begin:]) if len(self.received) - begin >= int(length[1]) else None
        if body is None:
            return None
        self.received.clear()
        return (int(head.split(b" ", 2)[1]), body), not _CLOSES.search(head)


class HttpClient:
    """Sends HTTP requests to one nsqd. Concurrent requests for ``/stats`` share one answer, which has all topics."""

    def __init__(self, loop: Loop, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._where = host, int(port)
        self._host_line = f"Host: {address}\r\n".encode()
        self._loop = loop
        self._idle: list[_Connection] = []
        self._lookers: list[Running] = []
        self._seen: dict[Running, dict[bytes, list[Any]]] = {}

    def request(self, method: str, target: str, body: bytes = b"") -> Asking:
        """Send a request and wait for its answer. Raises Unanswered."""
        head = f"{method} {target} HTTP/1.1\r\n".encode() + self._host_line
        request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        while True:
            is_fresh, connection = self._connection()
            self._loop.watch(connection.socket, connection.receive)
            try:
                connection.socket.sendall(request)
            except OSError:
                connection.is_over = True
            deadline = time.monotonic() + ANSWER_SECONDS
            while (answer := connection.answer()) is None and not connection.is_over and time.monotonic() < deadline:
                yield deadline
            if answer is not None and answer[1] and not connection.is_over:
                self._loop.leave_alone(connection.socket)
                self._idle.append(connection)
                return answer[0]
            self._close(connection)
            if answer is not None:
                return answer[0]
            # nsqd may have closed a pooled connection before the request arrived.
            if is_fresh:
                raise Unanswered(f"{method} {target}")

    def read_stats(self, prefix_size: int, gathering: float) -> Generator[float, None, dict[bytes, list[Any]]]:
        """The topics in ``/stats``, by the first bytes of their names.

        The request is sent after `gathering` seconds, in which other plays may join.
        """
        me = self._loop.current
        if not self._lookers:
            self._loop.start(self._serve_lookers(prefix_size, gathering), lambda _: None)
        self._lookers.append(me)
        deadline = time.monotonic() + 2 * ANSWER_SECONDS
        while me not in self._seen and time.monotonic() < deadline:
            yield deadline
        return self._seen.pop(me)

    def close(self) -> None:
        for connection in self._idle:
            self._close(connection)

    def _serve_lookers(self, prefix_size: int, gathering: float) -> Generator[float, None, None]:
        gathered = time.monotonic() + gathering
        while time.monotonic() < gathered:
            yield gathered
        lookers, self._lookers = self._lookers, []
        _, body = yield from self.request("GET", "/stats?format=json&include_mem=false")
        seen: dict[bytes, list[Any]] = {}
        for topic in json.loads(body)["topics"] or ():
            seen.setdefault(topic["topic_name"][:prefix_size].encode(), []).append(topic)
        for looker in lookers:
            self._seen[looker] = seen
            self._loop.wake(looker)

    def _connection(self) -> tuple[bool, _Connection]:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_over:
                return False, connection
            self._close(connection)
        return True, _Connection(self._loop, self._where)

    def _close(self, connection: _Connection) -> None:
        self._loop.forget(connection.socket)
        connection.socket.close()


def _unchunked(data: bytes) -> bytes | None:
    """Decode a chunked body; None if it is incomplete."""
    pieces: list[bytes] = []
    place = 0
    while match := _CHUNK.match(data, place):
        size = int(match[1], 16)
        begin = match.end()
        if len(data) < begin + size + 2:
            return None
        if size == 0:
            return b"".join(pieces)
        pieces.append(data[begin : begin + size])
        place = begin + size + 2
    return None
