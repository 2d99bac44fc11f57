"""Who gets in, and whose requests count as theirs."""

import pytest

from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.users import Users, make_line

LINES = "\n".join(
    make_line(name, role, f"{name}-pw") for name, role in (("vic", "viewer"), ("olga", "operator"), ("ada", "admin"))
)
PAUSE, DELETE = ("POST", "/api/topics/orders", '{"action":"pause"}'), ("DELETE", "/api/topics/orders", "")
EMPTY = ("POST", "/api/topics/orders", '{"action":"empty"}')


@pytest.fixture
def behind_login(service):
    service.users = Users(LINES)
    return create_app(service).test_client()


def status(client, request, auth=None, **headers):
    method, path, body = request
    return client.open(path, method=method, data=body, auth=auth, headers=headers).status_code


def test_without_a_user_file_everybody_may_do_everything(browser):
    assert status(browser, PAUSE) == status(browser, DELETE) == 200


@pytest.mark.parametrize(
    ("name", "statuses"), [("vic", (200, 403, 403, 403)), ("olga", (200, 200, 403, 403)), ("ada", (200, 200, 200, 200))]
)
def test_a_role_may_do_what_it_is_for(behind_login, name, statuses):
    requests = (("GET", "/api/topics", ""), PAUSE, EMPTY, DELETE)
    assert tuple(status(behind_login, request, (name, f"{name}-pw")) for request in requests) == statuses


def test_nobody_gets_past_the_login(behind_login, nsqd):
    assert status(behind_login, ("GET", "/api/topics", "")) == 401
    assert status(behind_login, ("GET", "/config/log_level", "")) == 401
    assert status(behind_login, DELETE) == 401
    assert status(behind_login, DELETE, ("ada", "wrong")) == 401
    answer = behind_login.get("/topics/orders?span=24h")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login?next=/topics/orders?span%3D24h")
    assert behind_login.get("/ping").status_code == 200
    assert behind_login.get("/static/nsqadmin.css").status_code == 200
    assert nsqd.orders == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_another_site_cannot_act_in_a_visitors_name(browser, nsqd, headers):
    assert status(browser, DELETE, **headers) == 403
    assert status(browser, PAUSE, **headers) == 403
    assert nsqd.orders == []


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost"}]
)
def test_our_own_pages_can(browser, headers):
    assert status(browser, PAUSE, **headers) == 200


def test_a_form_without_its_token_does_nothing(browser, submit, nsqd):
    assert browser.post("/topics/orders", data={"action": "pause"}).status_code == 403
    assert browser.post("/topics/orders", data={"action": "pause", "csrf": "x"}).status_code == 403
    assert nsqd.orders == []
    assert submit("/topics/orders", action="pause").status_code == 303
    assert nsqd.orders == ["topic/pause?topic=orders"]


def test_who_may_only_look_sees_no_buttons(browser, service):
    assert "Delete…" in browser.get("/topics/orders").text
    service.options.admin_users = ("ada",)
    page = browser.get("/topics/orders").text
    assert "Delete…" not in page
    assert "<button>Pause" not in page
    assert browser.get("/topics/orders?confirm=delete").status_code == 403
    assert browser.get("/topics/orders/archive/messages").status_code == 403
