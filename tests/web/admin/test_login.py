import pytest

from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.users import Users, make_line
from tests.web.admin.conftest import Form


@pytest.fixture
def browser(service):
    service.users = Users(make_line("ada", "admin", "secret") + "\n" + make_line("vic", "viewer", "v"))
    return create_app(service).test_client()


@pytest.fixture
def submit(browser):
    return Form(browser)


def test_logging_in_leads_where_one_wanted_to_go(browser, submit):
    answer = submit("/login", "/login", name="ada", password="secret", next="/topics/orders?span=24h")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/topics/orders?span=24h")
    page = browser.get("/topics/orders").text
    assert "Log out" in page
    assert "Delete…" in page


def test_a_wrong_password_is_said_without_saying_what_is_wrong(submit):
    wrong = submit("/login", "/login", name="ada", password="x")
    nobody = submit("/login", "/login", name="eve", password="x")
    assert wrong.status_code == nobody.status_code == 401
    assert "Wrong user name or password" in wrong.text
    assert "Wrong user name or password" in nobody.text


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example", "evil"])
def test_nobody_is_sent_to_another_site(submit, elsewhere):
    answer = submit("/login", "/login", name="ada", password="secret", next=elsewhere)
    assert answer.headers["Location"] == "/"


def test_logging_out_ends_it(browser, submit):
    submit("/login", "/login", name="ada", password="secret")
    assert browser.get("/topics").status_code == 200
    assert submit("/logout", "/topics").status_code == 303
    assert browser.get("/topics").status_code == 302


def test_a_user_taken_from_the_file_is_out_at_once(browser, service, submit):
    submit("/login", "/login", name="vic", password="v")
    assert browser.get("/topics").status_code == 200
    service.users = Users(make_line("ada", "admin", "secret"))
    assert browser.get("/topics").status_code == 302


def test_the_cookie_is_not_for_scripts_nor_for_other_sites(browser, submit):
    cookie = submit("/login", "/login", name="ada", password="secret").headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_without_a_user_file_there_is_no_login(service):
    service.users = None
    assert create_app(service).test_client().get("/login").status_code == 404


def test_who_only_tries_is_not_listened_to(browser, submit):
    for _ in range(10):
        assert submit("/login", "/login", name="ada", password="x").status_code == 401
    assert submit("/login", "/login", name="ada", password="secret").status_code == 429
    assert browser.get("/api/topics", auth=("ada", "secret")).status_code == 429
    assert browser.get("/api/topics", auth=("vic", "v")).status_code == 200
    page = browser.get("/topics", auth=("ada", "secret"), headers={"Accept": "text/html"})
    assert (page.status_code, "Wait a minute" in page.text) == (429, True)
