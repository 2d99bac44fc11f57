import pytest


def test_an_option_is_shown_as_it_is(browser, service):
    service.config |= {"http_address": "0.0.0.0:4171", "admin_users": ["ada"], "statsd_interval": 60}
    assert browser.get("/config/http_address").text == "0.0.0.0:4171"
    assert browser.get("/config/admin_users").text == '["ada"]'
    assert browser.get("/config/statsd_interval").text == "60"
    assert browser.get("/config/nope").status_code == 400


def test_two_options_can_be_changed(browser, service):
    assert browser.put("/config/log_level", data="debug").status_code == 200
    answer = browser.put("/config/nsqlookupd_http_addresses", data='["a:1"]')
    assert (answer.status_code, answer.text) == (200, '["a:1"]')


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("log_level", "", 413, "INVALID_VALUE"),
        ("log_level", "x" * (1024 * 1024 + 1), 413, "INVALID_VALUE"),
        ("log_level", "loud", 400, "INVALID_VALUE"),
        ("nsqlookupd_http_addresses", "[1]", 400, "INVALID_VALUE"),
        ("nsqlookupd_http_addresses", "[" * 100_000, 400, "INVALID_VALUE"),
        ("http_address", "x", 400, "INVALID_OPTION"),
    ],
)
def test_what_cannot_be_set_is_refused(browser, name, body, status, code):
    answer = browser.put(f"/config/{name}", data=body)
    assert (answer.status_code, answer.get_json(force=True)) == (status, {"message": code})


def test_only_allowed_addresses_get_at_it(browser, service):
    service.config["log_level"] = 2
    for cidr, address, status in [
        ("127.0.0.1/8", "127.9.9.9", 200),
        ("127.0.0.1/8", "10.0.0.1", 403),
        ("127.0.0.1/8", "::1", 403),
        ("127.0.0.1/8", "", 400),
        ("", "10.0.0.1", 200),
    ]:
        service.options.allow_config_from_cidr = cidr
        answer = browser.get("/config/log_level", environ_overrides={"REMOTE_ADDR": address})
        assert answer.status_code == status
