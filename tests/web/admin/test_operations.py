"""/config, /metrics, and who may use them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nsq_compat.cluster.cluster import take_snapshot
from nsq_compat.web.admin.operations import collect

INSIDE, OUTSIDE = "127.0.0.1", "10.0.0.1"


def test_options_are_shown_as_text_or_json(browser, service):
    service.options.admin_users = ("ada",)
    assert browser.get("/config/http_address").text == "0.0.0.0:4171"
    assert browser.get("/config/admin_users").text == '["ada"]'
    assert browser.get("/config/statsd_interval").text == "60000000000"
    assert browser.get("/config/nope").status_code == 400


def test_two_options_can_be_changed(browser, service):
    assert browser.put("/config/log_level", data="debug").status_code == 200
    answer = browser.put("/config/nsqlookupd_http_addresses", data='["a:1"]')
    assert (answer.status_code, answer.text) == (200, '["a:1"]')


def test_an_address_that_cannot_be_encoded_fails_no_page(browser):
    assert browser.put("/config/nsqlookupd_http_addresses", data=r'["\ud800:1"]').text == '["?:1"]'
    assert browser.get("/nodes").status_code != 500


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("log_level", "", 413, "INVALID_VALUE"),
        ("log_level", "x" * (1024 * 1024 + 1), 413, "INVALID_VALUE"),
        ("log_level", "loud", 400, "INVALID_VALUE"),
        ("nsqlookupd_http_addresses", "[1]", 400, "INVALID_VALUE"),
        ("nsqlookupd_http_addresses", '["http://user:secret@h:4161"]', 400, "INVALID_VALUE"),
        ("nsqlookupd_http_addresses", "[" * 100_000, 400, "INVALID_VALUE"),
        ("http_address", "x", 400, "INVALID_OPTION"),
    ],
)
def test_invalid_options_and_values_are_refused(browser, name, body, status, code):
    answer = browser.put(f"/config/{name}", data=body)
    assert (answer.status_code, answer.get_json(force=True)) == (status, {"message": code})


def test_only_addresses_inside_the_cidr_have_access(browser):
    for address, status in (("127.9.9.9", 200), ("::1", 403), ("", 400)):
        answer = browser.get("/config/log_level", environ_overrides={"REMOTE_ADDR": address})
        assert answer.status_code == status


def change_and_show(client, address, headers=None, auth=None):
    """The statuses of a PUT and a GET from an address."""
    options = {"headers": headers, "auth": auth, "environ_overrides": {"REMOTE_ADDR": address}}
    changed = client.put("/config/log_level", data="debug", **options)
    return changed.status_code, client.get("/config/log_level", **options).status_code


@pytest.mark.parametrize(
    ("cidr", "user_header", "headers", "inside", "outside"),
    [
        ("127.0.0.1/8", "X-Forwarded-User", {"X-Forwarded-User": "ada"}, (200, 200), (403, 403)),
        ("127.0.0.1/8", "X-Forwarded-User", {"X-Forwarded-User": "eve"}, (403, 200), (403, 403)),
        ("127.0.0.1/8", "X-Forwarded-User", {"X-Forwarded-User": ""}, (403, 200), (403, 403)),
        ("127.0.0.1/8", "X-Forwarded-User", {}, (403, 200), (403, 403)),
        ("127.0.0.1/8", "X-User", {"X-Forwarded-User": "ada"}, (403, 200), (403, 403)),
        ("127.0.0.1/8", "X-User", {"X-User": "ada"}, (200, 200), (403, 403)),
        ("", "X-Forwarded-User", {"X-Forwarded-User": "eve"}, (403, 200), (403, 200)),
        ("", "X-Forwarded-User", {"X-Forwarded-User": "ada"}, (200, 200), (200, 200)),
    ],
)
def test_with_admin_users_a_change_needs_an_admin_inside_the_cidr(
    browser, service, cidr, user_header, headers, inside, outside
):
    service.options.admin_users, service.options.acl_http_header = ("ada",), user_header
    service.options.allow_config_from_cidr = cidr
    assert change_and_show(browser, OUTSIDE, headers) == outside
    assert change_and_show(browser, INSIDE, headers) == inside
    assert service.options.log_level == (1 if 200 in (inside[0], outside[0]) else 2)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("", (401, 401), (401, 401)),
        ("vic", (403, 200), (403, 403)),
        ("olga", (403, 200), (403, 403)),
        ("ada", (200, 200), (403, 403)),
    ],
)
def test_with_a_user_file_a_change_needs_the_role_admin_inside_the_cidr(behind_login, name, inside, outside):
    auth = (name, f"{name}-pw") if name else None
    assert change_and_show(behind_login, INSIDE, auth=auth) == inside
    assert change_and_show(behind_login, OUTSIDE, auth=auth) == outside


def test_with_nothing_configured_the_cidr_alone_decides(browser):
    assert change_and_show(browser, INSIDE) == (200, 200)
    assert change_and_show(browser, OUTSIDE) == (403, 403)


def scrape(browser):
    families = text_string_to_metric_families(browser.get("/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_metrics_are_those_of_the_last_sample(service, browser):
    service.metrics.collect_from(lambda: collect(service.history))
    assert "nsqadmin_nodes" not in scrape(browser)
    service.history.add(take_snapshot(service.cluster, service.now()))
    found = scrape(browser)
    assert (found["nsqadmin_nodes"], found["nsqadmin_nodes_silent"]) == (1, 0)
    assert (found["nsqadmin_topics"], found["nsqadmin_channels"]) == (1, 2)
    assert (found["nsqadmin_topic_depth"], found["nsqadmin_channel_depth"]) == (7, 12304)
