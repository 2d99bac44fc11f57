"""Streams by themselves: the server in this process, before a real nsqd."""

import re
from functools import partial

import gevent
import gevent.socket
import pytest

from nsq_compat.client import Consumer
from nsq_compat.net.sockets import listen
from nsq_compat.tools.http_consumers.ack_http import AckHttpServer
from nsq_compat.tools.http_consumers.streaming import PubSub


def make_consumer(nsqd, topic, channel, handler):
    return Consumer(topic, channel, handler, nsqd_tcp_addresses=nsqd.tcp_address, max_in_flight=10)


@pytest.fixture
def subscribe(nsqd, topic):
    """The lines that a client receives after the head."""
    opened = []

    def subscribe(**options):
        server = AckHttpServer(listen("127.0.0.1:0"), PubSub(partial(make_consumer, nsqd), 30.0, **options))
        server.start()
        host, port = server.address.split(":")
        caller = gevent.socket.create_connection((host, int(port)), timeout=20)
        lines = caller.makefile("rb")
        opened.extend([lines.close, caller.close, server.stop])
        caller.sendall(f"GET /sub?topic={topic}&channel=c HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        while lines.readline() != b"\r\n":
            pass
        return lines

    yield subscribe
    for end in opened:
        end()


def test_a_stream_without_messages_has_heartbeats(subscribe):
    lines = subscribe(heartbeat_interval=0.01)
    assert all(re.fullmatch(rb'\{"_heartbeat_":\d{10}\}\n', lines.readline()) for _ in range(3))


def test_messages_that_arrive_are_finished(subscribe, nsqd, topic):
    lines = subscribe()
    nsqd.publish(topic, b"1", b"2")
    assert [lines.readline(), lines.readline()] == [b"1\n", b"2\n"]
    with gevent.Timeout(20):
        while nsqd.unfinished(topic):
            gevent.sleep(0.01)
