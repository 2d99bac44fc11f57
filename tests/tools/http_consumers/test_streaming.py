"""Streams by themselves: the door in this process, on threads, before a real nsqd."""

import re
import socket
from functools import partial

import pytest

from nsq_compat.client import Consumer
from nsq_compat.net.listeners import listen
from nsq_compat.tools.http_consumers.ack_http import Door
from nsq_compat.tools.http_consumers.streaming import PubSub
from tests.client.waiting import wait_until


def make_consumer(nsqd, topic, channel, handler):
    return Consumer(topic, channel, handler, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=10)


@pytest.fixture
def subscribe(nsqd, topic):
    """A caller's lines, the head behind him."""
    opened = []

    def subscribe(**options):
        door = Door(listen("127.0.0.1:0"), PubSub(partial(make_consumer, nsqd), 30.0, **options))
        door.start()
        host, port = door.address.split(":")
        caller = socket.create_connection((host, int(port)), timeout=20)
        lines = caller.makefile("rb")
        opened.extend([lines.close, caller.close, door.stop])
        caller.sendall(f"GET /sub?topic={topic}&channel=c HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        while lines.readline() != b"\r\n":
            pass
        return lines

    yield subscribe
    for end in opened:
        end()


def test_who_hears_nothing_else_hears_that_the_stream_lives(subscribe):
    lines = subscribe(heartbeat_interval=0.01)
    assert all(re.fullmatch(rb'\{"_heartbeat_":\d{10}\}\n', lines.readline()) for _ in range(3))


def test_on_threads_as_on_greenlets_what_arrives_is_finished(subscribe, nsqd, topic):
    lines = subscribe()
    nsqd.publish(topic, b"1", b"2")
    assert [lines.readline(), lines.readline()] == [b"1\n", b"2\n"]
    wait_until(lambda: nsqd.unfinished(topic) == 0)
