"""Both ends in memory: ours, and a server's of the standard library."""

import contextlib
import ssl

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.client.tls import TlsStream

AUTHORITY = trustme.CA()


class Server:
    """The other end."""

    def __init__(self, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = newest
        AUTHORITY.issue_cert("nsqd.example").configure_cert(context)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shake_hands(self, data: bytes) -> None:
        self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()

    def hear(self, data: bytes) -> bytes:
        """The plain bytes in what came."""
        self._incoming.write(data)
        pieces = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while piece := self.tls.read(1 << 16):
                pieces.append(piece)
        return b"".join(pieces)

    def owed(self) -> bytes:
        return self._outgoing.read()


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def connect(server: Server, name: str = "nsqd.example") -> TlsStream:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    stream = TlsStream(context, name)
    stream.shake_hands(server.shake_hands, server.owed)
    return stream


@pytest.fixture(scope="module")
def stream(server) -> TlsStream:
    return connect(server)


@given(said=st.binary(max_size=100_000))
def test_what_we_say_is_heard(server, stream, said):
    assert server.hear(stream.encode(said)) == said


@given(said=st.binary(min_size=1, max_size=50_000), cut=st.integers(1, 20_000))
def test_what_is_said_to_us_is_heard_however_it_is_cut(server, stream, said, cut):
    server.tls.write(said)
    wire = server.owed()
    assert b"".join(stream.decode(wire[begin : begin + cut]) for begin in range(0, len(wire), cut)) == said


def test_a_goodbye_is_no_error():
    server = Server()
    stream = connect(server)
    server.tls.write(b"last words")
    with contextlib.suppress(ssl.SSLWantReadError):
        server.tls.unwrap()
    assert stream.decode(server.owed()) == b"last words"


def test_what_is_not_tls_is_an_error():
    with pytest.raises(ssl.SSLError):
        connect(Server()).decode(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_what_is_said_right_behind_the_handshake_is_not_left_lying():
    # In version 1.2 the server has the last word of the handshake.
    server = Server(ssl.TLSVersion.TLSv1_2)

    def answer() -> bytes:
        with contextlib.suppress(ssl.SSLError):
            server.tls.write(b"at once")
        return server.owed()

    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    stream = TlsStream(context, "nsqd.example")
    stream.shake_hands(server.shake_hands, answer)
    assert stream.decode(b"") == b"at once"
    assert not stream.has_pending


def test_another_name_is_refused():
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(Server(), "elsewhere.example")


def test_an_end_during_the_handshake_is_a_connection_error():
    stream = TlsStream(ssl.create_default_context(), "nsqd.example")
    with pytest.raises(ConnectionError, match="handshake"):
        stream.shake_hands(lambda data: None, lambda: b"")
