"""Mirroring, out of answers of /stats."""

import pytest

from nsq_compat.cluster.mirroring import Mirroring, Primary, Standby, read_mirroring
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.reading import InvalidAnswer
from nsq_compat.cluster.stats import read_node_stats

STANDBY = {"address": "s:1", "state": "in sync", "since": 5, "seconds": 2.5, "behind": 3, "when_lost": "refuse"}
PRIMARY = {"identity": "1" * 32, "address": "p:1", "broadcast_address": "::1", "http_port": 2, "last_seen": 4}


def test_an_answer_is_read_with_what_it_has():
    read = read_mirroring({"standby": STANDBY, "accepts": True, "primaries": [PRIMARY, {"taken_over": []}, {}]})
    assert read.standby == Standby(address="s:1", state="in sync", since=5, seconds=2.5, behind=3, when_lost="refuse")
    first, second, third = read.primaries
    assert first.http_address == "[::1]:2"
    assert (second.taken_over, third) == ((), Primary())


@pytest.mark.parametrize(
    "answer",
    [
        *([], {"standby": "s:1"}, {"standby": {"seconds": "1"}}, {"primaries": {}}),
        *({"primaries": [{"taken_over": "t"}]}, {"standby": {"since": 2**62}}, {"primaries": [{"last_seen": -1}]}),
    ],
)
def test_values_of_wrong_types_and_impossible_times_are_an_invalid_answer(answer):
    with pytest.raises(InvalidAnswer):
        read_mirroring(answer)


def test_nodes_without_mirroring_have_none():
    for ours in ({}, {"nsq_compat": {"version": "0.1.0"}}):
        mirroring = read_node_stats(Node(), ours).mirroring
        assert mirroring == Mirroring()
        assert not mirroring.is_used
        assert not mirroring.needs_attention


@pytest.mark.parametrize(
    ("state", "when_lost", "refuses"),
    [("in sync", "refuse", False), ("catching up", "refuse", True), ("not connected", "continue", False)],
)
def test_a_node_refuses_messages_only_without_a_standby_and_if_it_is_told_to(state, when_lost, refuses):
    standby = Standby(state=state, when_lost=when_lost)
    assert standby.refuses == refuses
    assert Mirroring(standby).needs_attention == (not standby.is_in_sync)


@pytest.mark.parametrize(
    ("connected", "taken_over", "can_be_adopted"),
    [(False, None, True), (True, None, False), (False, (), False), (True, ("t",), False)],
)
def test_what_was_taken_over_cannot_be_adopted_again(connected, taken_over, can_be_adopted):
    primary = Primary(connected=connected, taken_over=taken_over)
    assert primary.can_be_adopted == can_be_adopted
    assert Mirroring(primaries=(primary,), accepts=True).needs_attention == can_be_adopted
