import pytest

from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.users import Users, make_line

USERS = "\n".join(make_line(name, name, "pw") for name in ("viewer", "operator", "admin"))
INSIDE, OUTSIDE = "127.0.0.1", "10.0.0.1"


def test_options_are_shown_as_text_or_json(browser, service):
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
def test_invalid_options_and_values_are_refused(browser, name, body, status, code):
    answer = browser.put(f"/config/{name}", data=body)
    assert (answer.status_code, answer.get_json(force=True)) == (status, {"message": code})


def test_only_addresses_inside_the_cidr_have_access(browser, service):
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


def change_and_show(client, address, headers=None, auth=None):
    """The statuses of a PUT and a GET from an address."""
    options = {"headers": headers, "auth": auth, "environ_overrides": {"REMOTE_ADDR": address}}
    changed = client.put("/config/log_level", data="debug", **options)
    return changed.status_code, client.get("/config/log_level", **options).status_code


@pytest.mark.parametrize(
    ("address", "header", "statuses"),
    [
        (INSIDE, "ada", (200, 200)),
        (INSIDE, "eve", (403, 200)),
        (INSIDE, "", (403, 200)),
        (INSIDE, None, (403, 200)),
        (OUTSIDE, "ada", (403, 403)),
        (OUTSIDE, "eve", (403, 403)),
        (OUTSIDE, None, (403, 403)),
    ],
)
def test_with_admin_users_a_change_needs_an_admin_inside_the_cidr(browser, service, address, header, statuses):
    service.options.admin_users = ("ada",)
    service.config["log_level"] = 2
    headers = {} if header is None else {"X-Forwarded-User": header}
    assert change_and_show(browser, address, headers) == statuses
    assert service.config["log_level"] == (1 if statuses[0] == 200 else 2)


def test_the_configured_header_names_the_admin_and_no_other_header_does(browser, service):
    service.options.admin_users, service.options.acl_http_header = ("ada",), "X-User"
    assert change_and_show(browser, INSIDE, {"X-Forwarded-User": "ada"})[0] == 403
    assert change_and_show(browser, INSIDE, {"X-User": "ada"}) == (200, 200)


def test_an_open_cidr_still_needs_an_admin(browser, service):
    service.options.admin_users, service.options.allow_config_from_cidr = ("ada",), ""
    service.config["log_level"] = 2
    assert change_and_show(browser, OUTSIDE, {"X-Forwarded-User": "eve"}) == (403, 200)
    assert change_and_show(browser, OUTSIDE, {"X-Forwarded-User": "ada"}) == (200, 200)


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("", (401, 401), (401, 401)),
        ("viewer", (403, 200), (403, 403)),
        ("operator", (403, 200), (403, 403)),
        ("admin", (200, 200), (403, 403)),
    ],
)
def test_with_a_user_file_a_change_needs_the_role_admin_inside_the_cidr(service, name, inside, outside):
    service.users = Users(USERS)
    service.config["log_level"] = 2
    client, auth = create_app(service).test_client(), (name, "pw") if name else None
    assert change_and_show(client, INSIDE, auth=auth) == inside
    assert change_and_show(client, OUTSIDE, auth=auth) == outside


def test_with_nothing_configured_the_cidr_alone_decides(browser, service):
    service.config["log_level"] = 2
    assert change_and_show(browser, INSIDE) == (200, 200)
    assert change_and_show(browser, OUTSIDE) == (403, 403)
