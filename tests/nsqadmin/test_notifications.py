"""What was done is told, one after the other, and nobody waits for it."""

from collections.abc import Iterator

import gevent
import pytest

from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions
from nsq_compat.nsqadmin import notifications as notifications_module
from nsq_compat.nsqadmin.notifications import Notifications
from tests.cluster.daemon import Daemon


@pytest.fixture
def endpoint() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon.says("hook", b"")
    daemon.close()


@pytest.fixture
def client() -> HttpClient:
    return HttpClient(HttpClientOptions(request_timeout=20))


def told(notifications: Notifications, *actions: str) -> None:
    """Tell these, and let them get out."""
    notifications.start()
    for action in actions:
        notifications.notify({"action": action})
    gevent.sleep(0)
    notifications.stop()


def test_each_is_told_in_its_turn(client, endpoint):
    told(Notifications(client, f"http://{endpoint.address}/hook"), "one", "two")
    assert endpoint.orders == ['hook {"action":"one"}', 'hook {"action":"two"}']


def test_an_answer_that_is_a_refusal_is_an_answer(client, endpoint):
    endpoint.says("hook", b"", 500)
    told(Notifications(client, f"http://{endpoint.address}/hook"), "one", "two")
    assert len(endpoint.orders) == 2


def test_an_endpoint_that_is_not_there_is_a_line_in_the_log(client, endpoint, caplog):
    endpoint.close()
    told(Notifications(client, f"http://{endpoint.address}/hook"), "one")
    assert "failed to POST notification - Post" in caplog.text


def test_without_an_endpoint_there_is_nobody_to_tell(client):
    told(Notifications(client, ""), "one")


def test_more_than_can_wait_are_dropped_and_counted_in_the_log(client, caplog, monkeypatch):
    monkeypatch.setattr(notifications_module, "_MAX_WAITING", 2)
    notifications = Notifications(client, "http://127.0.0.1:1/")
    for _ in range(3):
        notifications.notify({"action": "x"})
    assert caplog.text.count("a notification was dropped") == 1
