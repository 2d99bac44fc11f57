"""One deadline for a whole answer, whatever part of it a server draws out."""

import threading

import pytest

from nsq_compat.bounded_http import Deadline, bounded_session
from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions, UpstreamError
from tests.cluster.hostile import (
    DEADLINE,
    DRIPPING,
    HostileServer,
    dripping_handshake,
    dripping_header,
    endless_headers,
    redirecting,
    redirecting_with_endless_body,
)


@pytest.fixture
def hasty() -> HttpClient:
    return HttpClient(HttpClientOptions(request_timeout=DEADLINE, tls_skip_verify=True))


@pytest.mark.parametrize("answer", DRIPPING)
def test_an_answer_that_is_drawn_out_ends_at_the_deadline(hasty, answer):
    with HostileServer(answer) as server, pytest.raises(UpstreamError, match=": timeout$"):
        hasty.get(server.address, "stats")


@pytest.mark.parametrize("answer", DRIPPING)
def test_an_order_whose_answer_is_drawn_out_ends_at_the_deadline(hasty, answer):
    with HostileServer(answer) as server, pytest.raises(UpstreamError, match=": timeout$"):
        hasty.post(server.address, "pub", {"topic": "t"}, b"body")


@pytest.mark.parametrize("answer", DRIPPING)
def test_inside_tls_it_is_the_same(hasty, answer):
    with HostileServer(answer, tls=True) as server, pytest.raises(UpstreamError, match=": timeout$"):
        hasty.fetch(f"https://{server.address}/render")


def test_a_tls_handshake_that_is_drawn_out_ends_at_the_deadline(hasty):
    with HostileServer(dripping_handshake) as server, pytest.raises(UpstreamError, match=": timeout$"):
        hasty.fetch(f"https://{server.address}/render")


def test_the_way_to_the_tls_port_is_within_the_same_deadline(hasty, daemon):
    with HostileServer(dripping_handshake) as server:
        port = int(server.address.rpartition(":")[2])
        daemon.says("info", {"message": "TLS_REQUIRED", "https_port": port}, 403)
        with pytest.raises(UpstreamError, match="https://.*: timeout$"):
            hasty.get(daemon.address, "info")


def test_headers_without_end_are_refused_by_their_number(client):
    with HostileServer(endless_headers) as server, pytest.raises(UpstreamError, match="got more than 100 headers"):
        client.get(server.address, "stats")


@pytest.mark.parametrize("answer", [redirecting, redirecting_with_endless_body])
def test_a_redirect_is_not_followed_and_its_body_not_read(client, answer):
    with HostileServer(answer) as server:
        with pytest.raises(UpstreamError, match="got response 302"):
            client.get(server.address, "stats")
        assert server.requests == 1


def test_a_name_with_many_addresses_that_do_not_answer_costs_one_deadline(hasty, monkeypatch):
    def many(*_, **__):
        return [(2, 1, 6, "", (f"127.0.0.1{number:02}", 1)) for number in range(100)]

    tried = []

    def connect(address, timeout, **_):
        tried.append(timeout)
        threading.Event().wait(min(timeout, 0.1))
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.getaddrinfo", many)
    monkeypatch.setattr("urllib3.util.connection.create_connection", connect)
    with pytest.raises(UpstreamError, match=": timeout$"):
        hasty.get("many.example:1", "stats")
    assert len(tried) < 10
    assert all(timeout <= DEADLINE for timeout in tried)


def test_what_is_done_in_time_leaves_nothing_behind(client, daemon):
    daemon.says("info", {"a": 1})
    for _ in range(20):
        assert client.get(daemon.address, "info") == {"a": 1}
    assert sum(thread.name == "http deadlines" for thread in threading.enumerate()) == 1


def test_many_are_ended_side_by_side(hasty):
    failures: list[str] = []

    def ask(address: str) -> None:
        try:
            hasty.get(address, "stats")
        except UpstreamError as error:
            failures.append(str(error))

    with HostileServer(dripping_header) as server:
        threads = [threading.Thread(target=ask, args=(server.address,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(failures) == 20
    assert all(failure.endswith(": timeout") for failure in failures)


def test_a_request_needs_a_deadline(daemon):
    with bounded_session() as session:
        with pytest.raises(Exception, match="outside a Deadline"):
            session.get(f"http://{daemon.address}/info")
        with Deadline(20):
            assert session.get(f"http://{daemon.address}/info").status_code == 404


def test_an_error_in_time_stays_what_it_is():
    with pytest.raises(ValueError, match="mine"), Deadline(20):
        raise ValueError("mine")


def test_an_error_behind_the_deadline_is_a_timeout():
    with pytest.raises(TimeoutError), Deadline(0):
        raise ValueError("mine")
