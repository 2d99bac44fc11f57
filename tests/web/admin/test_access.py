"""Permissions, requests of other sites, and the login page."""

import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from nsq_compat.policy.access import AccessFile, Tokens, hash_of
from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.request_queue import (
    MAX_OF_ADDRESS,
    MAX_OF_USER,
    ClientIsGone,
    Requester,
    RequestQueue,
    TooMany,
)
from nsq_compat.web.admin.users import PasswordCheck, Role, TooBusy, Users, make_line
from tests.web.admin.conftest import USERS, Form, shown

FORM = "application/x-www-form-urlencoded"
PAUSE, DELETE = ("POST", "/api/topics/orders", '{"action":"pause"}'), ("DELETE", "/api/topics/orders", "")
EMPTY = ("POST", "/api/topics/orders", '{"action":"empty"}')


@pytest.fixture
def log_in(behind_login):
    form = Form(behind_login)
    return lambda name="ada", password="ada-pw", **fields: form(
        "/login", "/login", name=name, password=password, **fields
    )


def status(client, request, auth=None, **headers):
    method, path, body = request
    return client.open(path, method=method, data=body, auth=auth, headers=headers).status_code


def test_without_configuration_every_visitor_may_do_everything(browser):
    assert status(browser, PAUSE) == status(browser, DELETE) == 200


@pytest.mark.parametrize(
    ("name", "statuses"), [("vic", (200, 403, 403, 403)), ("olga", (200, 200, 403, 403)), ("ada", (200, 200, 200, 200))]
)
def test_a_role_has_its_permissions(behind_login, name, statuses):
    requests = (("GET", "/api/topics", ""), PAUSE, EMPTY, DELETE)
    assert tuple(status(behind_login, request, (name, f"{name}-pw")) for request in requests) == statuses


def test_without_a_login_nothing_is_accessible(behind_login, nsqd):
    assert status(behind_login, ("GET", "/api/topics", "")) == 401
    assert status(behind_login, ("GET", "/config/log_level", "")) == 401
    assert status(behind_login, DELETE) == 401
    assert status(behind_login, DELETE, ("ada", "wrong")) == 401
    answer = behind_login.get("/topics/orders?span=24h")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login?next=/topics/orders?span%3D24h")
    for path in ("/ping", "/livez", "/readyz", "/metrics", "/static/nsqadmin.css"):
        assert behind_login.get(path).status_code == 200
    assert nsqd.orders == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "none"},
    ],
)
def test_requests_of_other_sites_change_nothing(browser, nsqd, headers):
    assert status(browser, DELETE, **headers) == 403
    assert status(browser, PAUSE, **headers) == 403
    assert nsqd.orders == []


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://localhost"}]
)
def test_requests_of_our_own_pages_are_accepted(browser, headers):
    assert status(browser, PAUSE, **headers) == 200


def test_a_form_without_its_token_does_nothing(browser, submit, nsqd):
    assert browser.post("/topics/orders", data={"action": "pause"}).status_code == 403
    assert browser.post("/topics/orders", data={"action": "pause", "csrf": "x"}).status_code == 403
    assert nsqd.orders == []
    assert submit("/topics/orders", action="pause").status_code == 303
    assert nsqd.orders == ["topic/pause?topic=orders"]


def test_a_role_sees_disabled_buttons_and_the_reason(behind_login, browser):
    pages = ("/topics/orders", "/topics/orders/archive")
    for page in pages:
        assert "Your role" not in browser.get(page).text
    for name, allowed in (("vic", ()), ("olga", ("Pause",)), ("ada", ("Pause", "Empty…", "Delete…"))):
        for page in pages:
            text = behind_login.get(page, auth=(name, f"{name}-pw")).text
            refused = re.findall(r'disabled title="Your role \((\w+)\) does not allow this">([^<]*)<', text)
            assert {label for _, label in refused}.isdisjoint(allowed), (name, page)
            assert {"Pause", "Empty…", "Delete…"} <= {*allowed, *(label for _, label in refused)}, (name, page)
            assert ("does not allow the disabled actions" in text) is (name != "ada")


@pytest.mark.parametrize(
    ("name", "path", "reason"),
    [
        (
            "vic",
            "/topics/orders/archive/messages",
            "Your role (viewer) does not allow this. It needs the role operator.",
        ),
        ("vic", "/messages/orders", "Your role (viewer) does not allow this. It needs the role operator."),
        ("olga", "/topics/orders?confirm=delete", "Your role (operator) does not allow this. It needs the role admin."),
    ],
)
def test_a_refused_page_names_the_role_that_it_needs(behind_login, name, path, reason):
    answer = behind_login.get(path, auth=(name, f"{name}-pw"), headers={"Accept": "text/html"})
    assert answer.status_code == 403
    assert reason in shown(answer)


def test_a_refused_form_explains_what_to_do(browser):
    html = {"Accept": "text/html"}
    old = browser.post("/topics/orders", data={"action": "pause"}, headers=html)
    assert (old.status_code, "This form is out of date" in old.text) == (403, True)
    other = browser.post("/topics/orders", data={"action": "pause"}, headers={**html, "Origin": "http://proxy"})
    assert (other.status_code, "must pass on the header Host" in other.text) == (403, True)


def test_a_user_that_is_not_listed_sees_disabled_buttons(browser, service):
    service.options.admin_users = ("ada",)
    assert [status(browser, PAUSE, **{"X-Forwarded-User": name}) for name in ("", "bob", "ada")] == [403, 403, 200]
    page = browser.get("/topics/orders").text
    assert "confirm=delete" not in page
    assert "<form method" not in page
    assert browser.get("/topics/orders?confirm=delete").status_code == 403
    assert browser.get("/topics/orders/archive/messages").status_code == 403


@pytest.mark.parametrize("names", [("",), ("ada", "")])
def test_an_empty_name_is_no_administrator(browser, service, names):
    service.options.admin_users = names
    assert status(browser, PAUSE) == 403
    assert status(browser, PAUSE, **{"X-Forwarded-User": ""}) == 403


def test_a_login_redirects_to_the_page_requested_before(behind_login, log_in):
    answer = log_in(next="/topics/orders?span=24h")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/topics/orders?span=24h")
    page = behind_login.get("/topics/orders").text
    assert "Log out" in page
    assert "Delete…" in page


def test_a_failed_login_does_not_tell_whether_the_user_exists(log_in):
    wrong = log_in(password="x")
    unknown = log_in("eve", "x")
    assert wrong.status_code == unknown.status_code == 401
    assert "Wrong user name or password" in wrong.text
    assert "Wrong user name or password" in unknown.text


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example", "evil"])
def test_a_login_does_not_redirect_to_another_site(log_in, elsewhere):
    answer = log_in(next=elsewhere)
    assert answer.headers["Location"] == "/"


def test_a_logout_ends_the_session(behind_login, log_in):
    log_in()
    assert behind_login.get("/topics").status_code == 200
    assert Form(behind_login)("/logout", "/topics").status_code == 303
    assert behind_login.get("/topics").status_code == 302


def test_a_cookie_that_was_copied_before_the_logout_is_refused_after_it(behind_login, log_in, service):
    log_in()
    copied = behind_login.get_cookie("nsqadmin").value
    other = create_app(service).test_client()
    other.set_cookie("nsqadmin", copied)
    assert other.get("/topics").status_code == 200
    assert Form(behind_login)("/logout", "/topics").status_code == 303
    assert other.get("/topics").status_code == 302
    assert status(other, ("GET", "/api/topics", "")) == 401


def test_a_logout_leaves_the_users_other_logins(behind_login, log_in, service):
    log_in()
    other = create_app(service).test_client()
    Form(other)("/login", "/login", name="ada", password="ada-pw")
    Form(behind_login)("/logout", "/topics")
    assert other.get("/topics").status_code == 200


@pytest.mark.parametrize(("role", "password"), [("operator", "ada-pw"), ("admin", "other"), ("admin", "ada-pw")])
def test_a_new_password_or_role_ends_the_users_logins(behind_login, service, log_in, role, password):
    log_in()
    service.users = Users(make_line("ada", role, password))
    # Also a new hash of the same password.
    assert behind_login.get("/topics").status_code == 302


def test_a_user_file_that_is_read_again_keeps_the_logins_of_others(behind_login, service, log_in):
    log_in()
    service.users = Users(USERS + "\n" + make_line("eve", "viewer", "x"))
    assert behind_login.get("/topics").status_code == 200


def test_a_login_ends_without_requests_of_the_user_or_when_it_is_old(behind_login, service, log_in):
    hour = 3600
    log_in()
    for _ in range(16):
        service.time += 10 * hour
        assert behind_login.get("/topics").status_code == 200
    service.time += 10 * hour
    assert behind_login.get("/topics").status_code == 302
    log_in()
    service.time += 11 * hour
    assert behind_login.get("/topics", headers={"X-Refresh": "1"}).status_code == 200
    assert behind_login.get("/ping").status_code == 200
    service.time += 2 * hour
    # A page that refreshes itself is not a user.
    assert behind_login.get("/topics").status_code == 302


def test_a_changed_cookie_is_no_login(behind_login, log_in):
    log_in()
    payload, _, signature = behind_login.get_cookie("nsqadmin").value.partition(".")
    for forged in (f"{payload}x.{signature}", f"{payload}.{signature[:-4]}AAAA", "x", ""):
        behind_login.set_cookie("nsqadmin", forged)
        assert behind_login.get("/topics").status_code == 302


def test_a_user_removed_from_the_file_has_no_access(behind_login, service, log_in):
    log_in("vic", "vic-pw")
    assert behind_login.get("/topics").status_code == 200
    service.users = Users(make_line("ada", "admin", "ada-pw"))
    assert behind_login.get("/topics").status_code == 302


def test_the_cookie_is_hidden_from_scripts_and_other_sites(behind_login, log_in):
    cookie = log_in().headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_without_a_user_file_there_is_no_login(browser):
    assert browser.get("/login").status_code == 404


def test_too_many_failed_logins_are_refused_unchecked(behind_login, log_in, service, monkeypatch):
    monkeypatch.setattr("nsq_compat.web.admin.access.time", SimpleNamespace(monotonic=lambda: 5.0))
    for _ in range(10):
        assert log_in(password="x").status_code == 401
    service.time -= 7200  # the system's clock is put back, which must not lock users out for longer
    refused = log_in()
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "60"
    assert behind_login.get("/api/topics", auth=("ada", "ada-pw")).status_code == 429
    assert behind_login.get("/api/topics", auth=("vic", "vic-pw")).status_code == 200
    page = behind_login.get("/topics", auth=("ada", "ada-pw"), headers={"Accept": "text/html"})
    assert (page.status_code, "Wait a minute" in page.text) == (429, True)


def test_a_login_while_many_passwords_are_checked_says_so(behind_login, log_in, service):
    def refuse(work):
        raise TooBusy

    service.password_check = PasswordCheck(refuse)
    refused = log_in()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")


# --- Tokens -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def access(tmp_path):
    rows = [
        f'[[tokens]]\nname = "{name}"\nhash = "{hash_of(name.encode())}"\npermissions = ["{name}"]\n'
        for name in ("read", "operate", "admin", "publish", "consume", "mirror", "register")
    ]
    limited = (
        f'[[tokens]]\nname = "limited"\nhash = "{hash_of(b"limited")}"\npermissions = ["admin"]\ntopics = [".*"]\n'
    )
    path = tmp_path / "access.toml"
    path.write_text("".join(rows) + limited)
    return AccessFile(str(path))


def with_token(client, request, token):
    return status(client, request, Authorization=f"Bearer {token}")


@pytest.mark.parametrize(
    ("token", "statuses"),
    [
        ("read", (200, 403, 403, 403)),
        ("operate", (200, 200, 403, 403)),
        ("admin", (200, 200, 200, 200)),
        *((name, (401, 401, 401, 401)) for name in ("publish", "consume", "mirror", "register", "limited", "wrong")),
    ],
)
def test_a_token_has_the_role_of_its_permission(service, browser, access, token, statuses):
    service.access = access
    requests = (("GET", "/api/topics", ""), PAUSE, EMPTY, DELETE)
    assert tuple(with_token(browser, request, token) for request in requests) == statuses


def test_with_an_access_file_nothing_is_accessible_without_a_token_or_a_login(service, browser, access):
    service.access = access
    for path in ("/", "/topics/orders", "/api/topics", "/config/log_level", "/metrics"):
        answer = browser.get(path)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert with_token(browser, ("GET", "/metrics", ""), "read") == 200
    assert with_token(browser, ("GET", "/", ""), "read") == 200
    for path in ("/ping", "/livez", "/readyz"):
        assert browser.get(path).status_code == 200


def test_users_log_in_beside_tokens(service, behind_login, access):
    service.access = access
    assert status(behind_login, PAUSE, ("olga", "olga-pw")) == 200
    assert with_token(behind_login, PAUSE, "operate") == 200
    assert with_token(behind_login, PAUSE, "wrong") == 401
    assert behind_login.get("/topics/orders").status_code == 302


def test_a_token_of_a_page_of_another_site_is_refused(service, browser, access):
    service.access = access
    headers = {"Authorization": "Bearer admin", "Sec-Fetch-Site": "cross-site"}
    assert status(browser, DELETE, **headers) == 403


def test_a_large_form_of_a_visitor_without_a_login_is_not_parsed(behind_login):
    behind_login.get("/login")
    form = "&".join(f"a{number}=" for number in range(10_000))
    for kind in ("text/html", "application/json"):
        answer = behind_login.post("/login", data=form, headers={"Accept": kind, "Content-Type": FORM})
        assert answer.status_code == 413


def test_a_large_form_of_a_visitor_that_may_change_nothing_is_not_parsed(behind_login):
    form = "csrf=x&" + "&".join(f"a{number}=" for number in range(10_000))
    headers = {"Accept": "text/html", "Content-Type": FORM}
    for name, expected in (("vic", 413), ("olga", 400)):
        answer = behind_login.post("/topics/orders", data=form, headers=headers, auth=(name, f"{name}-pw"))
        assert answer.status_code == expected


@pytest.mark.parametrize(
    ("kind", "form", "expected"),
    [(FORM, "csrf=x" + 25_000 * "&a=", 400), (FORM, "csrf=x" + 25_001 * "&a=", 413), ("multipart/form-data", "", 415)],
)
def test_a_form_that_takes_long_to_parse_is_refused_for_every_visitor(behind_login, monkeypatch, kind, form, expected):
    if expected != 400:
        monkeypatch.setattr("werkzeug.formparser.FormDataParser.parse", lambda *_: pytest.fail("it was parsed"))
    headers = {"Accept": "text/html", "Content-Type": kind}
    answer = behind_login.post("/topics/orders", data=form, headers=headers, auth=("ada", "ada-pw"))
    assert answer.status_code == expected


def test_a_path_that_is_too_long_for_a_cookie_is_forgotten_at_the_login(behind_login):
    """The cookie of a login at a provider has the path. Browsers drop cookies of more than 4 KB."""
    short, long = "/topics?q=" + "a" * 900, "/topics?q=" + "a" * 1000
    headers = {"Accept": "text/html"}
    assert behind_login.get(short, headers=headers).headers["Location"].startswith("/login?next=")
    assert behind_login.get(long, headers=headers).headers["Location"] == "/login"
    assert "a" * 900 in behind_login.get("/login", query_string={"next": short}).text
    assert "a" * 900 not in behind_login.get("/login", query_string={"next": long}).text


def test_a_page_of_an_error_does_not_parse_a_form(behind_login, monkeypatch):
    def parse(*_):
        raise AssertionError("it was parsed")

    monkeypatch.setattr("werkzeug.formparser.FormDataParser.parse", parse)
    headers = {"Accept": "text/html", "Content-Type": FORM}
    assert behind_login.get("/docs/zzz", data="a=1", headers=headers).status_code == 404
    assert behind_login.get("/topics", data="a=1", headers=headers).status_code == 302


def test_a_login_that_a_change_of_the_user_has_ended_stays_ended(service, behind_login, log_in):
    log_in()
    assert behind_login.get("/").status_code == 200
    before = service.users
    without_ada = Users("\n".join(line for line in USERS.splitlines() if not line.startswith("ada")))
    assert before.changed(without_ada) == ["ada"]
    assert before.changed(Users(USERS)) == []
    for name in before.changed(without_ada):
        service.sessions.end_all(name)
    assert behind_login.get("/").status_code == 302
    service.time += 1
    log_in()
    assert behind_login.get("/").status_code == 200


OPEN_ENDPOINTS = {
    "operations.live", "operations.metrics", "assets.static", "login.show", "login.log_in", "login.begin",
    "login.finish", "documents.show",
}  # fmt: skip
"""What a visitor without a login may see: probes, the login itself, and what is the same for every visitor."""


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YWRhOndyb25n"}])
def test_every_route_but_the_open_ones_needs_a_login(behind_login, nsqd, headers):
    routes = [
        (rule.endpoint, method, re.sub("<[^>]*>", "x", rule.rule))
        for rule in behind_login.application.url_map.iter_rules()
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
    ]
    assert len(routes) > 40
    assert {endpoint for endpoint, *_ in routes} > OPEN_ENDPOINTS
    for endpoint, method, path in routes:
        answer = behind_login.open(path, method=method, headers=headers)
        if endpoint not in OPEN_ENDPOINTS:
            is_login = answer.status_code == 302 and answer.headers["Location"].startswith("/login")
            assert is_login or answer.status_code in (401, 429), (method, path)
    assert nsqd.orders == []


def test_a_visitor_has_few_requests_answered_at_once_whatever_its_address_and_too_many_are_refused(
    behind_login, service, monkeypatch
):
    entered: list[Requester] = []

    def enter(queue: RequestQueue, visitor: Requester, client_is_gone: Callable[[], bool]) -> bool:
        entered.append(visitor)
        if visitor.name == "user olga":
            raise TooMany
        if client_is_gone():
            raise ClientIsGone
        return False

    left: list[Requester] = []
    monkeypatch.setattr(RequestQueue, "enter", enter)
    monkeypatch.setattr(RequestQueue, "leave", lambda queue, visitor: left.append(visitor))
    for address in ("10.0.0.1", "10.0.0.2"):
        assert (
            behind_login.get("/topics", auth=("vic", "vic-pw"), environ_base={"REMOTE_ADDR": address}).status_code
            == 200
        )
    refused = behind_login.get("/topics", auth=("olga", "olga-pw"))
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    gone = behind_login.get(
        "/api/topics", auth=("ada", "ada-pw"), environ_base={"nsqadmin.client_is_gone": lambda: True}
    )
    assert gone.status_code == 503
    vic, olga, ada = (Requester(f"user {name}", MAX_OF_USER) for name in ("vic", "olga", "ada"))
    assert entered == [vic, vic, olga, ada]
    assert left == [vic, vic]
    for path in ("/ping", "/login", "/static/nsqadmin.css", "/docs"):  # without a login
        assert behind_login.get(path).status_code == 200
    assert len(entered) == 4


@pytest.mark.parametrize("ends", ["token", "user", "role"])
def test_a_request_that_waits_changes_nothing_once_its_token_or_user_is_gone(
    behind_login, nsqd, service, access, monkeypatch, ends
):
    service.access = access

    def enter(queue: RequestQueue, visitor: Requester, client_is_gone: Callable[[], bool]) -> bool:
        if ends == "token":
            access.tokens = Tokens("")
        else:
            service.users = Users(make_line("olga", "viewer", "olga-pw") if ends == "role" else "")
        return True

    monkeypatch.setattr(RequestQueue, "enter", enter)
    monkeypatch.setattr(RequestQueue, "leave", lambda queue, visitor: None)
    if ends == "token":
        assert with_token(behind_login, PAUSE, "operate") == 401
    else:
        assert status(behind_login, PAUSE, ("olga", "olga-pw")) == (403 if ends == "role" else 401)
    assert nsqd.orders == []


def test_a_user_that_is_removed_while_its_password_is_checked_changes_nothing(behind_login, nsqd, service, monkeypatch):
    check, files = service.password_check.log_in, [Users(""), Users(USERS)]

    def log_in(users: Users, *credentials: object) -> Role:
        """The user file is replaced twice, in each of the first two checks."""
        role: Role = check(users, *credentials)
        if files:
            service.users = files.pop()
        return role

    monkeypatch.setattr(service.password_check, "log_in", log_in)
    assert status(behind_login, PAUSE, ("olga", "olga-pw")) == 401
    assert nsqd.orders == []


@pytest.mark.parametrize(
    ("address", "visitor"), [("10.0.0.1", "address 10.0.0.1"), ("2001:db8::1:2:3:4", "address 2001:db8::/64")]
)
def test_without_logins_a_visitor_is_an_address_whatever_name_it_gives(browser, monkeypatch, address, visitor):
    entered: list[Requester] = []
    monkeypatch.setattr(RequestQueue, "enter", lambda queue, visitor, gone: entered.append(visitor))
    monkeypatch.setattr(RequestQueue, "leave", lambda queue, visitor: None)
    browser.get(
        "/topics",
        environ_base={"REMOTE_ADDR": address},
        headers={"X-Forwarded-User": "eve", "Authorization": "Bearer x"},
    )
    assert entered == [Requester(visitor, MAX_OF_ADDRESS)]


def test_a_request_that_fails_leaves_the_queue(browser, service):
    queue = browser.application.extensions["requests"]
    for _ in range(10):
        assert browser.get("/topics/unknown").status_code == 404
        assert browser.post("/topics", data={}).status_code == 403
    assert (queue.waiting, queue.enter(Requester("address 127.0.0.1", 1))) == (0, False)


def test_what_only_some_visitors_may_see_is_not_kept_by_browsers_and_proxies(behind_login):
    for path in ("/", "/topics", "/api/topics", "/api/counter", "/config/log_level"):
        assert behind_login.get(path, auth=("ada", "ada-pw")).headers["Cache-Control"] == "no-store"
    assert behind_login.get("/static/nsqadmin.css").headers["Cache-Control"] == "max-age=300"
