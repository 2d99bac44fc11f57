"""Consuming over HTTP from nsqd: waiting, beside TCP consumers, timeouts, a stop meanwhile; streams of events."""

import base64
import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest

from nsq_compat.nsqd.daemon import Daemon
from nsq_compat.nsqd.options import NsqdOptions
from nsq_conformance.certificates import Certificates
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.nsqd.conftest import Events, connect

HERE = "topic=orders&channel=archive"


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    with NsqdProcess(installed_nsqd(), tmp_path, options=["--msg-timeout=2s"]) as nsqd:
        nsqd.create_channel("orders", "archive")
        yield nsqd


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[NsqdProcess]:
    """An nsqd with the usual message timeout, where no message comes again during a test."""
    with NsqdProcess(installed_nsqd(), tmp_path) as nsqd:
        nsqd.create_channel("orders", "archive")
        yield nsqd


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(50) as pool:
        yield pool


def consume(nsqd: NsqdProcess, query: str = "wait=30s") -> list[dict[str, Any]]:
    answer = nsqd.asks("GET", f"/channel/consume?{HERE}&{query}")
    assert answer.status == 200, answer.body
    return list(answer.json()["messages"])


def bodies(messages: list[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(each["body"]) for each in messages]


def waiting(nsqd: NsqdProcess) -> int:
    """The number of messages that requests wait for."""
    return sum(client["ready_count"] for client in nsqd.channel_stats("orders", "archive")["clients"])


def waits_for(nsqd: NsqdProcess, count: int) -> bool:
    return waiting(nsqd) == count


def test_requests_that_wait_get_the_next_messages(nsqd, clients):
    requests = [clients.submit(consume, nsqd) for _ in range(50)]
    eventually(lambda: waiting(nsqd) == 50)
    with connect(nsqd) as producer:
        producer.publishes_together([b"%d" % number for number in range(30)], b"orders")
        producer.publishes(*(b"%d" % number for number in range(30, 50)), topic=b"orders")
    received = [each for request in requests for each in request.result(30)]
    assert sorted(map(int, bodies(received))) == list(range(50))
    assert nsqd.channel_stats("orders", "archive")["in_flight_count"] == 50
    ids = "\n".join(each["id"] for each in received).encode()
    assert nsqd.asks("POST", f"/message/finish?{HERE}", ids).json() == {"finished": 50, "not_found": []}
    (client,) = nsqd.channel_stats("orders", "archive")["clients"]
    assert (client["finish_count"], client["in_flight_count"], client["ready_count"]) == (50, 0, 0)


def test_requests_for_which_there_is_no_message_go_on_waiting(patient, clients):
    requests = [clients.submit(consume, patient) for _ in range(10)]
    eventually(lambda: waiting(patient) == 10)
    with connect(patient) as producer:
        for left in range(9, -1, -1):
            producer.publishes(b"a", topic=b"orders")
            eventually(partial(waits_for, patient, left))
    assert [len(request.result(30)) for request in requests] == [1] * 10


def test_a_message_has_its_headers(nsqd):
    assert nsqd.asks("POST", "/pub?topic=orders", b"a", **{"X-NSQ-Header-Kind": "new"}).status == 200
    (message,) = consume(nsqd)
    assert (message["headers"], bodies([message])) == ({"kind": "new"}, [b"a"])


def test_a_message_that_is_not_answered_comes_to_another_consumer(nsqd):
    with connect(nsqd) as producer, connect(nsqd) as consumer:
        producer.publishes(b"a", topic=b"orders")
        (message,) = consume(nsqd)
        consumer.subscribes(b"orders", b"archive", ready=1)
        (again,) = consumer.takes(1)
        assert (again.body, again.id.decode(), again.attempts) == (b"a", message["id"], 2)
        finished = nsqd.asks("POST", f"/message/finish?{HERE}&id={message['id']}").json()
        assert finished == {"finished": 0, "not_found": [message["id"]]}
        consumer.finishes([again])


def test_waiting_requests_and_a_tcp_consumer_share_the_messages(nsqd, clients):
    with connect(nsqd) as producer, connect(nsqd) as consumer:
        consumer.subscribes(b"orders", b"archive", ready=1)
        request = clients.submit(consume, nsqd)
        eventually(lambda: waiting(nsqd) == 2)
        producer.publishes(b"a", b"b", topic=b"orders")
        messages = consumer.takes(1)
        received = bodies(request.result(30))
        assert sorted([*received, *(each.body for each in messages)]) == [b"a", b"b"]
        consumer.finishes(messages)


def open_waiting(nsqd: NsqdProcess, more: bytes = b"") -> socket.socket:
    """A connection with a request that waits for a message."""
    host, _, port = nsqd.http_address.rpartition(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(f"GET /channel/consume?{HERE}&wait=60s HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    eventually(partial(waits_for, nsqd, 1))
    client.sendall(more)
    return client


@pytest.mark.parametrize("more", [b"", b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_a_request_that_waits_takes_nothing_for_a_client_that_is_gone(patient, more):
    with connect(patient) as producer:
        for number in range(1, 4):
            open_waiting(patient, more).close()
            producer.publishes(b"%d" % number, topic=b"orders")
            (message,) = consume(patient, "wait=60s")
            assert (bodies([message]), message["attempts"]) == ([b"%d" % number], 1)
            assert finish(patient, message) == 1
            eventually(partial(waits_for, patient, 0))


@pytest.mark.parametrize("more", [b"", b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_a_request_that_waits_ends_soon_after_its_client(patient, more):
    open_waiting(patient, more).close()
    eventually(partial(waits_for, patient, 0))
    with open_waiting(patient) as client:  # a reset, because of what was not read
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(partial(waits_for, patient, 0))


def test_a_client_that_has_shut_down_its_sending_side_counts_as_gone(patient):
    with open_waiting(patient) as client:
        client.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read().endswith(b'{"messages":[]}')


def test_a_stop_answers_requests_that_wait(nsqd, clients):
    requests = [clients.submit(nsqd.asks, "GET", f"/channel/consume?{HERE}&wait=60s") for _ in range(5)]
    eventually(lambda: waiting(nsqd) == 5)
    nsqd.stop()
    for request in requests:
        answer = request.result(30)
        assert (answer.status, json.loads(answer.body)) in [(200, {"messages": []}), (503, {"message": "EXITING"})]


def test_with_an_auth_server_there_is_no_consuming_over_http(tmp_path):
    with NsqdProcess(installed_nsqd(), tmp_path, options=["--auth-http-address=127.0.0.1:1"]) as nsqd:
        assert nsqd.asks("GET", f"/channel/consume?{HERE}").status == 404
        assert nsqd.asks("POST", f"/message/finish?{HERE}&id={'0' * 16}").status == 404


# --- Streams of events ------------------------------------------------------------------------------------------------


def stream(nsqd: NsqdProcess, query: str = "max=10", channel: str = "archive") -> Events:
    return Events(nsqd, f"topic=orders&channel={channel}&{query}")


def finish(nsqd: NsqdProcess, *messages: dict[str, Any]) -> int:
    ids = "\n".join(each["id"] for each in messages).encode()
    return int(nsqd.asks("POST", f"/message/finish?{HERE}", ids).json()["finished"])


def test_a_client_of_server_sent_events_receives_what_is_published_and_finishes_it(patient):
    with stream(patient, "max=2") as events, connect(patient) as producer:
        for number in range(10):
            producer.publishes(b"%d\n\n\xff" % number, topic=b"orders")
            (message,) = events.take(1)
            assert bodies([message]) == [b"%d\n\n\xff" % number]
            assert finish(patient, message) == 1
        producer.publishes_together([b"%d" % number for number in range(5)], b"orders")
        first = events.take(2)
        assert patient.channel_stats("orders", "archive")["depth"] == 3
        assert finish(patient, *first) == 2
        assert bodies(events.take(2)) == [b"2", b"3"]


def test_a_stream_that_its_client_closes_leaves_its_messages_to_others(nsqd):
    with connect(nsqd) as producer, connect(nsqd) as consumer:
        producer.publishes(b"a", topic=b"orders")
        with stream(nsqd) as events:
            (message,) = events.take(1)
        eventually(lambda: not nsqd.channel_stats("orders", "archive")["clients"])
        consumer.subscribes(b"orders", b"archive", ready=1)
        (again,) = consumer.takes(1)
        assert (again.body, again.id.decode(), again.attempts) == (b"a", message["id"], 2)
        consumer.finishes([again])


def test_a_message_of_a_stream_that_was_closed_can_still_be_finished(patient):
    with connect(patient) as producer:
        producer.publishes(b"a", topic=b"orders")
    with stream(patient) as events:
        messages = events.take(1)
    eventually(lambda: not patient.channel_stats("orders", "archive")["clients"])
    assert finish(patient, *messages) == 1


def test_a_stop_ends_streams_in_order(patient, clients):
    streams = [stream(patient) for _ in range(5)]
    rests = [clients.submit(each.rest) for each in streams]
    assert patient.stop() == 0
    assert [rest.result(30) for rest in rests] == [[]] * 5


def test_a_drain_delivers_the_rest_to_streams_and_then_ends_them(patient):
    with connect(patient) as producer:
        producer.publishes_together([b"%d" % number for number in range(5)], b"orders")
    with stream(patient, "max=2") as events:
        messages = events.take(2)
        assert patient.asks("PUT", "/config/drain", b"true").status == 200
        for _ in range(3):
            assert finish(patient, messages.pop(0)) == 1
            messages += events.take(1)
        assert finish(patient, *messages) == 2
        assert events.rest() == []


def test_a_stream_is_closed_by_an_operator_and_with_its_channel(patient):
    with stream(patient) as events:
        (client,) = patient.channel_stats("orders", "archive")["clients"]
        assert patient.asks("POST", f"/client/close?{HERE}&address={client['remote_address']}").status == 200
        assert events.rest() == []
        assert patient.channel_stats("orders", "archive")["clients"] == []
    with stream(patient) as events:
        assert patient.asks("POST", f"/channel/delete?{HERE}").status == 200
        assert events.rest() == []


def test_a_client_that_does_not_read_gets_no_more_than_its_connection_holds(patient):
    with stream(patient, "max=200"), connect(patient) as producer, connect(patient) as consumer:
        for _ in range(6):
            producer.publishes_together([b"x" * 1_000_000] * 4, b"orders")
        consumer.subscribes(b"orders", b"archive", ready=10)
        consumer.finishes(consumer.takes(10))


def test_a_stream_over_tls(tmp_path):
    certificates = Certificates(tmp_path)
    data_path = tmp_path / "data"
    data_path.mkdir()
    with NsqdProcess(installed_nsqd(), data_path, options=certificates.options) as nsqd:
        nsqd.create_channel("orders", "archive")
        with Events(nsqd, HERE, verify=str(certificates.root_ca)) as events:
            assert nsqd.asks("POST", "/pub?topic=orders", b"a").status == 200
            assert bodies(events.take(1)) == [b"a"]


def test_of_many_requests_that_wait_for_a_message_only_some_are_woken(tmp_path: Path) -> None:
    options = NsqdOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", data_path=str(tmp_path))
    nsqd = Daemon(options)
    nsqd.start()
    messages: list[str] = []
    asked: list[bool] = []

    def wait() -> None:
        if nsqd.wait_until(lambda: bool(messages), 30):
            asked.append(True)
            messages.clear()

    try:
        requests = [gevent.spawn(wait) for _ in range(1000)]
        gevent.sleep(0)
        messages.append("hello")
        while messages:
            gevent.sleep(0.001)
        assert 0 < len(asked) <= 16
    finally:
        nsqd.stop()
    gevent.joinall(requests, raise_error=True)
