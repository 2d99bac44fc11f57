"""A connection: opening, upgrades, answers, and every way to end."""

import contextlib
import ssl
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.client.connection import Connection as ThreadedConnection
from nsq_compat.client.connection import start_thread
from nsq_compat.client.link import ConnectionLost, Link, NotExecuted, Observer, TlsStream, why
from nsq_compat.client.message import Message
from nsq_compat.client.settings import ConnectionSettings, split_address
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.compression import Deflate
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.frames import OK, error_frame, response_frame
from nsq_compat.protocol.message import make_frame, make_frames
from nsq_compat.session.client_session import Received
from nsq_conformance.certificates import Certificates
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.client.fake_nsqd import CLOSE
from tests.client.on_loop import LoopConnection, end_loops
from tests.client.waiting import wait_until

Connection = ThreadedConnection
"""The kind that is tested."""


@pytest.fixture(params=[ThreadedConnection, LoopConnection], ids=["threads", "asyncio"], autouse=True)
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys.modules[__name__], "Connection", request.param)
    yield
    end_loops()


class Told(Observer[ThreadedConnection]):
    """Records the observer's events."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.answers: list[bool | None] = []
        self.heartbeats = 0
        self.reasons: list[Exception] = []

    def received(self, connection: ThreadedConnection, messages: list[Message]) -> None:
        self.messages += messages

    def answered(self, connection: ThreadedConnection, succeeded: bool | None) -> None:
        self.answers.append(succeeded)

    def heartbeat(self, connection: ThreadedConnection) -> None:
        self.heartbeats += 1

    def closed(self, connection: ThreadedConnection, reason: Exception) -> None:
        self.reasons.append(reason)


@pytest.fixture
def told() -> Told:
    return Told()


Connect = Callable[..., ThreadedConnection]


@pytest.fixture
def connect(told: Told) -> Iterator[Connect]:
    """Open and run a connection; it is aborted at the end of the test."""
    threads: list[tuple[ThreadedConnection, threading.Thread]] = []

    def connect(address: str, subscription: tuple[str, str] | None = None, **settings: object) -> ThreadedConnection:
        connection = Connection(address, ConnectionSettings(**settings), told, subscription)  # type: ignore[arg-type]
        connection.open()
        thread = threading.Thread(target=connection.run)
        thread.start()
        threads.append((connection, thread))
        return connection

    yield connect
    for connection, thread in threads:
        connection.abort()
        thread.join()


def ask(connection: ThreadedConnection, command: bytes) -> bytes:
    return connection.ask(command).result(20)


# --- Opening ----------------------------------------------------------------------------------------------------------


def test_requests_are_answered_and_sent_commands_arrive(fake, connect):
    connection = connect(fake.address)
    assert ask(connection, command_writer.publish("t", b"body")) == b"OK"
    connection.send(command_writer.NOP)
    wait_until(lambda: fake.said("NOP"))
    assert connection.id == fake.address


@pytest.mark.parametrize(("asked_for", "seconds"), [(None, 60.0), (7, 7.0)])
def test_the_message_timeout_is_nsqds(nsqd, connect, asked_for, seconds):
    assert connect(nsqd.tcp_address, msg_timeout=asked_for).msg_timeout == seconds


def test_a_refused_identify_fails_the_connection(make_nsqd):
    fake = make_nsqd({"IDENTIFY": error_frame(b"E_BAD_BODY IDENTIFY sample rate (100) is invalid")})
    with pytest.raises(ConnectionLost, match="sample rate"):
        Connection(fake.address, ConnectionSettings()).open()


@pytest.mark.parametrize("answer", [CLOSE, None, b"\0\0\0\x06\0\0\0\0{]"], ids=["closes", "silent", "babbles"])
def test_an_nsqd_that_does_not_respond_fails_the_connection_within_the_timeout(make_nsqd, answer):
    fake = make_nsqd({"IDENTIFY": answer})
    with pytest.raises(ConnectionLost, match=fake.address):
        Connection(fake.address, ConnectionSettings(timeout=0.2)).open()


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (CLOSE, "closed by nsqd|connection reset by peer"),
        (None, "no answer"),
        (b"\0\0\0\x06\0\0\0\0{]", "not NSQ's protocol"),
    ],
    ids=["closes", "silent", "babbles"],
)
def test_the_port_is_in_doubt_only_if_no_nsqd_has_answered_there(make_nsqd, answer, what):
    fake = make_nsqd({"IDENTIFY": answer})
    with pytest.raises(ConnectionLost, match=rf"({what}); is this nsqd's TCP port\?"):
        Connection(fake.address, ConnectionSettings(timeout=0.2)).open()
    connection = Connection(fake.address, ConnectionSettings(timeout=0.2))
    known(connection)
    with pytest.raises(ConnectionLost) as lost:
        connection.open()
    assert "TCP port" not in str(lost.value)


def known(connection: ThreadedConnection) -> None:
    real: Link = getattr(connection, "_connection", connection)
    real.is_known = True


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (
            {"msg_timeout": 60_000},
            r"; msg_timeout=60000 is in seconds, and this nsqd allows less \(--max-msg-timeout\)",
        ),
        (
            {"heartbeat_interval": 30_000},
            r"; heartbeat_interval=30000 is in seconds, and this nsqd allows less \(--max-heartbeat-interval\)",
        ),
    ],
)
def test_a_time_in_milliseconds_is_refused_with_the_unit(nsqd, options, advice):
    with pytest.raises(ConnectionLost, match=f"E_BAD_BODY.* is invalid{advice}$"):
        Connection(nsqd.tcp_address, ConnectionSettings(**options)).open()


def test_a_refused_subscription_fails_the_connection(make_nsqd):
    fake = make_nsqd({"SUB": error_frame(b"E_UNAUTHORIZED AUTH failed for SUB")})
    with pytest.raises(ConnectionLost, match="E_UNAUTHORIZED"):
        Connection(fake.address, ConnectionSettings(), None, ("t", "c")).open()


def test_aborting_a_connection_while_it_opens_fails_it(make_nsqd):
    fake = make_nsqd({"IDENTIFY": None})
    connection = Connection(fake.address, ConnectionSettings(timeout=30))

    def close_it() -> None:
        wait_until(lambda: fake.said("IDENTIFY"))
        connection.abort()

    closer = start_thread("closer", close_it)
    with pytest.raises(ConnectionLost):
        connection.open()
    closer.join()


@pytest.mark.parametrize("address", ["host", "host:", "host:port", ":4150", "host:-1"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)


def test_an_address_may_be_ipv6():
    assert split_address("[::1]:4150") == ("::1", 4150)


# --- TLS --------------------------------------------------------------------------------------------------------------

AUTHORITY = trustme.CA()


def trusting(newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.maximum_version = newest
    AUTHORITY.configure_trust(context)
    return context


class TlsServer(TlsStream):
    """The other end of a TLS stream."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)


def connected() -> tuple[TlsStream, TlsServer]:
    stream, server = TlsStream(trusting(), "127.0.0.1"), TlsServer()
    for _ in range(2):
        server.decode(stream.encode(b""))
        stream.decode(server.encode(b""))
    assert stream.is_established
    return stream, server


PAIR = connected()


@given(said=st.binary(max_size=100_000))
def test_encoded_data_is_decrypted_by_the_peer(said):
    stream, server = PAIR
    assert server.decode(stream.encode(said)) == said


@given(said=st.binary(min_size=1, max_size=50_000), cut=st.integers(1, 20_000))
def test_received_data_is_decoded_however_it_is_split(said, cut):
    stream, server = PAIR
    wire = server.encode(said)
    assert b"".join(stream.decode(wire[begin : begin + cut]) for begin in range(0, len(wire), cut)) == said


def test_close_notify_is_not_an_error():
    stream, server = connected()
    wire = server.encode(b"last words")
    with contextlib.suppress(ssl.SSLWantReadError):
        server._tls.unwrap()
    assert stream.decode(wire + server.encode(b"")) == b"last words"


def test_data_that_is_not_tls_is_an_error():
    with pytest.raises(ssl.SSLError):
        connected()[0].decode(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_data_directly_after_the_handshake_is_returned():
    # In TLS 1.2 the server sends the last message of the handshake.
    stream, server = TlsStream(trusting(ssl.TLSVersion.TLSv1_2), "127.0.0.1"), TlsServer()
    server.decode(stream.encode(b""))
    stream.decode(server.encode(b""))
    server.decode(stream.encode(b""))
    states = [stream.is_established, stream.decode(server.encode(b"at once")), stream.is_established]
    assert states == [False, b"at once", True]
    assert not stream.has_pending


def test_eof_during_the_handshake_fails_the_connection(make_nsqd):
    fake = make_nsqd(tls_v1=True)
    with pytest.raises(ConnectionLost, match=fake.address):
        Connection(fake.address, ConnectionSettings(tls_v1=True)).open()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_nsqd(certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    options = [*certificates.options, "--tls-required=tcp-https"]
    with NsqdProcess(installed_nsqd(), tmp_path_factory.mktemp("tls"), options=options) as process:
        yield process


@pytest.mark.parametrize("compression", [{}, {"snappy": True}, {"deflate": True}], ids=["plain", "snappy", "deflate"])
def test_messages_go_both_ways_through_tls(tls_nsqd, topic, connect, told, certificates, compression):
    options = {"tls_v1": True, "tls_options": {"ca_certs": certificates.root_ca}, **compression}
    connection = connect(tls_nsqd.tcp_address, (topic, "c"), **options)
    connection.send(command_writer.ready(100))
    bodies = [b"%d" % number * 3000 for number in range(20)]
    assert ask(connection, command_writer.publish_many(topic, bodies)) == b"OK"
    wait_until(lambda: len(told.messages) == 20)
    assert sorted(message.body for message in told.messages) == sorted(bodies)
    for message in told.messages:
        message.finish()
    assert ask(connection, command_writer.CLS) == b"CLOSE_WAIT"
    assert tls_nsqd.channel_stats(topic, "c")["in_flight_count"] == 0


@pytest.mark.interpreted
def test_little_of_tls_is_decoded_at_once(tls_nsqd, topic, connect, told, certificates, monkeypatch):
    """A read may consist of thousands of updates of the key, which take 20 us each."""
    sizes: list[int] = []
    decode = TlsStream.decode

    def noted(stream: TlsStream, data: bytes) -> bytes:
        sizes.append(len(data))
        return decode(stream, data)

    monkeypatch.setattr(TlsStream, "decode", noted)
    connection = connect(
        tls_nsqd.tcp_address, (topic, "c"), tls_v1=True, tls_options={"ca_certs": certificates.root_ca}
    )
    connection.send(command_writer.ready(100))
    assert ask(connection, command_writer.publish_many(topic, [bytes(900_000)] * 4)) == b"OK"
    wait_until(lambda: len(told.messages) == 4)
    assert max(sizes) <= 1 << 14


def test_a_wrong_host_name_is_refused_if_names_are_verified(tls_nsqd, certificates):
    address = tls_nsqd.tcp_address.replace("127.0.0.1", "127.1")
    options = {"ca_certs": certificates.root_ca, "check_hostname": True}
    with pytest.raises(ConnectionLost, match="Hostname mismatch"):
        Connection(address, ConnectionSettings(tls_v1=True, tls_options=options)).open()


def test_a_certificate_of_an_unknown_authority_is_refused(tls_nsqd):
    with pytest.raises(ConnectionLost, match="TLS: unable to get local issuer certificate"):
        Connection(tls_nsqd.tcp_address, ConnectionSettings(tls_v1=True)).open()


def test_verification_of_certificates_can_be_turned_off(tls_nsqd, connect):
    options = {"cert_reqs": ssl.CERT_NONE}
    assert not connect(tls_nsqd.tcp_address, tls_v1=True, tls_options=options).is_closed


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_ssl_context_is_used_unchanged(tls_nsqd, certificates, connect, newest):
    context = certificates.trusting()
    context.maximum_version = newest
    assert not connect(tls_nsqd.tcp_address, tls_v1=True, tls_options=context).is_closed


def test_a_connection_without_tls_is_not_used_if_tls_is_required(nsqd):
    with pytest.raises(ConnectionLost, match="does not offer it"):
        Connection(nsqd.tcp_address, ConnectionSettings(tls_v1=True)).open()


# --- The end ----------------------------------------------------------------------------------------------------------


def outcome(answer: "Future[bytes]") -> str:
    error = answer.exception(20)
    return type(error).__name__ if error else "answered"


def test_unanswered_requests_are_unknown_when_the_connection_breaks(make_nsqd, connect, told):
    fake = make_nsqd({"PUB": None})
    connection = connect(fake.address)
    answers = [connection.ask(command_writer.publish("t", b"body")) for _ in range(2)]
    wait_until(lambda: len(fake.said("PUB")) == 2)
    fake.peer.close()
    assert [outcome(answer) for answer in answers] == ["ConnectionLost", "ConnectionLost"]
    wait_until(lambda: len(told.reasons) == 1)


def test_requests_after_a_refused_one_were_not_executed(make_nsqd, connect):
    fake = make_nsqd({"PUB": None})
    connection = connect(fake.address)
    answers = [connection.ask(command_writer.publish("t", b"body")) for _ in range(3)]
    wait_until(lambda: len(fake.said("PUB")) == 3)
    fake.peer.send(OK + error_frame(b"E_PUB_FAILED PUB failed exiting"))
    assert [outcome(answer) for answer in answers] == ["answered", "NsqError", "NotExecuted"]
    with pytest.raises(NsqError, match="E_PUB_FAILED"):
        answers[1].result()


def test_requests_on_a_closed_connection_are_not_executed(fake, connect):
    connection = connect(fake.address)
    connection.abort()
    with pytest.raises(NotExecuted):
        ask(connection, command_writer.publish("t", b"body"))
    connection.send(command_writer.NOP)


def test_closing_sends_pending_commands_first(fake, connect, told):
    connection = connect(fake.address, ("t", "c"))
    connection.send(command_writer.ready(200))
    sent = fake.send_messages([b"x"] * 200)
    wait_until(lambda: len(told.messages) == 200)
    for message in told.messages:
        message.finish()
    connection.close(20)
    assert fake.peer.finished == sent
    assert connection.is_closed


def test_closing_waits_no_longer_than_its_timeout(fake, connect, monkeypatch):
    connection = connect(fake.address)
    fake._on_command = lambda peer, command: threading.Event().wait(2)
    connection.send(command_writer.NOP)
    connection.close(0.05)
    assert connection.is_closed


def test_the_observer_gets_answers_heartbeats_and_the_end(fake, connect, told):
    connection = connect(fake.address, ("t", "c"))
    connection.send(command_writer.ready(3))
    fake.send_messages([b"1", b"2", b"3"])
    fake.beat()
    wait_until(lambda: len(told.messages) == 3 and told.heartbeats == 1)
    told.messages[0].finish()
    told.messages[1].requeue()
    told.messages[2].requeue(backoff=False)
    assert told.answers == [True, False, None]
    assert connection.in_flight == 0
    connection.abort()
    wait_until(lambda: len(told.reasons) == 1)


# --- An nsqd that means harm ------------------------------------------------------------------------------------------


def test_texts_of_nsqd_are_one_printable_line(make_nsqd, connect, told, caplog):
    caplog.set_level("DEBUG")
    text = b"E_FIN_FAILED \x1b[2J\nforged"
    fake = make_nsqd({"SUB": error_frame(text) + OK}, version="1\x1b[0m")
    connection = connect(fake.address, ("t", "c"))
    fake.peer.send(error_frame(b"E_BAD_TOPIC \x1b[2J\nforged"))
    wait_until(lambda: told.reasons)
    assert why(told.reasons[0]) == r"E_BAD_TOPIC \x1b[2J\nforged"
    wait_until(lambda: "connection closed" in caplog.text)
    assert connection.is_closed
    assert all(message.isprintable() for message in caplog.messages)


def test_little_of_a_long_version_is_logged(make_nsqd, connect, caplog):
    caplog.set_level("DEBUG")
    connect(make_nsqd(version="1" * 60_000).address, ("t", "c"))
    assert max(map(len, caplog.messages)) < 2000


def test_compressed_data_is_decoded_in_small_parts():
    link = Link("a:1", ConnectionSettings(deflate=True))
    codec, body = Deflate(6), bytes(1 << 20)
    described = response_frame(b'{"deflate":true}')
    data = described + codec.encode(OK + b"".join(make_frames([b"0" * 16] * 40, 0, [body] * 40)))
    sizes = [
        sum(len(event.messages) for event in link._decode(piece) if isinstance(event, Received))
        for piece in link._pieces(data)
    ]
    assert sum(sizes) == 40
    assert max(sizes) <= 17


def test_compressed_data_in_tls_is_decoded_in_small_parts():
    """A record has 16 KiB, which may become 16 MiB of frames."""
    link, server = (
        Link("127.0.0.1:1", ConnectionSettings(deflate=True, tls_v1=True, tls_options=trusting())),
        TlsServer(),
    )

    def hear(wire: bytes) -> list[int]:
        events = [link._decode(piece) for piece in link._pieces(wire)]
        return [sum(len(each.messages) for each in step if isinstance(each, Received)) for step in events]

    link._data_to_send()
    hear(response_frame(b'{"deflate":true,"tls_v1":true}'))
    for _ in range(2):
        server.decode(link._data_to_send())
        hear(server.encode(b""))
    hear(server.encode(OK))
    bombs = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    hear(server.encode(bombs.compress(OK) + bombs.flush(zlib.Z_SYNC_FLUSH)))
    message, count = make_frame(b"0" * 16, 1, b"x"), 400_000
    steps = hear(server.encode(bombs.compress(message * count) + bombs.flush(zlib.Z_SYNC_FLUSH)))
    assert sum(steps) == count
    assert max(steps) < (2 << 20) / len(message)
