"""nsqlookupd: the protocol V1 between nsqd and nsqlookupd, and the HTTP API for consumers."""

import json
import struct
from collections.abc import Iterator
from typing import Any, Self

import pytest

from nsq_conformance.lookup_peer import RawLookupPeer
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess
from nsq_conformance.raw_client import sized, soon

NODE: dict[str, object] = {
    "broadcast_address": "node.example",
    "hostname": "node",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
    "topology_zone": "z",
    "topology_region": "r",
}


class Peer(RawLookupPeer):
    """A connection that identifies as a node that does not exist."""

    def is_a_node(self, **fields: object) -> Self:
        self.identifies(NODE | fields)
        return self


@pytest.fixture
def peer(nsqlookupd: NsqlookupdProcess) -> Iterator[Peer]:
    with Peer(nsqlookupd) as peer:
        yield peer


@pytest.fixture(scope="module")
def forgetful(nsqlookupd_command: str) -> Iterator[NsqlookupdProcess]:
    """An nsqlookupd with short timeouts of producers and tombstones."""
    options = ["--inactive-producer-timeout=400ms", "--tombstone-lifetime=400ms"]
    with NsqlookupdProcess(nsqlookupd_command, options=options) as process:
        yield process


def producers(nsqlookupd: NsqlookupdProcess, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nsqlookupd.get("/lookup", topic=topic)["producers"]
    return found


# --- V1 ---------------------------------------------------------------------------------------------------------------


def test_an_unknown_magic_is_refused(nsqlookupd: NsqlookupdProcess) -> None:
    with Peer(nsqlookupd, magic=b"  V2") as peer:
        assert peer.reply() == b"E_BAD_PROTOCOL"
        assert peer.is_closed()


def test_identify_is_answered_with_the_addresses_of_nsqlookupd(peer: Peer, nsqlookupd: NsqlookupdProcess) -> None:
    answer = peer.identifies(NODE)
    assert list(answer) == ["broadcast_address", "hostname", "http_port", "tcp_port", "version"]
    assert f":{answer['http_port']}" in nsqlookupd.http_address
    assert answer["version"] == "1.3.0"


@pytest.mark.parametrize("sent", [b"PING\n", b"PING\r\n", b"PING and more\n", b"  PING  \n"])
def test_ping_is_always_answered(peer: Peer, sent: bytes) -> None:
    assert peer.says(sent) == b"OK"


BEFORE_IDENTIFY = {
    "an unknown command": (b"HELLO\n", b"E_INVALID invalid command HELLO"),
    "an empty line": (b"\n", b"E_INVALID invalid command "),
    "a command in lower case": (b"ping\n", b"E_INVALID invalid command ping"),
    "REGISTER": (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
    "UNREGISTER": (b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
    "IDENTIFY that is not JSON": (b"IDENTIFY\n" + sized(b"{"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    "IDENTIFY with a list": (b"IDENTIFY\n" + sized(b"[]"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    "IDENTIFY with a port as a text": (
        b"IDENTIFY\n" + sized(json.dumps(NODE | {"tcp_port": "4150"}).encode()),
        b"E_BAD_BODY IDENTIFY failed to decode JSON body",
    ),
    "IDENTIFY of null": (b"IDENTIFY\n" + sized(b"null"), b"E_BAD_BODY IDENTIFY missing fields"),
    **{
        f"IDENTIFY without {name}": (
            b"IDENTIFY\n" + sized(json.dumps({key: NODE[key] for key in NODE if key != name}).encode()),
            b"E_BAD_BODY IDENTIFY missing fields",
        )
        for name in ("broadcast_address", "tcp_port", "http_port", "version")
    },
}


@pytest.mark.parametrize(("sent", "refusal"), BEFORE_IDENTIFY.values(), ids=BEFORE_IDENTIFY)
def test_refused_and_closed(peer: Peer, sent: bytes, refusal: bytes) -> None:
    assert peer.says(sent) == refusal
    assert peer.is_closed()


@pytest.mark.parametrize(
    ("sent", "refusal"),
    [
        (b"IDENTIFY\n\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\5{", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
    ids=["the size of an IDENTIFY", "the body of an IDENTIFY"],
)
def test_eof_is_reported_within(peer: Peer, sent: bytes, refusal: bytes) -> None:
    assert peer.sends(sent).ends_sending().reply() == refusal
    assert peer.is_closed()


@pytest.mark.difference("identify-size", of="nsqlookupd")
def test_an_identify_of_a_huge_size_is_refused(peer: Peer) -> None:
    peer.sends(b"IDENTIFY\n" + struct.pack(">i", 1 << 21)).ends_sending()
    assert peer.reply() != b"E_BAD_BODY IDENTIFY failed to read body"


AFTER_IDENTIFY = {
    "a second IDENTIFY": (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
    "REGISTER without a topic": (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
    "REGISTER of a bad topic": (b"REGISTER a$b\n", b"E_BAD_TOPIC REGISTER topic name 'a$b' is not valid"),
    "REGISTER of a bad channel": (b"REGISTER t a$b\n", b"E_BAD_CHANNEL REGISTER channel name 'a$b' is not valid"),
    "REGISTER with two spaces": (b"REGISTER  t\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
    "UNREGISTER without a topic": (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
    "UNREGISTER of a bad topic": (b"UNREGISTER a$b\n", b"E_BAD_TOPIC UNREGISTER topic name 'a$b' is not valid"),
    "UNREGISTER of a bad channel": (
        b"UNREGISTER t a$b\n",
        b"E_BAD_CHANNEL UNREGISTER channel name 'a$b' is not valid",
    ),
}


@pytest.mark.parametrize(("sent", "refusal"), AFTER_IDENTIFY.values(), ids=AFTER_IDENTIFY)
def test_an_nsqd_is_refused_and_closed(peer: Peer, sent: bytes, refusal: bytes) -> None:
    assert peer.is_a_node().says(sent) == refusal
    assert peer.is_closed()


# --- Registrations ----------------------------------------------------------------------------------------------------


def test_an_nsqd_that_registers_a_topic_is_found(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node().registers(topic)
    (producer,) = producers(nsqlookupd, topic)
    assert producer.pop("remote_address").startswith("127.0.0.1:")
    assert producer == NODE


def test_a_producer_has_these_members_in_this_order(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node().registers(topic)
    (producer,) = producers(nsqlookupd, topic)
    assert list(producer) == [
        "remote_address",
        "hostname",
        "broadcast_address",
        "tcp_port",
        "http_port",
        "version",
        "topology_zone",
        "topology_region",
    ]


def test_registering_a_channel_registers_its_topic(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node().registers(topic, "ch")
    found = nsqlookupd.get("/lookup", topic=topic)
    assert (found["channels"], len(found["producers"])) == (["ch"], 1)


def test_registering_twice_has_no_further_effect(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node().registers(topic).registers(topic)
    assert len(producers(nsqlookupd, topic)) == 1


def test_two_connections_are_two_producers(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    with Peer(nsqlookupd) as one, Peer(nsqlookupd) as other:
        for each in (one, other):
            each.is_a_node().registers(topic)
        assert len(producers(nsqlookupd, topic)) == 2


def test_unregistering_a_topic_removes_the_producer(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node().registers(topic, "ch").unregisters(topic)
    assert producers(nsqlookupd, topic) == []
    assert topic in nsqlookupd.get("/topics")["topics"]


def test_unregistering_a_channel_leaves_the_topic(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node().registers(topic, "ch").unregisters(topic, "ch")
    assert len(producers(nsqlookupd, topic)) == 1


def test_unregistering_an_unknown_name_is_no_error(peer: Peer, topic: str) -> None:
    peer.is_a_node().unregisters(topic).unregisters(topic, "ch")


def test_an_ephemeral_channel_is_removed_when_its_last_nsqd_unregisters(
    peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str
) -> None:
    peer.is_a_node().registers(topic, "ch#ephemeral").unregisters(topic, "ch#ephemeral")
    assert nsqlookupd.get("/channels", topic=topic) == {"channels": []}


def test_registrations_of_a_lost_connection_are_removed(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    Peer(nsqlookupd).is_a_node().registers(topic, "ch").close()
    assert soon(lambda: producers(nsqlookupd, topic) == [])
    assert nsqlookupd.get("/lookup", topic=topic)["channels"] == ["ch"]


def test_nodes_shows_topics_beside_their_tombstones(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node(broadcast_address=f"{topic}.example").registers(topic).registers(topic + ".b")
    query = f"/topic/tombstone?topic={topic}&node={topic}.example:4151"
    assert nsqlookupd.asks("POST", query).status == 200
    (node,) = [each for each in nsqlookupd.get("/nodes")["producers"] if topic in each["topics"]]
    assert dict(zip(node["topics"], node["tombstones"], strict=True)) == {topic: True, topic + ".b": False}


def test_a_tombstoned_producer_is_not_found(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node(broadcast_address="t.example").registers(topic).registers(topic + ".b")
    assert nsqlookupd.asks("POST", f"/topic/tombstone?topic={topic}&node=t.example:4151").status == 200
    assert (len(producers(nsqlookupd, topic)), len(producers(nsqlookupd, topic + ".b"))) == (0, 1)


def test_registering_again_removes_the_tombstone(peer: Peer, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    peer.is_a_node(broadcast_address="t.example").registers(topic)
    assert nsqlookupd.asks("POST", f"/topic/tombstone?topic={topic}&node=t.example:4151").status == 200
    peer.registers(topic)
    assert producers(nsqlookupd, topic) == []
    peer.unregisters(topic).registers(topic)
    assert len(producers(nsqlookupd, topic)) == 1


def test_an_nsqd_that_is_silent_for_too_long_is_not_found(forgetful: NsqlookupdProcess, topic: str) -> None:
    with Peer(forgetful) as peer:
        peer.is_a_node().registers(topic)
        assert soon(lambda: not producers(forgetful, topic))
        assert all(topic not in node["topics"] for node in forgetful.get("/nodes")["producers"])


def test_a_silent_nsqd_is_found_again_when_it_pings(forgetful: NsqlookupdProcess, topic: str) -> None:
    with Peer(forgetful) as peer:
        peer.is_a_node().registers(topic)
        assert soon(lambda: not producers(forgetful, topic))
        assert soon(lambda: peer.says(b"PING\n") == b"OK" and producers(forgetful, topic))


def test_a_tombstone_expires(forgetful: NsqlookupdProcess, topic: str) -> None:
    with Peer(forgetful) as peer:
        peer.is_a_node(broadcast_address="t.example").registers(topic)
        assert forgetful.asks("POST", f"/topic/tombstone?topic={topic}&node=t.example:4151").status == 200
        assert soon(lambda: peer.says(b"PING\n") == b"OK" and producers(forgetful, topic))


# --- HTTP -------------------------------------------------------------------------------------------------------------


def test_ping_says_ok(nsqlookupd: NsqlookupdProcess) -> None:
    assert nsqlookupd.asks("GET", "/ping").body == b"OK"


def test_info_has_the_version(nsqlookupd: NsqlookupdProcess) -> None:
    assert nsqlookupd.get("/info")["version"] == "1.3.0"


def test_a_topic_can_be_created_and_deleted(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    assert nsqlookupd.asks("POST", f"/topic/create?topic={topic}").body == b""
    assert nsqlookupd.get("/lookup", topic=topic) == {"channels": [], "producers": []}
    assert nsqlookupd.asks("POST", f"/topic/delete?topic={topic}").status == 200
    assert topic not in nsqlookupd.get("/topics")["topics"]


def test_creating_a_channel_creates_its_topic(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    assert nsqlookupd.asks("POST", f"/channel/create?topic={topic}&channel=ch").status == 200
    assert nsqlookupd.get("/channels", topic=topic) == {"channels": ["ch"]}
    assert topic in nsqlookupd.get("/topics")["topics"]


def test_a_channel_can_be_deleted(nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    assert nsqlookupd.asks("POST", f"/channel/create?topic={topic}&channel=ch").status == 200
    assert nsqlookupd.asks("POST", f"/channel/delete?topic={topic}&channel=ch").status == 200
    assert nsqlookupd.get("/channels", topic=topic) == {"channels": []}


def test_deleting_an_unknown_topic_is_no_error(nsqlookupd: NsqlookupdProcess) -> None:
    assert nsqlookupd.asks("POST", "/topic/delete?topic=unknown").status == 200


def test_an_unknown_topic_has_no_channels(nsqlookupd: NsqlookupdProcess) -> None:
    assert nsqlookupd.get("/channels", topic="unknown") == {"channels": []}


REFUSED = {
    "a lookup of no topic": ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
    "a lookup of an unknown topic": ("GET", "/lookup?topic=unknown", 404, "TOPIC_NOT_FOUND"),
    "a lookup with a bad query": ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
    "channels of no topic": ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
    "no topic to create": ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
    "a bad topic to create": ("POST", "/topic/create?topic=a%24b", 400, "INVALID_ARG_TOPIC"),
    "no topic to delete": ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
    "no channel to create": ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
    "a bad channel to create": ("POST", "/channel/create?topic=t&channel=a%24b", 400, "INVALID_ARG_CHANNEL"),
    "an unknown channel to delete": ("POST", "/channel/delete?topic=t&channel=unknown", 404, "CHANNEL_NOT_FOUND"),
    "a tombstone for no topic": ("POST", "/topic/tombstone?node=n:1", 400, "MISSING_ARG_TOPIC"),
    "a tombstone for no node": ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
    "an unknown path": ("GET", "/unknown", 404, "NOT_FOUND"),
    "a wrong method": ("POST", "/lookup", 405, "METHOD_NOT_ALLOWED"),
}


@pytest.mark.parametrize(("method", "target", "status", "code"), REFUSED.values(), ids=REFUSED)
def test_refused(nsqlookupd: NsqlookupdProcess, method: str, target: str, status: int, code: str) -> None:
    answer = nsqlookupd.asks(method, target)
    assert (answer.status, answer.json()) == (status, {"message": code})
