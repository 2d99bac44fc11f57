"""nsq_pubsub as a process before a real nsqd, with clients of every kind."""

import re
import signal
from functools import partial
from pathlib import Path

import gevent.socket
import pytest

from nsq_compat.client import Consumer
from nsq_compat.net.sockets import listen
from nsq_compat.tools.http_consumers.ack_http import AckHttpServer
from nsq_compat.tools.http_consumers.streaming import PubSub
from tests.client.waiting import wait_until

LARGE = b"x" * 400_000
HEAD_END = b"\r\n\r\n"


@pytest.fixture
def pubsub(start_consumer):
    return start_consumer("nsq_pubsub")


def subscribe(program, topic, receive_buffer=0):
    """A client of /sub that has read the head of the answer."""
    caller = program.call(f"/sub?topic={topic}&channel=c", receive_buffer)
    head = b""
    while not head.endswith(HEAD_END):
        head += caller.recv(1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n")
    return caller


def in_flight(nsqd, topic):
    return nsqd.channel_stats(topic, "c")["in_flight_count"]


def test_each_message_is_a_line_and_is_finished_when_it_has_arrived(pubsub, nsqd, topic):
    bodies = [b"%d" % number for number in range(300)]
    with subscribe(pubsub, topic) as caller, caller.makefile("rb") as lines:
        nsqd.publish(topic, *bodies)
        assert sorted(lines.readline() for _ in bodies) == sorted(body + b"\n" for body in bodies)
        wait_until(lambda: nsqd.unfinished(topic) == 0)
    assert nsqd.channel_stats(topic, "c")["requeue_count"] == 0


def test_messages_that_a_leaving_client_has_not_read_are_requeued_at_once(pubsub, nsqd, topic):
    nsqd.publish(topic, *[LARGE] * 40)
    caller = subscribe(pubsub, topic, receive_buffer=4096)
    wait_until(lambda: in_flight(nsqd, topic) > 20)
    caller.close()
    wait_until(lambda: nsqd.waiting(topic) == 40)
    assert nsqd.channel_stats(topic, "c")["timeout_count"] == 0


def test_the_messages_of_streams_that_have_ended_take_no_memory(pubsub, nsqd, topic):
    # They were freed by the garbage collector only, after gigabytes.
    nsqd.publish(topic, *[LARGE] * 60)

    def stream() -> None:
        caller = subscribe(pubsub, topic, receive_buffer=4096)
        wait_until(lambda: in_flight(nsqd, topic) == 60)
        caller.close()
        wait_until(lambda: nsqd.waiting(topic) == 60)

    def resident() -> int:
        return int(Path(f"/proc/{pubsub.pid}/statm").read_text("ascii").split()[1])

    for _ in range(3):
        stream()
    before = resident()
    for _ in range(20):
        stream()
    assert resident() < 2 * before, "20 streams of 24 MB"


def test_a_client_that_reads_nothing_is_disconnected_and_its_messages_requeued(start_consumer, nsqd, topic):
    program = start_consumer("nsq_pubsub", "--client-timeout=100ms")
    nsqd.publish(topic, *[LARGE] * 40)
    with subscribe(program, topic, receive_buffer=4096):
        wait_until(lambda: nsqd.channel_stats(topic, "c")["requeue_count"] > 20)
        wait_until(lambda: nsqd.channel_stats(topic, "c")["client_count"] == 0)
        assert nsqd.waiting(topic) == 40


def test_no_client_has_more_than_max_in_flight_messages(start_consumer, nsqd, topic):
    program = start_consumer("nsq_pubsub", "--max-in-flight=3")
    nsqd.publish(topic, *[LARGE] * 20)
    with subscribe(program, topic, receive_buffer=4096):
        wait_until(lambda: in_flight(nsqd, topic) == 3)
        assert nsqd.channel_stats(topic, "c")["depth"] >= 20 - 3 - 1


def test_when_killed_it_has_finished_no_message_that_was_not_written(start_consumer, nsqd, topic):
    program = start_consumer("nsq_pubsub", "--consumer-opt=msg_timeout,1s")
    bodies = [b"%d " % number + LARGE for number in range(40)]
    nsqd.publish(topic, *bodies)
    with subscribe(program, topic, receive_buffer=4096) as caller, caller.makefile("rb") as lines:
        first = [lines.readline() for _ in range(3)]
        program.kill()
        wait_until(lambda: nsqd.waiting(topic) >= 0)
        finished = 40 - nsqd.waiting(topic)
        written = first + [line for line in lines if line.endswith(b"\n")]
    assert finished <= len(written) < 40


def test_stats_list_the_connected_clients(pubsub, nsqd, topic):
    subscribe(pubsub, topic).close()
    with subscribe(pubsub, topic) as second, subscribe(pubsub, topic) as third:
        nsqd.publish(topic, b"x")
        wait_until(lambda: nsqd.channel_stats(topic, "c")["client_count"] == 2)
        wait_until(lambda: b" fin: 1 " in pubsub.ask("/stats")[1])
        status, text = pubsub.ask("/stats")
        ports = {caller.getsockname()[1] for caller in (second, third)}
    assert status == 200
    first, empty, *lines = text.decode().splitlines()
    assert (first, empty) == ("Total Messages: 1", "")
    line = re.compile(rf"\[127\.0\.0\.1:(\d+)\] \[{topic} : c\] connected: \d+s msgs: \d fin: \d re-q: 0")
    assert {int(found[1]) for each in lines if (found := line.fullmatch(each))} == ports
    assert len(lines) == 2
    wait_until(lambda: pubsub.ask("/stats")[1] == b"Total Messages: 1\n\n")


def test_anything_that_a_client_sends_ends_its_stream(pubsub, nsqd, topic):
    with subscribe(pubsub, topic) as caller:
        caller.sendall(b"q")
        assert caller.recv(1) == b""
    wait_until(lambda: nsqd.channel_stats(topic, "c")["client_count"] == 0)


def test_missing_or_wrong_arguments_are_answered_with_500(pubsub):
    for target, answer in {
        "/sub": (500, b"MISSING_ARG_TOPIC"),
        "/sub?topic=a%20b&channel=c": (500, b"INVALID_ARG_TOPIC"),
        "/sub?topic=t": (500, b"MISSING_ARG_CHANNEL"),
        "/sub?topic=t&channel=": (500, b"INVALID_ARG_CHANNEL"),
        "/pub": (404, b""),
    }.items():
        assert pubsub.ask(target) == answer


def test_sigterm_ends_its_streams_in_order(pubsub, nsqd, topic):
    with subscribe(pubsub, topic) as caller, caller.makefile("rb") as lines:
        nsqd.publish(topic, b"last")
        assert lines.readline() == b"last\n"
        pubsub.send_signal(signal.SIGTERM)
        assert lines.readline() == b""
    assert pubsub.stop() == 0
    assert nsqd.waiting(topic) == 0


def test_a_stream_without_messages_has_heartbeats(nsqd, topic):
    make_consumer = partial(Consumer, nsqd_tcp_addresses=nsqd.tcp_address)
    server = AckHttpServer(listen("127.0.0.1:0"), PubSub(make_consumer, 30.0, heartbeat_interval=0.01))
    server.start()
    host, port = server.address.split(":")
    with gevent.socket.create_connection((host, int(port)), timeout=20) as caller, caller.makefile("rb") as lines:
        caller.sendall(f"GET /sub?topic={topic}&channel=c HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        while lines.readline() != b"\r\n":
            pass
        assert all(re.fullmatch(rb'\{"_heartbeat_":\d{10}\}\n', lines.readline()) for _ in range(3))
    server.stop()
