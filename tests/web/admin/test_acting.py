"""Whatever is done is told and logged."""

import logging

from tests.web.admin.conftest import NOW


def test_what_was_done_is_told_with_who_and_where_from(browser, service):
    browser.post(
        "/api/topics/orders/mail?x=1",
        data='{"action":"pause"}',
        headers={
            "User-Agent": "curl/8",
            "X-Scheme": "https",
            "Host": "admin.example:4171",
            "Authorization": "Basic YWRhOng=",
        },
        environ_overrides={"nsqadmin.remote_address": "10.1.1.1:4000"},
    )
    (told,) = service.notified
    assert list(told) == ["action", "topic", "channel", "timestamp", "user", "remote_ip", "user_agent", "url", "via"]
    assert (told["action"], told["topic"], told["channel"]) == ("pause_channel", "orders", "mail")
    assert (told["timestamp"], told["user"], told["remote_ip"]) == (int(NOW), "ada", "10.1.1.1:4000")
    assert told["url"] == "https://admin.example:4171/api/topics/orders/mail?x=1"


def test_every_action_has_its_name(browser, service, nsqd):
    for method, path, body in [
        ("POST", "/api/topics", '{"topic":"t"}'),
        ("POST", "/api/topics/orders", '{"action":"empty"}'),
        ("POST", "/api/topics/orders", '{"action":"unpause"}'),
        ("DELETE", "/api/topics/orders/mail", ""),
        ("DELETE", "/api/topics/orders", ""),
        ("DELETE", f"/api/nodes/{nsqd.address}", '{"topic":"orders"}'),
    ]:
        assert browser.open(path, method=method, data=body).status_code == 200
    assert [told["action"] for told in service.notified] == [
        *("create_topic", "empty_topic", "unpause_topic", "delete_channel", "delete_topic"),
        "tombstone_topic_producer",
    ]


def test_a_change_that_failed_is_told_a_deletion_that_failed_is_not(browser, service, nsqd):
    nsqd.says("stats", b"", 500)
    assert browser.post("/api/topics/orders", data='{"action":"pause"}').status_code == 502
    assert browser.delete("/api/topics/orders").status_code == 502
    assert [told["action"] for told in service.notified] == ["pause_topic"]


def test_the_audit_log_has_a_line_for_each(browser, caplog):
    with caplog.at_level(logging.INFO):
        browser.post("/api/topics/orders", data='{"action":"pause"}', headers={"X-Forwarded-User": "ada"})
    assert "AUDIT: ada () pause_topic orders: done" in caplog.text
