"""TLS and compression on a connection over real sockets: what passes through them, and what a hostile one can do."""

import socket
import ssl
import struct
import zlib
from contextlib import suppress

import gevent
import pytest

from nsq_compat.net.certificates import Certificates
from nsq_compat.protocol.compression import Deflate, Snappy
from nsq_compat.session.negotiation import NsqdLimits
from tests.v2_client import identify, pub

WAYS = [
    (False, {"deflate": True}),
    (False, {"snappy": True}),
    (True, {}),
    (True, {"deflate": True, "deflate_level": 1}),
    (True, {"snappy": True}),
]
"""With TLS or without, and what else is asked for."""
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def tls_on_offer(server, authority):
    server.limits = NsqdLimits(tls=True)
    server.certificates = Certificates(authority.files())


@pytest.fixture(params=WAYS, ids=["deflate", "snappy", "tls", "tls+deflate", "tls+snappy"])
def connects(request, connect, authority):
    """A new client on one of the ways."""
    with_tls, wishes = request.param
    return lambda **more: connect().negotiates(authority.client_tls() if with_tls else None, **wishes, **more)


# --- What passes ------------------------------------------------------------------------------------------------------


def test_messages_go_both_ways(connects):
    consumer = connects().subscribes(b"t", b"c", ready=10)
    connects().publishes(b"one", b"two", b"three")
    assert [frame.data[26:] for frame in consumer.frames(3)] == [b"one", b"two", b"three"]


def test_the_largest_message_goes_both_ways(server, connects):
    noise = b"".join(struct.pack(">Q", pow(number, 5, (1 << 64) - 59)) for number in range(MEGABYTE // 8))
    for body in (noise, bytes(MEGABYTE)):
        assert len(body) == server.limits.max_msg_size
        consumer = connects().subscribes(b"t", b"c", ready=1)
        connects().publishes(body)
        assert consumer.frame().data[26:] == body
        consumer.socket.close()


def test_many_messages_in_few_reads_arrive_once_and_in_order(connects):
    consumer = connects().subscribes(b"t", b"c", ready=2500)
    producer = connects()
    count = 5000
    producer.says(b"".join(pub(b"%d" % number) for number in range(count)))
    assert {frame.data for frame in producer.frames(count)} == {b"OK"}
    for number in range(count):
        data = consumer.frame().data
        assert data[26:] == b"%d" % number
        consumer.says(b"FIN " + data[10:26] + b"\n")


def test_bytes_may_come_one_by_one(connects):
    client = connects()
    for byte in client.encoded(pub(b"x") + b"NOP\n" + pub(b"y")):
        client.socket.sendall(bytes([byte]))
        gevent.sleep(0)
    assert [frame.data for frame in client.frames(2)] == [b"OK", b"OK"]


def test_a_message_arrives_at_once_though_the_codec_would_buffer_it(connects):
    consumer = connects().subscribes(b"t", b"c", ready=100)
    producer = connects()
    for number in range(20):
        producer.publishes(b"%d" % number)
        assert consumer.frame().data[26:] == b"%d" % number


def test_heartbeats_and_errors_come_through(connects):
    client = connects(heartbeat_interval=1000)
    assert client.frame().data == b"_heartbeat_"
    client.says(b"BAD\n")
    assert client.frame().data == b"E_INVALID invalid command BAD"
    with pytest.raises(EOFError):
        client.frame()


def test_stats_show_the_negotiated_codecs(server, connect, authority):
    connect().negotiates(authority.client_tls(), snappy=True)
    (session,) = server.tcp.sessions
    stats = session.stats()
    assert (stats.tls, stats.tls_version, stats.snappy, stats.deflate) == (True, "TLS1.3", True, False)
    assert stats.tls_cipher_suite.startswith("Unknown 486")


def test_a_consumer_that_pauses_reading_gets_everything(connects):
    consumer = connects().subscribes(b"t", b"c", ready=2500)
    producer = connects()
    body = bytes(range(256)) * 1000
    for _ in range(20):
        producer.publishes(body)
    assert all(frame.data[26:] == body for frame in consumer.frames(20))


# --- Bytes sent ahead -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("feature", "codec"), [("deflate", lambda: Deflate(6)), ("snappy", Snappy)])
def test_a_compressed_command_may_come_with_identify(connect, feature, codec):
    client = connect()
    compressing = codec()
    request = identify(feature_negotiation=True, **{feature: True})
    client.socket.sendall(request + compressing.encode(pub(b"x") + b"BAD\n"))
    assert client.frame().data.startswith(b"{")
    client.puts_on(compressing)
    assert client.frames(2)[1].data == b"OK"
    assert client.frame().data == b"E_INVALID invalid command BAD"


def test_a_handshake_may_come_with_identify(connect, authority):
    tls = authority.client_tls()
    client = connect()
    client.socket.sendall(identify(feature_negotiation=True, tls_v1=True) + tls.do_handshake())
    assert client.frame().data.startswith(b"{")
    client.do_handshake(tls)
    assert client.frame().data == b"OK"
    client.publishes(b"x")


def test_commands_may_come_with_the_end_of_the_handshake(connect, authority):
    tls = authority.client_tls()
    client = connect()
    client.asks_for(tls_v1=True, snappy=True)
    said = tls.do_handshake()
    while not tls.is_complete:
        client.socket.sendall(said)
        said = tls.do_handshake(client.socket.recv(65536))
    snappy = Snappy()
    client.socket.sendall(said + tls.encode(snappy.encode(pub(b"x"))))
    client.puts_on(tls)
    assert client.frame().data == b"OK"
    client.puts_on(snappy)
    assert [frame.data for frame in client.frames(2)] == [b"OK", b"OK"]


def test_commands_before_identify_are_answered_before_it(connect):
    client = connect().says(pub(b"x") * 3)
    client.says(identify(feature_negotiation=True, deflate=True))
    assert [frame.data for frame in client.frames(3)] == [b"OK"] * 3
    assert client.frame().data.startswith(b"{")
    client.puts_on(Deflate(6))
    assert client.frame().data == b"OK"


# --- Hostile streams --------------------------------------------------------------------------------------------------


@pytest.fixture
def others_are_served(connect):
    """To be called while or after a client misbehaves."""
    other = connect()
    return lambda: other.publishes(b"x", topic=b"other")


def test_garbage_inside_the_stream_ends_that_connection(server, connects, others_are_served, eventually):
    client = connects()
    client.socket.sendall(b"this is no record, no chunk and no block" * 5)
    client.rest()
    others_are_served()
    eventually(lambda: len(server.tcp.sessions) == 1)


def test_commands_before_the_garbage_take_effect(server, connects, eventually):
    client = connects()
    client.socket.sendall(client.encoded(pub(b"x") * 3))
    assert client.frames(3)[-1].data == b"OK"
    client.socket.sendall(b"\x00garbage, garbage" * 50)
    client.rest()
    assert server.broker.topics["t"].message_count == 3


def test_a_client_that_leaves_in_the_middle_of_anything_is_forgotten(server, connects, others_are_served, eventually):
    client = connects().subscribes(b"t", b"c", ready=1)
    wire = client.encoded(pub(bytes(1000)))
    client.socket.sendall(wire[: len(wire) // 2])
    client.socket.close()
    others_are_served()
    eventually(lambda: len(server.tcp.sessions) == 1)


def test_a_half_closed_client_still_gets_its_replies(connects):
    client = connects().says(pub(b"x") + pub(b"y"))
    client.socket.shutdown(socket.SHUT_WR)
    assert [frame.data for frame in client.frames(2)] == [b"OK", b"OK"]
    with pytest.raises(EOFError):
        client.frame()


def test_a_client_that_ends_its_stream_gets_its_replies_and_the_end(connect, authority, eventually, server):
    tls = authority.client_tls()
    client = connect().negotiates(tls).says(pub(b"x"))
    with suppress(ssl.SSLWantReadError):
        tls.tls.unwrap()
    client.socket.sendall(tls.encode(b""))
    assert client.frame().data == b"OK"
    with pytest.raises(EOFError):
        client.frame()
    client.socket.close()
    eventually(lambda: not server.tcp.sessions)


@pytest.mark.interpreted
@pytest.mark.parametrize("line", [b"NOP\n", b"NOP " + b"x" * 16000 + b"\n"], ids=["many lines", "long lines"])
def test_a_decompression_bomb_is_decoded_in_small_pieces_while_others_are_served(server, connect, eventually, line):
    other = connect()
    client = connect().negotiates(deflate=True)
    size = 30 * MEGABYTE
    bomb = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    wire = bomb.compress(line * (size // len(line))) + bomb.flush(zlib.Z_SYNC_FLUSH)
    assert len(wire) < size // 200
    (session,) = [each for each in server.tcp.sessions if each.stats().deflate]
    pieces = []
    received = session.receive_data

    def receive_data(data, now, now_ns):
        pieces.append(len(data))
        received(data, now, now_ns)

    session.receive_data = receive_data
    client.socket.sendall(wire)
    eventually(lambda: pieces)
    before = len(pieces)
    other.publishes(b"x", topic=b"other")
    # A turn of the event loop for each step of it: to be read, answered, heard.
    assert len(pieces) - before < 20
    session.closing = True  # seen enough
    assert max(pieces) <= 1 << 16


def test_nothing_more_is_read_from_a_client_that_does_not_read_its_replies(server, connect, authority):
    client = connect(receive_buffer=4096).negotiates(authority.client_tls())
    client.socket.settimeout(0.5)
    sent = 0
    with suppress(TimeoutError):
        while sent < 500_000_000:
            sent += client.socket.send(client.encoded(pub(b"x") * 1000))
    assert sent < 500_000_000
    connect().publishes(b"x", topic=b"other")


@pytest.mark.parametrize(
    "noise", [b"PUB t\n\0\0\0\1x", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05noise", bytes(64)]
)
def test_a_missing_handshake_gets_an_error_in_plain_text(connect, noise, others_are_served):
    client = connect()
    client.asks_for(tls_v1=True)
    client.says(noise)
    rest = client.rest()
    if rest[:1] == b"\x15":  # an alert goes before it
        rest = rest[5 + struct.unpack_from(">H", rest, 3)[0] :]
    size, kind = struct.unpack_from(">ii", rest)
    assert (kind, size) == (1, len(rest) - 4)
    assert rest[8:].startswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")
    others_are_served()


def test_a_stalled_handshake_ends_at_its_deadline(server, connect, authority, monkeypatch, others_are_served):
    monkeypatch.setattr("nsq_compat.session.nsqd_session.HANDSHAKE_SECONDS", 0.2)
    client = connect()
    client.asks_for(tls_v1=True)
    client.says(authority.client_tls().do_handshake()[:50])
    others_are_served()
    assert client.frame().data == b"E_IDENTIFY_FAILED IDENTIFY failed i/o timeout"
    assert client.rest() == b""


def test_a_client_that_leaves_in_the_handshake_is_forgotten(server, connect, authority, eventually):
    for said in (b"", authority.client_tls().do_handshake()):
        client = connect()
        client.asks_for(tls_v1=True)
        client.says(said)
        client.socket.close()
    eventually(lambda: not server.tcp.sessions)


@pytest.mark.parametrize("shown", ["nothing", "a stranger"])
def test_a_client_without_the_right_certificate_costs_only_its_own_connection(
    server, connect, authority, shown, others_are_served
):
    server.certificates = Certificates(authority.files(client_policy="require-verify"))
    certificate = (authority.stranger,) if shown == "a stranger" else ()
    client = connect()
    client.asks_for(tls_v1=True)
    client.do_handshake(authority.client_tls(*certificate))
    # In TLS 1.3 the client believes it is through; the alert, and then nsqd's words, come with its first read.
    rest = client.rest()
    assert b"E_IDENTIFY_FAILED IDENTIFY failed tls: " in rest
    others_are_served()
    known = connect().negotiates(authority.client_tls(authority.client, authority.client_key))
    known.publishes(b"x")


def test_tls_goes_down_with_its_connection_and_leaves_nothing(server, connects, eventually):
    for _ in range(5):
        connects().subscribes(b"t", b"c", ready=1).socket.close()
    eventually(lambda: not server.tcp.sessions)
    assert not server.broker.topics["t"].channels["c"].consumers
