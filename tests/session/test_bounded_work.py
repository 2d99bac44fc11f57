"""However much a client sends at once, one call of its session does a bounded part of it."""

import struct
from itertools import pairwise

import pytest

from nsq_compat.protocol.headers import MAX_PART
from nsq_compat.session.ack_session import AckSession
from nsq_compat.session.http_message import Admission, HttpLimits, Request, Response
from nsq_compat.session.http_session import NEXT_BYTES
from nsq_compat.session.nsqd_session import MAX_COMMANDS
from tests.v2_client import hmpub

BAD_FIN = b"FIN 0123456789abcdef\n"


@pytest.mark.parametrize("line", [b"NOP\n", b"RDY 1\n", b"TOUCH 0123456789abcdef\n", b"REQ 0123456789abcdef 0\n"])
def test_a_read_full_of_small_commands_is_executed_in_parts(nsqd, line):
    client = nsqd.connect().subscribes()
    client.session.receive_data(line * 1000, nsqd.now, nsqd.now_ns)
    calls = 1
    while client.session.has_unread:
        client.session.read_on(nsqd.now, nsqd.now_ns)
        calls += 1
    assert calls >= 1000 / MAX_COMMANDS


def test_a_read_full_of_dpubs_is_executed_in_smaller_parts(nsqd):
    client = nsqd.connect()
    client.session.receive_data(b"DPUB t 1000\n\0\0\0\1x" * 1000, nsqd.now, nsqd.now_ns)
    published = [nsqd.broker.topic("t").message_count]
    while client.session.has_unread:
        client.session.read_on(nsqd.now, nsqd.now_ns)
        published.append(nsqd.broker.topic("t").message_count)
    assert published[-1] == 1000
    assert max(after - before for before, after in pairwise([0, *published])) <= MAX_COMMANDS / 4


def test_large_settings_are_read_in_parts(nsqd):
    client = nsqd.connect()
    settings = b'{"client_id":"%b"}' % (b"\xff" * 8000)
    client.session.receive_data(
        (b"IDENTIFY\n" + struct.pack(">i", len(settings)) + settings) * 8, nsqd.now, nsqd.now_ns
    )
    calls = 1
    while client.session.has_unread:
        client.session.read_on(nsqd.now, nsqd.now_ns)
        calls += 1
    assert calls >= 4
    assert client.session.owed_replies == 8 * len(b"\0\0\0\6\0\0\0\0OK")


def test_fins_that_are_refused_count_one_by_one(nsqd):
    client = nsqd.connect().subscribes()
    client.session.receive_data(BAD_FIN * 1000, nsqd.now, nsqd.now_ns)
    assert client.session.has_unread
    assert client.session.owed_replies < 300 * 60


@pytest.mark.parametrize("line", [b"TOUCH 0123456789abcdef\n", b"REQ 0123456789abcdef 0\n"])
def test_answers_to_unknown_messages_count_more_the_more_consumers_are_searched(nsqd, line):
    client = nsqd.connect().subscribes()
    for _ in range(320):
        nsqd.connect().subscribes()
    client.session.receive_data(line * 1000, nsqd.now, nsqd.now_ns)
    assert client.session.has_unread
    assert client.session.owed_replies < MAX_COMMANDS / 10 * 100


def test_commands_of_a_closed_client_are_not_executed(nsqd):
    client = nsqd.connect()
    client.session.receive_data(b"NOP\n" * 1000, nsqd.now, nsqd.now_ns)
    client.session.closed()
    assert not client.session.has_unread


def test_a_large_mpub_is_answered_before_what_was_sent_behind_it(nsqd):
    bodies = b"\0\0\0\1x" * 20_000
    mpub = b"MPUB t\n" + struct.pack(">ii", 4 + len(bodies), 20_000) + bodies
    client = nsqd.connect()
    client.session.receive_data(mpub + b"PUB t\n\0\0\0\1y", nsqd.now, nsqd.now_ns)
    assert client.session.has_unread
    assert nsqd.broker.topic("t").message_count == 0
    nsqd.turns()
    client.hears(b"OK", b"OK")
    assert nsqd.broker.topic("t").message_count == 20_001


def test_an_mpub_of_many_bytes_is_made_in_steps(nsqd):
    bodies = struct.pack(">i", 2000) + b"x" * 2000
    client = nsqd.connect()
    client.session.receive_data(
        b"MPUB t\n" + struct.pack(">ii", 4 + 1000 * 2004, 1000) + bodies * 1000, nsqd.now, nsqd.now_ns
    )
    assert client.session.has_unread
    assert nsqd.broker.topic("t").message_count == 0
    nsqd.turns()
    client.hears(b"OK")
    assert nsqd.broker.topic("t").message_count == 1000


@pytest.mark.parametrize("count", [MAX_PART - 1, MAX_PART, MAX_PART + 1, 3 * MAX_PART])
def test_an_hmpub_is_split_in_steps(nsqd, count):
    client = nsqd.connect().asks_for_headers()
    batch = struct.pack(">i", count) + b"\0\0\0\3\0\0x" * count
    client.session.receive_data(b"HMPUB t\n" + struct.pack(">i", len(batch)) + batch + b"PUB t\n\0\0\0\1y", nsqd.now, 0)
    assert client.session.has_unread
    assert nsqd.broker.topic("t").message_count == 0
    nsqd.turns()
    client.hears(b"OK", b"OK")
    assert nsqd.broker.topic("t").message_count == count + 1


def test_a_mistake_in_a_later_step_publishes_nothing(nsqd):
    client = nsqd.connect().asks_for_headers()
    batch = struct.pack(">i", 10_000) + b"\0\0\0\3\0\0x" * 9_999
    client.says(b"HMPUB t\n" + struct.pack(">i", len(batch)) + batch)
    client.hears(b"E_BAD_BODY HMPUB invalid message(9999) body size 0").and_is_closed()
    assert nsqd.broker.topic("t").message_count == 0


def test_a_client_that_leaves_while_its_hmpub_is_split_publishes_nothing(nsqd):
    client = nsqd.connect().asks_for_headers()
    batch = struct.pack(">i", 10_000) + b"\0\0\0\3\0\0x" * 10_000
    client.session.receive_data(b"HMPUB t\n" + struct.pack(">i", len(batch)) + batch, nsqd.now, nsqd.now_ns)
    assert client.session.has_unread
    client.session.closed()
    nsqd.turns()
    assert not client.session.has_unread
    assert nsqd.broker.topic("t").message_count == 0


def test_an_hmpub_of_many_headers_is_made_in_steps(nsqd):
    client = nsqd.connect().asks_for_headers()
    client.session.receive_data(hmpub([(b"m", {f"{n:02}": "" for n in range(60)})] * 300), nsqd.now, nsqd.now_ns)
    assert client.session.has_unread
    steps = 0
    while client.session.has_unread:
        client.session.read_on(nsqd.now, nsqd.now_ns)
        steps += 1
    assert steps >= 300 * 60 * 5 / 32768
    client.hears_anything()
    assert nsqd.broker.topic("t").message_count == 300


def test_a_read_full_of_chunks_is_read_in_parts_by_programs_that_await_acknowledgements():
    notified: list[int] = []
    session = AckSession(lambda _: Admission(10_000, Response(413)), HttpLimits(), "c", lambda: notified.append(1), 0.0)
    chunks = b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"
    session.receive_data(b"POST /put HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks, 0.0, 0)
    calls = 1
    while session.has_unread:
        assert not session.requests
        session.read_on(0.0, 0)
        calls += 1
    assert calls > len(chunks) / NEXT_BYTES
    (request,) = session.requests
    assert isinstance(request, Request)
    assert request.body == b"x" * 5000
    assert len(notified) == calls
    assert session.read_count == 1


def test_what_a_client_sent_ahead_is_freed_when_it_has_left():
    session = AckSession(lambda _: Admission(10_000, Response(413)), HttpLimits(), "c", lambda: None, 0.0)
    session.receive_data(b"POST /put HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx" * 5, 0.0, 0)
    assert len(session.requests) == 5
    session.closed()
    assert not session.requests


def test_nothing_is_read_on_after_a_connection_has_closed():
    session = AckSession(lambda _: Admission(10_000, Response(413)), HttpLimits(), "c", lambda: None, 0.0)
    head = b"POST /put HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    session.receive_data(head + b"1\r\nx\r\n" * 1000, 0.0, 0)
    assert session.has_unread
    session.closed()
    assert not session.has_unread
