"""A connection over real sockets: when it sends, what it waits for, and how it ends."""

import gc
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import gevent
import pytest
from gevent.event import Event

from nsq_compat.net.connection import RECEIVE_SIZE, SMALL_READ, Connection
from nsq_compat.session.authorization import Credentials, Grants, read_answer
from nsq_compat.session.conversation import Conversation
from tests.v2_client import identify, mpub, pub

MESSAGE_HEADER = 8 + 2 + 16


def test_a_message_goes_from_one_client_to_another(connect):
    consumer = connect().subscribes(b"t", b"c", ready=1)
    connect().publishes(b"hello")
    frame = consumer.frame()
    assert frame.type == 2
    assert frame.data.endswith(b"hello")


def test_messages_leave_at_the_end_of_an_iteration_though_the_client_allows_buffering(connect):
    # nsqd holds them back up to output_buffer_timeout, a minute here; the test's patience is less.
    consumer = connect().says(identify(output_buffer_timeout=30000, output_buffer_size=65536))
    assert consumer.frame().data == b"OK"
    consumer.subscribes(b"t", b"c", ready=10)
    producer = connect()
    for body in (b"one", b"two", b"three"):
        producer.publishes(body)
        assert consumer.frame().data.endswith(body)


def test_replies_to_pipelined_commands_come_in_order(connect):
    client = connect()
    client.says(b"".join(b"PUB t%d\n\0\0\0\1x" % (number % 3) for number in range(1000)) + b"BAD\n")
    assert {frame.data for frame in client.frames(1000)} == {b"OK"}
    assert client.frame().data == b"E_INVALID invalid command BAD"
    with pytest.raises(EOFError):
        client.frame()


def test_producers_in_one_iteration_each_get_replies_and_keep_their_order(connect):
    consumer = connect().subscribes(b"t", b"c", ready=2500)
    producers = [connect() for _ in range(100)]
    for turn in range(5):
        for number, producer in enumerate(producers):
            bodies = [b"%d %d %d" % (number, turn, place) for place in range(1 + number % 3)]
            producer.says(pub(bodies[0]) if len(bodies) == 1 else mpub(bodies))
        for producer in producers:
            assert producer.frame().data == b"OK"
    heard = [
        tuple(map(int, frame.data[MESSAGE_HEADER:].split())) for frame in consumer.frames(5 * (34 + 2 * 33 + 3 * 33))
    ]
    assert sorted(heard) == [
        (number, turn, place) for number in range(100) for turn in range(5) for place in range(1 + number % 3)
    ]
    for number in range(100):
        own = [each for each in heard if each[0] == number]
        assert own == sorted(own)


def test_bytes_may_come_one_by_one(connect):
    client = connect(magic=b"")
    for byte in b"  V2PUB t\n\0\0\0\3abcNOP\nPUB t\n\0\0\0\1z":
        client.says(bytes([byte]))
        gevent.sleep(0)
    assert [frame.data for frame in client.frames(2)] == [b"OK", b"OK"]


def test_a_client_that_closes_its_side_still_gets_its_replies(connect):
    client = connect().says(b"PUB t\n\0\0\0\1xPUB t\n\0\0\0\1y")
    client.socket.shutdown(1)
    assert [frame.data for frame in client.frames(2)] == [b"OK", b"OK"]
    assert client.rest() == b""


@pytest.mark.parametrize(
    "length", [SMALL_READ - 1, SMALL_READ, SMALL_READ + 1, 2 * SMALL_READ, RECEIVE_SIZE, RECEIVE_SIZE + 1]
)
def test_a_small_request_may_be_followed_by_one_of_any_size(connect, length):
    consumer = connect().subscribes(b"t", b"c", ready=10)
    producer = connect()
    for body in (b"little", bytes(length - len(pub(b""))), b"again"):
        producer.publishes(body)
        assert consumer.frame().data[MESSAGE_HEADER:] == body


def test_a_large_message_arrives_whole(server, connect):
    body = bytes(range(256)) * 4096
    consumer = connect(receive_buffer=8192).subscribes(b"t", b"c", ready=5)
    connect().publishes(body, body, body)
    for _ in range(3):
        assert consumer.frame().data[26:] == body


def test_messages_of_all_sizes_that_are_sent_together_arrive_whole(connect):
    bodies = [bytes([number]) * (1 + number % 5 * 15_000) for number in range(200)]
    consumer = connect().subscribes(b"t", b"c", ready=200)
    slow = connect(receive_buffer=8192).subscribes(b"t", b"slow", ready=200)
    connect().publishes(*bodies)
    for each in (consumer, slow):
        assert [frame.data[MESSAGE_HEADER:] for frame in each.frames(200)] == bodies


def test_a_consumer_that_does_not_read_does_not_delay_others_and_is_closed(server, connect, eventually):
    body = b"x" * 100_000
    deaf = connect(receive_buffer=4096).says(identify(heartbeat_interval=1000))
    deaf.subscribes(b"t", b"c", ready=2500)
    producer = connect()
    producer.publishes(*([body] * 200))
    channel = server.broker.topics["t"].channels["c"]
    eventually(lambda: channel.in_flight_count > 0)
    # It stopped taking, so most of it still waits, and another consumer gets that.
    waiting = channel.depth
    assert waiting > 100
    other = connect().subscribes(b"t", b"c", ready=2500)
    assert all(frame.data[26:] == body for frame in other.frames(waiting))
    # Its write deadline is its heartbeat interval.
    eventually(lambda: len(channel.consumers) == 1)


def test_nothing_more_is_read_from_a_client_that_does_not_read_its_replies(server, connect):
    client = connect(receive_buffer=4096)
    client.socket.settimeout(0.5)
    sent = 0
    command = b"NOP\n" * 100 + b"PUB t\n\0\0\0\1x" * 1000
    with suppress(TimeoutError):
        while sent < 500_000_000:
            sent += client.socket.send(command)
    assert sent < 500_000_000
    # What is kept for it is one read's replies; the rest waits on its side of the wire.
    assert server.broker.topics["t"].message_count < 10_000_000
    connect().publishes(b"others are served")


def test_a_client_may_send_without_reading_while_messages_wait_for_it(server, connect, eventually):
    # Else a client busy sending FINs and a server busy sending messages would wait for each other.
    client = connect(receive_buffer=4096).subscribes(b"t", b"c", ready=2500)
    body = b"x" * 100_000
    connect().publishes(*([body] * 100))
    channel = server.broker.topics["t"].channels["c"]
    eventually(lambda: channel.in_flight_count > 0)
    client.says((b"NOP " + b"x" * 995 + b"\n") * 20_000)  # more than all buffers on the way
    assert all(frame.data[26:] == body for frame in client.frames(100))


def test_the_error_frame_reaches_a_client_that_goes_on_sending(server, connect):
    server.limits = replace(server.limits, max_msg_size=100)
    for _ in range(20):
        client = connect()
        client.socket.sendall(pub(b"x" * 2_000_000))
        assert client.frame().data == b"E_BAD_MESSAGE PUB message too big 2000000 > 100"
        with pytest.raises(EOFError):
            client.frame()


def test_a_refused_client_that_stays_is_closed(server, connect, eventually):
    connect().says(b"garbage\n")
    eventually(lambda: len(server.tcp.sessions) == 1)
    eventually(lambda: not server.tcp.sessions)


def test_a_client_gets_heartbeats_and_is_closed_if_it_is_silent(connect):
    client = connect().says(identify(heartbeat_interval=1000))
    assert client.frame().data == b"OK"
    assert client.frame().data == b"_heartbeat_"
    assert b"_heartbeat_".replace(b"_", b"") not in client.rest().replace(b"_heartbeat_", b"")


def test_a_disconnected_client_leaves_its_channel(server, connect, eventually):
    client = connect().subscribes(b"t", b"c", ready=1)
    channel = server.broker.topics["t"].channels["c"]
    assert len(channel.consumers) == 1
    client.socket.close()
    eventually(lambda: not channel.consumers)


def test_deleting_a_channel_closes_its_consumers_without_a_frame(server, connect):
    consumer = connect().subscribes(b"t", b"c", ready=1)
    server.broker.topics["t"].delete_channel("c")
    assert consumer.rest() == b""


@pytest.mark.interpreted
def test_an_internal_error_ends_one_connection_and_is_logged(server, connect, caplog, monkeypatch):
    other = connect().publishes(b"x")

    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(server.broker.topics["t"], "publish", fail)
    client = connect().says(b"PUB t\n\0\0\0\1x")
    assert client.rest() == b""
    assert "internal error" in caplog.text
    assert "a bug" in caplog.text
    monkeypatch.undo()
    other.publishes(b"goes on")


@pytest.mark.interpreted
def test_an_error_while_sending_ends_the_connection_too(server, connect, caplog, monkeypatch):
    consumer = connect().subscribes(b"t", b"c", ready=1)
    (session,) = server.tcp.sessions

    def fail(_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(session, "data_to_send", fail)
    connect().publishes(b"x")
    assert consumer.rest() == b""
    assert "a bug" in caplog.text


@pytest.mark.interpreted
@pytest.mark.parametrize(("session_waits", "at_once"), [(False, False), (True, False), (True, True)])
def test_a_deferral_begins_no_earlier_than_the_timestamp_of_its_message(session_waits, at_once, eventually):
    class SlowSocket(socket.socket):
        def recv(self, *args):
            data = super().recv(*args)
            time.sleep(0.01)  # other processes run
            return data

    class Session(Conversation):
        reads_at_once = at_once

        def receive_data(self, data, now, now_ns):
            received.append((now, now_ns))

        def receive_at_once(self, data, now, now_ns):
            self.receive_data(data, now, now_ns)
            return True

    received: list[tuple[float, int]] = []
    here, there = socket.socketpair()
    slow = SlowSocket(here.family, here.type, fileno=here.detach())
    slow.setblocking(False)
    connection = Connection(slow, "@", lambda *_: Session(), session_waits=session_waits)
    connection.start(lambda: None)
    there.sendall(b"x")
    eventually(lambda: received)
    later = time.monotonic()
    offset_ns = time.time_ns() - int(later * 1e9)
    ((now, now_ns),) = received
    assert now_ns - int(now * 1e9) <= offset_ns + 1_000_000, "the timestamp is of a later time"
    there.close()
    connection.abort()


@pytest.mark.interpreted
def test_a_session_that_is_closed_while_it_has_work_left_is_no_error(eventually, caplog):
    class Session(Conversation):
        def receive_data(self, data, now, now_ns):
            self.has_unread = True
            gevent.spawn(self.close)

        def data_to_send(self, now):
            return []

        def close(self):
            self.has_unread = False
            closed.append(self)

        def end_of_input(self):
            self.closing = True

    closed: list[Session] = []
    here, there = socket.socketpair()
    here.setblocking(False)
    connection = Connection(here, "@", lambda *_: Session())
    connection.start(lambda: None)
    there.sendall(b"x")
    eventually(lambda: closed)
    there.close()
    eventually(lambda: here.fileno() == -1)
    assert "internal error" not in caplog.text


def test_hostile_sizes_are_refused_before_memory_is_taken(server, connect):
    server.limits = replace(server.limits, max_msg_size=100)
    client = connect().says(b"PUB t\n\x7f\xff\xff\xff")
    assert client.frame().data == b"E_BAD_MESSAGE PUB message too big 2147483647 > 100"
    assert client.rest() == b""


# --- A session that waits within receive_data -------------------------------------------------------------------------

in_a_greenlet = pytest.mark.parametrize("server", ["read in a greenlet"], indirect=True)

AUTH = b"AUTH\n\0\0\0\1s"
ANSWER = b'{"ttl":60,"authorizations":[{"topic":".*","channels":[".*"],"permissions":["publish","subscribe"]}]}'
PERMISSION = b'{"identity":"","identity_url":"","permission_count":1}'


class AuthServer:
    """Is asked, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = Event()

    def __call__(self, credentials: Credentials) -> Grants:
        self.asked += 1
        self.answers.wait()
        return read_answer(ANSWER, time.monotonic())


@pytest.fixture
def auth_server(server):
    server.limits = replace(server.limits, auth_required=True)
    server.authorize = AuthServer()
    yield server.authorize
    server.authorize.answers.set()


@in_a_greenlet
def test_a_client_that_waits_for_an_auth_server_gets_heartbeats(auth_server, connect):
    client = connect().says(identify(heartbeat_interval=1000) + AUTH + b"PUB t\n\0\0\0\1x")
    assert [client.frame().data for _ in range(2)] == [b"OK", b"_heartbeat_"]
    auth_server.answers.set()
    assert [client.frame().data for _ in range(2)] == [PERMISSION, b"OK"]


@in_a_greenlet
def test_a_client_that_waits_for_an_auth_server_does_not_delay_others(auth_server, connect, eventually):
    waiting = connect().says(AUTH)
    eventually(lambda: auth_server.asked)
    other = connect().says(b"NOP\nPUB t\n\0\0\0\1x")
    assert other.frame().data == b"E_AUTH_FIRST AUTH required before PUB"
    auth_server.answers.set()
    assert waiting.frame().data == PERMISSION


@in_a_greenlet
def test_commands_received_meanwhile_are_executed_in_order(auth_server, connect, eventually):
    client = connect().says(AUTH)
    eventually(lambda: auth_server.asked)
    for body in (b"1", b"2"):
        client.says(b"PUB t\n\0\0\0\1" + body)
        gevent.sleep(0)
    client.says(b"SUB t c\nRDY 2\n")
    auth_server.answers.set()
    assert [client.frame().data[26:] or b"a reply" for _ in range(6)] == [
        PERMISSION[26:],
        *[b"a reply"] * 3,
        b"1",
        b"2",
    ]


@in_a_greenlet
@pytest.mark.parametrize("end", ["the client goes", "the daemon drops it"])
def test_a_connection_that_is_closed_while_it_waits_ends_with_the_auth_servers_answer(
    server, auth_server, connect, eventually, end
):
    client = connect().says(AUTH + b"SUB t c\nRDY 1\n")
    eventually(lambda: auth_server.asked)
    if end == "the client goes":
        client.socket.close()
    else:
        server.tcp.sessions[0].abort()
    gevent.sleep(0)
    auth_server.answers.set()
    eventually(lambda: not server.tcp.sessions)
    assert all(not channel.consumers for topic in server.broker.topics.values() for channel in topic.channels.values())


def test_a_closed_connection_leaves_no_garbage(server, connect, eventually):
    def connections() -> int:
        gc.collect()
        return sum(isinstance(each, Connection) for each in gc.get_objects())

    before = connections()
    clients = [connect() for _ in range(20)]
    for client in clients:
        client.subscribes(b"t", b"c", ready=1)
    assert connections() >= len(clients)
    for number, client in enumerate(clients):
        if number % 2:
            client.says(b"garbage\n")
        client.socket.close()
    eventually(lambda: not server.tcp.sessions)
    eventually(lambda: connections() <= before)


def test_a_client_that_has_gone_is_noticed_where_gevent_replaces_the_functions_of_the_system():
    """As in nsqadmin, where requests wait for their turn."""
    program = """
from gevent import monkey
monkey.patch_all()
import socket, time
from nsq_compat.net.connection import Connection
from nsq_compat.session.conversation import Conversation
here, there = socket.socketpair()
connection = Connection(here, "@", lambda *_: Conversation())
assert not connection.peer_is_gone()
there.sendall(b"unread")
there.close()
assert connection.peer_is_gone()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_connections_that_end_while_their_clients_do_not_read_leave_no_watcher_of_a_closed_socket():
    """libev would end the process."""
    program = r"""
import socket, time, gevent
from nsq_compat.net.connection import Connection
from nsq_compat.session.http_message import HttpLimits, Response
from nsq_compat.session.http_session import HttpSession
from nsq_compat.web.application import OPEN, Application, Route

application = Application({"/": {"GET": Route(lambda request: Response(200, bytes(1 << 22)), OPEN)}})

def make_session(connection, now, now_ns):
    return HttpSession(application, HttpLimits(), remote_address="@", wake=connection.wake, now=now, now_ns=now_ns)

here, there = socket.socketpair()
here.setblocking(False)
there.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
connection = Connection(here, "@", make_session)
gevent.spawn(connection.run)
while not connection._is_writing():
    gevent.sleep(0.001)
# So much to do in one iteration that the writer is not killed in it.
loop = gevent.get_hub().loop
for _ in range(100):
    loop.run_callback(time.sleep, 0.001)
connection.free()
gevent.sleep(0.01)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
