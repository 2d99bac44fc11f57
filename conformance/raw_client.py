"""A connection to nsqd without a client library: sends any bytes and receives one frame after the other.

If an expected frame does not arrive, ``TimeoutError`` is raised; if the connection ends instead, ``EOFError``.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
PATIENCE_SECONDS = float(os.environ.get("CONFORMANCE_PATIENCE", "20"))
"""Seconds to wait for a frame; long enough for a busy machine."""
QUIET_SECONDS = 0.25
"""Seconds without a frame after which no more frames are expected."""

_HEAD = struct.Struct(">ii")
_MESSAGE_HEAD = struct.Struct(">qH16s")


def sized(data: bytes) -> bytes:
    """Prefix data with its size, as the body of a command."""
    return struct.pack(">i", len(data)) + data


def batch(*bodies: bytes) -> bytes:
    """The body of an MPUB, without its size."""
    return struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))


def soon(condition: Callable[[], object]) -> bool:
    """Whether the condition becomes true within PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Frame(NamedTuple):
    kind: int
    data: bytes


class Message(NamedTuple):
    timestamp: int
    attempts: int
    id: bytes
    body: bytes

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Parse a message from a frame's data."""
        timestamp, attempts, message_id = _MESSAGE_HEAD.unpack_from(data)
        return cls(timestamp, attempts, message_id, data[_MESSAGE_HEAD.size :])


class RawClient:
    """A connection that has sent its magic."""

    def __init__(self, address: str, magic: bytes = b"  V2") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as NSQ's clients do
        self._received = b""
        self.sends(magic)

    # --- Any frame ----------------------------------------------------------------------------------------------------

    def sends(self, data: bytes) -> Self:
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.sendall(data)
        return self

    def ends_sending(self) -> Self:
        """Shut down the sending direction."""
        self._socket.shutdown(socket.SHUT_WR)
        return self

    def frame(self, timeout: float = PATIENCE_SECONDS) -> Frame:
        """The next frame, which may be a heartbeat."""
        size, kind = _HEAD.unpack(self._exactly(_HEAD.size, timeout, keep=True))
        data = self._exactly(4 + size, timeout)
        return Frame(kind, data[_HEAD.size :])

    def reply(self, timeout: float = PATIENCE_SECONDS) -> Frame:
        """The next frame that is not a heartbeat."""
        frame = self.frame(timeout)
        while frame == (RESPONSE, HEARTBEAT):
            frame = self.frame(timeout)
        return frame

    def response(self) -> bytes:
        return self._of_kind(RESPONSE)

    def error(self) -> bytes:
        return self._of_kind(ERROR)

    def message(self) -> Message:
        return Message.of(self._of_kind(MESSAGE))

    def messages(self, count: int) -> list[Message]:
        return [self.message() for _ in range(count)]

    def bodies(self, count: int) -> list[bytes]:
        return [message.body for message in self.messages(count)]

    def hears_nothing(self, seconds: float = QUIET_SECONDS) -> bool:
        """Whether neither a frame nor EOF arrives for `seconds`; heartbeats are ignored."""
        try:
            self.reply(seconds)
        except TimeoutError:
            return True
        return False

    def is_closed(self, timeout: float = PATIENCE_SECONDS) -> bool:
        """Whether nsqd closes the connection without another frame."""
        try:
            self.reply(timeout)
        except (EOFError, ConnectionResetError):
            return True
        return False

    # --- Common commands ----------------------------------------------------------------------------------------------

    def identifies(self, **fields: object) -> dict[str, Any]:
        """Send IDENTIFY with these fields and feature negotiation, and return the answer."""
        self.sends(b"IDENTIFY\n" + sized(json.dumps({"feature_negotiation": True} | fields).encode()))
        answer: dict[str, Any] = json.loads(self.response())
        return answer

    def publishes(self, topic: str, *bodies: bytes) -> Self:
        for body in bodies:
            assert self.sends(b"PUB %b\n" % topic.encode() + sized(body)).response() == b"OK"
        return self

    def defers(self, topic: str, milliseconds: int, body: bytes) -> Self:
        command = f"DPUB {topic} {milliseconds}\n".encode()
        assert self.sends(command + sized(body)).response() == b"OK"
        return self

    def subscribes(self, topic: str, channel: str = "ch", ready: int = 0) -> Self:
        assert self.sends(f"SUB {topic} {channel}\n".encode()).response() == b"OK"
        return self.is_ready(ready) if ready else self

    def is_ready(self, count: int) -> Self:
        return self.sends(b"RDY %d\n" % count)

    def finishes(self, *messages: Message) -> Self:
        return self.sends(b"".join(b"FIN %b\n" % message.id for message in messages))

    def requeues(self, message: Message, milliseconds: int = 0) -> Self:
        return self.sends(b"REQ %b %d\n" % (message.id, milliseconds))

    def touches(self, *messages: Message) -> Self:
        return self.sends(b"".join(b"TOUCH %b\n" % message.id for message in messages))

    def has_been_heard(self) -> Self:
        """Wait until nsqd has executed all commands. For consumers, while no message is being delivered."""
        error = self.sends(b"FIN 0123456789abcdef\n").error()
        assert error == b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight", error
        return self

    # --- The socket ---------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The local port, by which ``/stats`` identifies the connection."""
        port: int = self._socket.getsockname()[1]
        return port

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _of_kind(self, kind: int) -> bytes:
        frame = self.reply()
        assert frame.kind == kind, frame
        return frame.data

    def _exactly(self, size: int, timeout: float, *, keep: bool = False) -> bytes:
        """Read `size` bytes. With `keep`, and after a timeout, the bytes stay in the buffer."""
        deadline = time.monotonic() + timeout
        while len(self._received) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._received += data
        data = self._received[:size]
        if not keep:
            self._received = self._received[size:]
        return data
