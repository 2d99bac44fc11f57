"""A node that is to go: asked over HTTP or by SIGTERM, with real consumers and a real nsqlookupd."""

import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.v2_client import Client, Message

PATIENCE = 20


@pytest.fixture
def nsqlookupd() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


def start(data_path: Path, *options: str) -> NsqdProcess:
    return NsqdProcess(installed_nsqd(), data_path, options=["--broadcast-address=127.0.0.1", *options])


def put_drain(nsqd: NsqdProcess) -> None:
    request = Request(f"http://{nsqd.http_address}/config/drain", b"true", method="PUT")
    with urlopen(request, timeout=PATIENCE) as response:
        assert response.read() == b"true"


def publish(nsqd: NsqdProcess, body: bytes, topic: str = "orders") -> None:
    urlopen(f"http://{nsqd.http_address}/pub?topic={topic}", body, timeout=PATIENCE).close()


def refusal(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    with pytest.raises(HTTPError) as caught:
        urlopen(url, body, timeout=PATIENCE)
    with caught.value as answer:
        return answer.code, answer.read()


class Consumer(Client):
    """Of one message at a time; a context manager that closes its connection."""

    def __init__(self, nsqd: NsqdProcess) -> None:
        super().__init__(nsqd.tcp_address)
        self.subscribes(b"orders", b"archive", ready=1)

    def takes_one(self) -> Message:
        """The next message; it stays in flight."""
        [message] = self.takes(1)
        return message


def filled(nsqd: NsqdProcess, *bodies: bytes) -> None:
    nsqd.create_channel("orders", "archive")
    for body in bodies:
        publish(nsqd, body)


def test_a_drain_refuses_publishes_unregisters_and_ends_with_the_last_fin(tmp_path, nsqlookupd):
    with start(tmp_path, f"--lookupd-tcp-address={nsqlookupd.tcp_address}") as nsqd:
        filled(nsqd, b"1", b"2")
        eventually(lambda: nsqlookupd.get("/lookup", topic="orders")["producers"])
        with Consumer(nsqd) as consumer:
            first = consumer.takes_one()
            put_drain(nsqd)
            eventually(lambda: not nsqlookupd.get("/lookup", topic="orders")["producers"])
            assert refusal(f"http://{nsqd.http_address}/pub?topic=orders", b"3") == (503, b'{"message":"EXITING"}')
            assert refusal(f"http://{nsqd.http_address}/readyz") == (503, b"draining")
            with Client(nsqd.tcp_address) as producer:
                assert producer.says(b"PUB orders\n\0\0\0\1x").frame().data.startswith(b"E_PUB_FAILED")
            consumer.finishes([first])
            second = consumer.takes_one()
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
        with Consumer(nsqd) as consumer:
            consumer.finishes([consumer.takes_one()])
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
        assert nsqd.logs("WARNING: NSQ: drained not quite in time, 2 messages stay")
    with start(tmp_path) as nsqd:
        assert nsqd.channel_stats("orders", "archive")["depth"] == 2


def test_a_topic_without_channels_does_not_delay_a_drain(tmp_path):
    with start(tmp_path, "--drain-timeout=0s") as nsqd:
        publish(nsqd, b"1", "unread")
        put_drain(nsqd)
        assert nsqd._process.wait(PATIENCE) == 0
