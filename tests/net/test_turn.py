"""Who sends at the end of a turn, and in which order."""

import socket
import struct
from collections.abc import Callable

import pytest

from nsq_compat.net.turn import AT_ONCE, Turn

SO_TIMESTAMPNS = 35
"""Linux: what is received says when it came."""


class Sender:
    def __init__(self, sent, name, then=lambda: None):
        self._sent, self._name, self._then = sent, name, then

    def flush_when_due(self):
        self._sent.append(self._name)
        self._then()


def test_all_send_in_their_order_and_the_loop_is_asked_once():
    asked: list[Callable[[], None]] = []
    sent: list[str] = []
    turn = Turn(asked.append)
    for name in "abc":
        turn.add(Sender(sent, name))
    assert sent == []
    [end] = asked
    end()
    assert sent == ["a", "b", "c"]
    assert not turn.due


def test_the_loop_is_asked_again_for_those_of_many_who_are_left_in_their_order():
    asked: list[Callable[[], None]] = []
    sent: list[int] = []
    turn = Turn(asked.append)
    many = 3 * AT_ONCE - 1
    for number in range(many):
        turn.add(Sender(sent, number, then=lambda: turn.add(Sender(sent, many)) if len(sent) == 1 else None))
    for expected in (AT_ONCE, 2 * AT_ONCE, many + 1):
        [end] = asked
        asked.clear()
        end()
        assert sent == list(range(expected))
    assert not asked


def test_who_asks_while_others_send_has_the_next_turn():
    asked: list[Callable[[], None]] = []
    sent: list[str] = []
    turn = Turn(asked.append)
    turn.add(Sender(sent, "a", then=lambda: turn.add(Sender(sent, "again"))))
    turn.add(Sender(sent, "b"))
    asked.pop()()
    assert sent == ["a", "b"]
    asked.pop()()
    assert sent == ["a", "b", "again"]


@pytest.fixture
def timed(connect):
    """A client that can tell when the server sent it something, in nanoseconds."""

    def make():
        client = connect()
        client.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        stamps: list[object] = []
        while not stamps:  # the system begins some time after it was asked
            client.says(b"PUB another\n\0\0\0\1x")
            _, stamps, *_ = client.socket.recvmsg(65536, 1024)
        return client

    return make


def came(client) -> int:
    _, [(_, _, stamp)], *_ = client.socket.recvmsg(65536, 1024)
    seconds, nanoseconds = struct.unpack("qq", stamp)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def test_a_message_leaves_before_the_ok_of_who_published_it(timed):
    consumers = [timed().subscribes(b"t", channel, ready=100) for channel in (b"c", b"d")]
    alone, *together = [timed() for _ in range(4)]
    for producers in 5 * [[alone], together]:
        for each in producers:
            each.says(b"PUB t\n\0\0\0\1x")
        oks = [came(each) for each in producers]
        assert max(map(came, consumers)) < min(oks)
