"""Thousands of clients that come or go at once: how much of it one iteration of the event loop does."""

import os
import socket
from collections.abc import Iterator

import gevent
import pytest

from nsq_compat.net.certificates import Certificates
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import MAX_ENDINGS, handshakes
from nsq_compat.net.server import MAX_ACCEPTS, Acceptor
from nsq_compat.net.sockets import listen
from nsq_compat.net.tls import StandardTls
from nsq_compat.session.negotiation import NsqdLimits

CLIENTS = 400
HANDSHAKES = 100
MOST_ENDINGS = 2 * MAX_ENDINGS
"""What was begun at the end of one iteration may be done in the next."""


class Iterations:
    """Counts what happens in each iteration of the loop, which ends where the loop is about to wait."""

    def __init__(self) -> None:
        self.counts = [0]
        self._watcher = gevent.get_hub().loop.prepare(priority=-2)  # behind gevent's own, which runs greenlets
        self._watcher.start(self._next)

    def count(self) -> None:
        self.counts[-1] += 1

    def stop(self) -> None:
        self._watcher.stop()
        self._watcher.close()

    def _next(self) -> None:
        if self.counts[-1]:
            self.counts.append(0)


@pytest.fixture
def iterations() -> Iterator[Iterations]:
    iterations = Iterations()
    yield iterations
    iterations.stop()


@pytest.fixture
def ends(iterations, monkeypatch):
    """Counts the connections that end in each iteration."""
    free = Connection.free

    def counted_free(connection) -> None:
        if connection._socket.fileno() >= 0:  # the first call for it
            iterations.count()
        free(connection)

    monkeypatch.setattr(Connection, "free", counted_free)
    return iterations


@pytest.mark.interpreted
@pytest.mark.parametrize("reason", ["they leave", "their channel is deleted"])
def test_clients_that_end_together_are_closed_a_few_at_a_time(server, connect, eventually, ends, reason):
    clients = [connect().subscribes(b"t", b"c", ready=1) for _ in range(CLIENTS)]
    if reason == "they leave":
        for client in clients:
            client.socket.close()
    else:
        server.broker.topics["t"].delete_channel("c")
    eventually(lambda: not server.tcp.sessions)
    assert sum(ends.counts) == CLIENTS
    assert max(ends.counts) <= MOST_ENDINGS
    if reason != "they leave":
        assert all(client.rest() == b"" for client in clients)


def test_a_client_that_stays_is_served_while_the_others_leave(server, connect, eventually):
    clients = [connect() for _ in range(CLIENTS)]
    staying = connect()
    for client in clients:
        client.socket.close()
    staying.publishes(b"x")
    assert len(server.tcp.sessions) > 1
    eventually(lambda: len(server.tcp.sessions) == 1)


def test_clients_that_arrive_together_are_accepted_a_few_at_a_time(eventually, iterations):
    accepted: list[socket.socket] = []

    def serve(client: socket.socket, name: object) -> None:
        iterations.count()
        accepted.append(client)

    listener = listen("127.0.0.1:0")
    clients = []
    for _ in range(100):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        clients.append(client)
    acceptor = Acceptor(listener, "TCP", serve)
    acceptor.start()
    eventually(lambda: len(accepted) == 100)
    acceptor.stop()
    for client in (*clients, *accepted):
        client.close()
    assert max(iterations.counts) <= MAX_ACCEPTS


@pytest.fixture
def begin_handshakes(server, connect, authority):
    """Connects clients, the last ones from other addresses, and then begins their handshakes, all at once."""
    server.limits = NsqdLimits(tls=True)
    server.certificates = Certificates(authority.files())

    def begin(*others: str):
        sources = *[""] * HANDSHAKES, *others
        clients = [(connect(source=source), authority.client_tls()) for source in sources]
        for client, _ in clients:
            client.asks_for(tls_v1=True)
        hellos = [tls.do_handshake() for _, tls in clients]
        for (client, _), hello in zip(clients, hellos, strict=True):
            os.write(client.socket.fileno(), hello)  # gevent's `sendall` would let the server run
        return clients

    return begin


@pytest.mark.interpreted
def test_handshakes_that_begin_together_take_steps_for_a_limited_time(begin_handshakes, iterations, monkeypatch):
    monkeypatch.setattr(handshakes(), "_seconds", -1.0)  # so that an iteration has time for one step
    do_handshake = StandardTls.do_handshake

    def counted_handshake(tls, data) -> bool:
        iterations.count()
        return do_handshake(tls, data)

    monkeypatch.setattr(StandardTls, "do_handshake", counted_handshake)
    for client, tls in begin_handshakes():
        client.do_handshake(tls)
        client.hears(b"OK").publishes(b"x")
    assert sum(iterations.counts) >= 2 * HANDSHAKES
    assert max(iterations.counts) == 1


@pytest.mark.interpreted
def test_addresses_take_turns_in_steps_of_handshakes(begin_handshakes, monkeypatch):
    monkeypatch.setattr(handshakes(), "_seconds", -1.0)
    do_handshake = StandardTls.do_handshake
    steps: list[StandardTls] = []

    def noted_handshake(tls, data) -> bool:
        steps.append(tls)
        return do_handshake(tls, data)

    monkeypatch.setattr(StandardTls, "do_handshake", noted_handshake)
    client, tls = begin_handshakes("127.0.0.2")[-1]
    steps.clear()  # those before the clients' first bytes
    client.do_handshake(tls)
    client.hears(b"OK")
    assert len(steps) < HANDSHAKES // 4, "it did not wait for a step of each client that began before"


def test_connections_may_be_closed_while_their_handshakes_wait(server, begin_handshakes, eventually):
    clients = begin_handshakes()
    for number, (client, _) in enumerate(clients):
        if number % 2:
            client.socket.close()
        else:
            host, port = client.socket.getsockname()
            server.tcp.close_client(f"{host}:{port}")
    eventually(lambda: not server.tcp.sessions)
