"""Login by OpenID Connect: the authorization code flow with PKCE, state and nonce, at one provider.

`begin` makes the URL to which the browser goes, and what its cookie must keep. `finish` checks what the browser brings
back, and returns the account. The requests to the provider are ours (`HttpClient`), with one deadline for a step of a
login; Authlib makes their content, and checks the answers.

Invariants:

- A state is accepted once, within `_ATTEMPT_SECONDS`, and from the browser whose cookie has it.
- An ID token is accepted only with an asymmetric signature of a key that the provider publishes, for our client, from
  the configured issuer, with the nonce of the attempt.
"""

import hmac
import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from authlib.oauth2.client import OAuth2Client
from authlib.oauth2.rfc6749.parameters import prepare_token_request
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, KeySet
from joserfc.jws import JWSRegistry

from nsq_compat.cluster import reading
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.cluster.reading import InvalidAnswer, UpstreamError
from nsq_compat.web.admin.users import Account, LoginFailed, Role

log = logging.getLogger(__name__)

ANY: Final = "*"
"""In place of a claim's value: every account has the role."""
MAX_CONCURRENT: Final = 16
"""Logins that ask the provider at the same time."""
_ATTEMPT_SECONDS: Final = 600.0
_METADATA_SECONDS: Final = 3600.0
_PAUSE_SECONDS: Final = 2.0
"""A provider that has failed is not asked again for this time."""
_LEEWAY_SECONDS: Final = 60
"""By which the clocks may differ."""
_MAX_USED: Final = 10_000
_MAX_NAME: Final = 64
_MAX_TEXT: Final = 300
_MAX_ROLES: Final = 10_000
_MAX_KEYS: Final = 100
"""Keys of the provider; providers publish some three."""
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})
"""Parameters of private keys, which take long to check (RFC 7518, section 6), and which no provider should publish."""
_MAX_HEADER: Final = 64 * 1024
"""Bytes of the head of an ID token, which may have the certificates of its key (`x5c`)."""
_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
_JSON: Final = {"Accept": "application/json"}
_INVALID: Final = (JoseError, ValueError, TypeError, KeyError, AttributeError)
"""What the libraries raise for a token or a key that is not valid."""


@dataclass(frozen=True, slots=True)
class Settings:
    issuer: str
    client_id: str
    client_secret: str
    """Empty for a public client."""
    role_claim: str
    roles: tuple[tuple[str, Role], ...]
    """Values of the claim, and what they permit."""
    scopes: str


class Provider:
    """The provider, the `access.LoginProvider` of the pages.

    `client` has the timeouts of its requests; `now` is in Unix seconds.
    """

    def __init__(self, settings: Settings, client: HttpClient, now: Callable[[], float]) -> None:
        self.settings = settings
        self.host = urlsplit(settings.issuer).netloc
        self.basis = repr((settings.issuer, settings.client_id, settings.role_claim, settings.roles)).encode()
        self._client = client
        self._now = now
        self._metadata: tuple[float, Mapping[str, Any]] | None = None
        self._keys: KeySet | None = None
        self._failure: tuple[float, str] | None = None
        self._used: dict[str, float] = {}
        self._free = threading.Semaphore(MAX_CONCURRENT)

    def begin(self, redirect_uri: str) -> tuple[str, dict[str, Any]]:
        """The URL of the provider's login page, and what the cookie keeps for `finish`. Raises `LoginFailed`."""
        with self._asking() as client:
            endpoint = self._endpoint(client, "authorization_endpoint")
        attempt = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
        oauth = OAuth2Client(
            None,
            self.settings.client_id,
            scope=self.settings.scopes,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
        )
        url, _ = oauth.create_authorization_url(
            endpoint, attempt["state"], code_verifier=attempt["verifier"], nonce=attempt["nonce"]
        )
        return url, {**attempt, "began": self._now()}

    def finish(self, attempt: Mapping[str, Any], answer: Mapping[str, str], redirect_uri: str) -> Account:
        """The account. `answer` has the parameters that the browser brought. Raises `LoginFailed`."""
        self._use(attempt, answer)
        if answer.get("iss", self.settings.issuer) != self.settings.issuer:
            raise LoginFailed(f"The answer is not from {self.settings.issuer}.")
        if error := answer.get("error"):
            raise LoginFailed(f"{self.host} refused the login: {_quoted(answer.get('error_description') or error)}.")
        with self._asking() as client:
            token = self._token(client, answer.get("code", ""), str(attempt["verifier"]), redirect_uri)
            claims = self._claims(client, token, str(attempt["nonce"]))
            values = values_of(claims, self.settings.role_claim)
            if values is None and self._known(client).get("userinfo_endpoint"):
                endpoint = self._endpoint(client, "userinfo_endpoint")
                values = values_of(self._user_info(client, endpoint, token, claims["sub"]), self.settings.role_claim)
        role = max((role for value, role in self.settings.roles if value in (ANY, *(values or ()))), default=Role.NONE)
        subject = str(claims["sub"])
        names = (claims.get(name) for name in ("preferred_username", "email", "name"))
        name = next((name for name in names if isinstance(name, str) and name), subject)
        return Account(subject, _shown(name)[:_MAX_NAME], role)

    def logout_url(self, return_to: str) -> str:
        """Where the user ends the login at the provider; empty if it does not say that."""
        try:
            with self._asking() as client:
                endpoint = self._endpoint(client, "end_session_endpoint")
        except LoginFailed:
            return ""
        query = urlencode({"client_id": self.settings.client_id, "post_logout_redirect_uri": return_to})
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"

    # --- The steps ----------------------------------------------------------------------------------------------------

    def _use(self, attempt: Mapping[str, Any], answer: Mapping[str, str]) -> None:
        """Check the state, which is accepted once."""
        now, state = self._now(), str(attempt.get("state", ""))
        self._used = {each: until for each, until in self._used.items() if until > now}
        if (
            not state
            or not hmac.compare_digest(state.encode(), answer.get("state", "").encode("utf-8", "replace"))
            or not attempt["began"] <= now < attempt["began"] + _ATTEMPT_SECONDS
            or state in self._used
        ):
            raise LoginFailed("This login took too long, or was begun in another window. Try again.")
        self._used[state] = attempt["began"] + _ATTEMPT_SECONDS
        if len(self._used) > _MAX_USED:
            del self._used[next(iter(self._used))]

    def _token(self, client: HttpClient, code: str, verifier: str, redirect_uri: str) -> Mapping[str, Any]:
        endpoint = self._endpoint(client, "token_endpoint")
        supported = self._supported(client, "token_endpoint_auth_methods_supported") or ("client_secret_basic",)
        method = "none"
        if self.settings.client_secret:
            method = "client_secret_basic" if "client_secret_basic" in supported else "client_secret_post"
        body = prepare_token_request("authorization_code", "", redirect_uri, code=code, code_verifier=verifier)
        headers = {**_JSON, "Content-Type": "application/x-www-form-urlencoded"}
        oauth = OAuth2Client(None, self.settings.client_id, self.settings.client_secret)
        url, headers, body = oauth.client_auth(method).prepare("POST", endpoint, headers, body)
        status, token = self._ask(client, "POST", url, headers, body.encode())
        if status != 200:
            why = _quoted(str(token.get("error_description") or token.get("error") or f"status {status}"))
            raise LoginFailed(f"{self.host} did not confirm the login: {why}.", 403 if status < 500 else 502)
        return token

    def _claims(self, client: HttpClient, token: Mapping[str, Any], nonce: str) -> Mapping[str, Any]:
        """The claims of the ID token, checked."""
        signed, settings = token.get("id_token"), self.settings
        supported = self._supported(client, "id_token_signing_alg_values_supported") or _ALGORITHMS
        # Without a name, the registry would permit its own choice, in which symmetric algorithms are.
        algorithms = [name for name in _ALGORITHMS if name in supported] or _ALGORITHMS
        registry = JWSRegistry(algorithms=algorithms, strict_check_header=False)
        registry.max_header_length = _MAX_HEADER
        options: Any = {
            "iss": {"essential": True, "value": settings.issuer},
            "aud": {"essential": True, "value": settings.client_id},
            "sub": {"essential": True},
        }
        expected = {"nonce": nonce, "client_id": settings.client_id, "access_token": token.get("access_token")}
        try:
            if not isinstance(signed, str):
                raise ValueError("there is no ID token")
            decoded = self._decoded(client, signed, registry)
            claims = CodeIDToken(decoded.claims, decoded.header, options, expected)
            claims.validate(int(self._now()), _LEEWAY_SECONDS)
        except (*_INVALID, RecursionError) as error:
            log.warning("OIDC: invalid ID token of %s - %s", settings.issuer, _shown(str(error)))
            raise LoginFailed(f"The ID token of {self.host} is not valid: {_shown(str(error))}.") from None
        found: Mapping[str, Any] = claims
        return found

    def _decoded(self, client: HttpClient, signed: str, registry: JWSRegistry) -> jwt.Token:
        """The ID token, its signature verified. New keys of the provider may have the ids of old ones, or none."""
        if self._keys is not None:
            with suppress(JoseError):
                return jwt.decode(signed, self._keys, registry=registry)
            self._keys = None
        return jwt.decode(signed, self._key_set(client), registry=registry)

    def _user_info(
        self, client: HttpClient, endpoint: str, token: Mapping[str, Any], subject: object
    ) -> Mapping[str, Any]:
        headers = {**_JSON, "Authorization": f"Bearer {token.get('access_token', '')}"}
        status, claims = self._ask(client, "GET", endpoint, headers)
        # Claims of another account must not be mixed in.
        return claims if status == 200 and claims.get("sub") == subject else {}

    # --- The provider's answers ---------------------------------------------------------------------------------------

    @contextmanager
    def _asking(self) -> Iterator[HttpClient]:
        """A client for the requests of one step, which end within its timeout."""
        if not self._free.acquire(blocking=False):
            raise LoginFailed("Many logins are under way. Try again in a moment.", 503)
        try:
            yield self._client.within(self._client.timeout)
        finally:
            self._free.release()

    def _ask(
        self, client: HttpClient, method: str, url: str, headers: dict[str, str], body: bytes | None = None
    ) -> tuple[int, dict[str, Any]]:
        """The status and the JSON object of an answer."""
        try:
            answer = client.exchange(method, url, body, headers)
            return answer.status, dict(reading.mapping(json.loads(answer.body))) if answer.body else {}
        except (UpstreamError, InvalidAnswer, ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, UpstreamError) else f'{method.title()} "{url}": not a JSON object'
        log.error("OIDC: %s", why)
        raise LoginFailed(f"The login provider {self.host} does not answer ({why}). Try again later.", 502)

    def _known(self, client: HttpClient) -> Mapping[str, Any]:
        """What the provider says about itself."""
        now = self._now()
        if self._metadata is not None and self._metadata[0] > now:
            return self._metadata[1]
        if self._failure is not None and self._failure[0] > now:
            raise LoginFailed(self._failure[1], 502)
        url = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
        try:
            status, metadata = self._ask(client, "GET", url, dict(_JSON))
            if status != 200 or metadata.get("issuer") != self.settings.issuer:
                why = (
                    f"status {status}"
                    if status != 200
                    else f"it names the issuer {_shown(str(metadata.get('issuer')))}"
                )
                log.error("OIDC: %s is not the description of %s - %s", url, self.settings.issuer, why)
                raise LoginFailed(f"{self.host} is not the provider of --oidc-issuer ({why}).", 502)
        except LoginFailed as failure:
            self._failure = now + _PAUSE_SECONDS, str(failure)
            raise
        self._metadata = now + _METADATA_SECONDS, metadata
        self._keys = None
        return metadata

    def _endpoint(self, client: HttpClient, name: str) -> str:
        endpoint = self._known(client).get(name)
        schemes = ("https", urlsplit(self.settings.issuer).scheme)
        if not isinstance(endpoint, str) or urlsplit(endpoint).scheme not in schemes:
            raise LoginFailed(f"The description of {self.host} has no usable {name}.", 502)
        return endpoint

    def _supported(self, client: HttpClient, name: str) -> list[object]:
        """A list in what the provider says about itself; empty if there is none."""
        found = self._known(client).get(name)
        return found if isinstance(found, list) else []

    def _key_set(self, client: HttpClient) -> KeySet:
        if self._keys is None:
            status, answer = self._ask(client, "GET", self._endpoint(client, "jwks_uri"), dict(_JSON))
            if status != 200:
                raise LoginFailed(f"{self.host} did not send its keys (status {status}).", 502)
            published = answer.get("keys")
            if not isinstance(published, list):
                published = []
            keys = [key for each in published[:_MAX_KEYS] if (key := _key(each))]
            if len(published) > _MAX_KEYS:
                log.warning("OIDC: %s has %d keys, only %d are used", self.host, len(published), _MAX_KEYS)
            if not keys:
                raise LoginFailed(f"{self.host} sent no usable key.", 502)
            self._keys = KeySet(keys)
        return self._keys


def _key(published: Any) -> Any:
    """A key of the provider; None if it is of an unknown kind or not valid, which must not make the others useless."""
    try:
        return JWKRegistry.import_key({name: each for name, each in published.items() if name not in _PRIVATE})
    except _INVALID:
        return None


def values_of(claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """The values of a claim, or of a part of one: `realm_access.roles`. None if there is no such claim."""
    found: Any = claims
    for part in (name,) if name in claims else name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    values = found if isinstance(found, list) else [found]
    return tuple(value for value in values[:_MAX_ROLES] if isinstance(value, str))


def _quoted(text: str) -> str:
    """What others say, which should not look like a sentence of nsqadmin."""
    return f'"{_shown(text).replace(chr(34), "?")}"'


def _shown(text: str) -> str:
    """Text of others, for a page or a log line."""
    return "".join(each if each.isprintable() else "?" for each in text[:_MAX_TEXT]).rstrip(".")
