"""A node that is to go: asked over HTTP or by SIGTERM, with real consumers and a real nsqlookupd."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_conformance.cluster import eventually, producers
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.nsqd.conftest import connect
from tests.v2_client import Client, Refused

PATIENCE = 20


@pytest.fixture
def nsqlookupd() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


def start(data_path: Path, *options: str) -> NsqdProcess:
    return NsqdProcess(installed_nsqd(), data_path, options=["--broadcast-address=127.0.0.1", *options])


def put_drain(nsqd: NsqdProcess) -> None:
    answer = nsqd.asks("PUT", "/config/drain", b"true")
    assert (answer.status, answer.body) == (200, b"true")


def filled(nsqd: NsqdProcess, *bodies: bytes) -> None:
    nsqd.create_channel("orders", "archive")
    with connect(nsqd) as producer:
        producer.publishes(*bodies, topic=b"orders")


def subscribed(nsqd: NsqdProcess) -> Client:
    return connect(nsqd).subscribes(b"orders", b"archive", ready=1)


def test_a_drain_refuses_publishes_unregisters_and_ends_with_the_last_fin(tmp_path, nsqlookupd):
    with start(tmp_path, f"--lookupd-tcp-address={nsqlookupd.tcp_address}") as nsqd:
        filled(nsqd, b"1", b"2")
        eventually(lambda: producers(nsqlookupd, "orders"))
        with subscribed(nsqd) as consumer:
            (first,) = consumer.takes(1)
            put_drain(nsqd)
            eventually(lambda: not nsqlookupd.get("/lookup", topic="orders")["producers"])
            for method, path, body in (
                ("POST", "/pub?topic=orders", b'{"message":"EXITING"}'),
                ("GET", "/readyz", b"draining"),
            ):
                answer = nsqd.asks(method, path, b"3")
                assert (answer.status, answer.body) == (503, body)
            with connect(nsqd) as producer, pytest.raises(Refused, match="E_PUB_FAILED"):
                producer.publishes(b"x", topic=b"orders")
            consumer.finishes([first])
            (second,) = consumer.takes(1)
            assert nsqd._process.poll() is None
            consumer.finishes([second])
        assert nsqd._process.wait(PATIENCE) == 0
        assert nsqd.logs("NSQ: drained")
        assert nsqd.logs("NSQ: bye")


def test_sigterm_can_drain_and_new_consumers_can_connect(tmp_path):
    with start(tmp_path, "--sigterm=drain") as nsqd:
        filled(nsqd, b"1")
        nsqd.send_signal(signal.SIGTERM)
        assert nsqd.logs("NSQ: draining")
        with subscribed(nsqd) as consumer:
            consumer.finishes(consumer.takes(1))
        assert nsqd._process.wait(PATIENCE) == 0
        assert nsqd.logs("NSQ: drained")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once_and_nothing_is_lost(tmp_path, number):
    with start(tmp_path, "--sigterm=drain", "--drain-timeout=0s") as nsqd:
        filled(nsqd, b"1")
        nsqd.send_signal(signal.SIGTERM)
        assert nsqd.logs("NSQ: draining")
        nsqd.send_signal(number)
        assert nsqd._process.wait(PATIENCE) == 0
    with start(tmp_path) as nsqd:
        assert nsqd.channel_stats("orders", "archive")["depth"] == 1


def test_messages_left_at_the_timeout_stay_in_the_data_path(tmp_path):
    with start(tmp_path, "--drain-timeout=50ms") as nsqd:
        filled(nsqd, b"1", b"2")
        put_drain(nsqd)
        assert nsqd._process.wait(PATIENCE) == 0
        assert nsqd.logs("WARNING: NSQ: drain timed out, 2 messages are left")
    with start(tmp_path) as nsqd:
        assert nsqd.channel_stats("orders", "archive")["depth"] == 2


def test_a_topic_without_channels_does_not_delay_a_drain(tmp_path):
    with start(tmp_path, "--drain-timeout=0s") as nsqd:
        with connect(nsqd) as producer:
            producer.publishes(b"1", topic=b"unread")
        put_drain(nsqd)
        assert nsqd._process.wait(PATIENCE) == 0
