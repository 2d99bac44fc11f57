"""A TCP server: accepting connections, and ending all of them."""

import gc
from contextlib import ExitStack

import gevent
import pytest

from nsq_compat.net.server import TcpServer
from nsq_compat.net.sockets import listen
from nsq_compat.session.nsqd_session import NsqdSession


def test_stop_ends_clients_in_every_state(server, connect, eventually):
    silent = connect(magic=b"")
    half = connect(magic=b" ")
    idle = connect()
    consumer = connect().subscribes(b"t", b"c", ready=1)
    publishing = connect().says(b"PUB t\n\0\0\0\5ab")
    eventually(lambda: len(server.tcp.sessions) == 5)
    server.tcp.stop(20)
    assert server.tcp.sessions == []
    for client in (silent, half, idle, consumer, publishing):
        assert client.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        connect()


def test_a_thousand_clients_come_and_go(server, connect, eventually):
    clients = [connect() for _ in range(300)]
    eventually(lambda: len(server.tcp.sessions) == 300)
    for client in clients:
        client.publishes(b"x")
        client.socket.close()
    eventually(lambda: not server.tcp.sessions)
    assert server.broker.topics["t"].message_count == 300


def test_closed_connections_do_not_wait_for_the_garbage_collector(server, connect, eventually):
    def sessions() -> int:
        return sum(type(each) is NsqdSession for each in gc.get_objects())

    counts: list[int] = []

    def settle() -> bool:
        counts.append(sessions())
        return counts[-20:] == 20 * counts[-1:]

    gc.collect()
    eventually(settle)  # those of the tests before end a few at a time
    before = counts[-1]
    gc.disable()
    try:
        clients = [
            connect(magic=b" "),
            connect().publishes(b"x"),
            connect().subscribes(b"t", b"c", ready=1),
            connect().says(b"PUB t\n\0\0\0\5ab"),
            connect().says(1000 * b"NOP\n"),
        ]
        eventually(lambda: sessions() == before + len(clients))
        clients.append(connect().says(b"NO\n"))
        clients[-1].frame()
        for client in clients:
            client.socket.close()
        eventually(lambda: sessions() == before)
    finally:
        gc.enable()


def test_clients_with_many_commands_take_turns(server, connect, eventually):
    consumer = connect().subscribes(b"t", b"c", ready=1000)
    listener = listen("127.0.0.1:0")
    tcp = TcpServer(listener, server._make_session, receive_size=100)
    tcp.start()
    with ExitStack() as stack:
        address = listener.getsockname()
        clients = [stack.enter_context(gevent.socket.create_connection(address)) for _ in range(2)]
        eventually(lambda: len(tcp.sessions) == 2)
        for client, name in zip(clients, (b"a", b"b"), strict=True):
            client.sendall(b"  V2" + (b"PUB t\n\0\0\0\1" + name) * 100)
        order = b"".join(frame.data[-1:] for frame in consumer.frames(200))
    tcp.stop(20)
    # Neither waited until the other had said everything.
    assert not order.startswith((b"a" * 100, b"b" * 100))


def test_connections_are_checked_some_at_a_time(server, connect, eventually):
    clients = [connect() for _ in range(250)]
    eventually(lambda: len(server.tcp.sessions) == 250)
    checked, others = [], []

    def may_continue(session):
        checked.append(session)
        return session.peer.endswith("0")

    gevent.spawn(lambda: others.append(len(checked)))
    server.tcp.abort_unless(may_continue)
    assert len(checked) == 250
    assert others == [99]
    kept = [each for each in checked if each.peer.endswith("0")]
    eventually(lambda: server.tcp.sessions == kept)
    assert len(clients) == 250


def test_a_connection_that_ends_meanwhile_is_not_checked(server, connect, eventually):
    clients = [connect() for _ in range(150)]
    eventually(lambda: len(server.tcp.sessions) == 150)
    checked = []

    def may_continue(session):
        checked.append(session)
        return True

    gevent.spawn(server.tcp.close_client, server.tcp.sessions[-1].peer)
    server.tcp.abort_unless(may_continue)
    assert len(checked) == 149
    assert len(clients) == 150
