"""A consumer without a library, that takes exactly as many messages as a test says and leaves nothing in flight."""

import socket
import struct
from types import TracebackType
from typing import Self

from conformance.nsqd_process import NsqdProcess

_PATIENCE_SECONDS = 30.0
_MOST = 2500
_RESPONSE, _MESSAGE = 0, 2
_ID, _BODY = slice(10, 26), slice(26, None)


class BareConsumer:
    """One subscribed connection."""

    def __init__(self, nsqd: NsqdProcess, topic: str, channel: str) -> None:
        host, _, port = nsqd.tcp_address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_PATIENCE_SECONDS)
        self._stream = self._socket.makefile("rb")
        self._socket.sendall(f"  V2SUB {topic} {channel}\n".encode())
        assert self._response() == b"OK"

    def take(self, count: int) -> list[bytes]:
        """So many messages, all of them finished; their bodies. Raises ``TimeoutError`` when they do not come."""
        bodies: list[bytes] = []
        while len(bodies) < count:
            room = min(_MOST, count - len(bodies))
            self._socket.sendall(b"RDY %d\n" % room)
            messages = [self._message() for _ in range(room)]
            self._socket.sendall(b"RDY 0\n" + b"".join(b"FIN %s\n" % message[_ID] for message in messages))
            bodies += [message[_BODY] for message in messages]
        return bodies

    def leave(self) -> None:
        """Return when nsqd has heard all that was said."""
        self._socket.sendall(b"CLS\n")
        assert self._response() == b"CLOSE_WAIT"

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.leave()
        finally:
            self.close()

    def _response(self) -> bytes:
        kind, data = self._frame()
        assert kind == _RESPONSE, data
        return data

    def _message(self) -> bytes:
        kind, data = self._frame()
        assert kind == _MESSAGE, data
        return data

    def _frame(self) -> tuple[int, bytes]:
        while True:
            size, kind = struct.unpack(">ii", self._exactly(8))
            data = self._exactly(size - 4)
            if (kind, data) != (_RESPONSE, b"_heartbeat_"):
                return kind, data
            self._socket.sendall(b"NOP\n")

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError("nsqd closed the connection")
        return data
