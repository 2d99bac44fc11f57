"""nsqlookupds, ours and in the test's process, over real sockets: registration, and channels of new topics."""

import errno
import json
import logging
import random
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from itertools import pairwise

import gevent
import gevent.socket
import pytest
from gevent.pool import Group

from nsq_compat.net.connection import Connection
from nsq_compat.net.sockets import listen, port_of
from nsq_compat.nsqd import lookup_peers
from nsq_compat.nsqd.daemon import Daemon
from nsq_compat.nsqd.http_calls import HttpCalls
from nsq_compat.nsqd.lookup_peers import LookupPeers, Peer, TopicChannels
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.protocol.lookup_commands import LookupdInfo, PeerInfo, reply
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import QueueLimits
from tests.nsqd.conftest import PATIENCE, StartNsqlookupd

OK = b"\0\0\0\6\0\0\0\0OK"
NOW_NS = 1_700_000_000_000_000_000
SHORT = 2.0
"""Seconds to wait for what never comes, while something else surely does."""
WaitUntil = Callable[[Callable[[], object]], None]
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
    peers = LookupPeers(broker, INFO)
    yield peers
    peers.stop()


def test_existing_and_changing_topics_are_registered_at_all_nsqlookupds(broker, peers, start, wait_until):
    one, two = start(), start()
    broker.topic("orders").channel("archive")
    peers.set_addresses([one.address, two.address, one.address])
    wait_until(lambda: one.registered == two.registered == {("orders", ""), ("orders", "archive")})
    assert [len(each.db.producers) for each in (one, two)] == [1, 1]
    broker.topic("returns")
    broker.topic("orders").delete_channel("archive")
    wait_until(lambda: one.registered == two.registered == {("orders", ""), ("returns", "")})
    broker.delete_topic("orders")
    wait_until(lambda: one.registered == two.registered == {("returns", "")})


@pytest.mark.interpreted  # it replaces a method of connections
@pytest.mark.parametrize("level", ["os", "fsync"])
def test_a_new_topic_is_registered_before_its_producer_receives_ok(start, wait_until, tmp_path, monkeypatch, level):
    sent: list[bytes] = []

    def send_now(self, data):
        sent.append(data)
        send(self, data)

    send = Connection._send_now
    monkeypatch.setattr(Connection, "_send_now", send_now)
    lookupd = start()
    options = NsqdOptions(data_path=str(tmp_path), durability=level, nsqlookupd_tcp_addresses=(lookupd.address,))
    options.tcp_address = options.http_address = "127.0.0.1:0"
    nsqd = Daemon(options)
    nsqd.start()
    try:
        wait_until(lambda: [each for each in nsqd._lookup_peers.peers if each.lookupd])
        with gevent.socket.create_connection(("127.0.0.1", nsqd.tcp_port)) as producer:
            producer.sendall(b"  V2")
            for topic in (b"one", b"two", b"three"):
                producer.sendall(b"PUB %b\n\0\0\0\1x" % topic)
                assert producer.recv(100) == OK
        with gevent.socket.create_connection(("127.0.0.1", nsqd.http_port)) as producer:
            producer.sendall(b"POST /pub?topic=four HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
            assert producer.recv(1000).endswith(b"OK")
    finally:
        nsqd.stop()
    told = [data for data in sent if data == OK or data.startswith(b"REGISTER") or data.endswith(b"\r\n\r\nOK")]
    answers = [data for data in told if not data.startswith(b"REGISTER")]
    assert len(answers) == 4
    for topic, answer in zip((b"one", b"two", b"three", b"four"), answers, strict=True):
        assert told.pop(0) == b"REGISTER %b\n" % topic
        assert told.pop(0) is answer


@pytest.mark.parametrize("scheme", ["", "tls://"])
@pytest.mark.parametrize("sick", [deaf, babbling, mute, None])
def test_a_failing_nsqlookupd_does_not_delay_others(broker, peers, start, wait_until, sick, scheme):
    well = start()
    with listen("127.0.0.1:0") as listener:
        address = f"127.0.0.1:{port_of(listener)}"
        clients = Group()
        if sick is None:
            listener.close()
        else:
            clients.spawn(accept_for_ever, listener, sick, clients)
        peers.set_addresses([scheme + address, well.address])
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
    peers.set_addresses([before.address])
    wait_until(lambda: before.registered)
    before.stop()
    broker.topic("returns")
    after = start(before.address)
    wait_until(lambda: after.registered == {("orders", ""), ("orders", "archive"), ("returns", "")})


def test_an_nsqlookupd_that_starts_late_is_found(broker, peers, start, wait_until):
    with listen("127.0.0.1:0") as listener:
        address = f"127.0.0.1:{port_of(listener)}"
    broker.topic("orders")
    peers.set_addresses([address])
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
    peers.set_addresses([stays.address, goes.address])
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
    peers.set_addresses([lookupd.address])
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
        peers.set_addresses([address])
        wait_until(lambda: caplog.text.count("connection refused") >= 3)
    said = [(record.levelname, record.message) for record in caplog.records if "refused" in record.message]
    assert said[0] == ("ERROR", f"LOOKUPD({address}): connecting - connection refused")
    assert {level for level, _ in said[1:]} == {"DEBUG"}


def test_a_suspected_nsqlookupd_is_pinged_at_once(broker, peers, start, wait_until):
    lookupd = start()
    peers.set_addresses([lookupd.address])
    wait_until(lambda: lookupd.db.producers)
    (producer,) = lookupd.db.producers
    heard_of = producer.last_update
    peers.peers[0].ping_now()
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
        peers.set_addresses([f"127.0.0.1:{port_of(listener)}"])
        wait_until(lambda: len(pauses) >= 8)
        peers.stop()
        clients.kill()
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_node_is_found_in_a_list_of_thousands_of_nodes(nsqd, web, start_with, wait_until):
    def producer(number: int) -> dict[str, object]:
        topics = [f"topic{each}" for each in range(100)]
        return {"broadcast_address": f"node{number}", "tcp_port": 4150, "topics": topics, "tombstones": [False] * 100}

    web.answer = json.dumps({"producers": [producer(number) for number in range(4000)]}).encode()
    assert len(web.answer) > 1 << 22
    calls = HttpCalls(connect_timeout=PATIENCE, request_timeout=PATIENCE, make_tls=ssl.create_default_context)
    nsqd.starts(start_with(web))
    wait_until(lambda: [each for each in nsqd.peers.peers if each.lookupd])
    assert nsqd.peers.lists("node3999", 4150, calls)
    assert not nsqd.peers.lists("node3999", 4151, calls)


# --- Channels of a new topic ------------------------------------------------------------------------------------------


class Nsqd:
    """As much of nsqd as there has to be; `patience` is how long an answer may take."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.broker = Broker(QueueLimits())
        self.peers = LookupPeers(self.broker, INFO)
        calls = HttpCalls(connect_timeout=PATIENCE, request_timeout=PATIENCE, make_tls=ssl.create_default_context)
        self.channels = TopicChannels(self.broker, self.peers, calls, patience)

    def starts(self, *addresses: str) -> "Nsqd":
        self.peers.set_addresses(addresses)
        self.channels.start()
        return self

    def publishes(self, name: str, body: bytes = b"x") -> Topic:
        topic = self.broker.topic(name)
        topic.publish([body], 0.0, NOW_NS)
        return topic

    def stop(self) -> None:
        self.channels.stop()
        self.peers.stop()


class Web(socketserver.ThreadingTCPServer):
    """The HTTP side of an nsqlookupd, which answers with `answer` once `gate` is open."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.daemon_threads = True
        self.gate = threading.Event()
        self.gate.set()
        self.status = 200
        self.answer = b'{"channels":[]}'
        self.asked: list[str] = []
        self.lookupd = LookupdInfo("127.0.0.1", "", self.server_address[1], 1, "1.3.0")


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.gate.wait(PATIENCE)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *args: object) -> None:
        """Not logged."""


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    nsqd = Nsqd()
    yield nsqd
    nsqd.stop()


@pytest.fixture
def impatient() -> Iterator[Nsqd]:
    nsqd = Nsqd(patience=SHORT)
    yield nsqd
    nsqd.stop()


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.gate.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def start_with(start: StartNsqlookupd, monkeypatch: pytest.MonkeyPatch) -> Callable[[Web], str]:
    """Start an nsqlookupd that names `web` as its HTTP side; its address."""

    def start_one(web: Web) -> str:
        lookupd = start()
        monkeypatch.setattr(lookupd, "info", web.lookupd)
        return lookupd.address

    return start_one


def test_the_first_messages_of_a_topic_reach_every_registered_channel(nsqd, start, wait_until):
    one, two = start(), start()
    one.db.create_channel("orders", "archive")
    two.db.create_channel("orders", "metrics")
    two.db.create_channel("orders", "tail#ephemeral")
    two.db.create_channel("returns", "another")
    nsqd.starts(one.address, two.address)
    topic = nsqd.publishes("orders")
    assert (topic.depth, topic.channels) == (1, {})
    wait_until(lambda: not topic.awaits_channels)
    assert {name: channel.depth for name, channel in topic.channels.items()} == {"archive": 1, "metrics": 1}
    wait_until(lambda: ("orders", "archive") in two.registered)


def test_a_channel_created_meanwhile_gets_them_too(nsqd, web, start_with, wait_until):
    web.gate.clear()
    nsqd.starts(start_with(web))
    topic = nsqd.publishes("orders")
    topic.channel("own")
    wait_until(lambda: web.asked)
    assert topic.awaits_channels
    assert topic.channels["own"].depth == 0
    web.answer = b'{"channels":["archive"]}'
    web.gate.set()
    wait_until(lambda: not topic.awaits_channels)
    assert {name: channel.depth for name, channel in topic.channels.items()} == {"archive": 1, "own": 1}


def test_names_are_escaped(nsqd, web, start_with, wait_until):
    nsqd.starts(start_with(web))
    nsqd.publishes("short#ephemeral")
    wait_until(lambda: web.asked == ["/channels?topic=short%23ephemeral"])


def test_without_an_nsqlookupd_a_topic_does_not_wait(nsqd):
    topic = nsqd.starts().publishes("orders")
    assert not topic.awaits_channels


def test_an_nsqlookupd_that_is_down_is_not_waited_for(nsqd, start, wait_until, caplog):
    with listen("127.0.0.1:0") as listener:
        away = f"127.0.0.1:{port_of(listener)}"
    nsqd.starts(away)
    topic = nsqd.publishes("orders")
    wait_until(lambda: not topic.awaits_channels)
    assert "no available nsqlookupd to query for channels to pre-create for topic orders" in caplog.text


def test_a_slow_nsqlookupd_delays_the_topic_and_other_answers_count(
    impatient, start, web, start_with, wait_until, caplog
):
    well, slow = start(), start_with(web)
    well.db.create_channel("orders", "archive")
    web.gate.clear()
    impatient.starts(slow, well.address)
    topic = impatient.publishes("orders")
    wait_until(lambda: not topic.awaits_channels)
    assert {name: channel.depth for name, channel in topic.channels.items()} == {"archive": 1}
    reason = f"{slow}: no answer in time"
    assert f"failed to query nsqlookupd for channels to pre-create for topic orders - {reason}" in caplog.text


def test_a_slow_nsqlookupd_is_skipped_for_a_while(impatient, web, start_with, wait_until, monkeypatch):
    monkeypatch.setattr(lookup_peers, "SKIP_SECONDS", PATIENCE)
    web.gate.clear()
    impatient.starts(start_with(web))
    first = impatient.publishes("first")
    wait_until(lambda: not first.awaits_channels)
    second = impatient.publishes("second")
    wait_until(lambda: not second.awaits_channels)
    assert "/channels?topic=second" not in web.asked


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (500, b"", "answered with status 500"),
        (200, b"[]", "not a list of channels"),
        (200, b'{"channels":{}}', "not a list of channels"),
        (200, b"\xff", "not a list of channels"),
    ],
)
def test_a_wrong_answer_creates_no_channel(nsqd, web, start_with, wait_until, caplog, status, answer, reason):
    web.status, web.answer = status, answer
    nsqd.starts(start_with(web))
    topic = nsqd.publishes("orders")
    wait_until(lambda: not topic.awaits_channels)
    assert topic.channels == {}
    assert reason in caplog.text


def test_a_name_that_is_not_legal_is_skipped(nsqd, web, start_with, wait_until, caplog):
    web.answer = b'{"channels":["good","b a d",""]}'
    nsqd.starts(start_with(web))
    topic = nsqd.publishes("orders")
    wait_until(lambda: not topic.awaits_channels)
    assert list(topic.channels) == ["good"]
    assert "skipping creation of invalid channel b a d" in caplog.text


def test_thousands_of_channels_are_created_a_few_at_a_time_up_to_a_limit(nsqd, web, start_with, wait_until, caplog):
    names = [f"c{number}" for number in range(lookup_peers.MAX_LEARNED_CHANNELS + 500)]
    web.answer = json.dumps({"channels": names}).encode()
    nsqd.starts(start_with(web))
    topic = nsqd.publishes("orders")
    counts = [0]
    iterations = gevent.get_hub().loop.prepare()
    iterations.start(lambda: counts.append(len(topic.channels)))
    wait_until(lambda: not topic.awaits_channels)
    iterations.stop()
    iterations.close()
    assert list(topic.channels) == sorted(names[: lookup_peers.MAX_LEARNED_CHANNELS])
    assert topic.channels["c0"].depth == 1
    # Some in each iteration, and those of 10 ms where other work makes it long.
    assert max(after - before for before, after in pairwise(counts)) < len(names) // 2
    assert f"an nsqlookupd names {len(names)} channels for topic orders, of which the first" in caplog.text


def test_names_that_are_not_legal_are_logged_a_few_times(nsqd, web, start_with, wait_until, caplog):
    web.answer = json.dumps({"channels": ["b a d"] * 1000}).encode()
    nsqd.starts(start_with(web))
    topic = nsqd.publishes("orders")
    wait_until(lambda: not topic.awaits_channels)
    assert caplog.text.count("skipping creation of invalid channel") == 10


def test_a_topic_that_is_deleted_meanwhile_is_forgotten(nsqd, web, start_with, wait_until):
    web.gate.clear()
    nsqd.starts(start_with(web))
    nsqd.publishes("orders")
    wait_until(lambda: web.asked)
    nsqd.broker.delete_topic("orders")
    again = nsqd.publishes("orders")
    web.answer = b'{"channels":["archive"]}'
    web.gate.set()
    wait_until(lambda: not again.awaits_channels)
    assert again.channels["archive"].depth == 1


def test_a_failed_write_is_repeated(nsqd, start, wait_until, monkeypatch, caplog):
    monkeypatch.setattr(lookup_peers, "RETRY_SECONDS", 0.01)
    lookupd = start()
    lookupd.db.create_channel("orders", "archive")
    learn = Topic.learn_channels
    refused: list[Topic] = []

    def full_at_first(topic: Topic) -> None:
        if len(refused) < 3:
            refused.append(topic)
            raise OSError(errno.ENOSPC, "No space left on device")
        learn(topic)

    monkeypatch.setattr(Topic, "learn_channels", full_at_first)
    topic = nsqd.starts(lookupd.address).publishes("orders")
    wait_until(lambda: not topic.awaits_channels)
    assert topic.channels["archive"].depth == 1
    assert "TOPIC(orders): cannot create its channels - " in caplog.text


def test_a_topic_that_waited_when_the_last_process_ended_is_asked_for_again(nsqd, start, wait_until):
    lookupd = start()
    lookupd.db.create_channel("orders", "archive")
    topic = nsqd.broker.topic("orders")
    topic.await_channels()
    topic.publish([b"x"], 0.0, NOW_NS)
    nsqd.starts(lookupd.address)
    wait_until(lambda: not topic.awaits_channels)
    assert topic.channels["archive"].depth == 1


def test_without_nsqlookupds_a_waiting_topic_continues_after_a_restart(nsqd, wait_until):
    topic = nsqd.broker.topic("orders")
    topic.await_channels()
    nsqd.starts()
    wait_until(lambda: not topic.awaits_channels)


def test_an_nsqlookupd_whose_answers_fail_is_pinged(nsqd, web, start_with, wait_until, monkeypatch):
    suspected: list[Peer] = []
    monkeypatch.setattr(Peer, "ping_now", lambda peer: suspected.append(peer))
    web.status = 500
    nsqd.starts(start_with(web))
    nsqd.publishes("orders")
    wait_until(lambda: suspected == nsqd.peers.peers)


def test_an_internal_error_does_not_keep_a_topic_waiting(nsqd, start, wait_until, monkeypatch, caplog):
    def fail(*_: object) -> str:
        raise RuntimeError("a bug")

    monkeypatch.setattr(lookup_peers, "_base_url", fail)
    topic = nsqd.starts(start().address).publishes("orders")
    wait_until(lambda: not topic.awaits_channels)
    assert "a bug" in caplog.text


def test_a_stop_leaves_a_topic_waiting_for_the_next_start(nsqd, web, start_with, wait_until, caplog):
    web.gate.clear()
    nsqd.starts(start_with(web))
    topic = nsqd.publishes("orders")
    wait_until(lambda: web.asked)
    with caplog.at_level(logging.DEBUG):
        nsqd.channels.stop()
    assert topic.awaits_channels
