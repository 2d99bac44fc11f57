"""nsqlookupd's HTTP API, called as the server calls it."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event
from prometheus_client.parser import text_string_to_metric_families

from nsq_compat.net.event_loop import MAX_TURNS
from nsq_compat.protocol.lookup_commands import PeerInfo
from nsq_compat.registry.registration_db import Producer, RegistrationDb
from nsq_compat.registry.registration_policy import RegistrationPolicy
from nsq_compat.session.http_message import BodyStream, Request, Response
from nsq_compat.web.application import MIN_PIECE_BYTES
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi

V1 = ("X-Nsq-Content-Type", "nsq; version=1.0")
JSON = ("Content-Type", "application/json; charset=utf-8")
WALL_NS = 1_700_000_000_000_000_000


class Nsqlookupd:
    """An API with its database. The test sets `moment`, monotonic seconds."""

    def __init__(self) -> None:
        self.db = RegistrationDb(300.0, 45.0)
        self.policy = RegistrationPolicy()
        self.moment = 1000.0
        metrics = Metrics("nsqlookupd")
        self._api = NsqlookupdApi(self.db, metrics, self.policy, now=lambda: self.moment, now_ns=lambda: WALL_NS)

    def joins(self, host: str, *topics: str) -> Producer:
        """An nsqd with topics, or channels as ``topic:channel``."""
        info = PeerInfo(host, "host1", 4151, 4150, "r", "z", "1.3.0")
        producer = self.db.identify(f"127.0.0.1:{5000 + len(self.db.producers)}", info, self.moment, WALL_NS)
        for name in topics:
            topic, _, channel = name.partition(":")
            self.db.register(producer, topic, channel)
        return producer

    def call(self, method: str, target: str) -> Response:
        path, _, query = target.partition("?")
        return self._api.respond(Request(method, target.encode(), path, query.encode(), {}, b"", "127.0.0.1:50000"))

    def get(self, target: str) -> Any:
        """The JSON of a successful answer."""
        response = self.call("GET", target)
        assert (response.status, response.headers) == (200, (JSON, V1))
        return json.loads(body_of(response))

    def post(self, target: str) -> Response:
        return self.call("POST", target)


def body_of(response: Response) -> bytes:
    """All of it."""
    if response.stream is None:
        return response.body + b"".join(response.rest)
    return b"".join(pieces_of(response.stream))


def pieces_of(stream: BodyStream) -> Iterator[bytes]:
    """Those of a stream that is read at once."""
    woken = Event()
    stream.start(woken.set)
    while not stream.is_over:
        assert woken.wait(20), "nothing asks for more"
        woken.clear()
        if piece := stream.data_to_send(0.0):
            yield piece


@pytest.fixture
def nsqlookupd() -> Nsqlookupd:
    return Nsqlookupd()


def of(host: str, port: int) -> dict[str, object]:
    return {
        "remote_address": f"127.0.0.1:{port}",
        "hostname": "host1",
        "broadcast_address": host,
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        "topology_zone": "z",
        "topology_region": "r",
    }


# --- Lookups ----------------------------------------------------------------------------------------------------------


def test_ping_is_plain_and_info_is_json(nsqlookupd):
    ping = nsqlookupd.call("GET", "/ping")
    assert (ping.status, ping.body, ping.headers) == (200, b"OK", (("Content-Type", "text/plain; charset=utf-8"),))
    assert nsqlookupd.call("GET", "/info").body.startswith(b'{"version":"1.3.0","nsq_compat":{"version":')


def test_a_lookup_has_channels_and_producers(nsqlookupd):
    nsqlookupd.joins("n1", "orders:archive", "orders:billing")
    nsqlookupd.joins("n2", "orders", "other")
    body = nsqlookupd.call("GET", "/lookup?topic=orders").body
    assert body.startswith(b'{"channels":["archive","billing"],"producers":[{"remote_address":"127.0.0.1:5000",')
    assert json.loads(body)["producers"] == [of("n1", 5000), of("n2", 5001)]


def test_lists_are_never_null(nsqlookupd):
    assert nsqlookupd.get("/topics") == {"topics": []}
    assert nsqlookupd.get("/channels?topic=t") == {"channels": []}
    assert nsqlookupd.get("/nodes") == {"producers": []}
    assert nsqlookupd.get("/debug") == {}
    nsqlookupd.post("/topic/create?topic=t")
    assert nsqlookupd.get("/lookup?topic=t") == {"channels": [], "producers": []}


def test_topics_and_channels_are_listed(nsqlookupd):
    nsqlookupd.joins("n1", "t:c", "t:d", "u#ephemeral")
    assert nsqlookupd.get("/topics") == {"topics": ["t", "u#ephemeral"]}
    assert nsqlookupd.get("/channels?topic=t") == {"channels": ["c", "d"]}
    assert nsqlookupd.get("/channels?topic=u%23ephemeral") == {"channels": []}


def test_nodes_have_their_topics_and_tombstones(nsqlookupd):
    nsqlookupd.joins("n1", "t:c", "u")
    nsqlookupd.joins("n2")
    assert nsqlookupd.get("/nodes")["producers"][0]["tombstones"] == [False, False]
    nsqlookupd.post("/topic/tombstone?topic=u&node=n1:4151")
    assert nsqlookupd.get("/nodes")["producers"] == [
        of("n1", 5000) | {"tombstones": [False, True], "topics": ["t", "u"]},
        of("n2", 5001) | {"tombstones": [], "topics": []},
    ]
    nsqlookupd.moment += 45
    assert nsqlookupd.get("/nodes")["producers"][0]["tombstones"] == [False, False]


def test_inactive_and_tombstoned_nodes_are_left_out(nsqlookupd):
    nsqlookupd.joins("n1", "t")
    nsqlookupd.post("/topic/tombstone?topic=t&node=n1:4151")
    assert nsqlookupd.get("/lookup?topic=t")["producers"] == []
    nsqlookupd.moment += 45
    assert nsqlookupd.get("/lookup?topic=t")["producers"] == [of("n1", 5000)]
    nsqlookupd.moment += 300
    assert nsqlookupd.get("/lookup?topic=t")["producers"] == nsqlookupd.get("/nodes")["producers"] == []


def test_debug_shows_everything_by_key(nsqlookupd):
    nsqlookupd.joins("n1", "t:c")
    nsqlookupd.post("/topic/create?topic=empty")
    nsqlookupd.post("/topic/tombstone?topic=t&node=n1:4151")
    entry = (
        '{"broadcast_address":"n1","hostname":"host1","http_port":4151,"id":"127.0.0.1:5000",'
        f'"last_update":{WALL_NS},"tcp_port":4150,"tombstoned":%s,"tombstoned_at":%d,'
        '"topology_region":"r","topology_zone":"z","version":"1.3.0"}'
    )
    plain, tombstoned = entry % ("false", -6795364578871345152), entry % ("true", WALL_NS)
    expected = f'{{"channel:t:c":[{plain}],"client::":[{plain}],"topic:t:":[{tombstoned}]}}'
    assert body_of(nsqlookupd.call("GET", "/debug")) == expected.encode()


def test_debug_makes_what_the_client_takes_while_registrations_come_and_go(nsqlookupd):
    first = nsqlookupd.joins("n1", *(f"t{number:04}:c" for number in range(500)))
    pieces = pieces_of(nsqlookupd.call("GET", "/debug").stream)
    begin = next(pieces)
    assert 64 * 1024 <= len(begin) < 65 * 1024
    nsqlookupd.joins("n2", "t0499:c")
    nsqlookupd.db.forget(first)
    nsqlookupd.db.delete_topic("t0498")
    everything = json.loads(begin + b"".join(pieces))
    assert [each["broadcast_address"] for each in everything["channel:t0499:c"]] == ["n2"]
    assert "channel:t0498:c" not in everything


def test_pieces_of_debug_for_many_clients_take_turns(nsqlookupd):
    nsqlookupd.joins("n1", *(f"t{number:04}:c" for number in range(1000)))
    hub, made = gevent.get_hub(), Counter[int]()

    def read(stream: BodyStream) -> None:
        for _ in pieces_of(stream):
            made[hub.loop.iteration] += 1

    streams = [nsqlookupd.call("GET", "/debug").stream for _ in range(3 * MAX_TURNS)]
    gevent.joinall([gevent.spawn(read, stream) for stream in streams], timeout=20, raise_error=True)
    assert made.total() > 2 * len(streams)
    assert max(made.values()) <= MAX_TURNS


def test_debug_of_many_producers_is_made_in_pieces_and_keeps_few_of_them(nsqlookupd):
    for number in range(2000):
        nsqlookupd.joins(f"n{number}", "t")
    pieces = list(pieces_of(nsqlookupd.call("GET", "/debug").stream))
    assert max(map(len, pieces)) < 66 * 1024
    everything = json.loads(b"".join(pieces))
    assert {key: len(producers) for key, producers in everything.items()} == {"client::": 2000, "topic:t:": 2000}


def test_debug_that_is_closed_ends_without_being_whole(nsqlookupd):
    nsqlookupd.joins("n1", *(f"t{number:04}:c" for number in range(1000)))
    stream = nsqlookupd.call("GET", "/debug").stream
    woken = []
    stream.start(lambda: woken.append(True))
    assert stream.data_to_send(0.0) == b""  # it is not its turn
    stream.close()
    stream.close()
    gevent.idle()
    assert woken == [True, True]
    assert (stream.data_to_send(0.0), stream.is_over, stream.is_whole) == (b"", True, False)


def test_answers_with_all_nodes_that_wait_for_slow_clients_share_what_they_have_of_large_nodes(nsqlookupd):
    for host in ("n1", "n2", "n3"):
        nsqlookupd.joins(host, *(f"topic_{number:058}" for number in range(2000)))
    one, other = (nsqlookupd.call("GET", "/nodes") for _ in range(2))
    assert [id(piece) for piece in list(one.rest)[1:3]] == [id(piece) for piece in list(other.rest)[1:3]]
    assert [node["broadcast_address"] for node in json.loads(body_of(one))["producers"]] == ["n1", "n2", "n3"]


def test_answers_with_all_nodes_share_what_they_have_of_many_small_ones(nsqlookupd):
    hosts = [f"n{number}" for number in range(1500)]
    for host in hosts:
        nsqlookupd.joins(host, "orders")
    one, other = (nsqlookupd.call("GET", "/nodes") for _ in range(2))
    shared = {id(piece) for piece in one.rest} & {id(piece) for piece in other.rest}
    alone = sum(len(piece) for piece in (other.body, *other.rest) if id(piece) not in shared)
    assert alone < 2 * MIN_PIECE_BYTES
    assert sum(map(len, one.rest)) > 4 * MIN_PIECE_BYTES
    assert [node["broadcast_address"] for node in json.loads(body_of(one))["producers"]] == hosts


def test_a_list_of_nodes_has_every_change_of_their_topics(nsqlookupd):
    node = nsqlookupd.joins("n1", "t:c")

    def listed() -> list[str]:
        return [topic for each in nsqlookupd.get("/nodes")["producers"] for topic in each["topics"]]

    assert listed() == ["t"]
    nsqlookupd.db.register(node, "u")
    assert listed() == ["t", "u"]
    nsqlookupd.db.unregister(node, "t")
    assert listed() == ["u"]
    nsqlookupd.post("/topic/delete?topic=u")
    assert listed() == []
    nsqlookupd.db.register(node, "v")
    nsqlookupd.post("/topic/tombstone?topic=v&node=n1:4151")
    assert nsqlookupd.get("/nodes")["producers"][0]["tombstones"] == [True]


def test_the_index_of_profiles_has_no_trailing_slash(nsqlookupd):
    index = nsqlookupd.call("GET", "/debug/pprof")
    assert index.status == 200
    assert b'href="pprof/heap"' in index.body
    assert b"test_the_index_of_profiles" in nsqlookupd.call("GET", "/debug/pprof/goroutine").body
    assert nsqlookupd.call("GET", "/debug/pprof/").status == 301


# --- Changes ----------------------------------------------------------------------------------------------------------


def test_topics_and_channels_are_created_and_deleted(nsqlookupd):
    for target in ("/topic/create?topic=t", "/channel/create?topic=u&channel=c", "/topic/delete?topic=t"):
        response = nsqlookupd.post(target)
        assert (response.status, response.body, response.headers) == (200, b"", (V1,))
    assert nsqlookupd.get("/topics") == {"topics": ["u"]}
    assert nsqlookupd.post("/channel/delete?topic=u&channel=c").status == 200
    assert nsqlookupd.get("/channels?topic=u") == {"channels": []}


def test_deleting_and_tombstoning_unknown_topics_succeeds(nsqlookupd):
    for target in ("/topic/delete?topic=no%20name", "/topic/delete?topic=t", "/topic/tombstone?topic=t&node=x"):
        assert nsqlookupd.post(target).status == 200


def test_a_star_is_an_unknown_name(nsqlookupd):
    # docs/differences.md: wildcard
    nsqlookupd.joins("n1", "t:c")
    nsqlookupd.post("/topic/delete?topic=*")
    nsqlookupd.post("/topic/tombstone?topic=*&node=n1:4151")
    assert nsqlookupd.get("/channels?topic=*") == {"channels": []}
    assert nsqlookupd.call("GET", "/lookup?topic=*").status == 404
    assert nsqlookupd.get("/lookup?topic=t") == {"channels": ["c"], "producers": [of("n1", 5000)]}


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=t", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/channels?topic=a;b", 400, "INVALID_REQUEST"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=no%20name", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=no%20name", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/stats", 404, "NOT_FOUND"),
        ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("HEAD", "/ping", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_errors_have_nsqs_codes(nsqlookupd, method, target, status, code):
    response = nsqlookupd.call(method, target)
    assert (response.status, json.loads(response.body)) == (status, {"message": code})
    assert response.headers[-2:] == (JSON, V1)


def test_routes_without_parameters_accept_a_malformed_query(nsqlookupd):
    for path in ("/ping", "/info", "/topics", "/nodes", "/debug"):
        assert nsqlookupd.call("GET", f"{path}?%zz").status == 200


# --- Metrics ----------------------------------------------------------------------------------------------------------


def scrape(nsqlookupd):
    page = nsqlookupd.call("GET", "/metrics").body.decode()
    families = text_string_to_metric_families(page)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_metrics_count_nodes_topics_channels_and_tombstones(nsqlookupd):
    nsqlookupd.joins("n1", "orders", "orders:archive", "orders:mail")
    nsqlookupd.moment += 301.0
    nsqlookupd.joins("n2", "orders", "clicks")
    nsqlookupd.call("POST", "/topic/tombstone?topic=clicks&node=n2:4151")
    found = scrape(nsqlookupd)
    assert found["nsqlookupd_nodes", "active"] == 1
    assert found["nsqlookupd_nodes", "inactive"] == 1
    assert (found["nsqlookupd_topics",], found["nsqlookupd_channels",], found["nsqlookupd_tombstones",]) == (2, 2, 1)


def test_nsqlookupd_is_always_ready(nsqlookupd):
    assert nsqlookupd.call("GET", "/readyz").status == 200
