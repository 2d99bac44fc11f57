"""Notifications are sent in order, in the background."""

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
    """Send these notifications."""
    notifications.start()
    for action in actions:
        notifications.notify({"action": action})
    gevent.sleep(0)
    notifications.stop()


def test_notifications_are_sent_in_order(client, endpoint):
    told(Notifications(client, f"http://{endpoint.address}/hook"), "one", "two")
    assert endpoint.orders == ['hook {"action":"one"}', 'hook {"action":"two"}']


def test_an_error_status_of_the_endpoint_is_ignored(client, endpoint):
    endpoint.says("hook", b"", 500)
    told(Notifications(client, f"http://{endpoint.address}/hook"), "one", "two")
    assert len(endpoint.orders) == 2


def test_an_unreachable_endpoint_is_logged(client, endpoint, caplog):
    endpoint.close()
    told(Notifications(client, f"http://{endpoint.address}/hook"), "one")
    assert "failed to POST notification - Post" in caplog.text


def test_without_an_endpoint_no_notification_is_queued(client):
    told(Notifications(client, ""), "one")


def test_notifications_beyond_the_limit_are_dropped_and_logged(client, caplog, monkeypatch):
    monkeypatch.setattr(notifications_module, "_MAX_WAITING", 2)
    notifications = Notifications(client, "http://127.0.0.1:1/")
    for _ in range(3):
        notifications.notify({"action": "x"})
    assert caplog.text.count("notification dropped") == 1
