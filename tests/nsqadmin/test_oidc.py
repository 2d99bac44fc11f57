"""Login by OpenID Connect, with a provider and an nsqadmin that are processes."""

import html
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest

from nsq_compat.web.admin.users import make_line
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from tests.nsqadmin.conftest import PATIENCE
from tests.nsqadmin.oidc_provider import CLIENT_ID, SECRET

OLGA = {"sub": "0815", "preferred_username": "olga", "groups": ["staff", "nsq-operators"]}


class ProviderProcess:
    def __init__(self) -> None:
        program = Path(__file__).with_name("oidc_provider.py")
        self.process = subprocess.Popen(
            [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def does(self, **control: object) -> list[str]:
        """Choose what it does from now on; return the paths that it was asked for."""
        request = Request(
            f"{self.url}/control", json.dumps(control).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urlopen(request, timeout=PATIENCE) as answer:
            asked: list[str] = json.load(answer)["asked"]
            return asked

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def running() -> Iterator[ProviderProcess]:
    provider = ProviderProcess()
    yield provider
    provider.stop()


@pytest.fixture
def provider(running: ProviderProcess) -> ProviderProcess:
    running.does(claims=OLGA)
    return running


def flags(url: str, folder: Path) -> list[str]:
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n")
    users = folder / "users"
    users.write_text(make_line("ada", "admin", "secret"))
    return [
        *("--nsqd-http-address=127.0.0.1:1", "--sample-interval=0s", f"--user-file={users}"),
        *(f"--oidc-issuer={url}", f"--oidc-client-id={CLIENT_ID}", f"--oidc-client-secret-file={secret}"),
        *("--oidc-role-map=nsq-admins=admin", "--oidc-role-map=nsq-operators=operator", "--oidc-role-map=staff=viewer"),
    ]


@pytest.fixture(scope="module")
def nsqadmin(running: ProviderProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqadminProcess]:
    options = flags(running.url, tmp_path_factory.mktemp("oidc"))
    with NsqadminProcess(installed_nsqadmin(), options=options) as process:
        yield process


class Browser:
    """Follows the login step by step, as a browser does, with the cookies of nsqadmin."""

    def __init__(self, nsqadmin: NsqadminProcess) -> None:
        self.nsqadmin, self.cookie = nsqadmin, ""

    def opens(self, path, method="GET", **form):
        headers = {"Accept": "text/html", "Cookie": self.cookie, "Content-Type": "application/x-www-form-urlencoded"}
        answer = self.nsqadmin.asks(method, path, urlencode(form).encode(), **headers)
        for each in answer.headers.get_all("Set-Cookie", ()):
            self.cookie = each.partition(";")[0]
        return answer

    def goes_to_the_provider(self, next_path="/topics"):
        """Return where the provider sends the browser back to."""
        answer = self.opens(f"/login/provider?next={next_path}")
        assert answer.status == 302
        return came_back(answer.headers["Location"])

    def logs_in(self):
        return self.opens(self.goes_to_the_provider())

    @property
    def role(self):
        """As the pages show it; empty without a login."""
        text = self.opens("/docs").body.decode()
        return text.partition('class="visitor">')[2].partition("<")[0]


def came_back(url):
    """The path and query at nsqadmin to which the provider redirects."""
    provider = urlsplit(url)
    connection = http.client.HTTPConnection(provider.netloc, timeout=PATIENCE)
    try:
        connection.request("GET", f"{provider.path}?{provider.query}")
        answer = connection.getresponse()
        assert answer.status == 302, answer.read()
        target = urlsplit(answer.headers["Location"])
    finally:
        connection.close()
    return f"{target.path}?{target.query}"


@pytest.fixture
def browser(provider, nsqadmin):
    return Browser(nsqadmin)


def text_of(answer):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.unescape(answer.body.decode())))


# --- Logins that succeed ----------------------------------------------------------------------------------------------


def test_a_login_has_the_highest_role_of_its_claim_and_leads_to_the_page_requested_before(browser, provider):
    assert "Log in at 127.0.0.1:" in text_of(browser.opens("/login"))
    answer = browser.opens(browser.goes_to_the_provider("/topics?span=24h"))
    assert (answer.status, answer.headers["Location"]) == (303, "/topics?span=24h")
    assert browser.role == "olga (operator)"
    assert browser.nsqadmin.logs(
        f"logged in as olga (operator) at {provider.url.removeprefix('http://')}, where it is '0815'"
    )


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({"groups": "nsq-admins"}, "olga (admin)"),
        ({"groups": ["staff", 7, None, {"nsq-admins": 1}]}, "olga (viewer)"),
        ({"preferred_username": None, "email": "o@example.com"}, "o@example.com (operator)"),
        ({"preferred_username": "ada\nadmin" + "x" * 100}, "ada?admin" + "x" * 55 + " (operator)"),
        ({"preferred_username": ["x"]}, "0815 (operator)"),
    ],
)
def test_claims_become_a_name_and_a_role(browser, provider, claims, role):
    provider.does(claims=OLGA | claims)
    browser.logs_in()
    assert browser.role == role


def test_a_claim_that_only_user_info_has_is_asked_there(browser, provider):
    provider.does(claims={"sub": "1", "preferred_username": "una"}, user_info={"groups": ["nsq-admins"]})
    browser.logs_in()
    assert browser.role == "una (admin)"
    provider.does(claims={"sub": "1"}, user_info={"sub": "2", "groups": ["nsq-admins"]})
    other = Browser(browser.nsqadmin)
    assert other.logs_in().status == 403
    assert other.role == ""


def test_new_keys_of_the_provider_are_fetched(browser, provider):
    browser.logs_in()
    provider.does(claims=OLGA, rotate=True)
    other = Browser(browser.nsqadmin)
    other.logs_in()
    assert other.role == "olga (operator)"


def test_local_users_log_in_beside_the_provider(browser):
    token = browser.opens("/login").body.decode().partition('name="csrf" value="')[2].partition('"')[0]
    assert browser.opens("/login", "POST", csrf=token, name="ada", password="secret").status == 303
    assert browser.role == "ada (admin)"


def test_the_audit_log_tells_an_account_from_a_user_of_the_same_name(browser, provider):
    provider.does(claims={**OLGA, "preferred_username": "ada"})
    browser.logs_in()
    token = browser.opens("/docs").body.decode().partition('name="csrf" value="')[2].partition('"')[0]
    assert browser.opens("/logout", "POST", csrf=token).status == 303
    assert browser.nsqadmin.logs("AUDIT: ada '0815' logged out")


def test_a_logout_ends_the_login_and_offers_to_end_that_at_the_provider(browser, provider):
    browser.logs_in()
    copied = Browser(browser.nsqadmin)
    copied.cookie = browser.cookie
    token = browser.opens("/docs").body.decode().partition('name="csrf" value="')[2].partition('"')[0]
    answer = browser.opens("/logout", "POST", csrf=token)
    assert answer.status == 303
    page = browser.opens(answer.headers["Location"])
    (found,) = re.findall(r'href="([^"]*/end[^"]*)"', page.body.decode())
    link = html.unescape(found)
    assert link.startswith(f"{provider.url}/end?")
    query = parse_qs(urlsplit(link).query)
    assert query == {
        "client_id": [CLIENT_ID],
        "post_logout_redirect_uri": [f"http://{browser.nsqadmin.http_address}/login"],
    }
    assert (browser.role, copied.role) == ("", "")


# --- Logins that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"id_token": {"aud": "other"}}, "aud"),
        ({"id_token": {"aud": ["other", "another"]}}, "aud"),
        ({"id_token": {"aud": [CLIENT_ID, "other"], "azp": "other"}}, "azp"),
        ({"id_token": {"aud": [CLIENT_ID, "other"]}}, "azp"),
        ({"id_token": {"aud": None}}, "aud"),
        ({"id_token": {"iss": "https://evil.example"}}, "iss"),
        ({"id_token": {"exp": int(time.time()) - 3600}}, "expired"),
        ({"id_token": {"exp": None}}, "exp"),
        ({"id_token": {"exp": "never"}}, "exp"),
        ({"id_token": {"iat": int(time.time()) + 3600}}, "future"),
        ({"id_token": {"nbf": int(time.time()) + 3600}}, "not valid"),
        ({"id_token": {"nonce": "other"}}, "nonce"),
        ({"id_token": {"nonce": None}}, "nonce"),
        ({"id_token": {"at_hash": "other"}}, "at_hash"),
        ({"id_token": {"sub": None}}, "sub"),
        ({"sign": "none"}, "not valid"),
        ({"sign": "hmac"}, "not valid"),
        ({"sign": "unknown"}, "not valid"),
    ],
)
def test_an_id_token_that_is_not_valid_is_refused(browser, provider, fault, reason):
    provider.does(claims=OLGA, **fault)
    answer = browser.logs_in()
    assert answer.status == 403
    assert "is not valid" in text_of(answer)
    assert reason in text_of(answer)
    assert browser.role == ""


@pytest.mark.parametrize(
    "claims", [{"groups": None}, {"groups": []}, {"groups": ["NSQ-ADMINS", "others"]}, {"groups": {"nsq-admins": True}}]
)
def test_an_account_without_a_mapped_claim_has_no_role_and_is_told_so(browser, provider, claims):
    provider.does(claims=OLGA | claims)
    answer = browser.logs_in()
    assert answer.status == 403
    assert "has confirmed that you are olga, but this account has no role in nsqadmin" in text_of(answer)
    assert browser.role == ""
    assert browser.opens("/topics").status == 302


def test_a_state_is_accepted_once(browser):
    before = None
    path = browser.goes_to_the_provider()
    before = browser.cookie
    assert browser.opens(path).status == 303
    replayed = Browser(browser.nsqadmin)
    replayed.cookie = before
    answer = replayed.opens(path)
    assert answer.status == 403
    assert "took too long, or was begun in another window" in text_of(answer)
    assert replayed.role == ""


def test_a_login_that_another_browser_has_begun_is_refused(browser, provider):
    """A page of another site could otherwise log a visitor in as the attacker."""
    path = browser.goes_to_the_provider()
    for victim in (Browser(browser.nsqadmin), Browser(browser.nsqadmin)):
        if victim.cookie == "":
            victim.goes_to_the_provider()
        asked = provider.does(claims=OLGA).count("/token")
        assert victim.opens(path).status == 403
        assert victim.role == ""
        # Not even the provider is asked.
        assert provider.does(claims=OLGA).count("/token") == asked
    assert browser.opens(path).status == 303


@pytest.mark.parametrize("query", ["", "?code=x", "?state=x&code=x", "?state=&code=x", "?error=x", "?state=%ff"])
def test_a_callback_without_a_login_is_refused(browser, query):
    assert browser.opens(f"/login/callback{query}").status == 403


def test_a_code_of_another_login_is_refused_by_its_verifier(browser):
    other = Browser(browser.nsqadmin)
    stolen = parse_qs(urlsplit(other.goes_to_the_provider()).query)["code"][0]
    state = parse_qs(urlsplit(browser.goes_to_the_provider()).query)["state"][0]
    answer = browser.opens(f"/login/callback?{urlencode({'code': stolen, 'state': state})}")
    assert answer.status == 403
    assert 'did not confirm the login: "wrong verifier".' in text_of(answer)


def test_an_answer_that_names_another_issuer_is_refused(browser, provider):
    provider.does(claims=OLGA, answer={"iss": "https://evil.example"})
    answer = browser.logs_in()
    assert (answer.status, "is not from" in text_of(answer)) == (403, True)


def test_a_refusal_of_the_provider_is_shown_as_text(browser, provider):
    provider.does(claims=OLGA, refuse="access_denied")
    answer = browser.logs_in()
    assert answer.status == 403
    assert b"&lt;b&gt;not today&lt;/b&gt;" in answer.body


@pytest.mark.parametrize(("endpoint", "status"), [("token", 500), ("token", 200), ("jwks", 503), ("userinfo", 500)])
def test_an_endpoint_that_fails_is_named_and_nobody_is_logged_in(browser, provider, endpoint, status):
    provider.does(claims={"sub": "1"}, status={endpoint: status}, rotate=True)
    answer = browser.logs_in()
    assert answer.status in (403, 502)
    assert "127.0.0.1:" in text_of(answer)
    assert browser.role == ""


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example", "/\\evil.example"])
def test_a_login_does_not_lead_to_another_site(browser, elsewhere):
    assert browser.opens(browser.goes_to_the_provider(elsewhere)).headers["Location"] == "/"


# --- A provider that does not answer ----------------------------------------------------------------------------------


def test_a_provider_that_does_not_answer_is_named_and_local_users_can_log_in(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    browser = Browser(start(*flags(url, tmp_path)))
    answer = browser.opens("/login/provider")
    assert answer.status == 502
    assert f"The login provider {url.removeprefix('http://')} does not answer" in text_of(answer)
    assert "connection refused" in text_of(answer)
    assert 'name="password"' in answer.body.decode()


def test_a_provider_that_hangs_delays_no_other_requests_and_is_given_up(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        browser = Browser(start(*flags(url, tmp_path), "--http-client-request-timeout=2s"))
        answers = []
        login = threading.Thread(target=lambda: answers.append(browser.opens("/login/provider")))
        login.start()
        with deaf.accept()[0]:
            assert browser.nsqadmin.get("/ping") == "OK"
            assert not answers
            login.join(PATIENCE)
    assert answers[0].status == 502
    assert "timeout" in text_of(answers[0])


def test_a_server_that_is_another_provider_is_refused(provider, start, tmp_path):
    provider.does(claims=OLGA, metadata={"issuer": "https://accounts.example.com"})
    answer = Browser(start(*flags(provider.url, tmp_path))).opens("/login/provider")
    assert answer.status == 502
    assert "is not the provider of --oidc-issuer" in text_of(answer)


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ({"userinfo_endpoint": 5}, 502),
        ({"userinfo_endpoint": "ftp://127.0.0.1/userinfo"}, 502),
        ({"token_endpoint_auth_methods_supported": 5, "id_token_signing_alg_values_supported": {}}, 403),
    ],
)
def test_a_description_with_other_types_fails_no_request(provider, start, tmp_path, metadata, status):
    provider.does(claims={"sub": "1"}, metadata=metadata)
    assert Browser(start(*flags(provider.url, tmp_path))).logs_in().status == status


# --- Logins and configuration -----------------------------------------------------------------------------------------


def test_logins_end_when_the_roles_are_mapped_differently(provider, start, tmp_path):
    given = [*flags(provider.url, tmp_path), f"--session-file={tmp_path}/sessions"]
    browser = Browser(start(*given))
    browser.logs_in()
    browser.nsqadmin = start(*given)
    assert browser.role == "olga (operator)"
    browser.nsqadmin = start(*given, "--oidc-role-map=others=viewer")
    assert browser.role == ""


def test_every_account_has_the_role_of_an_asterisk_and_there_may_be_no_local_users(provider, start, tmp_path):
    provider.does(claims={"sub": "eve"})
    given = [flag for flag in flags(provider.url, tmp_path) if not flag.startswith("--user-file")]
    browser = Browser(start(*given, "--oidc-role-map=*=viewer"))
    assert "password" not in text_of(browser.opens("/login"))
    assert browser.nsqadmin.asks("GET", "/api/topics").status == 401
    assert browser.nsqadmin.asks("GET", "/api/topics", b"", **{"X-Forwarded-User": "ada"}).status == 401
    assert browser.opens("/login", "POST", name="ada", password="x").status == 404
    browser.logs_in()
    assert browser.role == "eve (viewer)"
    token = browser.opens("/docs").body.decode().partition('name="csrf" value="')[2].partition('"')[0]
    assert browser.opens("/topics/orders", "POST", csrf=token, action="delete").status == 403


def test_the_secret_is_read_from_the_environment_and_is_shown_nowhere(provider, tmp_path, monkeypatch):
    given = [flag for flag in flags(provider.url, tmp_path) if "secret-file" not in flag]
    monkeypatch.setenv("NSQADMIN_OIDC_CLIENT_SECRET", SECRET)
    with NsqadminProcess(installed_nsqadmin(), options=[*given, "--log-level=debug"]) as process:
        browser = Browser(process)
        browser.logs_in()
        assert browser.role == "olga (operator)"
        assert not process.logs(SECRET)
    monkeypatch.setenv("NSQADMIN_OIDC_CLIENT_SECRET", "wrong")
    with NsqadminProcess(installed_nsqadmin(), options=given) as process:
        answer = Browser(process).logs_in()
        assert 'did not confirm the login: "invalid_client".' in text_of(answer)
