import json
import socket
import threading

import pytest

from nsq_compat.client.discovery import Discovery, LookupFailed, ask, lookup_url
from nsq_compat.client.settings import SubscriptionSettings
from tests.client.fake_lookupd import FakeLookupd
from tests.client.waiting import wait_until
from tests.cluster.hostile import (
    DEADLINE,
    DRIPPING,
    HostileServer,
    dripping_handshake,
    dripping_redirects,
    endless_headers,
    redirecting,
    redirecting_with_endless_body,
)

NOWHERE = "127.0.0.1:1"


class Found:
    """Records each result of a discovery."""

    def __init__(self) -> None:
        self.times: list[set[str]] = []

    def __call__(self, addresses: set[str]) -> None:
        self.times.append(addresses)


def settings(interval: float = 60, **options: float) -> SubscriptionSettings:
    return SubscriptionSettings(lookupd_poll_interval=interval, **options)  # type: ignore[arg-type]


@pytest.fixture
def found() -> Found:
    return Found()


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("host:4161", "http://host:4161/lookup?topic=t%23ephemeral"),
        ("http://host:4161", "http://host:4161/lookup?topic=t%23ephemeral"),
        ("https://host:4161/", "https://host:4161/lookup?topic=t%23ephemeral"),
        ("http://host/behind/a/proxy?zone=a", "http://host/behind/a/proxy?zone=a&topic=t%23ephemeral"),
    ],
)
def test_the_url_of_a_lookup(address, url):
    assert lookup_url(address, "t#ephemeral") == url


def test_a_lookup_returns_the_nsqd_of_a_topic(lookupd):
    lookupd.addresses = ["one.example:4150", "127.0.0.2:4250"]
    assert ask(lookupd.address, "orders").nodes == {"one.example:4150", "127.0.0.2:4250"}
    assert lookupd.asked == ["orders"]


def test_an_unknown_topic_has_no_nodes(lookupd):
    lookupd.reply = (404, b'{"message":"TOPIC_NOT_FOUND"}')
    assert ask(lookupd.address, "t").nodes == set()


def test_the_envelope_of_old_versions_is_understood(lookupd):
    producers = [{"broadcast_address": "h", "tcp_port": 1}]
    lookupd.reply = (200, json.dumps({"status_code": 200, "data": {"producers": producers}}).encode())
    assert ask(lookupd.address, "t").nodes == {"h:1"}


@pytest.mark.parametrize(
    "reply",
    [
        (500, b"{}"),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b'{"producers": 3}'),
        (200, b'{"producers": null}'),
        (200, b"\xff"),
    ],
)
def test_an_invalid_response_is_a_failure(lookupd, reply):
    lookupd.reply = reply
    with pytest.raises(LookupFailed, match=lookupd.address):
        ask(lookupd.address, "t")


def test_an_invalid_producer_does_not_hide_the_others(lookupd):
    lies = [None, {}, {"broadcast_address": "h"}, {"broadcast_address": "", "tcp_port": 1}, {"tcp_port": "x"}]
    lookupd.reply = (200, json.dumps({"producers": [*lies, {"broadcast_address": "h", "tcp_port": 1}]}).encode())
    assert ask(lookupd.address, "t").nodes == {"h:1"}


def test_a_slowly_sent_response_is_given_up_in_time():
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.recv(1 << 16)
                connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not over.wait(0.01):
                    connected.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(LookupFailed, match="too long"):
            ask(f"127.0.0.1:{listener.getsockname()[1]}", "t", request_timeout=0.2)
        over.set()
        thread.join()


def test_the_union_of_all_responses_is_found_although_one_nsqlookupd_is_down(lookupd, found):
    other = FakeLookupd()
    lookupd.addresses, other.addresses = ["a:1", "b:1"], ["b:1", "c:1"]
    discovery = Discovery("t", [NOWHERE, lookupd.address, other.address], found, settings())
    discovery.start()
    wait_until(lambda: {"a:1", "b:1", "c:1"} in found.times)
    discovery.stop()
    other.close()


def test_a_slow_nsqlookupd_delays_no_other_and_is_not_queried_again_before_it_responds(lookupd, found):
    slow = FakeLookupd()
    slow.held = True
    slow.addresses, lookupd.addresses = ["slow:1"], ["a:1"]
    discovery = Discovery("t", [slow.address, lookupd.address], found, settings(0.01, lookupd_request_timeout=30))
    discovery.start()
    wait_until(lambda: len(found.times) > 5)
    assert slow.asked == ["t"]
    assert {"a:1"} in found.times
    slow.release()
    wait_until(lambda: {"a:1", "slow:1"} in found.times)
    discovery.stop()
    slow.close()


def test_polling_continues_and_finds_new_nodes(lookupd, found):
    discovery = Discovery("t", [lookupd.address], found, settings(0.01))
    discovery.start()
    wait_until(lambda: found.times)
    lookupd.addresses = ["new:1"]
    wait_until(lambda: found.times[-1] == {"new:1"})
    lookupd.addresses = []
    wait_until(lambda: found.times[-1] == set())
    discovery.stop()


def test_a_poll_can_be_requested(lookupd, found):
    discovery = Discovery("t", [lookupd.address], found, settings(3600))
    discovery.start()
    wait_until(lambda: found.times)
    discovery.poll_now()
    wait_until(lambda: len(found.times) == 2)
    discovery.stop()


def test_the_interval_grows_by_a_random_share_of_itself(found):
    discovery = Discovery("t", [NOWHERE], found, settings(100, lookupd_poll_jitter=0.3))
    waits = [discovery.next_interval() for _ in range(200)]
    assert 100 <= min(waits) < 105
    assert 125 < max(waits) <= 130


@pytest.mark.parametrize(
    "fields",
    [
        *(
            {"broadcast_address": host}
            for host in ("a b", "u:p@host", "host/x?", "", "x" * 300, "\u00fc", "a\nb", "[::1", None)
        ),
        *({"tcp_port": port} for port in (0, 99999, -1, "4150", True, None)),
    ],
)
def test_an_invalid_registration_is_skipped_and_named(lookupd, fields):
    bad = {"broadcast_address": "h", "tcp_port": 1, "hostname": "web3", **fields}
    good = {"broadcast_address": "::1", "tcp_port": 4150}
    lookupd.reply = (200, json.dumps({"producers": [bad, good]}).encode())
    nodes, (skipped,) = ask(lookupd.address, "t")
    assert nodes == {"[::1]:4150"}
    assert skipped.startswith('nsqd "web3": invalid ')
    assert skipped.isprintable()


def test_an_invalid_registration_is_logged_when_it_appears_and_not_with_every_poll(lookupd, found, caplog):
    bad = [{"broadcast_address": "a b", "tcp_port": number, "hostname": str(number)} for number in range(1, 10)]
    lookupd.reply = (200, json.dumps({"producers": bad}).encode())
    discovery = Discovery("t", [lookupd.address], found, settings(0.01))
    discovery.start()
    wait_until(lambda: len(found.times) > 5)
    discovery.stop()
    lines = [line for line in caplog.messages if "skipped" in line]
    assert len(lines) == 6
    assert (
        lines[0]
        == f'[t] nsqlookupd {lookupd.address}: skipped the registration of nsqd "1": invalid broadcast address "a b"'
    )
    assert lines[-1].endswith("skipped 4 more")


@pytest.mark.parametrize("answer", [*DRIPPING, dripping_redirects])
def test_a_response_sent_slowly_is_given_up_at_the_deadline(answer):
    with HostileServer(answer) as server, pytest.raises(LookupFailed, match="takes too long"):
        ask(server.address, "t", request_timeout=DEADLINE)


def test_a_slow_tls_handshake_is_given_up_at_the_deadline():
    with HostileServer(dripping_handshake) as server, pytest.raises(LookupFailed, match="takes too long"):
        ask(f"https://{server.address}", "t", request_timeout=DEADLINE)


@pytest.mark.parametrize("answer", [redirecting, redirecting_with_endless_body])
def test_redirects_in_a_loop_are_followed_ten_times_and_their_bodies_not_read(answer):
    with HostileServer(answer) as server:
        with pytest.raises(LookupFailed, match="Exceeded 10 redirects"):
            ask(server.address, "t", request_timeout=20)
        assert server.requests == 11


def test_the_number_of_headers_is_limited():
    with HostileServer(endless_headers) as server, pytest.raises(LookupFailed, match="got more than 100 headers"):
        ask(server.address, "t", request_timeout=20)
