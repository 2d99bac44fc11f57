"""Registration with several nsqlookupds at once, over real sockets; the other end is ours, in the test's process."""

import logging
import random
from collections.abc import Iterator
from contextlib import ExitStack

import gevent
import gevent.socket
import pytest
from gevent.pool import Group

from nsq_compat.net.sockets import listen, port_of
from nsq_compat.nsqd.lookup_peers import LookupPeers
from nsq_compat.protocol.lookup_commands import PeerInfo, reply
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.limits import QueueLimits

PATIENCE = 30.0
INFO = PeerInfo("127.0.0.1", "host", 4151, 4150, "", "", "1.3.0")


def deaf(client: gevent.socket.socket) -> None:
    gevent.sleep(PATIENCE)


def babbling(client: gevent.socket.socket) -> None:
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def mute(client: gevent.socket.socket) -> None:
    """Says nothing at all."""


@pytest.fixture
def broker() -> Broker:
    return Broker(QueueLimits())


@pytest.fixture
def peers(broker: Broker) -> Iterator[LookupPeers]:
    peers = LookupPeers(broker, INFO, 1000)
    yield peers
    peers.stop()


def test_existing_and_changing_topics_are_registered_at_all_nsqlookupds(broker, peers, start, wait_until):
    one, two = start(), start()
    broker.topic("orders").channel("archive")
    peers.start([one.address, two.address, one.address])
    wait_until(lambda: one.registered == two.registered == {("orders", ""), ("orders", "archive")})
    assert [len(each.db.producers) for each in (one, two)] == [1, 1]
    broker.topic("returns")
    broker.topic("orders").delete_channel("archive")
    wait_until(lambda: one.registered == two.registered == {("orders", ""), ("returns", "")})
    broker.delete_topic("orders")
    wait_until(lambda: one.registered == two.registered == {("returns", "")})


@pytest.mark.parametrize("sick", [deaf, babbling, mute, None])
def test_a_failing_nsqlookupd_does_not_delay_others(broker, peers, start, wait_until, sick):
    well = start()
    with listen("127.0.0.1:0") as listener:
        address = f"127.0.0.1:{port_of(listener)}"
        clients = Group()
        if sick is None:
            listener.close()
        else:
            clients.spawn(accept_for_ever, listener, sick, clients)
        peers.start([address, well.address])
        for number in range(20):
            broker.topic(f"topic{number}")
            wait_until(lambda: len(well.registered) == len(broker.topics))
        clients.kill()


def accept_for_ever(listener, serve, clients):
    def serve_and_close(client):
        with client:
            serve(client)

    with ExitStack() as closing:  # also connections that are not served yet
        accepting = closing.enter_context(gevent.socket.socket(fileno=listener.dup().detach()))
        accepting.settimeout(None)
        while True:
            clients.spawn(serve_and_close, closing.enter_context(accepting.accept()[0]))


def test_an_nsqlookupd_that_returns_is_told_everything(broker, peers, start, wait_until):
    before = start()
    broker.topic("orders").channel("archive")
    peers.start([before.address])
    wait_until(lambda: before.registered)
    before.stop()
    broker.topic("returns")
    after = start(before.address)
    wait_until(lambda: after.registered == {("orders", ""), ("orders", "archive"), ("returns", "")})


def test_an_nsqlookupd_that_starts_late_is_found(broker, peers, start, wait_until):
    with listen("127.0.0.1:0") as listener:
        address = f"127.0.0.1:{port_of(listener)}"
    broker.topic("orders")
    peers.start([address])
    (peer,) = peers.peers
    assert peer.was_tried.wait(PATIENCE)
    early = peer.lookupd
    late = start(address)
    wait_until(lambda: late.registered == {("orders", "")})
    assert early is None
    assert peer.lookupd is not None
    assert peer.lookupd.broadcast_address == "127.0.0.1"


def test_addresses_can_change_without_affecting_those_that_stay(broker, peers, start, wait_until, caplog):
    stays, goes, comes = start(), start(), start()
    broker.topic("orders")
    peers.start([stays.address, goes.address])
    wait_until(lambda: stays.registered and goes.registered)
    (producer,) = stays.db.producers
    with caplog.at_level(logging.INFO):
        peers.set_addresses([comes.address, stays.address])
    wait_until(lambda: comes.registered and not goes.registered)
    assert list(stays.db.producers) == [producer]
    said = [record.message for record in caplog.records if record.message.startswith("LOOKUP(")]
    assert said == [f"LOOKUP({comes.address}): adding peer", f"LOOKUP({goes.address}): removing peer"]


def test_after_a_stop_no_registration_is_left(broker, peers, start, wait_until, caplog):
    lookupd = start()
    broker.topic("orders")
    peers.start([lookupd.address])
    wait_until(lambda: lookupd.registered)
    with caplog.at_level(logging.INFO):
        peers.stop()
    wait_until(lambda: not lookupd.db.producers)
    assert "LOOKUP: closing" in caplog.text
    assert peers.peers == []


def test_the_same_failure_is_logged_once(broker, peers, start, wait_until, caplog):
    with listen("127.0.0.1:0") as listener:
        address = f"127.0.0.1:{port_of(listener)}"
    with caplog.at_level(logging.DEBUG):
        peers.start([address])
        wait_until(lambda: caplog.text.count("connection refused") >= 3)
    said = [(record.levelname, record.message) for record in caplog.records if "refused" in record.message]
    assert said[0] == ("ERROR", f"LOOKUPD({address}): connecting - connection refused")
    assert {level for level, _ in said[1:]} == {"DEBUG"}


def test_a_suspected_nsqlookupd_is_pinged_at_once(broker, peers, start, wait_until):
    lookupd = start()
    peers.start([lookupd.address])
    wait_until(lambda: lookupd.db.producers)
    (producer,) = lookupd.db.producers
    heard_of = producer.last_update
    peers.suspect(peers.peers[0])
    wait_until(lambda: producer.last_update > heard_of)


def test_an_nsqlookupd_that_keeps_closing_is_connected_to_less_often(broker, peers, wait_until, monkeypatch):
    pauses: list[float] = []

    def no_chance(low: float, high: float) -> float:
        (peer,) = peers.peers
        pauses.append(peer._pause)
        return 0.0

    def takes_everything_and_leaves(client: gevent.socket.socket) -> None:
        for answer in (b"{}", b"OK"):
            assert client.recv(1000)
            client.sendall(reply(answer))

    monkeypatch.setattr(random, "uniform", no_chance)
    broker.topic("orders")
    clients = Group()
    with listen("127.0.0.1:0") as listener:
        clients.spawn(accept_for_ever, listener, takes_everything_and_leaves, clients)
        peers.start([f"127.0.0.1:{port_of(listener)}"])
        wait_until(lambda: len(pauses) >= 8)
        peers.stop()
        clients.kill()
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
