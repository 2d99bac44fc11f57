"""The connection of a task: TLS, authorization, and errors of nsqd."""

import contextlib
import socket
import ssl
import threading
import time

import pytest

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.frames import HEARTBEAT, OK, error_frame
from nsq_compat.protocol.message import make_frame
from nsq_conformance.certificates import Certificates
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from pyspark_nsq import connection as connections
from pyspark_nsq.connection import NsqConnection, NsqdLost, NsqdUnreachable
from pyspark_nsq.decode import decode, finish
from tests.client.fake_nsqd import FakeNsqd, Peer
from tests.cluster.hostile import TicketServer
from tests.spark.conftest import OptionsWith


def test_messages_arrive_over_tls_from_a_trusted_nsqd(tmp_path, options_with: OptionsWith, topic):
    certificates = Certificates(tmp_path)
    (tmp_path / "data").mkdir()
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=certificates.options) as nsqd:
        nsqd.create_channel(topic, "c")
        assert nsqd.asks("POST", f"/pub?topic={topic}", b"one").status == 200
        options = options_with(tls="true", tlsCaFile=str(certificates.root_ca), snappy="true")
        with NsqConnection(nsqd.tcp_address, options) as connection:
            connection.subscribe(topic, "c")
            connection.send(command_writer.ready(1))
            batch = decode(connection.receive(20))
            assert batch.column("body").to_pylist() == [b"one"]
            connection.send(finish(batch.column("id")))
            connection.end_session()
        assert nsqd.channel_stats(topic, "c")["in_flight_count"] == 0
        with pytest.raises(NsqdUnreachable, match="certificate verify failed"):
            NsqConnection(nsqd.tcp_address, options_with(tls="true"))


def test_session_tickets_without_end_end_no_later_than_a_wait(tmp_path):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with TicketServer(tmp_path) as server:
        host, _, port = server.address.partition(":")
        with contextlib.closing(
            connections._Tls(socket.create_connection((host, int(port))), context, host, 20)
        ) as tls:
            tls.settimeout(0.3)
            with pytest.raises(TimeoutError):
                tls.recv(1000)


def test_the_auth_secret_is_sent_if_nsqd_requires_it(options_with):
    with contextlib.closing(FakeNsqd(max_rdy_count=7, auth_required=True)) as server:
        with NsqConnection(server.address, options_with(authSecret="secret")) as connection:
            assert connection.max_rdy_count == 7
            assert connection.msg_timeout == 60
        assert server.said("AUTH") == ["AUTH"]


def test_failed_fins_are_known_after_the_end_of_the_session(nsqd, topic, options_with, publish):
    publish(1)
    with NsqConnection(nsqd.tcp_address, options_with()) as connection:
        connection.subscribe(topic, "c")
        connection.send(command_writer.finish([b"0123456789abcdef"]))
        connection.end_session()
        assert connection.rejected == {"0123456789abcdef"}


def test_an_nsqd_that_refuses_fins_that_were_not_sent_is_left(options_with):
    refusals = b"".join(error_frame(b"E_FIN_FAILED FIN %016d failed" % number) for number in range(100))
    with (
        contextlib.closing(FakeNsqd({"CLS": refusals})) as server,
        NsqConnection(server.address, options_with()) as connection,
    ):
        connection.subscribe("t", "c")
        connection.send(command_writer.finish([b"0123456789abcdef"]))
        with pytest.raises(NsqdLost, match="refuses to finish messages that were not finished"):
            connection.end_session()
        assert len(connection.rejected) == 2


def test_an_nsqd_that_sends_on_after_the_end_of_the_session_is_left(options_with):
    """Each byte ended one wait, and began another."""
    with contextlib.closing(FakeNsqd()) as server:
        with NsqConnection(server.address, options_with(connectTimeoutMs="1000")) as connection:
            connection.subscribe("t", "c")
            sending = threading.Thread(target=send_until_closed, args=(server.peer,))
            sending.start()
            connection.end_session()
        sending.join()


def send_until_closed(peer: Peer) -> None:
    with contextlib.suppress(OSError):
        while True:
            peer.socket.sendall(HEARTBEAT)
            time.sleep(0.05)


def test_heartbeats_do_not_stand_for_the_confirmation_of_a_publish(options_with):
    with contextlib.closing(FakeNsqd({"PUB": None})) as server:
        with NsqConnection(server.address, options_with(connectTimeoutMs="1000")) as connection:
            sending = threading.Thread(target=send_until_closed, args=(server.peer,))
            sending.start()
            connection.publish(command_writer.publish("t", b"1"), window=10)
            with pytest.raises(NsqdLost, match="did not confirm a publish in 1 s"):
                connection.confirm()
        sending.join()


def test_the_end_of_a_session_requeues_messages_that_were_not_taken(nsqd, topic, options_with, publish):
    publish(3)
    with NsqConnection(nsqd.tcp_address, options_with()) as connection:
        connection.subscribe(topic, "c")
        connection.send(command_writer.ready(3))
        connection.send(finish(decode(connection.receive(20)).column("id")[:1]))
        connection.end_session()
    stats = nsqd.channel_stats(topic, "c")
    assert stats["depth"] + stats["in_flight_count"] == 2


def test_a_message_id_that_is_not_ascii_ends_the_connection(options_with):
    with (
        contextlib.closing(FakeNsqd({"SUB": OK + make_frame(b"\xff" * 16, 1, b"body")})) as server,
        NsqConnection(server.address, options_with()) as connection,
    ):
        connection.subscribe("t", "c")
        with pytest.raises(NsqdLost, match="a message id is not ASCII"):
            connection.end_session()


def test_an_invalid_topic_is_reported_with_nsqds_error(options_with, nsqd):
    with (
        NsqConnection(nsqd.tcp_address, options_with()) as connection,
        pytest.raises(NsqdUnreachable, match="E_BAD_TOPIC"),
    ):
        connection.subscribe("no/topic", "c")


def test_a_connection_that_ends_early_raises_nsqd_lost(nsqd, tmp_path, options_with, topic):
    (tmp_path / "data").mkdir()
    with (
        NsqdProcess(installed_nsqd(), tmp_path / "data") as own,
        NsqConnection(own.tcp_address, options_with()) as connection,
    ):
        connection.subscribe(topic, "c")
        own.kill()
        with pytest.raises(NsqdLost):
            connection.receive(20)


def test_messages_without_end_end_the_connection(options_with, monkeypatch):
    monkeypatch.setattr(connections, "_MAX_WAITING", 1 << 20)
    message = make_frame(b"0" * 16, 1, bytes(100_000))
    with (
        contextlib.closing(FakeNsqd({"CLS": message * 20})) as server,
        NsqConnection(server.address, options_with()) as connection,
    ):
        connection.subscribe("t", "c")
        with pytest.raises(NsqdLost, match="sends messages without end"):
            connection.end_session()
