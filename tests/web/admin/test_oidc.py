"""What the client of OpenID Connect remembers and bounds; tests/nsqadmin/test_oidc.py has the logins."""

import threading

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey, JWKRegistry, OctKey
from joserfc.jws import JWSRegistry

from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.web.admin import oidc
from nsq_compat.web.admin.oidc import MAX_CONCURRENT, Provider, Settings, values_of
from nsq_compat.web.admin.users import LoginFailed, Role, parse_role
from tests.cluster.daemon import Daemon


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("groups", ("a", "b")),
        ("role", ("x",)),
        ("realm_access.roles", ("y",)),
        ("https://example.com/roles", ("z",)),
        ("number", ()),
        ("realm_access", ()),
        ("realm_access.none", None),
        ("role.x", None),
        ("none", None),
    ],
)
def test_a_claim_or_a_part_of_one_has_texts(name, values):
    claims = {
        "groups": ["a", 1, "b", None],
        "role": "x",
        "realm_access": {"roles": ["y"]},
        "https://example.com/roles": ["z"],
        "number": 7,
    }
    assert values_of(claims, name) == values


def test_a_role_map_is_read_from_the_right():
    assert parse_role("cn=admins,dc=example=admin") == ("cn=admins,dc=example", Role.ADMIN)
    for text in ("", "admin", "=admin", "a=", "a=king", "a=Admin", "a=none"):
        with pytest.raises(ValueError, match="must be value=role"):
            parse_role(text)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def daemon():
    with Daemon() as daemon:
        yield daemon


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def provider(daemon, clock):
    issuer = f"http://{daemon.address}"
    settings = Settings(issuer, "nsqadmin", "", "groups", (("*", Role.VIEWER),), "openid")
    described = {"issuer": issuer, "authorization_endpoint": f"{issuer}/authorize", "token_endpoint": f"{issuer}/token"}
    daemon.says(".well-known/openid-configuration", described)
    return Provider(settings, HttpClient(request_timeout=20), clock)


def asked(daemon, path):
    return sum(path in heard for heard in daemon.heard)


def test_the_description_of_the_provider_is_asked_once_an_hour(provider, daemon, clock):
    for _ in range(3):
        provider.begin("http://localhost/login/callback")
    assert asked(daemon, "openid-configuration") == 1
    clock.now += 3600
    provider.begin("http://localhost/login/callback")
    assert asked(daemon, "openid-configuration") == 2


def test_a_provider_that_has_failed_is_not_asked_by_every_visitor(provider, daemon, clock):
    daemon.says(".well-known/openid-configuration", b"", 500)
    for _ in range(3):
        with pytest.raises(LoginFailed, match="is not the provider"):
            provider.begin("http://localhost/login/callback")
    assert asked(daemon, "openid-configuration") == 1
    clock.now += 3
    with pytest.raises(LoginFailed):
        provider.begin("http://localhost/login/callback")
    assert asked(daemon, "openid-configuration") == 2


def test_a_login_that_took_too_long_is_refused(provider, clock):
    _, attempt = provider.begin("http://localhost/login/callback")
    clock.now += 600
    with pytest.raises(LoginFailed, match="took too long"):
        provider.finish(attempt, {"state": attempt["state"], "code": "x"}, "http://localhost/login/callback")


def test_a_symmetric_signature_is_refused_even_if_the_provider_has_no_other(provider, daemon, clock):
    issuer = provider.settings.issuer
    key = OctKey.generate_key(256)
    daemon.says(
        ".well-known/openid-configuration",
        {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "jwks_uri": f"{issuer}/keys",
            "id_token_signing_alg_values_supported": ["HS256"],
        },
    )
    daemon.says("keys", {"keys": [key.as_dict(private=True)]})
    _, attempt = provider.begin("http://localhost/login/callback")
    claims = {"iss": issuer, "aud": "nsqadmin", "sub": "1", "nonce": attempt["nonce"], "iat": 1000, "exp": 2000}
    daemon.says("token", {"access_token": "a", "id_token": jwt.encode({"alg": "HS256"}, claims, key)})
    with pytest.raises(LoginFailed, match="Algorithm of 'HS256' is not allowed"):
        provider.finish(attempt, {"state": attempt["state"], "code": "x"}, "http://localhost/login/callback")


@pytest.fixture
def log_in(provider, daemon):
    """Log in with an ID token that `key` signs, while the provider publishes `keys`."""
    issuer = provider.settings.issuer
    described = {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "jwks_uri": f"{issuer}/keys",
    }
    daemon.says(".well-known/openid-configuration", described)

    def log_in(key, keys, **more):
        daemon.says("keys", keys)
        _, attempt = provider.begin("http://localhost/login/callback")
        claims = {"iss": issuer, "aud": "nsqadmin", "sub": "1", "nonce": attempt["nonce"], "iat": 1000, "exp": 2000}
        head = {"alg": "ES256", **more} | ({"kid": key.kid} if key.kid else {})
        registry = JWSRegistry()
        registry.max_header_length = 100_000
        daemon.says("token", {"access_token": "a", "id_token": jwt.encode(head, claims, key, registry=registry)})
        answer = {"state": attempt["state"], "code": "x"}
        return provider.finish(attempt, answer, "http://localhost/login/callback").role

    return log_in


def key_of(name):
    return ECKey.generate_key("P-256", {"kid": name} if name else None)


def published(*keys):
    return {"keys": [key.as_dict(private=False) for key in keys]}


@pytest.mark.parametrize("name", ["signing", ""])
def test_a_new_key_may_have_the_id_of_the_old_one_or_none(log_in, daemon, name):
    for _ in range(2):
        key = key_of(name)
        assert log_in(key, published(key)) is Role.VIEWER
        assert log_in(key, published(key)) is Role.VIEWER
    assert asked(daemon, "keys") == 2


@pytest.mark.parametrize(
    "other",
    [
        *(None, 7, {}, {"kty": "AKP"}, {"kty": ["EC"]}, {"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"}),
        *({"kty": "RSA", "n": "*", "e": "AQAB"}, {"kty": "EC", "crv": "P-256", "x": 7, "y": "AA"}),
    ],
)
def test_a_key_that_cannot_be_used_leaves_the_others(log_in, other):
    key = key_of("signing")
    assert log_in(key, {"keys": [other, *published(key)["keys"]]}) is Role.VIEWER


def test_private_parts_of_keys_are_not_read(log_in, monkeypatch):
    key, imported = key_of("signing"), []
    import_key = JWKRegistry.import_key

    def note(published):
        imported.append(published)
        return import_key(published)

    monkeypatch.setattr(JWKRegistry, "import_key", note)
    assert log_in(key, {"keys": [key.as_dict(private=True)]}) is Role.VIEWER
    assert [each.keys() & {"x", "d"} for each in imported] == [{"x"}]


def test_only_the_first_hundred_keys_are_used(log_in, caplog):
    key, other, late = key_of("signing"), key_of("other"), key_of("late")
    keys = [*published(other)["keys"] * 99, *published(key)["keys"]]
    assert log_in(key, {"keys": keys}) is Role.VIEWER
    with pytest.raises(LoginFailed, match="is not valid"):
        log_in(late, {"keys": [*keys, *published(late)["keys"]]})
    assert "has 101 keys, only 100 are used" in caplog.text


@pytest.mark.parametrize("keys", [{}, {"keys": 7}, {"keys": []}, {"keys": [{}]}])
def test_an_answer_without_keys_is_not_kept(log_in, keys):
    key = key_of("signing")
    with pytest.raises(LoginFailed, match="sent no usable key"):
        log_in(key, keys)
    assert log_in(key, published(key)) is Role.VIEWER


def test_an_id_token_may_have_the_certificates_of_its_key(log_in):
    key = key_of("signing")
    assert log_in(key, published(key), x5c=["A" * 2000] * 3) is Role.VIEWER


def test_an_id_token_of_many_levels_is_refused(log_in, monkeypatch):
    key = key_of("signing")
    monkeypatch.setattr(jwt, "encode", lambda head, claims, key, **_: jws.serialize_compact(head, "[" * 100_000, key))
    with pytest.raises(LoginFailed, match="is not valid"):
        log_in(key, published(key))


def test_used_states_are_remembered_in_bounded_space(provider, daemon, monkeypatch):
    monkeypatch.setattr(oidc, "_MAX_USED", 5)
    daemon.says("token", {"error": "invalid_grant"}, 400)
    for _ in range(8):
        _, attempt = provider.begin("http://localhost/login/callback")
        with pytest.raises(LoginFailed, match='did not confirm the login: "invalid_grant"'):
            provider.finish(attempt, {"state": attempt["state"], "code": "x"}, "http://localhost/login/callback")
    assert len(provider._used) == 5


def test_more_logins_at_once_than_the_limit_are_refused(provider, monkeypatch):
    arrived, may_end = threading.Semaphore(0), threading.Event()

    def wait(self, client):
        arrived.release()
        assert may_end.wait(50)
        return {"authorization_endpoint": "http://localhost/"}

    monkeypatch.setattr(Provider, "_known", wait)
    logins = [threading.Thread(target=provider.begin, args=("http://localhost/",)) for _ in range(MAX_CONCURRENT)]
    for login in logins:
        login.start()
        assert arrived.acquire(timeout=50)
    with pytest.raises(LoginFailed, match="Many logins are under way") as refused:
        provider.begin("http://localhost/")
    assert refused.value.status == 503
    may_end.set()
    for login in logins:
        login.join(50)


@pytest.mark.parametrize("endpoint", [None, 7, "", "/authorize", "javascript:alert(1)", "file:///etc/passwd"])
def test_an_endpoint_that_is_no_url_is_refused(provider, daemon, endpoint):
    issuer = f"http://{daemon.address}"
    daemon.says(".well-known/openid-configuration", {"issuer": issuer, "authorization_endpoint": endpoint})
    with pytest.raises(LoginFailed, match="no usable authorization_endpoint"):
        provider.begin("http://localhost/login/callback")
