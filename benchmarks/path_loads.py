"""The loads of `guard.py`: all variants of the message path, in lockstep, so that every round is the same."""

import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from nsq_conformance.nsqd_process import NsqdProcess

_BODY = b"x" * 200
_SIZED = struct.pack(">i", len(_BODY)) + _BODY
_OK = struct.pack(">ii", 6, 0) + b"OK"
_FRAME = 4 + 4 + 8 + 2 + 16 + len(_BODY)
_ID = slice(4 + 4 + 8 + 2, 4 + 4 + 8 + 2 + 16)
_BATCH = 200
_BURST = 50
_SECONDS = 300.0
# valgrind is so slow that heartbeats would be sent in between.
OPTIONS = ("--max-heartbeat-interval=1h", "--mem-queue-size=1000000")
_IDENTITY = b'{"heartbeat_interval": 3600000}'
_HELLO = b"  V2IDENTIFY\n" + struct.pack(">i", len(_IDENTITY)) + _IDENTITY


Connect = Callable[[NsqdProcess, ExitStack], Callable[[], object]]
"""Connects, and returns a function that sends the messages of a load once and waits for the answers.

The stack closes the connections.
"""


@dataclass(frozen=True, slots=True)
class Load:
    """A load of `messages` messages."""

    name: str
    messages: int
    connect: Connect


class _Connection:
    def __init__(self, address: str, stack: ExitStack) -> None:
        host, _, port = address.rpartition(":")
        self._socket = stack.enter_context(socket.create_connection((host, int(port)), timeout=_SECONDS))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = stack.enter_context(self._socket.makefile("rb"))

    def says(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hears(self, wanted: bytes) -> None:
        heard = self._received.read(len(wanted))
        assert heard == wanted, f"nsqd says {heard[:100]!r}"

    def message_ids(self, count: int) -> list[bytes]:
        data = self._received.read(_FRAME * count)
        assert len(data) == _FRAME * count, "nsqd closed the connection"
        return [data[at : at + _FRAME][_ID] for at in range(0, len(data), _FRAME)]

    def answers_http(self) -> None:
        """Read an HTTP answer, which must be OK."""
        head = b""
        while line := self._received.readline().rstrip():
            head += line + b"\n"
        assert head.startswith(b"HTTP/1.1 200 "), f"nsqd says {head!r}"
        self.hears(b"OK")


def _identified(nsqd: NsqdProcess, stack: ExitStack) -> _Connection:
    connection = _Connection(nsqd.tcp_address, stack)
    connection.says(_HELLO)
    connection.hears(_OK)
    return connection


def _mpub(topic: str) -> bytes:
    body = struct.pack(">i", _BATCH) + _SIZED * _BATCH
    return b"MPUB %s\n" % topic.encode() + struct.pack(">i", len(body)) + body


def _publishing(topic: str, command: bytes, commands: int, writes: int) -> Connect:
    """`writes` writes of `commands` commands each; the channel keeps all messages."""

    def connect(nsqd: NsqdProcess, stack: ExitStack) -> Callable[[], object]:
        nsqd.create_channel(topic, "c")
        connection = _identified(nsqd, stack)

        def send() -> None:
            for _ in range(writes):
                connection.says(command * commands)
                connection.hears(_OK * commands)

        return send

    return connect


def _delivering(topic: str, ready: int, batches: int) -> Connect:
    """Messages published 200 at a time, and delivered and finished in batches of `ready`."""

    def connect(nsqd: NsqdProcess, stack: ExitStack) -> Callable[[], object]:
        nsqd.create_channel(topic, "c")
        producer, consumer = _identified(nsqd, stack), _identified(nsqd, stack)
        consumer.says(b"SUB %s c\nRDY %d\n" % (topic.encode(), ready))
        consumer.hears(_OK)

        def send() -> None:
            for _ in range(batches):
                producer.says(_mpub(topic))
                producer.hears(_OK)
                for _ in range(_BATCH // ready):
                    consumer.says(b"".join(b"FIN %s\n" % each for each in consumer.message_ids(ready)))

        return send

    return connect


def _posting(nsqd: NsqdProcess, stack: ExitStack) -> Callable[[], object]:
    nsqd.create_channel("posted", "c")
    head = b"POST /pub?topic=posted HTTP/1.1\r\nHost: nsqd\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
    connection = _Connection(nsqd.http_address, stack)

    def send() -> None:
        for _ in range(_BATCH):
            connection.says(head + _BODY)
            connection.answers_http()

    return send


LOADS = (
    Load("PUB, each awaits its OK", _BATCH, _publishing("single", b"PUB single\n" + _SIZED, 1, _BATCH)),
    Load("PUB, 50 in a write", 10 * _BURST, _publishing("burst", b"PUB burst\n" + _SIZED, _BURST, 10)),
    Load("MPUB of 200", 10 * _BATCH, _publishing("batch", _mpub("batch"), 1, 10)),
    Load("MPUB of 200, delivered at RDY 200, FIN", 10 * _BATCH, _delivering("delivered", _BATCH, 10)),
    Load("MPUB of 200, delivered at RDY 1, FIN", _BATCH, _delivering("pingpong", 1, 1)),
    Load("POST /pub, keep-alive", _BATCH, _posting),
)
