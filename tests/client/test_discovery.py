import json

import pytest

from nsq_compat.bounded_http import FAILURES
from nsq_compat.client.discovery import MAX_NODES, Discovery, Listing, ask, lookup_url
from nsq_compat.client.settings import SubscriptionSettings
from tests.cluster.hostile import (
    DEADLINE,
    DRIPPING,
    HostileServer,
    dripping_redirects,
    redirecting,
    redirecting_with_endless_body,
)

NOWHERE = "127.0.0.1:1"


def settings(interval: float = 60, **options: float) -> SubscriptionSettings:
    return SubscriptionSettings(lookupd_poll_interval=interval, **options)  # type: ignore[arg-type]


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
    assert ask(lookupd.address, "orders", settings()).nodes == {"one.example:4150", "127.0.0.2:4250"}
    assert lookupd.asked == ["orders"]


def test_an_unknown_topic_has_no_nodes(lookupd):
    lookupd.reply = (404, b'{"message":"TOPIC_NOT_FOUND"}')
    assert ask(lookupd.address, "t", settings()).nodes == set()


def test_the_envelope_of_old_versions_is_understood(lookupd):
    producers = [{"broadcast_address": "h", "tcp_port": 1}]
    lookupd.reply = (200, json.dumps({"status_code": 200, "data": {"producers": producers}}).encode())
    assert ask(lookupd.address, "t", settings()).nodes == {"h:1"}


@pytest.mark.parametrize(
    "reply",
    [
        (500, b"{}"),
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (200, b"[]"),
        (200, b'{"producers": 3}'),
        (200, b'{"producers": null}'),
        (200, b"\xff"),
    ],
)
def test_an_invalid_response_is_a_failure(lookupd, reply):
    lookupd.reply = reply
    with pytest.raises(FAILURES):
        ask(lookupd.address, "t", settings())


def test_an_invalid_producer_does_not_hide_the_others(lookupd):
    lies = [None, {}, {"broadcast_address": "h"}, {"broadcast_address": "", "tcp_port": 1}, {"tcp_port": "x"}]
    lookupd.reply = (200, json.dumps({"producers": [*lies, {"broadcast_address": "h", "tcp_port": 1}]}).encode())
    assert ask(lookupd.address, "t", settings()).nodes == {"h:1"}


def nodes(*addresses: str) -> Listing:
    return Listing(set(addresses))


def test_the_union_of_all_responses_is_found():
    discovery = Discovery("t", ["one", "other", "one"], settings())
    assert discovery.poll(0) == ["one", "other"]
    assert discovery.responded("one", nodes("a:1", "b:1"), 0) == {"a:1", "b:1"}
    assert discovery.responded("other", nodes("b:1", "c:1"), 0) == {"a:1", "b:1", "c:1"}
    assert discovery.responded("one", nodes(), 0) == {"b:1", "c:1"}


def test_after_a_failure_nodes_that_only_this_nsqlookupd_listed_are_no_longer_known():
    discovery = Discovery("t", ["one", "other"], settings())
    discovery.responded("one", nodes("a:1"), 0)
    assert discovery.responded("one", None, 0) == set()
    assert discovery.responded("other", nodes("b:1"), 0) == {"b:1"}


def test_an_nsqlookupd_is_not_queried_again_before_it_responds():
    discovery = Discovery("t", ["slow", "other"], settings())
    discovery.querying.add("slow")
    assert discovery.poll(0) == ["other"]
    discovery.responded("slow", None, 0)
    assert discovery.poll(100) == ["other", "slow"]


def test_the_interval_grows_by_a_random_share_of_itself():
    discovery, waits = Discovery("t", [NOWHERE], settings(100, lookupd_poll_jitter=0.3)), []
    for _ in range(200):
        now = discovery.due
        discovery.poll(now)
        waits.append(discovery.due - now)
    assert 100 <= min(waits) < 105
    assert 125 < max(waits) <= 130


def delays(discovery, *listings):
    """The seconds from each poll to the next one."""
    now, found = 1000.0, []
    for listing in listings:
        (address,) = discovery.poll(now)
        discovery.responded(address, listing, now)
        found.append(discovery.due - now)
        now = discovery.due
    return found


def test_while_no_nsqd_has_the_topic_the_polls_begin_close_together(caplog):
    discovery = Discovery("t", ["h:4161"], settings(10, lookupd_poll_jitter=0))
    found = delays(discovery, *[nodes()] * 6, nodes("a:1"), nodes("a:1"), nodes(), nodes())
    assert found == [1, 2, 4, 3, 10, 10, 10, 10, 1, 2]
    assert caplog.messages == ["[t] nsqlookupd h:4161: no nsqd has this topic yet, asking again"] * 2


def test_a_failed_nsqlookupd_is_queried_at_the_usual_interval_while_others_know_no_node():
    discovery = Discovery("t", ["down", "empty"], settings(10, lookupd_poll_jitter=0))
    polls = []
    for _ in range(6):
        polls.append((discovery.due, discovery.poll(discovery.due)))
        for address in polls[-1][1]:
            discovery.responded(address, nodes() if address == "empty" else None, polls[-1][0])
    assert [polled for _, polled in polls] == [["down", "empty"], *[["empty"]] * 3, *[["down", "empty"]] * 2]
    assert [due for due, _ in polls] == [0, 1, 3, 7, 10, 20]
    assert discovery.poll(21) == ["empty"]
    discovery.poll_all()
    assert discovery.poll(22) == ["down", "empty"]


def test_failures_do_not_make_polls_more_frequent_while_nodes_are_known():
    discovery = Discovery("t", ["h:4161"], settings(10, lookupd_poll_jitter=0))
    assert delays(discovery, nodes("a:1"), None, nodes("a:1")) == [10, 10, 10]


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
    nodes, (skipped,) = ask(lookupd.address, "t", settings())
    assert nodes == {"[::1]:4150"}
    assert skipped.startswith('nsqd "web3": invalid ')
    assert skipped.isprintable()


def test_an_invalid_registration_is_logged_when_it_appears_and_not_with_every_poll(caplog):
    bad = Listing(set(), tuple(f'nsqd "{number}": invalid broadcast address "a b"' for number in range(1, 10)))
    discovery = Discovery("t", ["h:4161"], settings())
    for listing in (bad, bad, None, bad):
        discovery.responded("h:4161", listing, 0)
    assert len(caplog.messages) == 6
    assert caplog.messages[0] == (
        '[t] nsqlookupd h:4161: skipped the registration of nsqd "1": invalid broadcast address "a b"'
    )
    assert caplog.messages[-1].endswith("skipped 4 more")


@pytest.mark.parametrize("answer", [*DRIPPING, dripping_redirects])
def test_a_response_sent_slowly_is_given_up_at_the_deadline(answer):
    with HostileServer(answer) as server, pytest.raises(FAILURES, match="timed out"):
        ask(server.address, "t", settings(lookupd_request_timeout=DEADLINE))


@pytest.mark.parametrize("answer", [redirecting, redirecting_with_endless_body])
def test_redirects_in_a_loop_are_followed_ten_times_and_their_bodies_not_read(answer):
    with HostileServer(answer) as server:
        with pytest.raises(FAILURES, match="Exceeded 10 redirects"):
            ask(server.address, "t", settings(lookupd_request_timeout=20))
        assert server.requests == 11


def test_the_number_of_nsqd_at_one_nsqlookupd_is_limited(lookupd):
    lookupd.addresses = [f"h:{port}" for port in range(1, MAX_NODES + 3)]
    listing = ask(lookupd.address, "t", settings())
    assert len(listing.nodes) == MAX_NODES
    assert listing.skipped == ("2 of 1002 nsqd: a client connects to 1000 at most",)


def test_of_an_answer_with_a_million_registrations_ten_thousand_are_read(lookupd):
    lookupd.reply = (200, b'{"producers":[' + b"{}," * 1_000_000 + b"{}]}")
    listing = ask(lookupd.address, "t", settings(lookupd_request_timeout=20))
    assert len(listing.skipped) == 10_001
    assert listing.skipped[-1] == "990001 of 1000001 nsqd: so many are not read"


def test_an_answer_of_more_than_four_megabytes_is_refused(lookupd):
    lookupd.reply = (200, b" " * ((4 << 20) + 1))
    with pytest.raises(FAILURES, match="the answer is larger than 4194304 bytes"):
        ask(lookupd.address, "t", settings(lookupd_request_timeout=20))
