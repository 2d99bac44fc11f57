"""Connections to nsqlookupd that speak as an nsqd does, under the control of a test."""

import json
import socket
import struct
from types import TracebackType
from typing import Any, Self

from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess
from nsq_conformance.raw_client import PATIENCE_SECONDS, sized


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class RawLookupPeer:
    """A connection that has sent the magic only; its registrations end when it is closed."""

    def __init__(self, nsqlookupd: NsqlookupdProcess, magic: bytes = b"  V1") -> None:
        address = ("127.0.0.1", _port(nsqlookupd.tcp_address))
        self._socket = socket.create_connection(address, timeout=PATIENCE_SECONDS)
        self._stream = self._socket.makefile("rb")
        self.sends(magic)

    def sends(self, data: bytes) -> Self:
        self._socket.sendall(data)
        return self

    def ends_sending(self) -> Self:
        """Shut down the sending direction."""
        self._socket.shutdown(socket.SHUT_WR)
        return self

    def reply(self) -> bytes:
        """Receive the next reply. Raises EOFError if the connection is closed instead."""
        size = self._stream.read(4)
        if len(size) < 4:
            raise EOFError
        return self._stream.read(*struct.unpack(">i", size))

    def says(self, data: bytes) -> bytes:
        """Send, and return the reply."""
        return self.sends(data).reply()

    def is_closed(self) -> bool:
        """Whether nsqlookupd closes the connection without another reply."""
        return self._stream.read() == b""

    def identifies(self, about: dict[str, object]) -> dict[str, Any]:
        """Send IDENTIFY and return the answer."""
        answer: dict[str, Any] = json.loads(self.says(b"IDENTIFY\n" + sized(json.dumps(about).encode())))
        return answer

    def registers(self, topic: str, channel: str = "") -> Self:
        assert self.says(f"REGISTER {topic} {channel}\n".encode()) == b"OK"
        return self

    def unregisters(self, topic: str, channel: str = "") -> Self:
        assert self.says(f"UNREGISTER {topic} {channel}\n".encode()) == b"OK"
        return self

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class LookupPeer(RawLookupPeer):
    """A connection that has identified as the given nsqd."""

    def __init__(self, nsqlookupd: NsqlookupdProcess, nsqd: NsqdProcess) -> None:
        super().__init__(nsqlookupd)
        self.about_nsqlookupd = self.identifies(
            {
                "broadcast_address": "127.0.0.1",
                "hostname": "conformance",
                "http_port": _port(nsqd.http_address),
                "tcp_port": _port(nsqd.tcp_address),
                "version": "1.3.0",
            }
        )
