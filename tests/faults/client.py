"""A blocking test client without retries: one call per command, and error frames raise exceptions."""

import json
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from nsq_compat.protocol.frames import FRAME_TYPE_ERROR, FRAME_TYPE_MESSAGE, Frame, FrameReader, Message, parse_message

_RECEIVE_SIZE = 1 << 18


class Gone(Exception):
    """nsqd closed the connection, or it was lost."""


class Refused(Exception):
    """nsqd answered with an error frame; the text is its data."""


class Client:
    """A connection. Heartbeats are answered by any call that receives them.

    Messages that arrive before an expected answer are stored in `received`, error frames in `errors`.
    """

    def __init__(self, address: tuple[str, int], timeout: float = 30.0, **identify: object) -> None:
        self.timeout = timeout
        self.received: deque[Message] = deque()
        self.errors: deque[bytes] = deque()
        self._answers: deque[bytes] = deque()
        self._frames = FrameReader()
        try:
            self.socket = socket.create_connection(address, timeout=timeout)
        except OSError as error:
            raise Gone(str(error)) from error
        try:
            self.send(b"  V2")
            if identify:
                self.ask(b"IDENTIFY\n" + sized(json.dumps(identify).encode()))
        except BaseException:
            self.close()
            raise

    # --- Commands -----------------------------------------------------------------------------------------------------

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Send one PUB for each body, then read all answers. Raises ``Refused`` or ``Gone``."""
        self.start_publishing(topic, *bodies)
        for _ in bodies:
            self.expect_ok()

    def start_publishing(self, topic: str, *bodies: bytes) -> None:
        """Send one PUB for each body; the caller calls ``expect_ok``."""
        self.send(b"".join(b"PUB %s\n%s" % (topic.encode(), sized(body)) for body in bodies))

    def publish_together(self, topic: str, bodies: Sequence[bytes]) -> None:
        """MPUB."""
        parts = struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
        self.ask(b"MPUB %s\n" % topic.encode() + sized(parts))

    def publish_deferred(self, topic: str, body: bytes, delay_ms: int) -> None:
        """DPUB."""
        self.ask(b"DPUB %s %d\n" % (topic.encode(), delay_ms) + sized(body))

    def subscribe(self, topic: str, channel: str, ready: int = 0) -> None:
        """Send SUB, and RDY unless `ready` is 0."""
        self.ask(b"SUB %s %s\n" % (topic.encode(), channel.encode()))
        if ready:
            self.ready(ready)

    def ready(self, count: int) -> None:
        self.send(b"RDY %d\n" % count)

    def finish(self, ids: Iterable[bytes]) -> None:
        self.send(b"".join(b"FIN %s\n" % each for each in ids))

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        self.send(b"REQ %s %d\n" % (message_id, delay_ms))

    def touch(self, message_id: bytes) -> None:
        self.send(b"TOUCH %s\n" % message_id)

    # --- Answers and messages -----------------------------------------------------------------------------------------

    def ask(self, command: bytes) -> bytes:
        """Send, and return the answer. Raises ``Refused`` or ``Gone``."""
        self.send(command)
        return self.answer()

    def expect_ok(self) -> None:
        answer = self.answer()
        assert answer == b"OK", answer

    def answer(self) -> bytes:
        """The next answer. Raises ``Refused`` for an error frame, or ``Gone``."""
        deadline = time.monotonic() + self.timeout
        while not self._answers and not self.errors:
            if not self._receive(deadline - time.monotonic()):
                raise Gone("no answer in time")
        if self.errors:
            raise Refused(self.errors.popleft().decode())
        return self._answers.popleft()

    def messages(self, wait: float) -> list[Message]:
        """Return received messages; waits up to `wait` seconds for the first. Raises ``Gone``."""
        deadline = time.monotonic() + wait
        while not self.received and not self.errors and self._receive(deadline - time.monotonic()):
            pass
        taken = list(self.received)
        self.received.clear()
        return taken

    def take(self, count: int, within: float = 30.0) -> list[Message]:
        """Up to `count` messages that arrive within `within` seconds."""
        deadline = time.monotonic() + within
        taken: list[Message] = []
        while len(taken) < count and (left := deadline - time.monotonic()) > 0:
            taken += self.messages(left)
            assert not self.errors, self.errors
        return taken

    def wait_until_closed(self, within: float) -> None:
        """Read until nsqd closes the connection. Raises ``AssertionError`` after `within` seconds."""
        deadline = time.monotonic() + within
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._receive(left)
        except Gone:
            return
        raise AssertionError(f"nsqd did not close the connection within {within} s")

    # --- The socket ---------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send data. Raises ``Gone``."""
        try:
            self.socket.settimeout(self.timeout)
            self.socket.sendall(data)
        except OSError as error:
            raise Gone(str(error)) from error

    def _receive(self, wait: float) -> bool:
        """Receive once, waiting up to `wait` seconds; False if no data arrives."""
        try:
            self.socket.settimeout(max(wait, 0.001))
            data = self.socket.recv(_RECEIVE_SIZE)
        except TimeoutError:
            return False
        except OSError as error:
            raise Gone(str(error)) from error
        if not data:
            raise Gone("closed by nsqd")
        for frame in self._frames.receive_data(data):
            self._sort(frame)
        return True

    def _sort(self, frame: Frame) -> None:
        if frame.type == FRAME_TYPE_MESSAGE:
            self.received.append(parse_message(frame.data))
        elif frame.type == FRAME_TYPE_ERROR:
            self.errors.append(frame.data)
        elif frame.data == b"_heartbeat_":
            self.send(b"NOP\n")
        else:
            self._answers.append(frame.data)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def sized(data: bytes) -> bytes:
    """Prefix data with its size, as the body of a command."""
    return struct.pack(">i", len(data)) + data
