import pytest

from nsq_compat.cluster.nodes import (
    canonical_address,
    join_host_port,
    mark_out_of_date,
    read_node,
    read_registrations,
    version_key,
)
from nsq_compat.cluster.reading import InvalidAnswer


def entry(**fields):
    return {"broadcast_address": "n1", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0", **fields}


def test_a_node_has_its_addresses():
    node = read_node(entry(broadcast_address="::1"))
    assert node.http_address == "[::1]:4151"
    assert node.tcp_address == "[::1]:4150"
    assert str(node) == "[::1]:4151"


def test_topics_are_sorted_and_have_their_tombstones():
    assert read_node(entry(topics=["b", "a"], tombstones=[True, False])).topics == {"a": False, "b": True}


@pytest.mark.parametrize("tombstones", [None, [], [True]])
def test_missing_tombstones_are_false(tombstones):
    node = read_node(entry(topics=["a", "b"], tombstones=tombstones))
    assert node.topics == {"a": bool(tombstones), "b": False}


NO_HOSTS = [
    *("a b", "u:p@host", "host/x?", "", "x" * 300, "\u00fc.example", "a\nb", "a\x00b", "[::1", "::1]", "[::1]", "a/b"),
    *("a@b", "a?b", "a#b", "a\\b", "a:b", "1:2", "::1%a/b", "a%41", "\u212a", "\ud800", 7, None, True, ["h"], {"a": 1}),
]
NO_PORTS = [0, -1, 65536, 99999, 2**63, "1", 1.5, None, True, [1]]


@pytest.mark.parametrize(
    "fields",
    [
        *({"broadcast_address": host} for host in NO_HOSTS),
        *({name: port} for name in ("http_port", "tcp_port") for port in NO_PORTS),
    ],
)
def test_an_invalid_registration_is_skipped_and_the_others_are_read(fields):
    nodes, (skipped,) = read_registrations([entry(), entry(hostname="web3", **fields), entry(broadcast_address="::1")])
    assert [node.tcp_address for node in nodes] == ["n1:4150", "[::1]:4150"]
    assert skipped.startswith('nsqd (hostname "web3"): ')
    assert skipped.isprintable()
    assert len(skipped) < 150


@pytest.mark.parametrize("lie", [None, 7, "x", [], {}, {"topics": 3}, {"hostname": {"a": 1}}])
def test_a_registration_of_the_wrong_type_is_skipped(lie):
    nodes, skipped = read_registrations([lie, entry(**lie) if isinstance(lie, dict) else lie, entry()])
    assert nodes[-1].tcp_address == "n1:4150"
    assert len(nodes) + len(skipped) == 3


def test_registrations_must_be_a_list():
    with pytest.raises(InvalidAnswer):
        read_registrations({"a": 1})


@pytest.mark.parametrize("host", ["a/b", "a@b", "a?b", "a b", "a#b", "a\\b", "x" * 300])
def test_a_host_with_other_parts_of_a_url_is_refused(host):
    nodes, (skipped,) = read_registrations([entry(broadcast_address=host)])
    assert nodes == []
    assert "invalid broadcast address" in skipped


def test_only_host_and_port_are_an_address():
    assert canonical_address("N1:4151") == ("n1", 4151)
    assert canonical_address("[0::1]:4151") == ("::1", 4151)
    assert [canonical_address(text) for text in ("n1", "n1:4151/x", "http://n1:4151")] == [None] * 3
    assert join_host_port("n1", 1) == "n1:1"


def test_versions_are_compared_as_versions():
    mixed = ["1.10.0", "1.2.0", "unknown", "2.0.0", "1.2.0-rc1", "0.0.1"]
    assert sorted(mixed, key=version_key) == ["unknown", "0.0.1", "1.2.0-rc1", "1.2.0", "1.10.0", "2.0.0"]


def test_a_node_is_out_of_date_when_another_is_newer():
    nodes = [read_node(entry(version=version)) for version in ("1.3.0", "1.2.9", "?")]
    mark_out_of_date(nodes)
    assert [node.out_of_date for node in nodes] == [False, True, True]
    mark_out_of_date([])


def test_of_a_listing_ten_thousand_registrations_are_read():
    nodes, skipped = read_registrations([{}] * 9_999 + [entry()] * 3)
    assert (len(nodes), len(skipped)) == (1, 10_000)
    assert skipped[-1] == "2 of 10002 nsqds: so many are not read"
