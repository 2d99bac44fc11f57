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


class Loop:
    """Asked to call back, it does when told to; `pendingcnt` as the test says."""

    def __init__(self):
        self.pendingcnt = 0
        self.asked: list[Callable[[], None]] = []

    def run_callback(self, func):
        self.asked.append(func)

    def calls_back(self):
        [callback] = self.asked
        self.asked.clear()
        callback()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def turn(loop):
    return Turn(loop)


def test_all_send_in_their_order_and_the_loop_is_asked_once(loop, turn):
    sent: list[str] = []
    for name in "abc":
        turn.add(Sender(sent, name))
    assert sent == []
    loop.calls_back()
    assert sent == ["a", "b", "c"]
    assert not turn.due


def test_the_loop_is_asked_again_for_those_of_many_who_are_left_in_their_order(loop, turn):
    sent: list[int] = []
    many = 3 * AT_ONCE - 1
    for number in range(many):
        turn.add(Sender(sent, number, then=lambda: turn.add(Sender(sent, many)) if len(sent) == 1 else None))
    for expected in (AT_ONCE, 2 * AT_ONCE, many + 1):
        loop.calls_back()
        assert sent == list(range(expected))
    assert not loop.asked


def test_who_asks_while_others_send_has_the_next_turn(loop, turn):
    sent: list[str] = []
    turn.add(Sender(sent, "a", then=lambda: turn.add(Sender(sent, "again"))))
    turn.add(Sender(sent, "b"))
    loop.calls_back()
    assert sent == ["a", "b"]
    loop.calls_back()
    assert sent == ["a", "b", "again"]


def test_who_reads_last_ends_the_turn_of_all_who_read_and_the_loop_is_not_asked(loop, turn):
    sent: list[str] = []
    for name, loop.pendingcnt in (("a", 1), ("b", 0)):
        turn.begin_reading()
        turn.add(Sender(sent, name))
        assert sent == []
        turn.end_reading()
    assert sent == ["a", "b"]
    loop.calls_back()  # it was asked for the first one, who could not know that there is nothing but another reader
    assert sent == ["a", "b"]
    turn.begin_reading()
    turn.add(Sender(sent, "c"))
    turn.end_reading()
    assert sent == ["a", "b", "c"]
    assert not loop.asked


def test_behind_who_reads_the_loop_ends_the_turn_where_others_are_ready(loop, turn):
    sent: list[str] = []
    loop.pendingcnt = 1
    turn.begin_reading()
    turn.add(Sender(sent, "a"))
    turn.end_reading()
    assert sent == []
    loop.calls_back()
    assert sent == ["a"]


def test_what_is_to_be_done_before_anybody_sends_is_done_first_and_its_senders_are_of_the_same_turn(loop, turn):
    done: list[str] = []

    def call():
        done.append("called")
        turn.add(Sender(done, "b"))

    turn.add(Sender(done, "a"))
    turn.call(call)
    loop.calls_back()
    assert done == ["called", "a", "b"]
    turn.begin_reading()
    turn.call(call)
    turn.end_reading()
    assert done[3:] == ["called", "b"]
    assert not loop.asked


def test_a_call_that_fails_holds_up_nobody(loop, turn):
    def fail():
        raise ValueError("it fails")

    sent: list[str] = []
    turn.add(Sender(sent, "a"))
    turn.call(fail)
    with pytest.raises(ValueError, match="it fails"):
        loop.calls_back()
    assert sent == ["a"]
    turn.add(Sender(sent, "b"))
    loop.calls_back()
    assert sent == ["a", "b"]


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
