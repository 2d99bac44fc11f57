"""A V2 server on a free loopback port, and raw clients that speak to it from the test's own greenlet."""

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import gevent
import gevent.socket
import pytest

from nsq_compat.net.listeners import listen
from nsq_compat.net.tcp_server import TcpServer
from nsq_compat.net.timers import AlarmClock
from nsq_compat.protocol.frame_reader import Frame, FrameReader
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.session.nsqd_limits import NsqdLimits
from nsq_compat.session.nsqd_session import NsqdSession

PATIENCE = 20.0
"""Seconds after which a test gives up on something that should come at once."""


class Server:
    """A broker behind a TCP server; `limits` may be replaced before a client connects."""

    def __init__(self) -> None:
        self.limits = NsqdLimits()
        self.broker = Broker(QueueLimits(mem_queue_size=1_000_000))
        self.alarms = AlarmClock(self.broker.schedule)
        listener = listen("127.0.0.1:0")
        self.address = listener.getsockname()
        self.tcp = TcpServer(listener, self._make_session)
        self.alarms.start()
        self.tcp.start()

    def _make_session(self, connection, host, now, now_ns) -> NsqdSession:
        return NsqdSession(
            self.broker,
            self.limits,
            peer=connection.peer,
            host=host,
            wake=connection.wake,
            drop=connection.abort,
            now=now,
            now_ns=now_ns,
        )

    def stop(self) -> None:
        self.tcp.stop(PATIENCE)
        self.broker.close()
        self.alarms.stop()


class Client:
    """A socket that says commands and hears frames."""

    def __init__(self, address, receive_buffer: int | None = None) -> None:
        self.socket = gevent.socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(gevent.socket.SOL_SOCKET, gevent.socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    def says(self, data: bytes) -> "Client":
        self.socket.sendall(data)
        return self

    def publishes(self, topic: bytes, *bodies: bytes) -> "Client":
        for body in bodies:
            self.says(b"PUB " + topic + b"\n" + struct.pack(">i", len(body)) + body)
            assert self.frame().data == b"OK"
        return self

    def subscribes(self, topic: bytes, channel: bytes, ready: int) -> "Client":
        self.says(b"SUB " + topic + b" " + channel + b"\n")
        assert self.frame().data == b"OK"
        return self.says(b"RDY %d\n" % ready)

    def frame(self) -> Frame:
        """The next frame; EOFError when the server has closed."""
        while not self._frames:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._frames.extend(self._reader.receive_data(data))
        return self._frames.pop(0)

    def frames(self, count: int) -> list[Frame]:
        return [self.frame() for _ in range(count)]

    def rest(self) -> bytes:
        """Everything up to the close."""
        received = b""
        try:
            while data := self.socket.recv(65536):
                received += data
        except ConnectionResetError:
            pass
        return received


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Client]]:
    """Makes clients; they have sent their magic unless told otherwise."""
    with ExitStack() as stack:

        def connect(magic: bytes = b"  V2", receive_buffer: int | None = None) -> Client:
            client = Client(server.address, receive_buffer)
            stack.callback(client.socket.close)
            return client.says(magic) if magic else client

        yield connect


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Lets others run until a condition holds; fails when it never does."""

    def eventually(condition: Callable[[], bool]) -> None:
        with gevent.Timeout(PATIENCE, AssertionError("it never came to that")):
            while not condition():
                gevent.sleep(0.001)

    return eventually
