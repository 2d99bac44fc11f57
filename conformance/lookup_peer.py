"""What an nsqd says to nsqlookupd, said by a test in its place, at the moment the test wants."""

import json
import socket
import struct
from types import TracebackType
from typing import Any, Self

from conformance.nsqd_process import NsqdProcess
from conformance.nsqlookupd_process import NsqlookupdProcess

_ANSWER_SECONDS = 10.0


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class LookupPeer:
    """A connection to an nsqlookupd that speaks for an nsqd; closing it takes back what it said."""

    def __init__(self, nsqlookupd: NsqlookupdProcess, nsqd: NsqdProcess) -> None:
        address = ("127.0.0.1", _port(nsqlookupd.tcp_address))
        self._socket = socket.create_connection(address, timeout=_ANSWER_SECONDS)
        about = {
            "broadcast_address": "127.0.0.1",
            "hostname": "conformance",
            "http_port": _port(nsqd.http_address),
            "tcp_port": _port(nsqd.tcp_address),
            "version": "1.3.0",
        }
        document = json.dumps(about).encode()
        self.about_nsqlookupd: dict[str, Any] = json.loads(
            self.says(b"  V1IDENTIFY\n" + struct.pack(">i", len(document)) + document)
        )

    def says(self, data: bytes) -> bytes:
        """Send, and return the one reply. Raises EOFError when the connection is closed instead."""
        self._socket.sendall(data)
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def registers(self, topic: str, channel: str = "") -> None:
        assert self.says(f"REGISTER {topic} {channel}\n".encode()) == b"OK"

    def unregisters(self, topic: str, channel: str = "") -> None:
        assert self.says(f"UNREGISTER {topic} {channel}\n".encode()) == b"OK"

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            data = self._socket.recv(size - len(received))
            if not data:
                raise EOFError
            received += data
        return received
