"""A V2 server on a free loopback port, and raw clients that speak to it from the test's own greenlet."""

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import gevent
import gevent.socket
import pytest
import trustme

from nsq_compat.net.certificates import Certificates, TlsFiles
from nsq_compat.net.event_loop import AlarmClock, BusyPoll, LoopTick
from nsq_compat.net.server import TcpServer
from nsq_compat.net.sockets import listen
from nsq_compat.net.tls_codec import Tls
from nsq_compat.protocol.compression import Codec, Deflate, Snappy
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.queue.values import QueueLimits
from nsq_compat.session.authorization import Authorize, not_asked
from nsq_compat.session.negotiation import NsqdLimits
from nsq_compat.session.nsqd_session import NsqdSession
from tests import v2_client
from tests.v2_client import Frame, identify, split_frames

PATIENCE = 20.0
"""Seconds after which a test gives up on something that should come at once."""


class Server:
    """A broker behind a TCP server; `limits` and `certificates` may be replaced before a client connects."""

    def __init__(self, *, session_waits: bool, busy_poll: BusyPoll | None = None) -> None:
        self.limits = NsqdLimits()
        self.certificates: Certificates | None = None
        self.authorize: Authorize = not_asked
        self.broker = Broker(QueueLimits(mem_queue_size=1_000_000))
        self.alarms = AlarmClock(self.broker.schedule)
        tick = LoopTick(gevent.get_hub().loop)
        self.publish_batch = None if session_waits else PublishBatch(tick.call)
        listener = listen("127.0.0.1:0")
        self.address = listener.getsockname()
        self.tcp = TcpServer(
            listener, self._make_session, self._make_tls, session_waits=session_waits, busy_poll=busy_poll, tick=tick
        )
        self.alarms.start()
        self.tcp.start()

    def _make_session(self, connection, host, now, now_ns) -> NsqdSession:
        return NsqdSession(
            self.broker,
            self.limits,
            peer=connection.peer,
            host=host,
            wake=connection.wake,
            abort=connection.abort,
            authorize=self.authorize,
            publish_batch=self.publish_batch,
            now=now,
            now_ns=now_ns,
        )

    def _make_tls(self) -> Tls:
        assert self.certificates is not None
        return self.certificates.make_tls()

    def stop(self) -> None:
        self.tcp.stop(PATIENCE)
        self.broker.close()
        self.alarms.stop()


class TlsClient:
    """The client's side of TLS, with the methods of a codec. A class of Python cannot derive from a compiled one."""

    def __init__(self, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost", session=session)
        self.is_complete = False

    def do_handshake(self, received: bytes = b"") -> bytes:
        """Take what came; what to say to it. Raises ssl.SSLError."""
        self.incoming.write(received)
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
            self.is_complete = True
        return self.outgoing.read()

    def encode(self, data: bytes) -> bytes:
        if data:
            self.tls.write(data)
        return self.outgoing.read()

    def decode(self, data: bytes) -> Iterator[bytes]:
        self.incoming.write(data)
        with suppress(ssl.SSLWantReadError):
            while self.incoming.pending or self.tls.pending():
                yield self.tls.read(65536)


class Client(v2_client.Client):
    """A client in the test's own greenlet, which can upgrade its connection. Heartbeats are frames like others."""

    def __init__(self, address, opening: bytes = b"", receive_buffer: int | None = None, source: str = "") -> None:
        self._receive_buffer = receive_buffer
        self._source = source
        # The same as the server's: they are proven by themselves, and the official clients have others.
        self.codecs: list[Codec | TlsClient] = []
        super().__init__(address, opening, timeout=PATIENCE)

    def _connect(self, address):
        connecting = gevent.socket.socket()
        if self._receive_buffer is not None:
            connecting.setsockopt(gevent.socket.SOL_SOCKET, gevent.socket.SO_RCVBUF, self._receive_buffer)
        connecting.settimeout(PATIENCE)
        try:
            if self._source:
                connecting.bind((self._source, 0))
            connecting.connect(address)
        except OSError:
            connecting.close()
            raise
        return connecting

    def says(self, *pieces: bytes) -> Self:
        self.socket.sendall(self.encoded(b"".join(pieces)))
        return self

    def encoded(self, data: bytes) -> bytes:
        for codec in reversed(self.codecs):
            data = codec.encode(data)
        return data

    def frame(self) -> Frame:
        """The next frame. Bytes behind it are not parsed, because a codec may begin there."""
        while True:
            found, self._unparsed = split_frames(self._unparsed, 1)
            if found:
                return found[0]
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._hears_bytes(data)

    def _answer(self) -> Frame:
        return self.frame()

    def frames(self, count: int) -> list[Frame]:
        return [self.frame() for _ in range(count)]

    def asks_for(self, **wishes: object) -> dict[str, object]:
        """IDENTIFY; what was granted."""
        granted: dict[str, object] = json.loads(self.says(identify(feature_negotiation=True, **wishes)).answer())
        return granted

    def negotiates(self, tls: TlsClient | None = None, **wishes: object) -> Self:
        """IDENTIFY and all that follows from it: TLS if there is some, a compression if it is among the wishes."""
        self.asks_for(tls_v1=tls is not None, **wishes)
        if tls is not None:
            self.do_handshake(tls)
            self.hears(b"OK")
        for name, make in (("deflate", lambda: Deflate(6)), ("snappy", Snappy)):
            if wishes.get(name):
                self.puts_on(make())
                self.hears(b"OK")
        return self

    def do_handshake(self, tls: TlsClient) -> None:
        self.socket.sendall(tls.do_handshake(self._hands_back()))
        while not tls.is_complete:
            self.socket.sendall(tls.do_handshake(self.socket.recv(65536)))
        self.puts_on(tls)

    def puts_on(self, codec: Codec | TlsClient) -> None:
        """From here on everything is said and heard through it."""
        behind = self._hands_back()
        self.codecs.append(codec)
        self._hears_bytes(behind, len(self.codecs) - 1)

    def _hands_back(self) -> bytes:
        unparsed, self._unparsed = self._unparsed, b""
        return unparsed

    def _hears_bytes(self, data: bytes, level: int = 0) -> None:
        pieces = [data]
        for codec in self.codecs[level:]:
            pieces = [plain for piece in pieces for plain in codec.decode(piece)]
        self._unparsed += b"".join(pieces)


class Authority:
    """Signs certificates, as files and for clients. One for all tests: keys take time."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.root_ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.root_ca)
        self.certificate, self.key = self.issue(folder / "server")
        self.client, self.client_key = self.issue(folder / "client", common_name="somebody")
        stranger = trustme.CA().issue_cert("stranger")
        self.stranger = folder / "stranger.pem"
        stranger.private_key_and_cert_chain_pem.write_to_path(self.stranger)

    def issue(self, name: Path, common_name: str = "nsqd") -> tuple[Path, Path]:
        """A certificate for localhost and its key."""
        issued = self._ca.issue_cert("localhost", common_name=common_name)
        certificate, key = name.with_suffix(".crt"), name.with_suffix(".key")
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return certificate, key

    def files(self, **settings) -> TlsFiles:
        return TlsFiles(str(self.certificate), str(self.key), str(self.root_ca), **settings)

    def trusting(
        self,
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ) -> ssl.SSLContext:
        """What a client needs that speaks up to this version, and shows a certificate if one is given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.root_ca)
        context.maximum_version = version
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return context

    def client_tls(
        self,
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ) -> TlsClient:
        return TlsClient(self.trusting(certificate, key, version=version))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["read in the event loop", "read in a greenlet"])
def server(request) -> Iterator[Server]:
    server = Server(session_waits=request.param == "read in a greenlet")
    yield server
    server.stop()


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Client]]:
    """Makes clients; they have sent their magic unless told otherwise."""
    with ExitStack() as stack:

        def connect(magic: bytes = b"  V2", receive_buffer: int | None = None, source: str = "") -> Client:
            return stack.enter_context(Client(server.address, magic, receive_buffer, source))

        yield connect


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Lets others run until a condition holds; fails when it never does."""

    def eventually(condition: Callable[[], bool]) -> None:
        with gevent.Timeout(PATIENCE, AssertionError("it never came to that")):
            while not condition():
                gevent.sleep(0.001)

    return eventually
