import _socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent import socket as gevent_socket
from gevent import threadpool

from nsq_compat.net import resolver

ADDRESS = (_socket.AF_INET, _socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))
PATIENCE = 30.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """The names that the system was asked for. Those that begin with ``silent`` have no answer before the end."""
    names, end, system = Counter[str](), threading.Event(), _socket.getaddrinfo

    def getaddrinfo(host, port, *others):
        if others[-1] & _socket.AI_NUMERICHOST:
            return system(host, port, *others)
        names[host] += 1
        if host.startswith("silent"):
            end.wait(PATIENCE)
        if host.startswith("unknown"):
            raise _socket.gaierror(_socket.EAI_NONAME, "unknown")
        return [ADDRESS]

    monkeypatch.setattr(_socket, "getaddrinfo", getaddrinfo)
    hub: Any = gevent.get_hub()
    monkeypatch.setattr(hub, "_resolver", None)
    resolver.install()
    yield names
    end.set()
    hub.resolver.pool.kill()


def found(host: str) -> list[Any]:
    with gevent.Timeout(PATIENCE):
        return gevent_socket.getaddrinfo(host, 80)


def test_names_without_an_answer_hold_up_no_other_host(asked):
    waiting = [gevent.spawn(gevent_socket.getaddrinfo, f"silent{number}", 80) for number in range(200)]
    while len(asked) < 200:
        gevent.sleep(0.01)
    assert found("good") == [ADDRESS]
    assert found("127.0.0.1")[0][-1] == ("127.0.0.1", 80)
    gevent.killall(waiting)


def test_a_name_is_asked_for_once_at_a_time(asked):
    waiting = [gevent.spawn(gevent_socket.getaddrinfo, "silent", 80) for _ in range(1000)]
    while not asked:
        gevent.sleep(0.01)
    assert found("good") == [ADDRESS]
    waiting[0].kill()
    assert asked == {"silent": 1, "good": 1}
    gevent.killall(waiting)


def test_names_wait_for_a_thread_if_the_system_permits_few(asked, monkeypatch):
    used: Any = gevent.get_hub().resolver
    start: Any = vars(threadpool)["start_new_thread"]
    started: list[object] = []

    def start_few(*args):
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(start(*args))

    monkeypatch.setattr(threadpool, "start_new_thread", start_few)
    waiting = [gevent.spawn(gevent_socket.getaddrinfo, f"name{number}", 80) for number in range(20)]
    with gevent.Timeout(PATIENCE):
        assert [each.get() for each in waiting] == [[ADDRESS]] * 20
    assert used.pool.size == 3


def test_an_ip_address_needs_no_thread(asked):
    assert found("::1")[0][-1][:2] == ("::1", 80)
    assert not asked


def test_each_one_who_asks_gets_the_error(asked):
    waiting = [gevent.spawn(gevent_socket.getaddrinfo, "unknown", 80) for _ in range(3)]
    gevent.joinall(waiting)
    assert [type(each.exception) for each in waiting] == [_socket.gaierror] * 3
    with pytest.raises(_socket.gaierror):  # and it is asked again
        found("unknown")
    assert asked["unknown"] == 2
