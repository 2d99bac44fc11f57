"""Both ends in memory: our client, and a server with the standard library."""

import contextlib
import ssl

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.client.tls import TlsStream

AUTHORITY = trustme.CA()


class Server:
    """The server."""

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
        """Decrypt received bytes."""
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
def test_encoded_data_is_decrypted_by_the_peer(server, stream, said):
    assert server.hear(stream.encode(said)) == said


@given(said=st.binary(min_size=1, max_size=50_000), cut=st.integers(1, 20_000))
def test_received_data_is_decoded_however_it_is_split(server, stream, said, cut):
    server.tls.write(said)
    wire = server.owed()
    assert b"".join(stream.decode(wire[begin : begin + cut]) for begin in range(0, len(wire), cut)) == said


def test_close_notify_is_not_an_error():
    server = Server()
    stream = connect(server)
    server.tls.write(b"last words")
    with contextlib.suppress(ssl.SSLWantReadError):
        server.tls.unwrap()
    assert stream.decode(server.owed()) == b"last words"


def test_data_that_is_not_tls_is_an_error():
    with pytest.raises(ssl.SSLError):
        connect(Server()).decode(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_data_directly_after_the_handshake_is_returned():
    # In TLS 1.2 the server sends the last message of the handshake.
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


def test_a_wrong_host_name_is_refused():
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(Server(), "elsewhere.example")


def test_eof_during_the_handshake_is_a_connection_error():
    stream = TlsStream(ssl.create_default_context(), "nsqd.example")
    with pytest.raises(ConnectionError, match="handshake"):
        stream.shake_hands(lambda data: None, lambda: b"")
