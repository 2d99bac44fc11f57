"""The loads of `guard.py`: all variants of the message path, in lockstep, so that every round is the same."""

import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from nsq_conformance.nsqd_process import NsqdProcess

_BODY = b"x" * 200
_OK = struct.pack(">ii", 6, 0) + b"OK"
_ID = slice(4 + 8 + 2, 4 + 8 + 2 + 16)
"""The message id in a frame, after the frame's type, the timestamp and the attempts."""

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

    def finishes(self, count: int) -> None:
        """Receive messages, and answer them together."""
        fins = []
        for _ in range(count):
            (size,) = struct.unpack(">i", self._received.read(4))
            fins.append(b"FIN %s\n" % self._received.read(size)[_ID])
        self.says(b"".join(fins))

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


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _mpub(topic: str, bodies: Sequence[bytes] = (_BODY,) * _BATCH) -> bytes:
    return b"MPUB %s\n" % topic.encode() + _sized(struct.pack(">i", len(bodies)) + b"".join(map(_sized, bodies)))


def _subscribed(nsqd: NsqdProcess, stack: ExitStack, topic: str, ready: int) -> _Connection:
    nsqd.create_channel(topic, "c")
    consumer = _identified(nsqd, stack)
    consumer.says(b"SUB %s c\nRDY %d\n" % (topic.encode(), ready))
    consumer.hears(_OK)
    return consumer


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


def _delivering(topic: str, ready: int, batches: int, bodies: Sequence[bytes] = (_BODY,) * _BATCH) -> Connect:
    """Messages published together, and delivered and finished in batches of `ready`."""

    def connect(nsqd: NsqdProcess, stack: ExitStack) -> Callable[[], object]:
        producer, consumer = _identified(nsqd, stack), _subscribed(nsqd, stack, topic, ready)

        def send() -> None:
            for _ in range(batches):
                producer.says(_mpub(topic, bodies))
                producer.hears(_OK)
                for _ in range(len(bodies) // ready):
                    consumer.finishes(ready)

        return send

    return connect


def _deferring(nsqd: NsqdProcess, stack: ExitStack) -> Callable[[], object]:
    """Messages that wait until all are published, and are then delivered together."""
    producer, consumer = _identified(nsqd, stack), _subscribed(nsqd, stack, "deferred", _BATCH)

    def send() -> None:
        producer.says(b"DPUB deferred %d\n%s" % (_DEFERRED_MS, _sized(_BODY)) * _BATCH)
        producer.hears(_OK * _BATCH)
        consumer.finishes(_BATCH)

    return send


def _posting(nsqd: NsqdProcess, stack: ExitStack) -> Callable[[], object]:
    nsqd.create_channel("posted", "c")
    head = b"POST /pub?topic=posted HTTP/1.1\r\nHost: nsqd\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
    connection = _Connection(nsqd.http_address, stack)

    def send() -> None:
        for _ in range(_BATCH):
            connection.says(head + _BODY)
            connection.answers_http()

    return send


_DEFERRED_MS = 3000
"""Longer than valgrind takes to publish them all."""

_MIXED = tuple(b"x" * size for size in (50, 100, 200, 400, 700, 1000, 1500, 2500, 6000, 64_000))
"""About the spread of sizes in real traffic: most are small, most bytes are in the large ones."""

LOADS = (
    Load("PUB, each awaits its OK", _BATCH, _publishing("single", b"PUB single\n" + _sized(_BODY), 1, _BATCH)),
    Load("PUB, 50 in a write", 10 * _BURST, _publishing("burst", b"PUB burst\n" + _sized(_BODY), _BURST, 10)),
    Load("MPUB of 200", 10 * _BATCH, _publishing("batch", _mpub("batch"), 1, 10)),
    Load("MPUB of 10", 10 * _BATCH, _publishing("ten", _mpub("ten", (_BODY,) * 10), 1, _BATCH)),
    Load("MPUB of 200, delivered at RDY 200, FIN", 10 * _BATCH, _delivering("delivered", _BATCH, 10)),
    Load("MPUB of 200, delivered at RDY 1, FIN", _BATCH, _delivering("pingpong", 1, 1)),
    Load("MPUB of 10, 50 B to 64 KB, delivered, FIN", _BATCH, _delivering("mixed", 10, _BATCH // 10, _MIXED)),
    Load("DPUB, delivered when due, FIN", _BATCH, _deferring),
    Load("POST /pub, keep-alive", _BATCH, _posting),
)
