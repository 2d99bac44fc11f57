"""The client side of a TCP connection, read without blocking: frames are sorted into replies and messages."""

import socket
import struct
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Final

from nsq_conformance.differential.loop import Loop
from nsq_conformance.raw_client import ERROR, HEARTBEAT, MESSAGE

Waiting = Generator[float, None, None]

_HEAD: Final = struct.Struct(">ii")
_MESSAGE: Final = struct.Struct(">ii8xH16s")  # without the timestamp
_READ_SIZE: Final = 1 << 16
_CONNECT_SECONDS: Final = 20.0


class TcpConnection:
    """A connection. Sending blocks, but the data is small and nsqd reads it."""

    def __init__(self, loop: Loop, host_and_port: tuple[str, int]) -> None:
        self.replies: list[bytes] = []
        """Replies without heartbeats; errors are marked."""
        self.messages: list[tuple[bytes, int]] = []
        """Body and attempts."""
        self.ids: dict[bytes, bytes] = {}
        """Message ids by body."""
        self.may_consume = False
        self.is_over = False
        self._taken = 0
        self._received = b""
        self._loop = loop
        self._socket = socket.create_connection(host_and_port, timeout=_CONNECT_SECONDS)
        loop.watch(self._socket, self._receive)

    def send(self, data: bytes) -> None:
        self.may_consume = self.may_consume or b"SUB" in data
        with suppress(OSError):  # nsqd has closed; its earlier frames can still be read
            self._socket.sendall(data)

    def await_replies(self, count: int, patience: float) -> Waiting:
        return self._until(lambda: len(self.replies) >= count, patience)

    def await_reply_with(self, part: bytes, patience: float) -> Waiting:
        return self._until(lambda: any(part in reply for reply in self.replies), patience)

    def await_messages(self, count: int, patience: float) -> Waiting:
        """Wait for `count` messages more than were taken before."""
        self._taken += count
        return self._until(lambda: len(self.messages) >= self._taken, patience)

    def await_message(self, body: bytes, patience: float) -> Waiting:
        return self._until(lambda: body in self.ids, patience)

    def await_quiet(self, seconds: float) -> Waiting:
        """Wait until no message has arrived for `seconds`."""
        count = -1
        while count != len(self.messages):
            count = len(self.messages)
            yield from self._until(lambda: False, seconds)

    def await_the_end(self, patience: float) -> Waiting:
        """Shut down sending, and read until EOF."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        yield from self._until(lambda: False, patience)
        self.close()

    def close(self) -> None:
        self._loop.forget(self._socket)
        self._socket.close()

    def _until(self, enough: Callable[[], bool], patience: float) -> Waiting:
        deadline = time.monotonic() + patience
        while not self.is_over and not enough() and time.monotonic() < deadline:
            yield deadline

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_READ_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_over = True
            self._loop.forget(self._socket)
            return
        received = self._received + data
        place = 0
        while len(received) - place >= _HEAD.size:
            size, kind = _HEAD.unpack_from(received, place)
            end = place + 4 + size
            if end > len(received):
                break
            if kind == MESSAGE:
                _, _, attempts, message_id = _MESSAGE.unpack_from(received, place)
                body = received[place + _MESSAGE.size : end]
                self.messages.append((body, attempts))
                self.ids[body] = message_id
            elif (reply := received[place + _HEAD.size : end]) == HEARTBEAT:
                self.send(b"NOP\n")  # on a busy machine a stream takes long enough for heartbeats
            else:
                self.replies.append(b"error " + reply if kind == ERROR else reply)
            place = end
        self._received = received[place:]
