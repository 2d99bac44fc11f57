import threading
import time

import pytest

from nsq_compat.client.connection import ConnectionLost
from nsq_compat.client.nodes import Candidates, Node, Nodes
from nsq_compat.client.settings import ConnectionSettings
from tests.client.waiting import wait_until

SETTINGS = ConnectionSettings()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def nodes(clock) -> Nodes:
    return Nodes(["a:1", "b:1", "c:1"], SETTINGS, clock)


def names(nodes: list[Node]) -> list[str]:
    return [node.address[0] for node in nodes]


def test_nodes_take_turns(nodes):
    assert [names(nodes.in_order()) for _ in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_a_penalized_node_comes_last_each_time_for_longer(nodes, clock):
    first = next(iter(nodes))
    for penalty in (1, 2, 4, 8, 16, 32, 60, 60):
        first.penalize(clock.now)
        assert first.penalized_until == clock.now + penalty
    assert all(nodes.in_order()[-1] is first for _ in range(3))
    clock.now = first.penalized_until
    assert {names(nodes.in_order())[0] for _ in range(3)} == set("abc")


def test_a_success_removes_the_penalty(nodes, clock):
    first = next(iter(nodes))
    first.penalize(clock.now)
    first.penalize(clock.now)
    first.reset()
    assert first.penalized_until == 0
    first.penalize(clock.now)
    assert first.penalized_until == clock.now + 1


def test_an_address_given_twice_is_one_node():
    assert len(Nodes(["a:1", "a:1"], SETTINGS)) == 1


def test_candidates_are_tried_in_order_twice(nodes):
    candidates = Candidates(nodes, 6)
    seen = []
    while (node := candidates.take()) is not None:
        seen.append(node)
        candidates.give_back(node)
    assert names(seen) == list("abcabc")
    assert candidates.left == 0


def test_a_node_in_use_for_one_copy_is_not_used_for_another(nodes):
    candidates = Candidates(nodes, 100)
    a = candidates.take()
    b = candidates.take()
    assert a is not None
    assert b is not None
    candidates.give_back(b)
    rest = [candidates.take(), candidates.take(), candidates.take()]
    assert [node and node.address for node in rest] == ["c:1", "b:1", None]


def test_many_threads_share_one_connection(fake):
    node = Node(fake.address, SETTINGS)
    deadline = time.monotonic() + 20
    threads = [threading.Thread(target=node.connect, args=(deadline,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.peers) == 1
    node.connect(deadline).close()
    wait_until(lambda: node.connection is None)


def test_waiting_for_another_threads_connection_ends_at_the_deadline(make_nsqd):
    silent = make_nsqd({"IDENTIFY": None})
    node = Node(silent.address, ConnectionSettings(timeout=20))

    def connect_for_long() -> None:
        with pytest.raises(ConnectionLost):
            node.connect(time.monotonic() + 20)

    other = threading.Thread(target=connect_for_long)
    other.start()
    wait_until(lambda: silent.said("IDENTIFY"))
    with pytest.raises(ConnectionLost, match="not connected in time"):
        node.connect(time.monotonic() + 0.05)
    silent.peer.close()
    other.join()


def test_with_no_time_left_nothing_is_tried(fake):
    with pytest.raises(ConnectionLost, match="in time"):
        Node(fake.address, SETTINGS).connect(time.monotonic() - 1)
    assert not fake.peers
